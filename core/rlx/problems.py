"""What is wrong: found by several looks, told at once; of settings, in sentences a user can act on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rlx.looks.peers import called_here
from rlx.spec import Spec
from rlx.text import count, did_you_mean, listing
from rlx_sdk import InputError, RlxError, SpecError

T = TypeVar("T")

_FLAGS = {"algo": ": give --algo NAME (rlx plugins lists them)", "data": ": give --data FILE"}


class InputErrors(InputError):
    """Several of different kinds, as one."""

    def __init__(self, errors: Sequence[RlxError], sentences: Sequence[str]) -> None:
        """Keep them, and their sentences in the message."""
        self.errors = tuple(errors)
        lines = [text.replace("\n", "\n    ") for text in sentences]
        super().__init__("\n  - ".join([f"{count(len(lines), 'problem')}:", *lines]))


class Problems:
    """Errors of several looks: each is taken, whatever those before it have found."""

    def __init__(self, *errors: RlxError) -> None:
        """Begin with some."""
        self.errors = [*errors]

    def of(self, look: Callable[[], T]) -> T | None:
        """What it gives; None where it raises one of our errors, which is kept."""
        try:
            return look()
        except RlxError as error:
            self.errors += getattr(error, "errors", (error,))
        return None

    @property
    def sentences(self) -> list[str]:
        """Each problem once."""
        return list(dict.fromkeys(text for error in self.errors for text in (
            error.problems if isinstance(error, SpecError) else (str(error),))))

    def end(self) -> None:
        """Raise what was found: one error as it is, several as one."""
        if len(self.errors) > 1:
            settings_alone = all(isinstance(error, SpecError) for error in self.errors)
            raise SpecError(self.sentences) if settings_alone else InputErrors(self.errors, self.sentences)
        if self.errors:
            raise self.errors[0]


def sentences(error: ValidationError, model: type[BaseModel], value: Any, prefix: str) -> list[str]:
    """Pydantic's findings, one sentence a setting."""
    found: dict[str, list[str]] = {}
    for e in error.errors():
        loc = e["loc"] if e["type"] in ("missing", "extra_forbidden") else _place(e["loc"], value)
        where = (prefix + _dotted(loc)).rstrip(".")
        what = f"'{where}'" if e["type"] in ("missing", "extra_forbidden", "value_error") else (
            f"'{where}' = {e['input']!r:.60}")
        found.setdefault(what, []).append(_finding(e, model, loc))
    return [what + "; or".join(findings) for what, findings in found.items()]


def _finding(error: Any, model: type[BaseModel], loc: tuple[Any, ...]) -> str:
    """What is wrong with one setting, and the fix."""
    kind, section = error["type"], section_of(model, loc)
    if kind == "missing":
        return f" is missing{_FLAGS.get(loc[0], '')}"
    if kind == "extra_forbidden":
        known = list(parent.model_fields) if (parent := section_of(model, loc[:-1])) else []
        name, theirs = str(loc[-1]), called_here(_dotted(loc), error["input"])
        hint = "".join(f" {s}." for s in theirs) or did_you_mean(name, known) or (
            f" There is {listing(found)}." if (found := settings_called(name)) else "")
        return f" is an unknown setting.{hint} (known: {listing(known, 20) or 'none'})"
    if kind == "value_error":
        return f": {error['ctx']['error']}"
    if section and error["input"] is None:
        return ": a section without settings; leave it out"
    if section and isinstance(error["input"], str | int | float):  # most likely meant for the section's first setting
        example = f"{{{next(iter(section.model_fields))}: {error['input']!s:.40}}}"
        return f": write it as {f'[{example}]' if kind == 'tuple_type' else example}"
    return f": {error['msg'][0].lower()}{error['msg'][1:]}"


def settings_called(name: str, model: type[BaseModel] | None = None, prefix: str = "") -> list[str]:
    """The settings of a spec, in full, whose last word is a name."""
    model = model or Spec
    inner = [(f"{prefix}{field}", section_of(model, (field,))) for field in model.model_fields]
    here = [place for place, section in inner if not section and place.rpartition(".")[2] == name]
    return here + [s for place, section in inner if section for s in settings_called(name, section, f"{place}.")]


def _place(loc: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """The part of pydantic's location that is in the input; the rest names members of a union."""
    for depth, part in enumerate(loc):
        inside = part in value if isinstance(value, Mapping) else isinstance(value, list) and isinstance(part, int)
        if not inside:
            return loc[:depth]
        value = value[part]
    return loc


def _dotted(loc: tuple[Any, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")


def section_of(model: type[BaseModel], loc: tuple[Any, ...]) -> type[BaseModel] | None:
    """The class of the settings at a place; None where there is a single setting."""
    here: Any = model
    for part in (name for name in loc if not isinstance(name, int)):
        field = here.model_fields.get(part) if isinstance(here, type) and issubclass(here, BaseModel) else None
        here = field.annotation if field else None
        arguments = getattr(here, "__args__", ())
        here = next((a for a in arguments if isinstance(a, type) and issubclass(a, BaseModel)), here)
    return here if isinstance(here, type) and issubclass(here, BaseModel) else None
