"""The folder of a run: spec, metrics, samples, checkpoints."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rlx.checkpoint import PREFIX, complete_checkpoints, newest_intact, verify
from rlx.hf import model_files
from rlx.inputs import Inputs
from rlx.layers import Tree, absolute_paths, expand_home, read_spec_file, to_yaml
from rlx.machine import expanded
from rlx.plan import Plan
from rlx.text import listing
from rlx_sdk import CheckpointError, SpecError

VERSIONED = ("rlx", "rlx-sdk", "torch", "transformers", "deepspeed", "pyarrow")


class RunFolder:
    """``runs/<name>/``."""

    def __init__(self, path: Path, named: bool = True) -> None:
        """Name the folder, with a name that somebody chose or that only must be free; nothing is written yet."""
        self.path, self._named = path, named
        self.checkpoints = path / "checkpoints"
        self.samples = path / "samples"
        self._skipped = path / "skipped.jsonl"

    @property
    def taken(self) -> bool:
        """Whether there is a run of the name that somebody chose."""
        return self._named and (self.path / "spec.yaml").exists()

    def make(self) -> RunFolder:
        """Make the folder, or one of the next free name; it is a run's only when `start` has written the spec.

        Raises:
            SpecError: it cannot be written.
        """
        with _writing(self.path):
            folder = RunFolder(_made(self.path, self._named))
            folder.checkpoints.mkdir(exist_ok=True)
            folder.samples.mkdir(exist_ok=True)
        return folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """For this process alone, until the block, or the process, ends.

        Raises:
            SpecError: another process is at work in it.
        """
        with contextlib.ExitStack() as stack:
            with _writing(self.path):
                file = stack.enter_context((self.path / ".lock").open("a"))
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:
                raise SpecError([f"another process is at work in the run folder '{self.path}'. Wait for its end, or "
                                 "give another --name."]) from error
            except OSError:  # a file system that knows no locks
                pass
            yield

    def mark(self) -> Path:
        """A file in it of a name that no other has, by which others know that they see the same folder.

        Raises:
            SpecError: it cannot be written.
        """
        with _writing(self.path):
            (mark := self.path / f".seen-{os.urandom(8).hex()}").touch()
        return mark

    def start(self, plan: Plan) -> None:
        """Write down what runs: the resolved spec, and versions as comments.

        Raises:
            SpecError: it cannot be written.
        """
        lines = "".join(f"# {name} {version}\n" for name, version in versions().items())
        _replace(self.path / "spec.yaml", lines + to_yaml(saved_spec(plan)))

    def rewind(self, step: int) -> None:
        """Forget samples and rows left out of steps after this one: a resumed run makes them again.

        Raises:
            SpecError: it cannot be written; nothing is lost.
        """
        if self._skipped.exists():
            lines = self._skipped.read_text(encoding="utf-8").split("\n")
            _replace(self._skipped, "".join(f"{line}\n" for line in lines if _step_of(line) <= step))
        for file in self.samples.glob("*_*.parquet"):
            number = file.stem.rpartition("_")[2]
            if number.isdecimal() and int(number) > step:
                file.unlink()

    def metrics(self, training: bool = True) -> list[dict[str, Any]]:
        """Lines of steps of training, or of evaluations; half a line of a killed run is passed over."""
        file = self.path / "metrics.jsonl"
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        return [found for line in text.splitlines() if _step_of(line) < math.inf
                and ("time/step" in (found := json.loads(line))) == training]

    def log_skipped(self, step: int, role: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Which rows had a loss that was not finite, in ``skipped.jsonl``."""
        with self._skipped.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"step": step, "role": role, "rows": list(rows)}, ensure_ascii=False) + "\n")

    def write_samples(self, step: int, samples: list[dict[str, Any]], split: str = "train") -> None:
        """What the policy wrote, as one parquet file."""
        from rlx.looks.samples import write_samples

        if samples:
            write_samples(self.samples, step, samples, split)


def versions() -> dict[str, str]:
    """Of Python and the packages that decide numbers."""
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in VERSIONED}}


def saved_spec(plan: Plan) -> Tree:
    """The resolved spec, with every default of every plugin written out."""
    tree = absolute_paths(plan.spec.model_dump(mode="json"))
    tree["run"]["resume_changed"] = False  # forced once
    tree["algo"] = {"name": plan.spec.algo.name, **plan.algorithm.options.model_dump(mode="json")}
    for section, chosen in (("rewards", plan.rewards), ("trackers", plan.trackers)):
        for entry, plugin in zip(tree[section], chosen, strict=True):
            entry["options"] = plugin.options.model_dump(mode="json")
    if plan.rollout:
        tree["rollout"] |= {"options": plan.rollout.options.model_dump(mode="json"), "group_size": plan.group_size}
    return tree


def facts(plan: Plan, inputs: Inputs) -> dict[str, object]:
    """What must be the same on every machine of a run, or their numbers would mean different things."""
    spec = {f"'{k}'": v for k, v in _flat(plan.spec.model_dump(mode="json")).items() if k not in _OF_A_MACHINE}
    data = {"the data": [f"{len(part)} rows, {part.key}" for part in (inputs.train, inputs.held_out) if part]}
    model = {f"'{Path(name).name}' of the model": size for name, size, _ in model_files(plan.spec.model.path)}
    return {**spec, **data, **model, **{f"the version of {name}": version for name, version in versions().items()}}


