"""What every command of the command line shares: JSON, and errors as exit codes."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import typer


def print_json(value: Any) -> None:
    """One document on standard output."""
    import json

    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))


class errors:
    """Errors of ours as a message and an exit code: 2 for bad input, 1 for a failure; a bug keeps its traceback."""

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        """Turn an `RlxError` into an exit."""
        from rlx_sdk import InputError, RlxError

        if isinstance(error, RlxError):
            fail(str(error), 2 if isinstance(error, InputError) else getattr(error, "code", 1))


def fail(message: str, code: int) -> NoReturn:
    """Say why, and leave."""
    from rlx.launch import place_of, report

    if not report(message):
        rank = place_of(os.environ).rank
        typer.echo(f"{'' if code > 128 else 'error: '}{f'rank {rank}: ' if rank else ''}{message}", err=True)
    raise typer.Exit(code)
