"""From settings and installed plugins to a `Plan`: every problem found at once, and torch not yet loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlx.folders import context_length, folder_problems
from rlx.layers import QUICKSTART, Tree, expand_home, leaves, lookup, merge, read_spec_file, remove
from rlx.problems import sentences
from rlx.registry import Entry, Registry
from rlx.spec import Spec
from rlx.text import listing
from rlx_sdk import Kind, Needs, PluginError, SpecError

AUTO = "auto"


@dataclass(frozen=True)
class Chosen:
    """A plugin with its options."""

    entry: Entry
    options: Any

    @property
    def name(self) -> str:
        """The plugin's name."""
        return self.entry.name

    def build(self, *args: Any) -> Any:
        """Build it."""
        return self.entry.call("build", self.options, *args)


@dataclass(frozen=True)
class Plan:
    """A run that can start: the spec, and the plugins it names.

    Attributes:
        spec: complete and valid.
        needs: of the algorithm, with these options and rewards.
        needs_with_rewards: what it would need if rewards were given; for messages.
        notes: what the user should know before the run starts.
    """

    spec: Spec
    needs: Needs
    needs_with_rewards: Needs
    algorithm: Chosen
    rewards: tuple[Chosen, ...]
    rollout: Chosen | None
    trackers: tuple[Chosen, ...]
    notes: tuple[str, ...]

    @property
    def group_size(self) -> int:
        """Completions a prompt."""
        return self.spec.rollout.group_size or self.needs.group_size or self.needs.min_group

    @property
    def single_update(self) -> bool:
        """Whether each batch is used for one optimizer step."""
        return self.spec.train.minibatches * self.spec.train.update_epochs == 1


def resolve(registry: Registry, given: Tree, saved: bool = False) -> Plan:
    """The plan for the settings a user gave.

    Args:
        registry: the installed plugins.
        given: settings from a spec file, flags or keywords, already merged.
        saved: the settings are a run's own resolved spec: it names every setting, also those that do not act.

    Raises:
        SpecError: with every problem.
    """
    notes: list[str] = []
    tree = given
    if lookup(given, "model.path") is None:
        tree = merge(_quickstart(given), given)
        data = "" if lookup(given, "data.path") else "data, "
        notes.append(f"no --model given: using the bundled quickstart (model, {data}learning rates, lengths, steps)")
    elif not saved:
        notes.append("--model given: the bundled quickstart's settings are dropped, rlx's defaults apply where you set "
                     "nothing")
    return _Resolver(registry, {} if saved else given, expand_home(merge({}, tree)), notes).plan()


def _quickstart(given: Tree) -> Tree:
    """The quickstart's settings; with data of the user's own, its held-out rows are none of theirs."""
    base = read_spec_file(QUICKSTART)
    if lookup(given, "data.path") is not None:
        remove(base, "data.eval")
        remove(base, "run.eval_every")
    return base


