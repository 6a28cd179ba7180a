"""Supervised fine-tuning: maximise the likelihood of given answers.

The loss is the mean negative log-likelihood over target tokens of the whole batch, however it is split.

When to use: first: good answers are there, and the model shall write like them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rlx import ops
from rlx_sdk import Algorithm, Batch, Config, Context, Demonstrations, Loss, Mean, Needs, Role


class SFTConfig(Config):
    """SFT's options."""

    turns: Literal["every", "last"] = "every"
    """Which of a conversation's assistant turns are learned."""


def needs(options: SFTConfig, rewards: bool) -> Needs:
    """Demonstrations, and the policy alone."""
    return Needs(data="demonstrations", trains=frozenset({"policy"}))


class SFT(Algorithm[Demonstrations]):
    """``−log p`` of the assistant's tokens, the stop token of each turn included."""

    def __init__(self, options: SFTConfig) -> None:
        """Keep the options."""
        self.options = options

    def prepare(self, data: Demonstrations, ctx: Context) -> Batch:
        """Each row weighs as many target tokens as it has."""
        seqs = data.seqs
        if self.options.turns == "last":
            seqs = replace(seqs, mask=ops.last_run(seqs.mask))
        return Batch({"answer": seqs}, {"policy": ops.row_weights(seqs.mask, "token-mean")})

    def loss(self, role: Role, rows: Batch, ctx: Context) -> Loss:
        """``−mean log p`` a row."""
        answer = rows.sequences["answer"]
        logprobs = ctx.policy.logprobs(answer)
        return Loss(
            ops.aggregate_rows(-logprobs, answer.mask, "token-mean"),
            {"logprobs/answer": Mean(ops.masked_sum(logprobs, answer.mask), answer.mask.sum())},
        )
