"""The data of a step that is sampled: prompts from a file, completions from a rollout backend, scores from rewards."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha1
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlx.ahead import Ahead, Completions, Place, Sampled
from rlx.batching import pad_sequences
from rlx.data import Prepared, Tokenizer
from rlx.guard import generators_kept
from rlx.looks.held_out import HeldOut
from rlx.metrics import Accumulator
from rlx.rewards import Judged, RewardPanel, as_sample, measure
from rlx.sources import Collected, Cursor, Source, Timer
from rlx_sdk import (
    Generation,
    Group,
    Mean,
    Needs,
    Request,
    RewardError,
    RolloutBackend,
    Rollouts,
    Sample,
    Sampling,
    Sum,
    TrainingError,
)

CHOSEN = 3
"""Prompts that are completed again and again for a person to look at."""
EVAL_STREAM = 1 << 40
"""Evaluation draws its random numbers far away from training's positions."""


@dataclass(frozen=True)
class _Row:
    """One completion, the ``number``th of its prompt, whose place in the run is ``position``.

    ``reward`` is what the algorithm learns from, ``total`` the weighted sum of the scores, which people read.
    """

    position: int
    row: int
    number: int
    prompt: Sequence[int]
    generation: Generation
    sample: Sample
    reward: float
    total: float
    judged: bool
    spans: Sequence[tuple[int, float]]


@dataclass(frozen=True)
class _Round:
    """Completions of some prompts, in order, and what the rewards said of all of them."""

    rows: list[_Row]
    judged: Judged

    def kept(self, keep: Callable[[Group], bool]) -> list[_Row]:
        """Those of the prompts that an algorithm wants to learn from."""
        groups: dict[int, list[_Row]] = defaultdict(list)
        for row in self.rows:
            groups[row.position].append(row)
        return [row for rows in groups.values()
                if keep(Group(tuple(r.reward for r in rows if r.judged), len(rows))) for row in rows]


class RolloutSource(Source):
    """Prompts from a file, completions from a rollout backend, scores from rewards."""

    def __init__(self, train: Prepared, held_out: Prepared | None, cursor: Cursor, tokenizer: Tokenizer,
                 backend: RolloutBackend, rewards: RewardPanel, sampling: Sampling, evaluation: HeldOut,
                 group_size: int, seed: int, needs: Needs, keep: Callable[[Group], bool],
                 show_every: int | None = None, ahead_until: int = 0) -> None:
        """Sample ``group_size`` completions of each prompt; in ``needs.rounds``, until enough groups are kept.

        Before every ``show_every``th step the chosen prompts are completed beside them, with the same seeds each time.
        Batches of steps before ``ahead_until``, but the first, are sampled while the step before them is trained on.
        """
        self._train, self._held_out, self._cursor, self._tokenizer = train, held_out, cursor, tokenizer
        self._backend, self._rewards, self._sampling, self._evaluation = backend, rewards, sampling, evaluation
        self._group_size, self._seed, self._version, self._closed = group_size, seed, -1, False
        self._needs, self._keep, self._show_every = needs, keep, show_every
        self._ahead, self._ahead_until = Ahead(f"{cursor.batch_size} x {group_size} of {train.key}"), ahead_until

    def collect(self, phase: Timer) -> Collected | None:
        """Sample and score the next batch of prompts; more of them in place of groups that are not kept."""
        try:
            collected = self._collect(phase)
            if collected and self._show_every and self._version % self._show_every == 0:
                collected = replace(collected, chosen=self._show_chosen(phase))
        finally:
            if not self._ahead_until:  # else it goes on sampling, without a sync
                with phase("rollout"):
                    self._backend.release()
        if self._version + 1 < self._ahead_until and (places := self._cursor.next()) is not None:
            self._ahead.begin(partial(self._sample, self._train, places, self._sampling, self._version))
        return collected

    def wait(self, phase: Timer) -> None:
        """The next batch is there, or none is on its way."""
        if self._ahead_until:
            with phase("wait"):
                self._ahead.wait()
                self._cursor.ranks.gather(None)  # as long as the last rank

    def _collect(self, phase: Timer) -> Collected | None:
        rounds: list[_Round] = []
        kept: list[_Row] = []
        missing = self._cursor.batch_size
        while missing and len(rounds) < self._needs.rounds:
            sampled = None if rounds else self._ahead.take()
            if sampled is None:
                places = self._cursor.next(missing)
                if places is None:
                    return None
                sampled = self._sample_now(self._train, places, self._sampling, phase)
            rounds.append(self._judge(self._train, sampled, phase))
            new = rounds[-1].kept(self._keep)
            kept += new
            missing -= sum(self._cursor.ranks.gather(len({row.position for row in new})))
        if self._needs.rounds == 1:
            return self._collected(rounds, kept)
        collected = self._collected(rounds, self._evenly(kept))
        collected.metrics.update({"groups/kept": self._cursor.batch_size - missing, "groups/rounds": len(rounds)})
        return collected

    def _evenly(self, rows: list[_Row]) -> list[_Row]:
        """Kept rows of all ranks shared out anew by prompt, so that the batch does not depend on who sampled what."""
        every = sorted((row for part in self._cursor.ranks.gather(rows) for row in part), key=lambda row: row.position)
        mine = set(self._cursor.ranks.share(sorted({row.position for row in every})))
        return [row for row in every if row.position in mine]

    def evaluate(self, phase: Timer) -> Collected | None:
        """Sample and score the held-out prompts, with the same random numbers every time."""
        held, asked = self._held_out, self._evaluation
        if held is None:
            return None
        places = [(EVAL_STREAM + row, row) for row in self._cursor.ranks.share(range(len(held)))]
        try:
            done = self._judge(held, self._sample_now(held, places, asked.sampling, phase, asked.n), phase)
        finally:
            self._backend.release()
        collected = self._collected([done], done.rows, asked.sampling == self._sampling)
        collected.metrics.update(asked.measure(
            ((r.position, r.sample.row, r.total if r.judged else None) for r in done.rows), self._cursor.ranks))
        return collected

    def _show_chosen(self, phase: Timer) -> list[dict[str, Any]]:
        """The first held-out prompts, or those of the data, completed once each."""
        prepared = self._held_out or self._train
        places = [(EVAL_STREAM + row, row) for row in self._cursor.ranks.share(range(min(CHOSEN, len(prepared))))]
        chosen: Timer = lambda _: phase("chosen")  # noqa: E731
        return self._table(self._judge(prepared, self._sample_now(prepared, places, self._sampling, chosen, 1), chosen))

    def sync(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Give the backend the new weights."""
        self._backend.sync(weights, version)
        self._version = version

    def state_dict(self) -> dict[str, Any]:
        """Its position, and the batch that was sampled ahead."""
        return {**super().state_dict(), "ahead": self._ahead.state_dict(self._cursor.ranks)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        super().load_state_dict(state)
        self._ahead.load_state_dict(state.get("ahead", {}), self._cursor, partial(self._arrived, self._train))

    def close(self) -> None:
        """Close backend and rewards; what is on its way ends with the completion that comes next."""
        self._closed = True
        self._backend.close()
        self._rewards.close()

    def _sample_now(self, prepared: Prepared, places: Sequence[Place], sampling: Sampling, phase: Timer,
                    n: int | None = None) -> Sampled:
        with phase("rollout"), generators_kept():  # async rewards work meanwhile
            sampled = self._sample(prepared, places, sampling, self._version, n)
            self._cursor.ranks.gather(None)  # the phase lasts until the last rank is done
        return sampled

    def _sample(self, prepared: Prepared, places: Sequence[Place], sampling: Sampling, version: int,
                n: int | None = None) -> Sampled:
        """Complete prompts with the weights of a version; touches nothing that the trainer computes with."""
        requests = [Request(prepared.ids(row, "prompt"), sampling, n or self._group_size, _seed(self._seed, position))
                    for position, row in places]
        groups: dict[int, Completions] = {}
        for i, generations in self._backend.generate(requests):
            if self._closed:
                break
            groups[i] = self._arrived(prepared, places[i], generations)
        stale = next((g.version for group in groups.values() for g, _ in group if g.version != version), None)
        if stale is not None:
            raise TrainingError(f"the rollout backend sampled with the weights of step {stale}; the policy is at step "
                                f"{version}")
        return Sampled(places, [group for _, group in sorted(groups.items())])

    def _arrived(self, prepared: Prepared, place: Place, generations: list[Generation]) -> Completions:
        """Completions of a prompt, with which async rewards begin at once."""
        example = prepared.example(place[1])
        group = [(g, as_sample(example, self._tokenizer.decode(g.tokens), g.finish_reason, len(g.tokens)))
                 for g in generations]
        self._rewards.start(place[0], [sample for _, sample in group])
        return group

    def _judge(self, prepared: Prepared, sampled: Sampled, phase: Timer) -> _Round:
        flat = [(place, n, g, sample) for place, group in zip(sampled.places, sampled.groups, strict=True)
                for n, (g, sample) in enumerate(group)]
        with phase("reward"), generators_kept():
            judged = self._rewards.score([sample for *_, sample in flat],
                                         [prepared.place(row) for (_, row), *_ in flat],
                                         [position for (position, _), *_ in flat])
        if any(judged.spans) and not self._needs.token_rewards:
            raise RewardError("a reward gave rewards of steps (Score.spans), and this algorithm learns from whole "
                              "completions: leave them out, or take one that docs/algorithms.md says is scored by step")
        return _Round([_Row(*place, n, prepared.ids(place[1], "prompt"), g, sample, judged.rewards[k], judged.totals[k],
                            judged.judged[k], judged.spans[k]) for k, (place, n, g, sample) in enumerate(flat)], judged)

    def _collected(self, rounds: Sequence[_Round], kept: Sequence[_Row], as_in_training: bool = True) -> Collected:
        """What the algorithm learns from, the metrics of all that was sampled, and all of it as a table."""
        per_token: dict[str, Sequence[Sequence[float]]] = {}
        if as_in_training:
            per_token["rollout_logprobs"] = [r.generation.logprobs for r in kept]
        if self._needs.token_rewards:
            per_token["token_rewards"] = [self._of_tokens(r) for r in kept]
        seqs = pad_sequences([r.prompt for r in kept], [r.generation.tokens for r in kept],
                             self._tokenizer.pad_token_id, **per_token)
        ids = torch.tensor([self._id(r) for r in kept], dtype=torch.long)
        seqs = seqs.with_(sample=ids[:, None].expand(seqs.tokens.shape))
        number = {position: i for i, position in enumerate(dict.fromkeys(r.position for r in kept))}
        rollouts = Rollouts(seqs, torch.tensor([r.reward for r in kept], dtype=torch.float),  # a rank may have no row
                            torch.tensor([r.judged for r in kept], dtype=torch.bool),
                            torch.tensor([number[r.position] for r in kept], dtype=torch.long),
                            torch.tensor([r.generation.finish_reason == "length" for r in kept], dtype=torch.bool))
        return Collected(rollouts, self._measure(rounds), [line for one in rounds for line in self._table(one)])

    def _id(self, row: _Row) -> int:
        return row.position * max(self._group_size, self._evaluation.n) + row.number

    def _of_tokens(self, row: _Row) -> list[float]:
        """Rewards of steps, each at the token that completes the step's text."""
        rewards, tokens = [0.0] * len(row.generation.tokens), row.generation.tokens
        if row.spans:
            ends = [len(self._tokenizer.decode(tokens[: k + 1])) for k in range(len(tokens))]
            for end, value in row.spans:
                rewards[min(bisect_left(ends, end), len(tokens) - 1)] += value
        return rewards

    def _table(self, one: _Round) -> list[dict[str, Any]]:
        return [{"sample": self._id(r), "row": r.row, "prompt": r.sample.prompt, "completion": r.sample.completion,
                 "reward": r.total if r.judged else None,
                 **{f"reward/{name}": scores[k] for name, scores in one.judged.by_provider.items()},
                 "advantage": None, "length": len(r.generation.tokens), "finish_reason": r.sample.finish_reason,
                 "logprob_diff": None} for k, r in enumerate(one.rows)]

    def _measure(self, rounds: Sequence[_Round]) -> dict[str, float]:
        rows = [row for one in rounds for row in one.rows]
        known, lengths = [r.total for r in rows if r.judged], [len(r.generation.tokens) for r in rows]
        mine = [sha1(r.sample.completion.encode(), usedforsecurity=False).digest() for r in rows]
        texts = [text for part in self._cursor.ranks.gather(mine) for text in part]
        found = Accumulator(self._cursor.ranks)
        found.add({
            "reward/mean": Mean(sum(known), len(known)),
            "reward/square": Mean(sum(r * r for r in known), len(known)),
            "reward/judged": Mean(len(known), len(rows)),
            "length/mean": Mean(sum(lengths), len(lengths)),
            "length/characters": Mean(sum(len(r.sample.completion) for r in rows), len(rows)),
            "length/truncated": Mean(sum(r.generation.finish_reason == "length" for r in rows), len(rows)),
            "length/distinct": Mean(len(set(texts)), len(texts)),
            "rollout/tokens": Sum(sum(lengths)),
        })
        if self._ahead_until:
            found.add({"rollout/staleness": Mean(sum(self._version - r.generation.version for r in rows), len(rows))})
        for one in rounds:
            judged = one.judged
            found.add({"reward/failed": Mean(judged.failed, len(judged.rewards) * len(judged.by_provider))})
            found.add(measure(judged, [row.position for row in one.rows]))
        metrics = found.reduce()
        for name in [name.removesuffix("/square") for name in metrics if name.endswith("/square")]:
            metrics[f"{name}/std"] = math.sqrt(max(0.0, metrics.pop(f"{name}/square") - metrics[f"{name}/mean"] ** 2))
        return metrics


def _seed(seed: int, position: int) -> int:
    return int(np.random.SeedSequence([seed, position]).generate_state(1, np.uint64)[0] >> 1)
