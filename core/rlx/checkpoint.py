"""Checkpoints: one format for every rank count and ZeRO stage, complete or not there at all.

    global_step_50/
      actor/            HF folder with the tokenizer; critic/ and so on for each trained role
      state/            <role>.safetensors …: float32 weights and Adam moments by HF name; trainer.json
      manifest.json     size and SHA-256 of every file, written last

Everything is written to a folder of another name, synced, and renamed. Nothing in it is ever unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rlx.engine import Engine
from rlx.ranks import Ranks
from rlx.text import listing
from rlx_sdk import CheckpointError, Role, RunError

PREFIX = "global_step_"
ASIDE, GONE = ".writing_", ".removing_"
SHARD_BYTES = 4 << 30
FOLDERS: Mapping[Role, str] = {"policy": "actor", "critic": "critic", "reward": "reward"}


class SaveError(RunError):
    """A checkpoint could not be written; those before it are as they were. All ranks raise it together."""


class _Writing(contextlib.AbstractContextManager["_Writing"]):
    """What one rank writes while all gather: after a failure it writes no more, and nobody is left waiting."""

    def __init__(self, first: bool) -> None:
        self.on, self.failure = first, ""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if isinstance(error, OSError | SafetensorError | CheckpointError) or kind is Exception:  # as tokenizers raise
            self.on, self.failure = False, str(error)
            return True
        return False


def save_checkpoint(folder: Path, step: int, engines: Mapping[Role, Engine], tokenizer: Any,
                    state: Mapping[str, Any], keep: int, ranks: Ranks, best: str | None = None) -> Path:
    """Write the checkpoint of a step, verify it, then remove the oldest beyond ``keep``. All ranks call it.

    Args:
        folder: holds all checkpoints of a run.
        step: steps done.
        engines: trained roles.
        tokenizer: HF tokenizer, saved beside each model.
        state: `Trainer.state_dict` and whatever else a resumed run needs, JSON-able.
        keep: checkpoints that stay.
        ranks: rank 0 writes what all of them gather.
        best: metric in the states' ``metrics`` whose best checkpoint stays too; a minus before it for the lowest.

    Raises:
        SaveError: on every rank; what was written of it is gone, and older checkpoints are all there.
    """
    aside, final = folder / f"{ASIDE}{step}", folder / f"{PREFIX}{step}"
    writing = _Writing(ranks.first)
    with writing:
        if writing.on:
            shutil.rmtree(aside, ignore_errors=True)
            (aside / "state").mkdir(parents=True)
    for role, engine in engines.items():
        with writing:
            engine.save(aside / FOLDERS[role], writing.on)
            if writing.on:
                tokenizer.save_pretrained(aside / FOLDERS[role])
        ranks.gather(None)  # waits with our patience; the engine's own group of ranks has a shorter one
        _write_tensors(aside / "state", role, engine.state(), writing)
        ranks.gather(None)
    with writing:
        if writing.on:
            _finish(aside, final, state)
    if writing.failure:
        shutil.rmtree(aside, ignore_errors=True)
    elif writing.on:
        _prune(folder, final, keep, best)
    failure = ranks.first_does(lambda: writing.failure)
    if failure:
        left = complete_checkpoints(folder)
        before = f"The last good one is '{left[-1]}'" if left else "There is none before it"
        raise SaveError(f"the checkpoint of step {step} could not be written: {failure}. {before}.")
    return final


def _finish(aside: Path, final: Path, state: Mapping[str, Any]) -> None:
    """Everything after the tensors, until the checkpoint is known to be whole."""
    _write_json(aside / "state" / "trainer.json", state)
    _write_json(aside / "manifest.json", {str(f.relative_to(aside)): _describe(f) for f in _files(aside)})
    for file in [*_files(aside), *(p for p in [aside, *aside.rglob("*")] if p.is_dir())]:
        _sync(file)
    shutil.rmtree(final, ignore_errors=True)
    os.replace(aside, final)
    _sync(final.parent)
    try:
        verify(final)
    except CheckpointError:
        shutil.rmtree(final, ignore_errors=True)
        raise


def _prune(folder: Path, newest: Path, keep: int, best: str | None) -> None:
    """Remove what is not among the newest, nor the best, and what a killed process left half written or half removed.

    A link stays: somebody keeps that checkpoint elsewhere. What cannot be removed costs space, and not the run.
    """
    there = complete_checkpoints(folder)
    stay = {newest, *(there[-keep:])}
    if best is not None and (found := best_checkpoint(folder, best)):
        stay.add(found[0])
    old = [c for c in there if c not in stay and not c.is_symlink()]
    for checkpoint in [*old, *folder.glob(f"{ASIDE}*"), *folder.glob(f"{GONE}*")]:
        try:
            gone = checkpoint.rename(folder / f"{GONE}{checkpoint.name.removeprefix(GONE)}")  # at once none any more
            shutil.rmtree(gone)
        except OSError as error:
            logging.getLogger("rlx").warning("'%s' could not be removed: %s", checkpoint, error)


def best_checkpoint(folder: Path, metric: str) -> tuple[Path, float] | None:
    """The checkpoint with the highest value of a metric (the lowest, for ``-metric``), the newest of equal ones."""
    sign, name = (-1.0, metric[1:]) if metric.startswith("-") else (1.0, metric)
    found = []
    for number, checkpoint in enumerate(complete_checkpoints(folder)):
        with contextlib.suppress(OSError, ValueError, KeyError):  # a damaged one, or one that was not measured
            found.append((sign * read_state(checkpoint)["metrics"][name], number, checkpoint))
    return (max(found)[2], sign * max(found)[0]) if found else None


def complete_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints with a manifest, oldest first. A folder that was being written has another name."""
    found = [p for p in folder.glob(f"{PREFIX}*")  # and not somebody's global_step_50.old
             if p.name.removeprefix(PREFIX).isdecimal() and (p / "manifest.json").is_file()]
    return sorted(found, key=lambda p: int(p.name.removeprefix(PREFIX)))


