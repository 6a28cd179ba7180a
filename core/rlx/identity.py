"""What a run learns from and starts from, told apart by content: it goes on only with the same data and models."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rlx.hf import model_files
from rlx.inputs import Inputs
from rlx.layers import leaves, lookup
from rlx.machine import expanded
from rlx.plan import Plan
from rlx.problems import Problems
from rlx.runs import FORCE
from rlx.text import count, listing
from rlx_sdk import SpecError

WHOLE = 64 << 20
"""Bytes up to which a file is read as a whole; of a larger one `PARTS` parts of `PART` bytes, evenly spread."""
PARTS, PART = 64, 64 << 10
WEIGHTS = (".safetensors", ".gguf")
TEMPLATE = "model.chat_template"


def identity(plan: Plan, inputs: Inputs) -> dict[str, Any]:
    """Of the data, learned from and held out; of each file of the models, by setting; of what the tokenizer does."""
    models = {setting: files for setting, path in _paths(plan) if (files := _fingerprints(path))}
    return {"data": [part.rows.identity for part in (inputs.train, inputs.held_out) if part], "models": models,
            "tokenizer": inputs.tokenizer.fingerprint}


def _paths(plan: Plan) -> Iterator[tuple[str, str]]:
    """Settings that name a model, and those of rewards that name a model's folder or a file."""
    model, needs = plan.spec.model, plan.needs
    yield "model.path", model.path
    if model.reference.path is not None and "reference" in needs.frozen:
        yield "model.reference.path", model.reference.path
    if model.critic.init is not None and "critic" in needs.trains:
        yield "model.critic.init", model.critic.init
    options = {TEMPLATE: model.chat_template} | {
        f"reward {reward.name}, {name}": lookup(tree, name) for reward in plan.rewards
        for tree in [reward.options.model_dump(mode="json")] for name in leaves(tree)}
    yield from ((name, value) for name, value in options.items() if isinstance(value, str) and _is_there(value))


def _is_there(value: str) -> bool:
    try:
        return expanded(value).is_file() or (expanded(value) / "config.json").is_file()
    except (OSError, ValueError):  # a text, and no path at all
        return False


def _fingerprints(path: str) -> dict[str, str]:
    """Of each file of a model, or of one file: size and a hash. Of a hub name: its revision."""
    try:
        files = model_files(path)
        if not expanded(path).exists():
            return {"revision": Path(files[0][0]).name}
        return {Path(name).name: f"{size} {_hash(Path(name), size)}" for name, size, _ in files}
    except OSError:  # whoever loads it says so better
        return {}


def _hash(file: Path, size: int) -> str:
    """Weights that were trained differ nearly everywhere, so that parts of a large file tell them apart."""
    with file.open("rb") as stream:
        if size <= WHOLE:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        found = hashlib.sha256()
        for part in range(PARTS):
            stream.seek((size - PART) * part // (PARTS - 1))
            found.update(stream.read(PART))
        return found.hexdigest()


def same_identity(saved: Mapping[str, Any], now: Mapping[str, Any], plan: Plan, inputs: Inputs, checkpoint: Path,
                  say: Callable[[str], None]) -> None:
    """Refuse to continue with another content, unless that is forced; say what else has changed.

    Args:
        saved: what `identity` gave then; older checkpoints know less.
        now: what it gives.
        plan: of the run that goes on.
        inputs: its data.
        checkpoint: from which.
        say: where to.

    Raises:
        SpecError: other data, another tokenizer or chat template, or other weights that the checkpoint has not.
    """
    found, forced = Problems(), plan.spec.run.resume_changed
    found.of(lambda: same_data(saved["data"], inputs, checkpoint, forced, say))
    tokenizer = saved.get("tokenizer", now["tokenizer"]) != now["tokenizer"]
    for setting, then in saved.get("models", {}).items():
        files = now["models"].get(setting, then)
        changed = sorted(n for n in {**then, **files} if then.get(n) != files.get(n) and _matters(plan, setting, n))
        harmful = [name for name in changed if _harmful(plan, setting, name, tokenizer)]
        what = f"'{listing(harmful or changed)}' of {setting} has changed since the checkpoint '{checkpoint}'"
        if harmful and not forced:
            found.errors.append(SpecError([f"{what}, so its run cannot be continued: the checkpoint does not hold it. "
                                           "Put it back, or start a new run from those weights with --model "
                                           f"{checkpoint / 'actor'}; {FORCE}"]))
        elif changed:
            say(what + "; continued by force" * bool(harmful))
    found.end()


def _matters(plan: Plan, setting: str, file: str) -> bool:
    """Weights that are trained come from the checkpoint; all else is read again."""
    return not file.endswith(WEIGHTS) or setting not in ("model.path", "model.critic.init") or _frozen(plan, setting)


def _frozen(plan: Plan, setting: str) -> bool:
    """Whether weights that do not move are read there: the reference's, or those below an adapter."""
    model = plan.spec.model
    reference = "model.path" if model.reference.path is None else "model.reference.path"
    return (setting == reference and "reference" in plan.needs.frozen) or (
        setting == "model.path" and model.lora is not None)


def _harmful(plan: Plan, setting: str, file: str, tokenizer: bool) -> bool:
    """Whether it makes it another run; a file may be written otherwise and give the same ``tokenizer``."""
    weights, code = file.endswith(WEIGHTS), file == "config.json" or file.endswith(".py")
    reads = file.endswith(".gguf") or not (weights or code)
    return (setting in ("model.path", TEMPLATE) and tokenizer and reads) or (
        _frozen(plan, setting) and (weights or file == "revision"))


def same_data(saved: Any, inputs: Inputs, checkpoint: Path, forced: bool, say: Callable[[str], None]) -> None:
    """Refuse to continue on data of another content, unless forced.

    The position in it would mean other rows; and what was measured on other held-out rows is not to be compared.

    Args:
        saved: what `identity` gave then of the data, or the first of it alone, as checkpoints once held it.
        inputs: of the run that goes on.
        checkpoint: from which.
        forced: only say so.
        say: where to.

    Raises:
        SpecError: with both numbers of rows.
    """
    earlier = [saved] if isinstance(saved, Mapping) else saved
    for part, then in zip(filter(None, (inputs.train, inputs.held_out)), earlier, strict=False):
        what = (f"data file '{part.rows.file}' has changed since the checkpoint '{checkpoint}' "
                f"({count(len(part.rows), 'row')}, were {then['rows']})")
        if part.rows.identity != then and not forced:
            raise SpecError([f"{what}, so its run cannot be continued. Put it back, or start a new run from those "
                             f"weights with --model {checkpoint / 'actor'}; {FORCE}"])
        if part.rows.identity != then:
            say(f"{what}; continued by force: it goes on with other rows")
