"""rlx from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlx.functions import as_plugin
from rlx.launch import place_of
from rlx.layers import Tree, assign, merge, named_weight, read_spec_file
from rlx.plan import resolve
from rlx.registry import PROGRAM, Registry
from rlx.run import Result, run
from rlx.view import View
from rlx_sdk import SpecError

RewardLike = str | Callable[..., Any] | Mapping[str, Any]


def train(algo: str | Mapping[str, Any] | None = None, reward: RewardLike | Sequence[RewardLike] | None = None,
          model: str | Path | Mapping[str, Any] | None = None,
          data: str | Path | Sequence[str | Path] | Mapping[str, Any] | None = None, *,
          spec: str | Path | Mapping[str, Any] | None = None, steps: int | None = None, quiet: bool = False,
          **sections: Any) -> Result:
    """Train, as ``rlx train`` does.

    Args:
        algo: an algorithm's name, or a mapping with its name and options.
        reward: a reward's name, a function of a list of `rlx_sdk.Sample`, a mapping as in the spec, or several.
        model: HF folder, hub name or .gguf file, or the spec's section. Without it the bundled quickstart is used.
        data: a file, a folder, a pattern, several of these, or the spec's section.
        spec: a spec file or a whole spec; the other arguments go on top.
        steps: steps to train.
        quiet: print nothing.
        sections: further sections of the spec, e.g. ``rollout={"max_completion": 64}``.

    Returns:
        Where the run and its checkpoint are, and the last metrics.

    Raises:
        InputError: something in the input cannot work; found before a model is loaded.
        RunError: training could not go on.
    """
    registry = Registry.discover()
    given: Tree = {}
    for name, value, short in (("algo", algo, "name"), ("model", model, "path"), ("data", data, "path")):
        if value is not None:
            plain = _plain(value)
            given[name] = plain if isinstance(plain, dict) else {short: plain}
    if reward is not None and "rewards" in sections:
        raise SpecError(["reward and rewards are both given; put all of them into one"])
    if reward is not None:
        several = reward if isinstance(reward, Sequence) and not isinstance(reward, str) else [reward]
        given["rewards"] = [_reward(registry, one) for one in several]
    if "rewards" in sections:
        sections["rewards"] = [_reward(registry, one) for one in sections["rewards"]]
    given |= _plain(sections)
    if steps is not None:
        assign(given, "train.steps", steps)
    base = read_spec_file(Path(spec)) if isinstance(spec, str | Path) else dict(spec or {})
    plan = resolve(registry, merge(base, given))
    if not quiet:
        return _shown(plan)
    return run(plan, View().silent())


def _shown(plan: Any) -> Result:
    view = View()
    result = run(plan, view)
    if place_of(os.environ).rank == 0:
        view.done(result)
    return result


def _reward(registry: Registry, one: RewardLike) -> Tree:
    if isinstance(one, str):
        return named_weight(one)
    if isinstance(one, Mapping):
        entry = dict(one)
        return {**entry, **_reward(registry, entry["name"])} if callable(entry.get("name")) else entry
    if not callable(one):
        raise SpecError([f"reward {one!r:.60} is neither a name, nor a function of the samples, nor a mapping"])
    plugin = as_plugin(one, getattr(one, "__name__", "reward"))
    registry.put("reward", plugin, PROGRAM)
    return {"name": f"{PROGRAM}/{plugin.name}"}


def _plain(value: Any) -> Any:
    """Paths as text, at any depth."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, Path) else value


