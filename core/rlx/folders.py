"""What a model's folder tells without loading it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from rlx.layers import lookup
from rlx.machine import expanded
from rlx.text import did_you_mean_file, listing


def folder_problems(setting: str, value: str) -> Iterator[str]:
    """What is wrong with a model that a setting names, as far as its folder shows."""
    path = expanded(value)
    holds = f"the folder holds {listing(sorted(p.name for p in path.iterdir())) or 'nothing'}" if path.is_dir() else ""
    if path.suffix != ".gguf" and path.is_dir() and not (path / "config.json").is_file():
        yield f"{setting} '{value}' ({path.absolute()}) has no config.json; {holds}"
    elif path.is_dir() and not any(path.glob("*.safetensors")):
        yield f"{setting} '{value}' ({path.absolute()}) has no weights (*.safetensors); {holds}"
    elif path.is_file() and path.suffix != ".gguf":
        yield f"{setting} '{value}' is a file; give the folder with the model's config.json, or a .gguf file"
    if value.startswith("hf:"):
        yield f"{setting} '{value}': hf: is written before data and rewards only; here write '{value[3:]}'"
    elif not path.exists() and (value[:1] in "/.~" or value.count("/") != 1 or path.suffix == ".gguf"):
        yield (f"{setting} '{value}': there is no such folder (looked at {path.absolute()}).{did_you_mean_file(path)} "
               "Give one with config.json and *.safetensors, a .gguf file, or a hub name (ORG/NAME)")


def context_length(path: Path) -> int | None:
    """``max_position_embeddings`` of a local HF folder, if it says so."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = lookup(config, "max_position_embeddings") or lookup(config, "text_config.max_position_embeddings")
    return found if isinstance(found, int) else None
