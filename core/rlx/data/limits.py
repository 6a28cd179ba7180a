"""Rows that are too long: refused, left out, or cut so that something of every part is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlx.data.layouts import Example
from rlx.data.tokenizer import Encoded, Notice, Tokenizer
from rlx.spec import Overlong
from rlx.text import count

_TRIES = 8
"""Tokens may merge anew where a text was cut."""


@dataclass(frozen=True)
class Limits:
    """What a row may be, in tokens, and what happens to longer ones.

    Attributes:
        prompt: of the prompt; None for no limit.
        total: of prompt and answer together; None for no limit.
        overlong: ``error`` refuses the file, ``drop`` leaves the row out and counts it, ``truncate_left`` takes away
            the start of the prompt, ``truncate_right`` the end of the prompt (its limit) or of the answers (the total).
    """

    prompt: int | None = None
    total: int | None = None
    overlong: Overlong = "error"

    def broken_by(self, row: Encoded) -> str | None:
        """Which limit a row is over; None if it fits."""
        if self.prompt is not None and len(row.prompt) > self.prompt:
            return f"the prompt has {count(len(row.prompt), 'token')}, the limit (data.max_prompt) is {self.prompt:,}"
        longest = max(map(len, row.answers), default=0)
        if self.total is not None and len(row.prompt) + longest > self.total:
            return (f"prompt and answer have {len(row.prompt):,} + {longest:,} tokens, the limit (data.max_length) is "
                    f"{self.total:,}")
        return None


def cut_to_fit(example: Example, row: Encoded, tokenizer: Tokenizer, limits: Limits) -> Encoded | None:
    """The row, cut as `Limits.overlong` says; None where that is not to cut, or nothing of a part would be left.

    A cut prompt is rendered anew, so that the chat template around it stays whole; the longest of its messages gives.
    A cut answer has no stop token: the model does not learn to stop there.
    """
    left, total = limits.overlong == "truncate_left", limits.total
    if limits.overlong not in ("truncate_left", "truncate_right"):
        return None
    if not example.prompt:
        return _cut_text(row, tokenizer, left, total or 0)
    rooms = [] if limits.prompt is None else [limits.prompt]
    rooms += [total - max(map(len, row.answers))] if left and total is not None and row.answers else []
    if rooms and len(row.prompt) > min(rooms):
        shorter = _shorter(example, tokenizer, min(rooms), left)
        if shorter is None:
            return None
        row = tokenizer.encode(shorter)
    if total is not None:
        row = replace(row, answers=tuple(ids[: max(0, total - len(row.prompt))] for ids in row.answers))
    whole = all(row.answers) and limits.broken_by(row) is None
    return replace(row, notice=row.notice | Notice.CUT) if whole else None


def _cut_text(row: Encoded, tokenizer: Tokenizer, left: bool, total: int) -> Encoded | None:
    ids, lead = [*row.prompt, *row.answers[0]], len(tokenizer.lead)
    kept = [*ids[:lead], *ids[lead:][lead - total:]] if left else ids[:total]
    return Encoded(kept[:1], (kept[1:],), row.notice | Notice.CUT) if 2 <= len(kept) <= total else None


def _shorter(example: Example, tokenizer: Tokenizer, room: int, left: bool) -> Example | None:
    """The example with its prompt cut to ``room`` tokens."""
    for _ in range(_TRIES):
        over = len(tokenizer.encode_prompt(example.prompt, example.tools)) - room
        if over <= 0:
            return example
        text, put = _longest(example)
        offsets: Sequence[Any] = tokenizer.hf(text, add_special_tokens=False, return_offsets_mapping=True)[
            "offset_mapping"]
        if over >= len(offsets):
            return None
        text = text[offsets[over][0]:] if left else text[: offsets[-over][0]]
        if not text.strip():
            return None
        example = put(text)
    return None


def _longest(example: Example) -> tuple[str, Any]:
    """The longest text of a prompt, and what puts another in its place."""
    prompt = example.prompt
    if isinstance(prompt, str):
        return prompt, lambda text: replace(example, prompt=text)
    at = max(range(len(prompt)), key=lambda i: len(prompt[i]["content"]))
    return str(prompt[at]["content"]), lambda text: replace(
        example, prompt=[*prompt[:at], {**prompt[at], "content": text}, *prompt[at + 1:]])
