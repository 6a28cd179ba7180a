"""Rows in an order that the seed and the position decide."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.data.order import Order

sizes, seeds, positions = st.integers(1, 50), st.integers(0, 2**32), st.integers(0, 200)


@settings(deadline=None)
@given(sizes, seeds, st.integers(0, 5))
def test_each_epoch_is_a_permutation(n, seed, epoch):
    assert sorted(Order(n, seed).take(epoch * n, n)) == list(range(n))


@settings(deadline=None)
@given(sizes, seeds, positions, st.lists(st.integers(0, 30), max_size=6))
def test_taking_in_parts_gives_the_same(n, seed, start, parts):
    whole, in_parts, position = Order(n, seed).take(start, sum(parts)), [], start
    order = Order(n, seed)
    for part in parts:
        in_parts += order.take(position, part)
        position += part
    assert in_parts == whole


@settings(deadline=None)
@given(sizes, seeds, positions, positions)
def test_a_position_gives_the_same_row_whatever_was_asked_before(n, seed, before, position):
    order = Order(n, seed)
    order.take(before, 3)
    assert order.take(position, 5) == Order(n, seed).take(position, 5)


def test_epochs_and_seeds_differ():
    order = Order(100, 0)
    assert order.take(0, 100) != order.take(100, 100)
    assert order.take(0, 100) != Order(100, 1).take(0, 100)
    assert all(type(row) is int for row in order.take(0, 3))
