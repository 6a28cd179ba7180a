"""From settings and installed plugins to a `Plan`: every problem found at once, and torch not yet loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rlx.combinations import conflicts, inert
from rlx.folders import folder_problems
from rlx.functions import find_reward
from rlx.layers import QUICKSTART, Tree, expand_home, leaves, lookup, merge, read_spec_file, remove
from rlx.machine import gpu_is_there
from rlx.problems import section_of, sentences
from rlx.registry import Entry, Registry
from rlx.spec import RewardSpec, Spec
from rlx.text import count, listing
from rlx_sdk import Kind, Needs, PluginError, SpecError

AUTO = "auto"


@dataclass(frozen=True)
class Chosen:
    """A plugin with its options, and what it is called in metrics and messages."""

    entry: Entry
    options: Any
    name: str

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
    notes, tree = list[str](), given
    if lookup(given, "model.path") is None:
        tree = merge(_quickstart(given), given)
        data = "" if lookup(given, "data.path") else "data, "
        notes.append(f"no --model given: using the bundled quickstart (model, {data}learning rates, lengths, steps)")
    elif not saved:
        notes.append("--model given: the bundled quickstart's settings are dropped, rlx's defaults apply where you set "
                     "nothing")
    return _Resolver(registry, {} if saved else given, expand_home(merge({}, tree)), notes, saved).plan()


def resolve_rewards(registry: Registry, given: list[Tree]) -> tuple[tuple[Chosen, ...], tuple[RewardSpec, ...]]:
    """Rewards alone, given as in a spec; raises `SpecError` with every problem."""
    resolver = _Resolver(registry, {}, {"rewards": given}, [])
    chosen = resolver._choose_all("reward", "rewards")
    specs = tuple(resolver._validate(RewardSpec, one, f"rewards[{i}].") for i, one in enumerate(given))
    if resolver.problems:
        raise SpecError(list(dict.fromkeys(resolver.problems)))
    return chosen, specs


def _quickstart(given: Tree) -> Tree:
    """The quickstart's settings; with data of the user's own, its held-out rows are none of theirs."""
    base = read_spec_file(QUICKSTART)
    if lookup(given, "data.path") is not None:
        remove(base, "data.eval")
        remove(base, "run.eval_every")
    return base


class _Resolver:
    """Collects problems while it looks at each part; raises them together at the end."""

    def __init__(self, registry: Registry, given: Tree, tree: Tree, notes: list[str], saved: bool = False) -> None:
        self.registry, self.given, self.tree, self.notes, self.saved = registry, given, tree, notes, saved
        self.problems: list[str] = []

    def plan(self) -> Plan:
        rollout, fallback = self._rollout()
        self._name_those_always_there()
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
        self.problems += [*inert(plan, set(leaves(self.given))), *conflicts(plan, self.registry)]
        if self.problems:
            raise SpecError(list(dict.fromkeys(self.problems)))
        return plan

    def _kind_to_groups(self, plan: Plan) -> Plan:
        """The bundled batch is of rows; where several completions of a prompt make a group, it takes fewer prompts."""
        rows, group = plan.spec.train.batch_size, plan.group_size
        bundled = self.given and lookup(self.given, "model.path") is None
        if not bundled or plan.rollout is None or group == 1 or lookup(self.given, "train.batch_size") is not None:
            return plan
        prompts = count(max(1, rows // group), "prompt")
        self.notes.append(f"{prompts} a step with {group} completions each, for the bundled {rows} rows; "
                          "--set train.batch_size=N for another number of prompts")
        train = plan.spec.train.model_copy(update={"batch_size": max(1, rows // group)})
        return replace(plan, spec=plan.spec.model_copy(update={"train": train}), notes=tuple(self.notes))

    def _rollout(self) -> tuple[Chosen | None, list[str]]:
        """The rollout backend; of an automatic choice, what was not possible."""
        name = lookup(self.tree, "rollout.name") or AUTO
        fallback = []
        if name == AUTO:
            gpu = gpu_is_there()
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

    def _name_those_always_there(self) -> None:
        """Trackers that every run has, behind those that were named."""
        named = self.tree.get("trackers") or []
        if isinstance(named, list):
            there = {str(item.get("name")).rpartition("/")[2] for item in named if isinstance(item, Mapping)}
            more = [{"name": e.name} for e in self.registry.entries("tracker")
                    if e.plugin.always and e.name not in there]
            self.tree = merge(self.tree, {"trackers": [*named, *more]})

    def _choose_all(self, kind: Kind, section: str) -> tuple[Chosen, ...]:
        items = self.tree.get(section)
        chosen = [self._choose(kind, item.get("name"), item.get("options"), f"{section}[{i}].options.",
                               item.get("label"))
                  for i, item in enumerate(items if isinstance(items, list) else []) if isinstance(item, Mapping)]
        return tuple(c for c in chosen if c)

    def _algo_options(self) -> dict[str, Any]:
        algo = self.tree.get("algo")
        return {k: v for k, v in algo.items() if k != "name"} if isinstance(algo, Mapping) else {}

    def _choose(self, kind: Kind, name: Any, options: Any, prefix: str, label: Any = None) -> Chosen | None:
        if not isinstance(name, str) or not isinstance(options, Mapping | None):
            return None  # the spec's own types say so
        try:
            entry, own = (find_reward(self.registry, name) if kind == "reward" else
                          self.registry.named(kind, name))
            model = entry.call("config")
        except PluginError as error:
            self.problems.append(str(error))
            return None
        options = _chosen_options(model, options or {}) if self.saved else options or {}
        self.problems += [f"{prefix}{option} and '{name}' both set it; leave one out" for option in own
                          if option in options and not self.saved]
        validated = self._validate(model, {**options, **own}, prefix)
        called = ":".join([entry.name, *(Path(argument).name for argument in own.values())])
        return None if validated is None else Chosen(entry, validated, label or called)

    def _validate(self, model: type[Any], value: Any, prefix: str) -> Any:
        try:
            return validated(model, value, prefix)
        except SpecError as error:
            self.problems += error.problems
        return None


def _chosen_options(model: type[BaseModel], saved: Mapping[str, Any]) -> Tree:
    """Saved options without those that are defaults: an option that is given where it cannot act may be refused."""
    defaults = model.model_construct().model_dump(mode="json")
    chosen = ((name, value, section_of(model, (name,))) for name, value in saved.items()
              if defaults.get(name, ...) != value)
    return {name: _chosen_options(section, value) if section and isinstance(value, Mapping) else value
            for name, value, section in chosen}


def validated(model: type[Any], value: Any, prefix: str = "") -> Any:
    """Settings as an object of their class.

    Raises:
        SpecError: with every problem.
    """
    try:
        # JSON mode: strict about types, yet a list may become a tuple, as everything here comes from YAML.
        return model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        raise SpecError(sentences(error, model, value, prefix)) from error
    except TypeError as error:
        raise SpecError([f"{prefix.rstrip('.') or 'the spec'} holds a value that YAML could not: {error}"]) from error
