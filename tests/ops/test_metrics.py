from dataclasses import dataclass, field

import pytest
import torch

from rlx.metrics import Accumulator, Phases
from rlx.ranks import Ranks
from rlx_sdk import Max, Mean, Min, Sum


@dataclass(frozen=True)
class Peers(Ranks):
    """Ranks that run one after the other: each hears what all of them said when they ran before."""

    said: list = field(default_factory=list)
    own: list = field(default_factory=list)

    def gather(self, value):
        self.own.append(value)
        return self.said or [value]


def over_ranks(ranks):
    """What each rank reports, given the list of its micro-batches' metrics."""

    def run(said):
        results, heard = [], []
        for micro in ranks:
            peers = Peers(world=len(ranks), said=said)
            found = Accumulator(peers)
            for metrics in micro:
                found.add(metrics)
            results.append(found.reduce())
            heard += peers.own
        return results, heard

    return run(run([])[1])[0]


def alone(*micro):
    found = Accumulator(Ranks())
    for metrics in micro:
        found.add(metrics)
    return found.reduce()


def test_a_mean_is_over_everything_that_was_counted_on_any_rank(case):
    m40 = case("M40_mean_over_ranks")
    ranks = [[{"kl": Mean(rank["sum"], rank["tokens"])}] for rank in m40["inputs"].values()]
    for found in over_ranks(ranks):
        assert found["kl"] == pytest.approx(m40["expected"]["value"], abs=1e-9)
        assert found["kl"] != pytest.approx(m40["known_wrong_values"]["mean_of_means_two_ranks"], abs=1e-3)


def test_the_logged_loss_does_not_depend_on_the_micro_batches(case):
    m42 = case("M42_logged_loss_vs_split")
    losses = torch.tensor(m42["inputs"]["per_sequence_loss"])
    for size in m42["inputs"]["micro_batch_sizes"]:
        found = alone(*({"loss": Mean(part.sum(), len(part))} for part in losses.split(size)))
        assert found["loss"] == pytest.approx(m42["expected"]["logged"], abs=1e-6)


def test_extremes_are_over_all_micro_batches_and_ranks():
    ranks = [[{"top": Max(1.0), "low": Min(torch.tensor(-1.0))}, {"top": Max(-5), "low": Min(4)}],
             [{"top": Max(torch.tensor(3.0)), "low": Min(2)}, {"top": Max(2), "low": Min(7)}]]
    assert over_ranks(ranks) == [{"top": 3, "low": -1}] * 2


def test_what_was_never_counted_is_left_out():
    found = alone({"nothing": Mean(0.0, 0), "something": Mean(3, 2), "top": Max(-torch.inf), "low": Min(torch.inf)})
    assert found == {"something": 1.5}


def test_a_rank_without_anything_to_measure_does_not_spoil_an_extreme():
    ranks = [[{"top": Max(-torch.inf), "low": Min(torch.inf)}], [{"top": Max(-3), "low": Min(5)}]]
    assert over_ranks(ranks) == [{"top": -3, "low": 5}] * 2


def test_a_sum_is_over_all_micro_batches_and_ranks():
    assert over_ranks([[{"pairs": Sum(2)}, {"pairs": Sum(torch.tensor(3))}], [{"pairs": Sum(4)}]]) == [{"pairs": 9}] * 2


def test_ranks_may_measure_different_things():
    ranks = [[{"kl": Mean(1, 2)}], [{"kl": Mean(1, 2), "rare": Mean(3, 1), "top": Max(1)}], []]
    assert over_ranks(ranks) == [{"kl": 0.5, "rare": 3, "top": 1}] * 3


def test_a_number_that_is_not_one_is_shown():
    assert str(alone({"loss": Mean(torch.nan, 3)})) == "{'loss': nan}"
    assert str(alone({"top": Max(torch.nan)}, {"top": Max(1.0)})) == "{'top': nan}"
    assert str(over_ranks([[{"top": Max(torch.nan)}], [{"top": Max(1.0)}]])[0]) == "{'top': nan}"


def test_a_prefix_keeps_evaluation_apart():
    found = Accumulator(Ranks())
    found.add({"loss": Mean(1, 1)})
    found.add({"loss": Mean(8, 2), "top": Max(1)}, "eval/")
    assert found.reduce() == {"loss": 1, "eval/loss": 4, "eval/top": 1}


def test_many_small_numbers_add_up():
    """In float32 a million additions of 0.1 are off by one percent."""
    found = Accumulator(Ranks())
    for _ in range(20_000):
        found.add({"loss": Mean(torch.tensor(0.1), 1)})
    assert found.reduce()["loss"] == pytest.approx(0.1, rel=1e-7)


def test_metrics_on_the_graph_keep_no_graph():
    weight = torch.ones(1, requires_grad=True)
    assert alone({"loss": Mean((weight * 3).sum(), 1)}) == {"loss": 3}


def test_nothing_at_all():
    assert alone() == {}


@pytest.mark.parametrize(("allocated", "ends", "peak"), [
    (21, [25, 23], 21),  # torch's own count, which leaves out its cache
    (151, [130, 60], 130),  # a sampler that sleeps has given back what torch still counts
])
def test_the_memory_peak_is_never_more_than_was_in_use(monkeypatch, allocated, ends, peak):
    used = iter(ends)
    for name, said in (("is_available", lambda: True), ("synchronize", lambda: None),
                       ("max_memory_allocated", lambda: allocated << 30),
                       ("mem_get_info", lambda: (140 - next(used) << 30, 140 << 30))):
        monkeypatch.setattr(torch.cuda, name, said)
    phase = Phases()
    for name in ("rollout", "update"):
        with phase(name):
            pass
    assert phase.memory()["memory/peak_gb"].value == peak


def test_without_a_gpu_there_is_no_memory_peak(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 0)
    phase = Phases()
    with phase("rollout"):
        pass
    assert phase.memory() == {}
