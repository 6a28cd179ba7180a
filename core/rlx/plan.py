"""From settings and installed plugins to a `Plan`: every problem found at once, and torch not yet loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from rlx.layers import QUICKSTART, Tree, leaves, lookup, merge, read_spec_file, remove
from rlx.registry import Entry, Registry
from rlx.spec import Spec
from rlx.text import did_you_mean, listing
from rlx_sdk import Kind, Needs, PluginError, SpecError


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
        return self.entry.plugin.build(self.options, *args)


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
        return self.spec.rollout.group_size or self.needs.min_group


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
        notes.append("no --model given: using the bundled quickstart (model, data, learning rates, lengths, steps)")
    return _Resolver(registry, {} if saved else given, tree, notes).plan()


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
        self._require("algo.name", "no algorithm: give --algo NAME", "algorithm")
        self._require("data.path", "no data: give --data FILE")
        self.tree.setdefault("train", {})
        spec = self._validate(Spec, self.tree, "")
        algorithm = self._choose("algorithm", lookup(self.tree, "algo.name"), self._algo_options(), "algo.")
        rewards = [self._choose("reward", r.get("name"), r.get("options"), f"rewards[{i}].options.")
                   for i, r in enumerate(self._items("rewards"))]
        trackers = [self._choose("tracker", t.get("name"), t.get("options"), f"trackers[{i}].options.")
                    for i, t in enumerate(self._items("trackers"))]
        rollout = self._choose("rollout", spec.rollout.name if spec else None,
                               lookup(self.tree, "rollout.options"), "rollout.options.")
        if spec is None or algorithm is None:
            raise SpecError(self.problems)
        needs = algorithm.entry.plugin.needs(algorithm.options, bool(spec.rewards))
        samples = needs.data == "rollouts"
        plan = Plan(spec, needs, algorithm.entry.plugin.needs(algorithm.options, True), algorithm,
                    tuple(r for r in rewards if r), rollout if samples else None, tuple(t for t in trackers if t),
                    tuple(self.notes))
        self.problems += [*_inert(plan, set(leaves(self.given))), *_conflicts(plan, self.registry)]
        if self.problems:
            raise SpecError(list(dict.fromkeys(self.problems)))
        return plan

    def _require(self, setting: str, problem: str, kind: Kind | None = None) -> None:
        if lookup(self.tree, setting) is None:
            names = f" ({listing(e.name for e in self.registry.entries(kind))})" if kind else ""
            self.problems.append(problem + names)

    def _items(self, section: str) -> list[Mapping[str, Any]]:
        value = self.tree.get(section)
        return [v for v in value if isinstance(v, Mapping)] if isinstance(value, list) else []

    def _algo_options(self) -> dict[str, Any]:
        algo = self.tree.get("algo")
        return {k: v for k, v in algo.items() if k != "name"} if isinstance(algo, Mapping) else {}

    def _choose(self, kind: Kind, name: Any, options: Any, prefix: str) -> Chosen | None:
        if not isinstance(name, str):
            return None
        try:
            entry = self.registry.get(kind, name)
        except PluginError as error:
            self.problems.append(str(error))
            return None
        validated = self._validate(entry.plugin.config(), options or {}, prefix)
        return None if validated is None else Chosen(entry, validated)

    def _validate(self, model: type[Any], value: Any, prefix: str) -> Any:
        try:
            # JSON mode: strict about types, yet a list may become a tuple, as everything here comes from YAML.
            return model.model_validate_json(json.dumps(value))
        except ValidationError as error:
            already = set(self.problems)
            found = (_sentence(e, model, prefix) for e in error.errors())
            missing = ("'algo'", "'data'", "'algo.name'", "'data.path'")  # said already, with the flag
            self.problems += [p for p in found if p not in already and not (p.startswith(missing) and "missing" in p)]
        except TypeError as error:
            self.problems.append(f"{prefix or 'the spec'} holds a value that YAML could not: {error}")
        return None


def _sentence(error: Any, model: type[BaseModel], prefix: str) -> str:
    """One of pydantic's findings as a sentence."""
    where = prefix + ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        section = _section(model, error["loc"][:-1])
        known = list(section.model_fields) if section else []
        hint = did_you_mean(str(error["loc"][-1]), known)
        return f"unknown setting '{where}'.{hint} (known here: {listing(known, 20) or 'none'})"
    if error["type"] == "missing":
        return f"'{where}' is missing"
    if error["type"] == "value_error":
        return f"'{where.rstrip('.')}': {error['ctx']['error']}"
    return f"'{where}' = {error['input']!r:.60}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _section(model: type[BaseModel], loc: tuple[Any, ...]) -> type[BaseModel] | None:
    here: Any = model
    for part in loc:
        if isinstance(part, int):
            continue
        field = here.model_fields.get(part) if isinstance(here, type) and issubclass(here, BaseModel) else None
        here = field.annotation if field else None
        arguments = getattr(here, "__args__", ())
        here = next((a for a in arguments if isinstance(a, type) and issubclass(a, BaseModel)), here)
    return here if isinstance(here, type) and issubclass(here, BaseModel) else None


