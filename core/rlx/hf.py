"""What a model path means to HF libraries, and what a failure to load it means to a user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlx.machine import expanded
from rlx.text import did_you_mean_file

MODEL_FILES = (".json", ".safetensors", ".py", ".jinja", ".model", ".txt")


def pretrained_args(path: str) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` for a folder, a hub name, or one ``.gguf`` file."""
    if path.endswith(".gguf"):
        file = Path(path)
        return {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    return {"pretrained_model_name_or_path": path}


def model_files(path: str) -> list[tuple[str, int, int]]:
    """Name, size and time of each file that makes a model: they tell whether it is the same as before."""
    place = expanded(path)
    if not place.exists():  # a hub name
        from transformers.utils.hub import cached_file

        return [(str(Path(str(cached_file(path, "config.json"))).parent), 0, 0)]  # its name is the commit's
    files = [place] if place.is_file() else [f for f in place.iterdir() if f.suffix in MODEL_FILES]
    return sorted((str(f.absolute()), f.stat().st_size, f.stat().st_mtime_ns) for f in files)


def explain_load_failure(path: str, what: str, error: Exception, trust: str = "model.trust_remote_code = true",
                         give: str = "--model a folder with config.json and *.safetensors, or a .gguf file") -> str:
    """What is wrong with a model path, and the fix.

    Args:
        path: folder, file or hub name.
        what: could not be loaded from there.
        error: of whoever tried.
        trust: the setting that lets the model bring code.
        give: where a model is named, and what is wanted there.
    """
    local = Path(path)
    if "trust_remote_code" in str(error):
        return (f"the {what} of '{path}' brings Python code of its own, which is not run unasked: read it, and set "
                f"{trust} if you trust it.")
    reason = str(error).strip().partition("\n")[0].rstrip(".: ")
    if local.is_dir():
        found = ", ".join(sorted(p.name for p in local.iterdir())[:8]) or "nothing"
        lacks = "" if what != "tokenizer" or (local / "tokenizer.json").exists() else " It needs a tokenizer.json."
        return f"no {what} could be loaded from the folder '{local.resolve()}' (it holds {found}): {reason}.{lacks}"
    if local.exists():
        return f"no {what} could be loaded from '{local.resolve()}': {reason}."
    return (f"{what.replace('tokenizer', 'model')} '{path}': there is no such folder ({local.absolute()}), and it "
            f"could not be had as a hub name either: {reason}.{did_you_mean_file(local)} Give {give}.")
