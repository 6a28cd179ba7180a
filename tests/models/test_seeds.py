import numpy as np

from rlx_plugins.seeds import spread_seed, uniforms


def test_numbers_are_even_and_unrelated():
    seeds = np.array([[spread_seed(i)] for i in range(200)], np.uint64)
    drawn = uniforms(seeds, np.arange(500, dtype=np.uint64)[None])
    assert drawn.shape == (200, 500)
    assert 0 <= drawn.min() < drawn.max() < 1
    counts = np.histogram(drawn, bins=50, range=(0, 1))[0]
    expected = drawn.size / 50
    assert ((counts - expected) ** 2 / expected).sum() < 90, "chi-square with 49 degrees of freedom, p < 1e-3"
    for one, other in ((drawn[:-1], drawn[1:]), (drawn[:, :-1], drawn[:, 1:])):  # neighbours in seed and in place
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.02


def test_a_number_depends_on_its_own_seed_and_place_alone():
    seeds, places = np.array([5, 6, 2**62 + 1], np.uint64), np.array([0, 7, 3], np.uint64)
    assert uniforms(seeds, places).tolist() == [uniforms(seeds[i : i + 1], places[i : i + 1])[0] for i in range(3)]
    assert spread_seed(1) != spread_seed(2)
