"""From a row as people have it to one `Example`.

Known layouts, by column names:

    Alpaca      instruction, input (may be empty or missing), output
    prompts     prompt: plain text, used as it is, or a list of chat messages; completion
    messages    messages: a list of {"role": …, "content": …}
    pairs       any of the prompts above, and chosen, rejected: text or messages

A prompt in messages goes through the chat template; plain text does not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.text import nearest
from rlx_sdk import DataKind, Message

Prompt = str | list[Message]
KNOWN = ("instruction", "input", "output", "prompt", "completion", "messages", "chosen", "rejected")
_ANSWER_COLUMNS = {"prompt": "completion", "messages": "messages", "instruction": "output"}
"""Columns that make a prompt, in the order they are looked for, and where a demonstration has its answer."""
_ALIASES = {"question": "prompt", "query": "prompt", "answer": "completion", "response": "completion"}
_WANTED = {
    "rollouts": "a prompt column (instruction, prompt or messages)",
    "demonstrations": "a prompt and its answer (instruction and output, prompt and completion, or messages)",
    "pairs": "a prompt column, and the columns chosen and rejected",
}


class RowProblem(Exception):
    """A row that cannot be used: the column and what is wrong with it."""

    def __init__(self, column: str, problem: str) -> None:
        """Keep both."""
        super().__init__(f"column '{column}' {problem}")


@dataclass(frozen=True, slots=True)
class Example:
    """One row, understood.

    Attributes:
        prompt: plain text, or messages that end with a user or tool turn.
        answers: the text to learn (demonstrations), or chosen and rejected (pairs).
        row: all columns that did not make the prompt.
    """

    prompt: Prompt
    answers: tuple[str, ...] = ()
    row: Mapping[str, Any] = field(default_factory=dict)


def missing_columns(columns: Sequence[str], kind: DataKind) -> str | None:
    """What a file lacks for a kind of data, with the columns it has and the nearest names; None if nothing."""
    prompt = _layout(columns, kind)
    answers = ["chosen", "rejected"] if kind == "pairs" else []
    if kind == "demonstrations" and prompt:
        answers = [_ANSWER_COLUMNS[prompt]]
    lacking = [a for a in answers if a not in columns]
    if prompt and not lacking:
        return None
    guesses = {c: _ALIASES.get(c.lower()) or nearest(c, KNOWN) for c in columns if c not in KNOWN}
    example = next((f"data.columns.{ours}={theirs}" for theirs, ours in guesses.items() if ours),
                   f"data.columns.{lacking[0] if lacking and prompt else 'prompt'}={next(iter(guesses), 'NAME')}")
    return (f"needs {_WANTED[kind]}; it has the columns {', '.join(columns)}. Map your columns to these names, "
            f"e.g. --set {example}.")


def read_example(row: Mapping[str, Any], kind: DataKind) -> Example:
    """Understand one row.

    Raises:
        RowProblem: a value is missing, empty or of the wrong type.
    """
    layout = _layout([k for k, v in row.items() if v is not None], kind) or _layout(row, kind) or "prompt"
    prompt, turn = _prompt(row, layout, kind)
    used = ("instruction", "input") if layout == "instruction" else (layout,)
    rest = {k: v for k, v in row.items() if k not in used}
    return Example(prompt, _answers(row, kind, layout, turn), rest)


def _layout(columns: Collection[str], kind: DataKind) -> str | None:
    """The column that makes the prompt: the first there is, for demonstrations with its answer if one has."""
    there = [c for c in _ANSWER_COLUMNS if c in columns]
    whole = [c for c in there if kind != "demonstrations" or _ANSWER_COLUMNS[c] in columns]
    return next(iter(whole or there), None)


def _prompt(row: Mapping[str, Any], layout: str, kind: DataKind) -> tuple[Prompt, str | None]:
    """The prompt, and the answer if that is the last of its messages."""
    if layout == "messages":
        return _split_messages(row["messages"], wants_answer=kind == "demonstrations")
    return (_alpaca_prompt(row) if layout == "instruction" else _prompt_value(row)), None


def _answers(row: Mapping[str, Any], kind: DataKind, layout: str, turn: str | None) -> tuple[str, ...]:
    if kind == "rollouts":
        return ()
    if kind == "pairs":
        return _answer(row, "chosen"), _answer(row, "rejected")
    if turn is not None:
        return (turn,)
    return (_answer(row, _ANSWER_COLUMNS[layout]),)


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if value is None:
        raise RowProblem(column, "is missing or null")
    if not isinstance(value, str):
        raise RowProblem(column, f"should be text and is {type(value).__name__} {value!r:.60}")
    if not value.strip():
        raise RowProblem(column, "is empty")
    return _whole(value, column)


def _whole(text: str, column: str) -> str:
    r"""JSON can write half of a character pair (``\ud83d`` alone); no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowProblem(column, f"holds half a character at position {error.start} of its text: "
                                 f"{text[max(0, error.start - 20):error.end]!r}") from error
    return text


def _alpaca_prompt(row: Mapping[str, Any]) -> Prompt:
    instruction = _text(row, "instruction")
    extra = row.get("input")
    if extra is not None and not isinstance(extra, str):
        raise RowProblem("input", f"should be text and is {type(extra).__name__} {extra!r:.60}")
    content = f"{instruction}\n\n{_whole(extra, 'input')}" if extra and extra.strip() else instruction
    return [{"role": "user", "content": content}]


def _prompt_value(row: Mapping[str, Any]) -> Prompt:
    if not isinstance(row.get("prompt"), list):
        return _text(row, "prompt")
    messages, _ = _split_messages(row["prompt"], wants_answer=False, column="prompt")
    return messages


def _answer(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if not isinstance(value, list):
        return _text(row, column)
    messages = _checked_messages(value, column)
    if messages[-1]["role"] != "assistant":
        raise RowProblem(column, f"should end with an assistant turn and ends with '{messages[-1]['role']}'")
    return _text({column: messages[-1]["content"]}, column)


def _split_messages(value: Any, wants_answer: bool, column: str = "messages") -> tuple[list[Message], str | None]:
    """The turns before the last assistant turn, and its text."""
    messages = _checked_messages(value, column)
    ends_with_answer = messages[-1]["role"] == "assistant"
    if wants_answer and not ends_with_answer:
        raise RowProblem(column, f"should end with an assistant turn to learn and ends with '{messages[-1]['role']}'")
    turns = messages[:-1] if ends_with_answer else messages
    if not turns:
        raise RowProblem(column, "has no turn before the assistant's")
    return turns, _text({column: messages[-1]["content"]}, column) if wants_answer else None


def _checked_messages(value: Any, column: str) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise RowProblem(column, f"should be a list of messages and is {value!r:.60}")
    for turn in value:
        if not isinstance(turn, dict) or not isinstance(turn.get("role"), str) or "content" not in turn:
            raise RowProblem(column, f'should hold turns like {{"role": "user", "content": "…"}}, not {turn!r:.60}')
        if isinstance(turn["content"], str):
            _whole(turn["content"], column)
    # Arrow gives every struct all keys; a null one was never written.
    return [{k: v for k, v in turn.items() if v is not None or k == "content"} for turn in value]
