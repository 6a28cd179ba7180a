"""What the algorithms that learn from two sides of a pair share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rlx import ops
from rlx_sdk import Batch, LanguageModel, Mean, Metric, Rollouts, Sequences, Sum

if TYPE_CHECKING:
    from torch import Tensor

TIE = 1e-4
"""What two sides may differ by and still be alike: float32 noise of summed logprobs, or scores. A tie is not a win."""


class Side(NamedTuple):
    """``[B]`` log-likelihood of an answer: over all its tokens, and a token."""

    total: Tensor
    mean: Tensor


def side(model: LanguageModel, seqs: Sequences) -> Side:
    """A model's log-likelihood of the answers."""
    return _summed(model.logprobs(seqs), seqs)


def sides(model: LanguageModel, chosen: Sequences, rejected: Sequences) -> tuple[Side, Side]:
    """A model's log-likelihood of both answers of each pair."""
    of_chosen, of_rejected = model.pair_logprobs(chosen, rejected)
    return _summed(of_chosen, chosen), _summed(of_rejected, rejected)


def _summed(logprobs: Tensor, seqs: Sequences) -> Side:
    return Side(ops.masked_sum(logprobs, seqs.mask, dim=1), ops.masked_mean(logprobs, seqs.mask, dim=1))


def pair_batch(chosen: Sequences, rejected: Sequences, **values: Tensor) -> Batch:
    """Pairs of equal weight."""
    ones = chosen.length.new_ones(len(chosen)).float()
    return Batch({"chosen": chosen, "rejected": rejected}, {"policy": ones}, values, {"pairs": Sum(len(chosen))})


def preference_metrics(chosen: Tensor, rejected: Tensor, beta: float) -> dict[str, Metric]:
    """Implicit rewards, β times ``[B]`` log-likelihoods, of both sides; their margin; how often the chosen is ahead."""
    n = len(chosen)
    return {"rewards/chosen": Mean(beta * chosen.sum(), n), "rewards/rejected": Mean(beta * rejected.sum(), n),
            "rewards/margin": Mean(beta * (chosen - rejected).sum(), n),
            "rewards/accuracy": Mean((chosen - rejected > TIE).sum(), n)}


def best_and_worst(rollouts: Rollouts) -> tuple[Sequences, Sequences]:
    """The best and the worst judged completion of each prompt; none of a prompt whose completions score alike."""
    judged = rollouts[rollouts.judged]
    differ = judged[~ops.dead_groups(judged.rewards, judged.group)]
    groups = [(differ.group == group).nonzero().flatten()
              for group in sorted(set(differ.group.tolist()))]
    best = [rows[differ.rewards[rows].argmax()] for rows in groups]
    worst = [rows[differ.rewards[rows].argmin()] for rows in groups]
    return differ.seqs[differ.group.new_tensor(best)], differ.seqs[differ.group.new_tensor(worst)]