def newest_intact(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is whole; damaged ones are named and passed over.

    Raises:
        CheckpointError: there are checkpoints and none is whole.
    """
    for unfinished in sorted(folder.glob(f"{ASIDE}*")):
        say(f"'{unfinished}' was not finished and is ignored")
    problems: list[str] = []
    for checkpoint in reversed(complete_checkpoints(folder)):
        try:
            verify(checkpoint)
            return checkpoint
        except CheckpointError as error:
            problems.append(str(error))
            say(f"{error}; looking for an older one")
    if problems:
        raise CheckpointError(f"no checkpoint in '{folder}' is whole: {listing(problems)}")
    return None


def verify(checkpoint: Path) -> None:
    """Compare every file with the manifest.

    Raises:
        CheckpointError: a file is missing or differs; names it.
    """
    try:
        manifest = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"checkpoint '{checkpoint}' has no readable manifest.json ({error})") from error
    for name, wanted in manifest.items():
        try:
            same = _describe(checkpoint / name) == wanted
        except OSError as error:
            raise CheckpointError(f"checkpoint '{checkpoint}' lacks the file {name} ({error.strerror})") from error
        if not same:
            raise CheckpointError(f"checkpoint '{checkpoint}' is damaged: {name} is not what was written")


def read_state(checkpoint: Path) -> dict[str, Any]:
    """What was saved beside the tensors."""
    return dict(json.loads((checkpoint / "state" / "trainer.json").read_text(encoding="utf-8")))


class SavedTensors(Mapping[str, Tensor]):
    """A role's weights and moments, each read when it is asked for."""

    def __init__(self, checkpoint: Path, role: Role) -> None:
        """Open the files."""
        files = [safe_open(file, "pt") for file in sorted((checkpoint / "state").glob(f"{role}*.safetensors"))]
        self._where = {name: file for file in files for name in file.keys()}  # type: ignore[no-untyped-call]

    def __getitem__(self, name: str) -> Tensor:
        """Read one."""
        return self._where[name].get_tensor(name)  # type: ignore[no-any-return, no-untyped-call]

    def __iter__(self) -> Iterator[str]:
        """All names."""
        return iter(self._where)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._where)


def _shard(role: Role, number: int) -> str:
    return f"{role}-{number:05d}.safetensors" if number else f"{role}.safetensors"


def _write_tensors(folder: Path, role: Role, tensors: Iterable[tuple[str, Tensor]], writing: _Writing) -> None:
    """Into files of a few gigabytes, so that no more is held at once; ranks that do not write only gather."""
    held: dict[str, Tensor] = {}
    files = 0
    for name, tensor in tensors:
        if held and sum(t.nbytes for t in held.values()) + tensor.nbytes > SHARD_BYTES:
            with writing:
                save_file(held, folder / _shard(role, files))
            held, files = {}, files + 1
        if writing.on:
            held[name] = tensor.contiguous()
    with writing:
        if writing.on:
            save_file(held, folder / _shard(role, files))


def _files(folder: Path) -> Iterator[Path]:
    yield from sorted(p for p in folder.rglob("*") if p.is_file())


def _describe(file: Path) -> dict[str, Any]:
    with file.open("rb") as stream:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False), encoding="utf-8")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
