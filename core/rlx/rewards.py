"""Calls rewards, deals with what fails, and adds them up."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from rlx.data import Example, Prepared
from rlx.guard import time_limit
from rlx.registry import stdout_to_stderr
from rlx.spec import RewardSpec
from rlx.text import count
from rlx_sdk import FinishReason, Max, Mean, Metric, Min, Reward, RewardError, Sample, Score
from rlx_sdk.errors import cause
from rlx_sdk.scores import Caller, ScoreError, check_scores

Result = Score | Exception | None
_SHOWN = 3
_RECENT = 100
"""Samples over which a provider's failures are counted (``max_failed``)."""
_EPS = 1e-4
DRY_ROWS, DRY_COMPLETION = 4, "Thank you, here is an answer."
_log = logging.getLogger("rlx")
_log.addHandler(logging.NullHandler())  # outside of a run, whose log takes it, the message says enough,
_log.propagate = False  # and a plugin that points the root logger elsewhere gets nothing of it


def as_sample(example: Example, completion: str, finish_reason: FinishReason = "stop",
              tokens: int | None = None) -> Sample:
    """What a reward sees of a completion of that row."""
    prompt = example.prompt
    text, messages = (prompt, ()) if isinstance(prompt, str) else (str(prompt[-1].get("content") or ""), tuple(prompt))
    return Sample(text, completion, messages, finish_reason, example.row, tokens)


@dataclass
class Judged:
    """Scores of some samples.

    Attributes:
        rewards: what the algorithm learns from, combined over the providers that judged the sample; 0 where none did.
        judged: whether any did.
        by_provider: each provider's own scores, None where it abstained or failed.
        totals: the weighted sum of these scores; `rewards` unless they were normalised.
        parts: further numbers of a provider's `Score`, as ``provider/part``.
        failed_on: the samples each provider failed on, and how, under ``on_error: skip`` or a value.
        spans: weighted rewards of a completion's steps, each as (characters up to its end, reward).
    """

    rewards: list[float]
    judged: list[bool]
    by_provider: dict[str, list[float | None]]
    totals: list[float]
    parts: dict[str, list[float]] = field(default_factory=dict)
    failed_on: dict[str, dict[int, Exception]] = field(default_factory=dict)
    spans: list[list[tuple[int, float]]] = field(default_factory=list)

    @property
    def failed(self) -> int:
        """Failures over all providers."""
        return sum(map(len, self.failed_on.values()))


@dataclass(frozen=True)
class Provider:
    """A built reward with what the spec says of it; ``label`` is its name with package and version, for messages."""

    name: str
    label: str
    spec: RewardSpec
    reward: Reward

    @property
    def overlaps(self) -> bool:
        """Whether it can be called while completions are still being sampled."""
        return getattr(self.reward, "is_async", False) or inspect.iscoroutinefunction(self.reward.score)


