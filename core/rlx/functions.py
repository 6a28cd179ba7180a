"""Rewards that are functions: of a file, a module, or the program that calls rlx. Every rank finds them by name."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from rlx.machine import expanded
from rlx.registry import Entry, Registry, stdout_to_stderr
from rlx.text import did_you_mean, did_you_mean_file, listing
from rlx_sdk import PluginError, RewardPlugin
from rlx_sdk.errors import cause
from rlx_sdk.reward import RewardFunction


def find_reward(registry: Registry, text: str) -> tuple[Entry, dict[str, Any]]:
    """The reward that a name means, and the options that the name itself sets.

    Args:
        registry: the installed plugins.
        text: ``name``, ``package/name``, ``name:argument``, ``path/to/file.py:function`` or ``module:function``.

    Raises:
        PluginError: there is none.
    """
    place, colon, function = text.rpartition(":")
    try:
        return registry.named("reward", text)
    except PluginError:
        if text.endswith(".py"):
            raise PluginError(f"reward '{text}' is a file; name the function in it: {text}:FUNCTION") from None
        if not colon or registry.offers("reward", text.partition(":")[0]) or "//" in text:
            raise
    module, version = _file(place, text) if place.endswith(".py") else (_module(place, text, registry), "")
    found = module.__dict__.get(function)
    if not callable(found) and not isinstance(found, RewardPlugin):
        names = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise PluginError(f"reward '{text}': '{place}' has no function '{function}'.{did_you_mean(function, names)} "
                          f"It has: {listing(names, 12) or 'none'}.")
    return Entry(as_plugin(found, function), place, version or getattr(module, "__version__", "?")), {}


def as_plugin(found: Any, name: str) -> RewardPlugin:
    """The plugin of a decorated reward, or of a plain function in any style that `rlx_sdk.adapters` knows."""
    from rlx_sdk.adapters import function_plugin

    if isinstance(found, RewardPlugin):
        return found
    return found.plugin if isinstance(found, RewardFunction) else function_plugin(found, name)


def _file(place: str, text: str) -> tuple[ModuleType, str]:
    """The module of a file, run once, and a short hash of it in the place of a version."""
    path = expanded(place).absolute()
    if not path.is_file():
        raise PluginError(f"reward '{text}': there is no file '{path}'.{did_you_mean_file(path)}")
    version = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    name = f"rlx_reward_{path.stem}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}_{version}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            with _importing(text, path.parent):
                spec.loader.exec_module(module)
        except PluginError:
            del sys.modules[name]
            raise
    return sys.modules[name], f"sha256 {version}"


def _module(place: str, text: str, registry: Registry) -> ModuleType:
    names = [e.name for e in registry.entries("reward")]
    with _importing(text, Path.cwd()):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise
            raise PluginError(f"reward '{text}': there is no module '{error.name}' (in {Path.cwd()} or installed), and "
                              f"no reward of that name{' that takes an argument' * (place in names)}."
                              f"{did_you_mean(place, names)} Write NAME (options go into a spec file), package/NAME, "
                              "NAME:ARGUMENT, file.py:function or module:function.") from error


@contextmanager
def _importing(text: str, folder: Path) -> Iterator[None]:
    """Files beside it can be imported too, after everything installed; what a stranger's module raises is wrapped."""
    if os.fspath(folder) not in sys.path:
        sys.path.append(os.fspath(folder))
    try:
        with stdout_to_stderr():
            yield
    except PluginError:
        raise
    except (Exception, SystemExit) as error:
        raise PluginError(f"reward '{text}' could not be loaded: {cause(error)}") from error