class _Resolver:
    """Collects problems while it looks at each part; raises them together at the end."""

    def __init__(self, registry: Registry, given: Tree, tree: Tree, notes: list[str]) -> None:
        self.registry, self.given, self.tree, self.notes = registry, given, tree, notes
        self.problems: list[str] = []

    def plan(self) -> Plan:
        rollout, fallback = self._rollout()
        spec = self._validate(Spec, {"train": {}, **self.tree}, "")
        algorithm = self._choose("algorithm", lookup(self.tree, "algo.name"), self._algo_options(), "algo.")
        rewards, trackers = self._choose_all("reward", "rewards"), self._choose_all("tracker", "trackers")
        if spec is None or algorithm is None:
            path = lookup(self.tree, "model.path")
            self.problems += folder_problems("model.path", path) if isinstance(path, str) else ()
            raise SpecError(self.problems)
        alone, with_rewards = (algorithm.entry.call("needs", algorithm.options, given) for given in (False, True))
        needs = with_rewards if spec.rewards else alone
        if spec.rewards and needs.data != alone.data:
            self.notes.append(f"{algorithm.name} with a reward learns from completions that it samples and ranks: the "
                              f"{alone.data} in the data are not used")
        self.notes += fallback if needs.data == "rollouts" else ()
        plan = Plan(spec, needs, with_rewards, algorithm, rewards, rollout if needs.data == "rollouts" else None,
                    trackers, tuple(self.notes))
        plan = self._kind_to_groups(plan)
        self.problems += [*_inert(plan, set(leaves(self.given))), *_conflicts(plan, self.registry)]
        if self.problems:
            raise SpecError(list(dict.fromkeys(self.problems)))
        return plan

    def _kind_to_groups(self, plan: Plan) -> Plan:
        """The bundled batch is of rows; where several completions of a prompt make a group, it takes fewer prompts."""
        rows, group = plan.spec.train.batch_size, plan.group_size
        bundled = self.given and lookup(self.given, "model.path") is None
        if not bundled or plan.rollout is None or group == 1 or lookup(self.given, "train.batch_size") is not None:
            return plan
        self.notes.append(f"{max(1, rows // group)} prompts a step with {group} completions each, for the bundled "
                          f"{rows} rows; --set train.batch_size=N for another number of prompts")
        train = plan.spec.train.model_copy(update={"batch_size": max(1, rows // group)})
        return replace(plan, spec=plan.spec.model_copy(update={"train": train}), notes=tuple(self.notes))

    def _rollout(self) -> tuple[Chosen | None, list[str]]:
        """The rollout backend; of an automatic choice, what was not possible."""
        name = lookup(self.tree, "rollout.name") or AUTO
        fallback = []
        if name == AUTO:
            gpu = _gpu_is_there()
            wanted = {e.name: e for e in self.registry.entries("rollout") if e.plugin.auto(gpu) > 0}
            ranked = sorted(wanted.values(), key=lambda e: -e.plugin.auto(gpu))
            usable = [e for e in ranked if not e.missing()]
            if ranked and usable[:1] != ranked[:1]:
                fallback = [f"rollouts by {usable[0].name if usable else 'nothing'}: {ranked[0].name} is not installed "
                            f"(pip install {listing(repr(what) for what in ranked[0].missing().values())})"]
            name = usable[0].name if usable else AUTO
            if isinstance(self.tree.get("rollout", {}), Mapping):
                self.tree = merge(self.tree, {"rollout": {"name": name}})
        return self._choose("rollout", name, lookup(self.tree, "rollout.options"), "rollout.options."), fallback

    def _choose_all(self, kind: Kind, section: str) -> tuple[Chosen, ...]:
        items = self.tree.get(section)
        chosen = [self._choose(kind, item.get("name"), item.get("options"), f"{section}[{i}].options.")
                  for i, item in enumerate(items if isinstance(items, list) else []) if isinstance(item, Mapping)]
        return tuple(c for c in chosen if c)

    def _algo_options(self) -> dict[str, Any]:
        algo = self.tree.get("algo")
        return {k: v for k, v in algo.items() if k != "name"} if isinstance(algo, Mapping) else {}

    def _choose(self, kind: Kind, name: Any, options: Any, prefix: str) -> Chosen | None:
        if not isinstance(name, str) or not isinstance(options, Mapping | None):
            return None  # the spec's own types say so
        try:
            entry = self.registry.get(kind, name)
            model = entry.call("config")
        except PluginError as error:
            self.problems.append(str(error))
            return None
        validated = self._validate(model, options or {}, prefix)
        return None if validated is None else Chosen(entry, validated)

    def _validate(self, model: type[Any], value: Any, prefix: str) -> Any:
        try:
            # JSON mode: strict about types, yet a list may become a tuple, as everything here comes from YAML.
            return model.model_validate_json(json.dumps(value))
        except ValidationError as error:
            self.problems += sentences(error, model, value, prefix)
        except TypeError as error:
            self.problems.append(f"{prefix.rstrip('.') or 'the spec'} holds a value that YAML could not: {error}")
        return None


def _inert(plan: Plan, given: set[str]) -> Iterator[str]:
    """Settings the user gave that cannot act in this combination."""
    needs, name = plan.needs, plan.algorithm.name
    offline = f"{name} learns from {needs.data} in the data file here, so nothing is sampled"
    rules: list[tuple[str, bool, str]] = [
        ("rollout", needs.data == "rollouts", offline),
        ("rewards", needs.rewards, f"{name} uses no reward"),
        *((f"train.optim.{role}", role in needs.trains, f"{name} trains no {role}")
          for role in type(plan.spec.train.optim).model_fields),
        ("model.critic", "critic" in needs.trains, f"{name} trains no critic"),
        ("model.lora", "policy" in needs.trains, f"{name} trains no policy"),
        ("model.reference", "reference" in needs.frozen, f"{name} compares with no reference here"),
        ("model.reference.cache", needs.data != "rollouts", "sampled completions are new each time"),
        ("data.max_length", needs.data != "rollouts", f"{name} samples its completions; set rollout.max_completion"),
        ("run.sample_every", needs.data == "rollouts", f"{name} writes no samples here"),
        ("run.keep", plan.spec.run.save_every is not None, "without run.save_every only one checkpoint is written"),
        *((setting, bool(plan.spec.data.eval), "there is no data.eval to evaluate on")
          for setting in ("run.eval_every", "rollout.eval")),
        *((f"algo.{option}", not plan.single_update, "each batch makes one update (train.minibatches and "
           "train.update_epochs are 1)") for option in sorted(needs.several_updates)),
    ]
    for prefix, acts, why in rules:
        hit = sorted(s for s in given if s == prefix or s.startswith(prefix + "."))
        if hit and not acts:
            yield f"{listing(hit)} can have no effect: {why}. Leave it out."


def _conflicts(plan: Plan, registry: Registry) -> Iterator[str]:
    """Values that are each fine and cannot work together."""
    spec, needs, name = plan.spec, plan.needs, plan.algorithm.name
    if spec.model.lora and find_spec("peft") is None:
        yield "model.lora needs the package 'peft', which is not installed: pip install 'rlx[peft]'"
    if needs.rewards and not spec.rewards:
        rewards = listing((e.name for e in registry.entries("reward")), 12)
        yield f"{name} needs a reward: give --reward NAME (installed: {rewards})"
    if needs.data == "rollouts" and plan.group_size < needs.min_group:
        yield (f"rollout.group_size = {plan.group_size}: {name} compares completions of one prompt and needs at least "
               f"{needs.min_group}")
    if needs.data == "rollouts" and spec.rollout.max_completion < needs.min_completion:
        yield (f"rollout.max_completion = {spec.rollout.max_completion}: {name} with these options needs at least "
               f"{needs.min_completion}")
    if needs.teacher and spec.model.reference.path is None:
        yield f"{name} learns from another model: name it with model.reference.path"
    if needs.rounds > 1 and spec.train.epochs is not None:
        yield (f"train.epochs: {name} samples as many prompts as it needs, so passes over the data do not say how long "
               "the run is; give --steps N")
    if spec.run.resume == "auto" and spec.run.name is None:
        yield "run.resume = auto continues the run of one name; give it with --name (run.name)"
    if spec.engine.offload == "all" and spec.engine.zero_stage < 3:
        yield "engine.offload = all moves weights that are split over the ranks: set engine.zero_stage = 3 with it"
    if spec.train.steps is None and spec.train.epochs is None:
        yield "no length: give --steps N, or train.epochs"
    if spec.train.steps is not None and spec.train.epochs is not None:
        yield "train.steps and train.epochs both say how long to train; give one"
    rows = spec.train.batch_size * (plan.group_size if needs.data == "rollouts" else 1)
    if spec.train.minibatches > rows:
        yield f"train.minibatches = {spec.train.minibatches} splits a batch of {rows} rows into more parts than rows"
    names = [r.name for r in plan.rewards]
    yield from (f"reward '{n}' is named twice; give it once with the weight you mean"
                for n in dict.fromkeys(names) if names.count(n) > 1)
    yield from _model_problems(plan)


def _model_problems(plan: Plan) -> Iterator[str]:
    """What local model folders tell without loading them."""
    spec = plan.spec
    for setting in ("model.path", "model.critic.init", "model.reference.path"):
        value = lookup(spec.model.model_dump(), setting.removeprefix("model."))
        if value is not None:
            yield from folder_problems(setting, value)
    context = context_length(Path(spec.model.path).expanduser())
    prompt, completion, total = spec.data.max_prompt, spec.rollout.max_completion, spec.data.max_length
    limit = f"{context}, the model's context (max_position_embeddings)"
    if context and plan.needs.data == "rollouts" and (prompt or 1) + completion > context:
        summands = f"data.max_prompt + rollout.max_completion = {prompt} + {completion}"
        yield f"{summands if prompt else f'a prompt + rollout.max_completion = 1 or more + {completion}'} > {limit}"
    if context and plan.needs.data != "rollouts" and total and total > context:
        yield f"data.max_length = {total} > {limit}"
    other = spec.model.reference.path and context_length(Path(spec.model.reference.path).expanduser())
    longest = (prompt or 0) + completion if plan.needs.data == "rollouts" else total or context or 0
    if other and longest > other:
        yield f"rows of up to {longest} tokens > {other}, the context of model.reference.path; set data.max_length"
    if total and prompt and total <= prompt:
        yield f"data.max_length = {total} leaves nothing for an answer after data.max_prompt = {prompt}"


def _gpu_is_there() -> bool:
    """Whether torch will find one; asked of the driver, since torch is not loaded yet."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0") not in ("", "-1") and Path("/dev/nvidiactl").exists()