class RewardPanel:
    """All reward providers of a run."""

    def __init__(self, providers: Sequence[Provider], normalised: bool = False) -> None:
        """Keep the providers; ``normalised``: their scores are normalised in each prompt's group before the sum."""
        self._providers, self._normalised = tuple(providers), normalised
        self._caller, self._trying = Caller(), False
        self._started: dict[str, dict[int, Future[Any]]] = defaultdict(dict)
        self._recent: dict[str, deque[bool]] = defaultdict(lambda: deque(maxlen=_RECENT))

    def start(self, group: int, samples: Sequence[Sample]) -> None:
        """Let ``async`` providers begin with the samples of one group that `score` will be given."""
        for provider in self._providers:
            if provider.overlaps:
                waiting: Any = provider.reward.score(samples)
                self._started[provider.name][group] = self._caller.start(waiting, provider.spec.timeout)

    def score(self, samples: Sequence[Sample], rows: Sequence[str], groups: Sequence[int] | None = None) -> Judged:
        """Score samples.

        Args:
            samples: those of one prompt together.
            rows: the data row of each, as `rlx.data.Prepared.place` names it.
            groups: the prompt of each; default: each has its own.

        Raises:
            RewardError: a provider failed and its ``on_error`` is ``stop``, or it failed on more than ``max_failed`` of
                its last samples, or it got stuck in this process.
        """
        n, groups = len(samples), groups or range(len(samples))
        found = Judged([0.0] * n, [False] * n, {}, [0.0] * n, spans=[[] for _ in samples])
        for provider in self._providers:
            scores = self._usable(provider, samples, rows, groups, found)
            values = [None if s is None else s.value for s in scores]
            used = _normalised(values, groups) if self._normalised else values
            found.by_provider[provider.name] = values
            for i, (score, value) in enumerate(zip(scores, used, strict=True)):
                if score is not None and value is not None:
                    found.rewards[i] += provider.spec.weight * value
                    found.totals[i] += provider.spec.weight * score.value
                    found.judged[i] = True
                    found.spans[i] += [(end, provider.spec.weight * value) for end, value in score.spans]
                    for part, number in score.parts.items():
                        found.parts.setdefault(f"{provider.name}/{part}", []).append(number)
        for i, total in enumerate(found.rewards):
            if not math.isfinite(total) or not math.isfinite(found.totals[i]):
                raise RewardError(f"the weighted sum of the rewards is not finite for sample {i + 1} of {n} "
                                  f"(data {rows[i]}); lower the weights or the rewards")
        if self._normalised and any(found.spans):
            raise RewardError("a reward gave rewards of steps (Score.spans), which combine = normalized cannot use")
        return found

    def dry_run(self, train: Prepared) -> dict[str, tuple[list[float | None], str]]:
        """Each provider's scores of a made-up completion of the first rows, and what is doubtful about them, or "".

        Raises:
            RewardError: a provider failed and its ``on_error`` is ``stop``; other completions may not fail.
        """
        rows = range(min(DRY_ROWS, len(train)))
        self._trying = True
        found = self.score([as_sample(train.example(row), DRY_COMPLETION) for row in rows], [*map(train.place, rows)])
        self._trying = False
        return {name: (scores, _doubt(scores, found.failed_on[name])) for name, scores in found.by_provider.items()}

    def close(self) -> None:
        """Close every provider, once, and the thread of ``async`` ones."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._caller.close)
            for provider in self._providers:
                stack.callback(_close, provider)
            self._providers = ()

    def _usable(self, provider: Provider, samples: Sequence[Sample], rows: Sequence[str], groups: Sequence[int],
                found: Judged) -> list[Score | None]:
        """The provider's scores, and for samples it failed on what its ``on_error`` says."""
        results, spec = self._results(provider, samples, groups), provider.spec
        bad = {i: result for i, result in enumerate(results) if isinstance(result, Exception)}
        for i, error in list({id(e): (i, e) for i, e in bad.items()}.values())[:_SHOWN]:
            _log.warning("reward %s failed on data %s", provider.label, rows[i], exc_info=error)
        recent = self._recent[provider.name]
        recent.extend(i in bad for i in range(0 if self._trying else len(results)))
        if bad and (spec.on_error == "stop" or sum(recent) > spec.max_failed * len(recent)):
            way_out = "set its on_error to 'skip' (not judged) or to a number" if spec.on_error == "stop" else (
                f"raise max_failed = {spec.max_failed:g}: it failed on {sum(recent)} of its last {len(recent)} samples")
            raise RewardError(_explain(provider, bad, samples, rows, way_out)) from bad[min(bad)]
        found.failed_on[provider.name] = bad
        instead = Score(spec.on_error) if isinstance(spec.on_error, float) else None
        return [instead if isinstance(result, Exception) else result for result in results]

    def _results(self, provider: Provider, samples: Sequence[Sample], groups: Sequence[int]) -> list[Result]:
        """What it makes of all samples, or of the groups that it was started with."""
        waiting = self._started[provider.name]
        started = {group: waiting.pop(group) for group in set(groups) & waiting.keys()}  # others' turn comes later
        if not started:
            return self._checked(provider, samples)
        return [result for group, part in groupby(range(len(samples)), lambda i: groups[i])
                for result in self._checked(provider, [samples[i] for i in part], started.pop(group, None))]

    def _checked(self, provider: Provider, samples: Sequence[Sample],
                 future: Future[Any] | None = None) -> list[Result]:
        """A score or an error a sample; after a call that raised, of each sample alone, so that the bad one is known.

        Only up to the first bad one if that ends the run. A result that cannot be assigned counts for all samples.
        """
        try:
            with stdout_to_stderr():
                returned = self._call(provider, samples) if future is None else future
                return list(check_scores(self._caller.result(returned, provider.spec.timeout), len(samples)))
        except RewardError:
            raise
        except Exception as error:  # a stranger's code may raise anything; it is wrapped once, in _usable
            results: list[Result] = []
            for sample in samples if len(samples) > 1 and not isinstance(error, ScoreError) else ():
                results += self._checked(provider, [sample])
                if provider.spec.on_error == "stop" and isinstance(results[-1], Exception):
                    return results
            return results if any(isinstance(r, Exception) for r in results) else [error] * len(samples)

    def _call(self, provider: Provider, samples: Sequence[Sample]) -> Any:
        """An isolated reward keeps its own time, an ``async`` one its loop."""
        if provider.spec.isolate:
            return provider.reward.score(samples)
        with time_limit(provider.spec.timeout, f"reward {provider.label}, given {count(len(samples), 'sample')},"):
            return provider.reward.score(samples)