_OF_A_MACHINE = ("data.cache", "run.dir", "run.resume")
"""Settings that may be another path on another machine; whether they mean the same is seen otherwise."""


def load_saved_spec(run: Path) -> Tree:
    """The spec of a run folder.

    Raises:
        CheckpointError: it is no run folder.
    """
    if not (run / "spec.yaml").is_file():
        raise CheckpointError(f"'{run}' is not a run folder: it has no spec.yaml. Give the folder that holds one, and "
                              "checkpoints.")
    return read_spec_file(run / "spec.yaml")


def open_run(plan: Plan, say: Any) -> tuple[RunFolder, Path | None]:
    """The run's folder, and the checkpoint to go on from, if any.

    Raises:
        SpecError: the folder holds another run, or a changed setting would make the continuation another run.
        CheckpointError: the checkpoint to resume from is not there or not whole.
    """
    run = plan.spec.run
    now = f"{plan.algorithm.name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder = RunFolder(expanded(run.dir) / (run.name or now), run.name is not None)
    if run.resume is None:
        if folder.taken:
            raise SpecError([f"the run folder '{folder.path}' already holds a run. Continue it with --resume auto, or "
                             "give another run.name."])
        return folder, None
    checkpoint = newest_intact(folder.checkpoints, say) if run.resume == "auto" else _explicit(
        expanded(run.resume), folder)
    if checkpoint is None:
        say(f"nothing to resume in '{folder.path}': starting from the beginning")
        return folder, None
    saved, spec = expand_home(load_saved_spec(checkpoint.parent.parent)), expand_home(saved_spec(plan))
    _compare(saved, spec, checkpoint, say, run.resume_changed)
    return folder, checkpoint


_FIXED = ("algo.name", "model.path", "model.reference.path", "data.path", "data.columns", "data.max_prompt",
          "data.max_length", "data.overlong", "data.eval", "train.batch_size", "rollout.group_size", "run.seed",
          "model.chat_template", "model.lora", "model.lora.rank", "model.lora.alpha", "model.lora.targets")
FORCE = "--set run.resume_changed=true continues all the same"


def _compare(saved: Tree, now: Tree, checkpoint: Path, say: Any, forced: bool) -> None:
    """Refuse what would make the continuation another run, unless forced; say what else has changed."""
    old, new = _flat(saved), _flat(now)
    changed = [k for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)
               and not k.startswith((*_OF_A_MACHINE, "run.name"))]
    refused = [k for k in changed if k in _FIXED]
    if refused and not forced:
        raise SpecError([f"'{k}' is {new.get(k)!r} and was {old.get(k)!r} in the run of '{checkpoint}', so it cannot "
                         "be continued. Put it back, or start a new run from those weights with --model "
                         f"{checkpoint / 'actor'}; {FORCE}" for k in refused])
    for what, keys in (("changed, which makes it another run, by force: ", refused),
                       ("changed since the checkpoint: ", [k for k in changed if k not in refused])):
        if keys:
            say(what + listing(f"{k} {old.get(k)!r} -> {new.get(k)!r}" for k in keys))


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(tree, dict) and tree:
        return {k: v for key, value in tree.items() for k, v in _flat(value, f"{prefix}{key}.").items()}
    return {prefix.rstrip("."): tree}


def _explicit(path: Path, folder: RunFolder) -> Path:
    """A checkpoint by its folder: continued in its own run, if that has no newer one, or in a new run."""
    if (path / "manifest.json").is_file():
        verify(path)
        own = path.parent.resolve() == folder.checkpoints.resolve()
        if folder.taken and not (own and path == complete_checkpoints(path.parent)[-1]):
            why = "newer checkpoints, which would be lost" if own else "another run"
            raise SpecError([f"the run folder '{folder.path}' holds {why}. Go on from '{path}' in a new run: give "
                             "another --name, or none."])
        return path
    there = complete_checkpoints(path.parent if path.name.startswith(PREFIX) else path / "checkpoints")
    raise CheckpointError(f"there is no complete checkpoint '{path}'. Found: {listing(there) or 'none'}.")


def _made(path: Path, named: bool) -> Path:
    """The folder, made; of a name that nobody chose, the first of its kind that was not there."""
    for one in () if named else (path, *(path.with_name(f"{path.name}-{n}") for n in range(2, 999))):
        with contextlib.suppress(FileExistsError):
            one.mkdir(parents=True)
            return one
    path.mkdir(parents=True, exist_ok=True)
    return path


def _replace(file: Path, text: str) -> None:
    """Whoever reads, or is killed meanwhile, finds the old text or the new one."""
    aside = file.with_name(f".{file.name}")
    with _writing(file.parent):
        aside.write_text(text, encoding="utf-8")
        aside.replace(file)


@contextlib.contextmanager
def _writing(run: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpecError([f"the run folder '{run.absolute()}' cannot be written: {error.strerror}. Make room there, or "
                         "set run.dir to a folder that can be written."]) from error


def _step_of(line: str) -> float:
    """Infinity for the half a line that a killed run may leave."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf
