"""What the contract tests share."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

from rlx_sdk.errors import cause
from rlx_sdk.plugins import Plugin

_UNKNOWN = "no_plugin_has_this_option"


@contextlib.contextmanager
def owned(name: str, given: str, fix: str) -> Iterator[None]:
    """A block of a plugin's own code, which neither raises nor prints; ``name`` is its kind and name."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    except AssertionError as error:
        if getattr(error, "rlx", False):
            raise
        raise failure(f"{name}, {given}: it raised {cause(error)}; {fix}.") from error
    except Exception as error:
        raise failure(f"{name}, {given}: it raised {cause(error)}; {fix}.") from error
    if printed.getvalue():
        raise failure(f"{name}, {given}: it printed {printed.getvalue()!r:.80} on stdout; that belongs to rlx, so use "
                      "logging, or print(..., file=sys.stderr).")


def failure(text: str) -> AssertionError:
    """What a contract test raises: what was given, what came back, what to change."""
    error = AssertionError(text)
    error.rlx = True  # type: ignore[attr-defined]
    return error


def demand(holds: Any, text: str) -> None:
    """Fail with the text unless it holds."""
    if not holds:
        raise failure(text)


def options_of(name: str, plugin: Plugin, options: Any) -> Any:
    """The options as rlx would make them; unknown ones must be refused."""
    from rlx_sdk.config import Config

    with owned(name, "asked for its config", "config must return the class of its options"):
        config = plugin.config()
    if not (isinstance(config, type) and issubclass(config, Config)):
        raise failure(f"{name}: its config is {config!r:.80}; derive the class of its options from rlx_sdk.Config, "
                      "which refuses unknown and ill-typed ones.")
    given = {} if isinstance(options, config) else dict(options or {})
    fix = "give every option a default, or pass working ones with options={…}"
    with owned(name, f"built with the options {given or 'left at their defaults'}", fix):
        made = options if isinstance(options, config) else config.model_validate_json(json.dumps(given))
    if _accepts(config, {**given, _UNKNOWN: 1}):
        raise failure(f"{name}, given the unknown option '{_UNKNOWN}': it was accepted, so a misspelt option would go "
                      "unnoticed; leave Config's extra=\"forbid\" as it is.")
    return made


def _accepts(config: Any, options: Mapping[str, Any]) -> bool:
    try:
        config.model_validate_json(json.dumps(options))
    except ValueError:
        return False
    return True
