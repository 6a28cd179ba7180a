"""The folder of a run: spec, metrics, samples, checkpoints."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from rlx.checkpoint import PREFIX, complete_checkpoints, newest_intact, verify
from rlx.data import Prepared
from rlx.layers import Tree, absolute_paths, read_spec_file, to_yaml
from rlx.plan import Plan
from rlx.text import listing
from rlx_sdk import CheckpointError, SpecError

VERSIONED = ("rlx", "rlx-sdk", "torch", "transformers", "deepspeed", "pyarrow")


class RunFolder:
    """``runs/<name>/``."""

    def __init__(self, path: Path) -> None:
        """Name the folder; nothing is written yet."""
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.samples = path / "samples"

    def make(self) -> None:
        """Make the folder; it is a run's only when `start` has written the spec.

        Raises:
            SpecError: it cannot be written.
        """
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.samples.mkdir(exist_ok=True)
        except OSError as error:
            raise SpecError([f"the run folder '{self.path.absolute()}' cannot be made: {error.strerror}. Set run.dir "
                             "to a folder that can be written."]) from error

    def start(self, plan: Plan) -> None:
        """Write down what runs: the resolved spec, and versions as comments."""
        text = to_yaml(saved_spec(plan))
        lines = "".join(f"# {name} {version}\n" for name, version in versions().items())
        aside = self.path / ".spec.yaml"
        aside.write_text(lines + text, encoding="utf-8")
        aside.replace(self.path / "spec.yaml")

    def rewind(self, step: int) -> None:
        """Forget samples of steps after this one: a resumed run makes them again."""
        for file in self.samples.glob("*.parquet"):
            if int(file.stem.rpartition("_")[2]) > step:
                file.unlink()

    def metrics(self, training: bool = True) -> list[dict[str, Any]]:
        """Lines of steps of training, or of evaluations; half a line of a killed run is passed over."""
        file = self.path / "metrics.jsonl"
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        lines = [json.loads(line) for line in text.splitlines() if _step_of(line) is not None]
        return [line for line in lines if ("time/step" in line) == training]

    def log_skipped(self, step: int, role: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Which rows had a loss that was not finite, in ``skipped.jsonl``."""
        with (self.path / "skipped.jsonl").open("a", encoding="utf-8") as stream:
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


def load_saved_spec(run: Path) -> Tree:
    """The spec of a run folder.

    Raises:
        CheckpointError: it is no run folder.
    """
    if not (run / "spec.yaml").is_file():
        raise CheckpointError(f"'{run}' is not a run folder: it has no spec.yaml")
    return read_spec_file(run / "spec.yaml")


def open_run(plan: Plan, say: Any) -> tuple[RunFolder, Path | None]:
    """The run's folder, and the checkpoint to go on from, if any.

    Raises:
        SpecError: the folder holds another run, or a changed setting would make the continuation another run.
        CheckpointError: the checkpoint to resume from is not there or not whole.
    """
    run = plan.spec.run
    where, now = Path(run.dir).expanduser(), f"{plan.algorithm.name}-{datetime.now():%Y%m%d-%H%M%S}"
    new = next(name for name in (now, *(f"{now}-{n}" for n in range(2, 999))) if not (where / name).exists())
    folder = RunFolder(where / (run.name or new))
    if run.resume is None:
        if (folder.path / "spec.yaml").exists():
            raise SpecError([f"the run folder '{folder.path}' already holds a run. Continue it with --resume auto, or "
                             "give another run.name."])
        return folder, None
    if run.resume == "auto":
        checkpoint = newest_intact(folder.checkpoints, say)
    else:
        checkpoint = _explicit(Path(run.resume), folder)
    if checkpoint is None:
        say(f"nothing to resume in '{folder.path}': starting from the beginning")
        return folder, None
    _compare(load_saved_spec(checkpoint.parent.parent), saved_spec(plan), checkpoint, say, run.resume_changed)
    return folder, checkpoint


_FIXED = ("algo.name", "model.path", "model.reference.path", "data.path", "data.columns", "data.max_prompt",
          "data.max_length", "data.overlong", "data.eval", "train.batch_size", "rollout.group_size", "run.seed",
          "model.lora", "model.lora.rank", "model.lora.alpha", "model.lora.targets")
FORCE = "--set run.resume_changed=true continues all the same"


def _compare(saved: Tree, now: Tree, checkpoint: Path, say: Any, forced: bool) -> None:
    """Refuse what would make the continuation another run, unless forced; say what else has changed."""
    old, new = _flat(saved), _flat(now)
    changed = [k for k in sorted(old.keys() | new.keys()) if old.get(k) != new.get(k)
               and not k.startswith(("run.resume", "run.name", "run.dir"))]
    refused = [k for k in changed if k in _FIXED]
    if refused and not forced:
        raise SpecError([f"'{k}' is {new.get(k)!r} and was {old.get(k)!r} in the run of '{checkpoint}', so it cannot "
                         "be continued. Put it back, or start a new run from those weights with --model "
                         f"{checkpoint / 'actor'}; {FORCE}" for k in refused])
    for what, keys in (("changed, which makes it another run, by force: ", refused),
                       ("changed since the checkpoint: ", [k for k in changed if k not in refused])):
        if keys:
            say(what + listing(f"{k} {old.get(k)!r} -> {new.get(k)!r}" for k in keys))


def same_data(saved: Mapping[str, Any], train: Prepared, checkpoint: Path, forced: bool, say: Any) -> None:
    """Refuse to continue on data of another content, unless forced: the position in it would mean other rows.

    Raises:
        SpecError: with both numbers of rows.
    """
    rows = train.rows
    if saved["fingerprint"] == rows.fingerprint:
        return
    what = (f"data file '{rows.file}' has changed since the checkpoint '{checkpoint}' ({len(rows)} rows, were "
            f"{saved['rows']})")
    if not forced:
        raise SpecError([f"{what}, so its run cannot be continued. Put it back, or start a new run from those weights "
                         f"with --model {checkpoint / 'actor'}; {FORCE}"])
    say(f"{what}; continued by force: rows may come twice or not at all")


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(tree, dict) and tree:
        return {k: v for key, value in tree.items() for k, v in _flat(value, f"{prefix}{key}.").items()}
    return {prefix.rstrip("."): tree}


def _explicit(path: Path, folder: RunFolder) -> Path:
    """A checkpoint by its folder: continued in its own run, if that has no newer one, or in a new run."""
    if (path / "manifest.json").is_file():
        verify(path)
        own = path.absolute().parent == folder.checkpoints.absolute()
        if (folder.path / "spec.yaml").exists() and not (own and path == complete_checkpoints(path.parent)[-1]):
            why = "newer checkpoints, which would be lost" if own else "another run"
            raise SpecError([f"the run folder '{folder.path}' holds {why}. Go on from '{path}' in a new run: give "
                             "another --name, or none."])
        return path
    there = complete_checkpoints(path.parent if path.name.startswith(PREFIX) else path / "checkpoints")
    raise CheckpointError(f"there is no complete checkpoint '{path}'. Found: {listing(there) or 'none'}.")


def _step_of(line: str) -> int | None:
    """A killed run may leave half a line."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None
