"""What goes wrong in the first week, said in words, each once, with the setting to look at."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Metrics = Mapping[str, float | None]
"""A line of metrics.jsonl: None is what is not a finite number."""


@dataclass(frozen=True)
class Rule:
    """A warning.

    Attributes:
        when: in words.
        says: what it tells the user.
        steps: for so many steps in a row.
        holds: whether it holds in a step, given the first step that had any metric.
    """

    when: str
    says: str
    steps: int
    holds: Callable[[Metrics, Metrics], bool]


def _at(metrics: Metrics, name: str) -> float:
    """Not a number where there is none, so that every comparison is false."""
    value = metrics.get(name)
    return math.nan if value is None else value


RULES: tuple[Rule, ...] = (
    Rule("reward/std is 0 for 3 steps",
         "the reward has no variance: every completion got the same, so nothing can be learned. Look at the reward "
         "(rlx sample, then score some by hand), raise rollout.temperature, or give prompts of another difficulty", 3,
         lambda now, first: _at(now, "reward/std") < 1e-8),
    Rule("kl/token is above 0.5 for 3 steps and more than 4 times the first step's",
         "the KL to the reference explodes: the policy has left the model it began with, and the reward is probably "
         "being gamed. Raise algo.kl.coef or lower train.optim.policy.lr, and read samples/", 3,
         lambda now, first: _at(now, "kl/token") > max(0.5, 4 * abs(_at(first, "kl/token")))),
    Rule("length/truncated is above 0.99 for 3 steps",
         "all completions are cut at the limit: rewards judge unfinished texts. Raise rollout.max_completion, or check "
         "that the chat template and the model's stop tokens belong together", 3,
         lambda now, first: _at(now, "length/truncated") > 0.99),
    Rule("policy/entropy is below a tenth of the first step's for 3 steps",
         "the entropy collapses: the policy writes the same whatever is sampled and no longer explores. Lower "
         "train.optim.policy.lr, or raise algo.entropy_coef, algo.clip_high or algo.kl.coef", 3,
         lambda now, first: _at(now, "policy/entropy") < 0.1 * _at(first, "policy/entropy")),
    Rule("policy/clip_fraction is 0 for 20 steps where a batch makes several updates",
         "no ratio was clipped in 20 steps: the policy hardly moves, so the learning rate is probably too low. Look at "
         "train.optim.policy.lr and grad_norm/policy", 20,
         lambda now, first: _at(now, "policy/clip_fraction") == 0 and abs(_at(now, "policy/ratio") - 1) > 0),
    Rule("groups/dead is above 0.5 for 3 steps",
         "most prompts are dead: all their completions got the same reward, so more than half of the sampling is "
         "wasted. Give prompts of middling difficulty, raise rollout.group_size, or use an algorithm that samples past "
         "them (--algo dapo)", 3, lambda now, first: _at(now, "groups/dead") > 0.5),
    Rule("rollout/logprob_diff is above 0.1 for 3 steps",
         "the rollout backend's logprobs differ from the policy's by more than rounding: look at rollout.options and "
         "engine.dtype, or compare with --rollout hf", 3, lambda now, first: _at(now, "rollout/logprob_diff") > 0.1),
)


@dataclass
class Watch:
    """Watches a run's metrics."""

    _first: dict[str, float] = field(default_factory=dict)
    _held: dict[Rule, int] = field(default_factory=dict)
    _said: set[Rule] = field(default_factory=set)

    @classmethod
    def of(cls, lines: Iterable[Metrics]) -> Watch:
        """One that has seen these already, and said what was to be said."""
        watch = cls()
        for line in lines:
            watch.step(line)
        return watch

    def step(self, metrics: Metrics) -> list[str]:
        """What is to be said after a step's metrics of training; each only once."""
        self._first = {**{name: value for name, value in metrics.items() if value is not None}, **self._first}
        said = []
        for rule in RULES:
            self._held[rule] = self._held.get(rule, 0) + 1 if rule.holds(metrics, self._first) else 0
            if self._held[rule] >= rule.steps and rule not in self._said:
                self._said.add(rule)
                said.append(rule.says)
        return said