def measure(judged: Judged, groups: Sequence[int]) -> dict[str, Metric]:
    """Each provider's figures: its mean, square, min and max, and shares of samples and of prompts."""
    found: dict[str, Metric] = {}
    for name, scores in judged.by_provider.items():
        known, failed = [v for v in scores if v is not None], set(judged.failed_on[name])
        unjudged = sum(score is None and i not in failed for i, score in enumerate(scores))
        equal = [max(values) - min(values) <= 1e-8 * max(map(abs, values))
                 for values in _by_group(scores, groups).values() if len(values) > 1]
        figures: dict[str, Metric] = {
            "mean": Mean(sum(known), len(known)), "square": Mean(sum(v * v for v in known), len(known)),
            "zero_variance": Mean(sum(equal), len(equal)), "abstained": Mean(unjudged, len(scores)),
            "failed": Mean(len(failed), len(scores)),
            **({"min": Min(min(known)), "max": Max(max(known))} if known else {})}
        found |= {f"reward/{name}/{figure}": value for figure, value in figures.items()}
    return found | {f"reward/{name}/mean": Mean(sum(values), len(values)) for name, values in judged.parts.items()}


def _by_group(scores: Sequence[float | None], groups: Sequence[int]) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for score, group in zip(scores, groups, strict=True):
        if score is not None:
            found[group].append(score)
    return found


def _normalised(scores: Sequence[float | None], groups: Sequence[int]) -> list[float | None]:
    """``(r − mean) / (std + 1e-4)`` among the judged completions of each prompt (GDPO, arXiv 2601.05242)."""
    import torch

    from rlx import ops

    known = [i for i, score in enumerate(scores) if score is not None]
    if not known:
        return list(scores)
    values = ops.normalised(torch.tensor([scores[i] for i in known], dtype=torch.float64),
                            torch.tensor([groups[i] for i in known]), _EPS).tolist()
    found = dict(zip(known, values, strict=True))
    return [found.get(i) for i in range(len(scores))]


def _explain(provider: Provider, bad: Mapping[int, Exception], samples: Sequence[Sample],
             rows: Sequence[str], way_out: str) -> str:
    """Plugin, package, sample, data row, cause, and what to do."""
    lines = [f"sample {i + 1} of {len(samples)} (data {rows[i]}, completion {samples[i].completion!r:.60}): "
             f"{_text(error)}" for i, error in bad.items()]
    if len(bad) > 1 and len(set(map(id, bad.values()))) == 1:
        first, all_of_them = min(bad), len(bad) == len(samples)
        where = f"all {len(bad)}" if all_of_them else f"{len(bad)} of {len(samples)} (data {rows[first]} and on)"
        lines = [f"{where} samples together: {_text(bad[first])}"]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"… and {len(bad) - _SHOWN} more"]
    return "\n  ".join([f"reward {provider.label} failed on", *lines]) + f"\nMend the reward, or {way_out}."


def _doubt(scores: Sequence[float | None], bad: Mapping[int, Exception]) -> str:
    """What speaks against a reward that has passed its trial."""
    if bad:
        return f"it failed on {len(bad)} of {len(scores)}, which its on_error permits: {_text(bad[min(bad)])}"
    return "it judged none, and so teaches nothing: has the data the columns that it reads?" * (set(scores) == {None})


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, ScoreError) else cause(error)


def _close(provider: Provider) -> None:
    try:
        with stdout_to_stderr():
            provider.reward.close()
    except Exception as error:  # a stranger's code
        raise RewardError(f"reward {provider.label} could not be closed: {cause(error)}") from error