def _inert(plan: Plan, given: set[str]) -> Iterator[str]:
    """Settings the user gave that cannot act in this combination."""
    needs, name = plan.needs, plan.algorithm.name
    offline = f"{name} learns from {needs.data} in the data file here, so nothing is sampled"
    rules: list[tuple[str, bool, str]] = [
        ("rollout", needs.data == "rollouts", offline),
        ("rewards", needs.rewards, f"{name} uses no reward"),
        ("train.optim.critic", "critic" in needs.trains, f"{name} trains no critic"),
        ("model.critic", "critic" in needs.trains, f"{name} trains no critic"),
        ("data.max_length", needs.data != "rollouts", f"{name} samples its completions; set rollout.max_completion"),
        ("run.eval_every", bool(plan.spec.data.eval), "there is no data.eval to evaluate on"),
    ]
    for prefix, acts, why in rules:
        hit = sorted(s for s in given if s == prefix or s.startswith(prefix + "."))
        if hit and not acts:
            yield f"{listing(hit)} can have no effect: {why}. Leave it out."


def _conflicts(plan: Plan, registry: Registry) -> Iterator[str]:
    """Values that are each fine and cannot work together."""
    spec, needs, name = plan.spec, plan.needs, plan.algorithm.name
    if needs.rewards and not spec.rewards:
        rewards = listing((e.name for e in registry.entries("reward")), 12)
        yield f"{name} needs a reward: give --reward NAME (installed: {rewards})"
    if needs.data == "rollouts" and plan.group_size < needs.min_group:
        yield (f"rollout.group_size = {plan.group_size}: {name} compares completions of one prompt and needs at least "
               f"{needs.min_group}")
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
    """What a local model folder tells without loading it."""
    spec = plan.spec
    path = Path(spec.model.path).expanduser()
    if path.suffix != ".gguf" and path.is_dir() and not (path / "config.json").is_file():
        found = listing(sorted(p.name for p in path.iterdir())) or "nothing"
        yield f"model.path '{spec.model.path}' ({path.absolute()}) has no config.json; the folder holds {found}"
    if not path.exists() and (path.is_absolute() or spec.model.path.count("/") != 1 or path.suffix == ".gguf"):
        near = did_you_mean(path.name, [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else [])
        yield f"model.path '{spec.model.path}': there is no such folder (looked at {path.absolute()}).{near}"
    context = context_length(path)
    prompt, completion, total = spec.data.max_prompt or 0, spec.rollout.max_completion, spec.data.max_length or 0
    if context and plan.needs.data == "rollouts" and prompt + completion > context:
        yield (f"data.max_prompt + rollout.max_completion = {prompt} + {completion} > {context}, the model's context "
               "(max_position_embeddings)")
    if context and plan.needs.data != "rollouts" and total > context:
        yield f"data.max_length = {total} > {context}, the model's context (max_position_embeddings)"
    if total and prompt and total <= prompt:
        yield f"data.max_length = {total} leaves nothing for an answer after data.max_prompt = {prompt}"


def context_length(path: Path) -> int | None:
    """``max_position_embeddings`` of a local HF folder, if it says so."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = config.get("max_position_embeddings", config.get("text_config", {}).get("max_position_embeddings"))
    return found if isinstance(found, int) else None


def options_of(entry: Entry) -> Callable[[], type[BaseModel]]:
    """The class of a plugin's options."""
    config: Callable[[], type[BaseModel]] = entry.plugin.config
    return config
