"""Turns of a chat as people write them, into the messages that chat templates take."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from rlx_sdk import Message

ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant", "model": "assistant",
         "ai": "assistant", "observation": "tool", "function_response": "tool", "function_call": "assistant"}
"""ShareGPT's names for the roles."""
_KNOWN = ("system", "developer", "user", "assistant", "tool")


class RowProblem(Exception):
    """A row that cannot be used: the column and what is wrong with it."""

    def __init__(self, column: str, problem: str) -> None:
        """Keep both."""
        super().__init__(f"column '{column}' {problem}")


def read_turns(value: Any, column: str) -> list[Message]:
    """Messages of a column, or in JSON text: OpenAI's ``role`` and ``content``, or ShareGPT's ``from`` and ``value``.

    Raises:
        RowProblem: it is no list of turns, or a turn has no text or an unknown role.
    """
    value = from_json(value, column)
    if not isinstance(value, list) or not value:
        raise RowProblem(column, f"should be a list of messages and is {value!r:.60}")
    return [_turn(turn, column) for turn in value]


def _turn(turn: Any, column: str) -> Message:
    if isinstance(turn, dict) and isinstance(turn.get("from"), str) and "value" in turn:
        role = ROLES.get(turn["from"].lower(), turn["from"].lower())
        if role not in _KNOWN:
            raise RowProblem(column, f"has a turn from '{turn['from']}'; known are {', '.join((*_KNOWN, *ROLES))}")
        if turn["from"].lower() == "function_call":
            return {"role": role, "content": "", "tool_calls": [_call(from_json(turn["value"], column), column)]}
        turn = {"role": role, "content": turn["value"]}
    if not isinstance(turn, dict) or not isinstance(turn.get("role"), str) or "content" not in turn:
        raise RowProblem(column, f'should hold turns like {{"role": "user", "content": "…"}}, not {turn!r:.60}')
    # Arrow gives every struct all keys; a null one was never written.
    found: dict[str, Any] = without_nulls(turn)
    found |= {"role": ROLES.get(turn["role"].lower(), turn["role"]), "content": _content(turn, column)}
    if calls := found.pop("tool_calls", None):
        found["tool_calls"] = [_call(call, column) for call in (calls if isinstance(calls, list) else [calls])]
    return found


def _content(turn: Mapping[str, Any], column: str) -> str:
    """Text; of OpenAI's list of parts the texts, joined."""
    content = turn["content"]
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        content = "".join(part["text"] for part in content)
    if content is None and (turn.get("tool_calls") or turn.get("reasoning_content")):
        content = ""
    if not isinstance(content, str):
        raise RowProblem(column, f"has a turn of '{turn['role']}' whose content should be text and is {content!r:.60}")
    return whole_text(content, column)


def whole_text(text: str, column: str) -> str:
    r"""JSON can write half of a character pair (``\ud83d`` alone); no tokenizer takes it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RowProblem(column, f"holds half a character at position {error.start} of its text: "
                                 f"{text[max(0, error.start - 20):error.end]!r}") from error
    return text


def without_nulls(value: Any) -> Any:
    """The value without keys that are null, at any depth."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list) else value


def from_json(value: Any, column: str) -> Any:
    """What JSON text means; any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowProblem(column, f"should be JSON text and is {value!r:.60}: {error}") from error


def _call(call: Any, column: str) -> dict[str, Any]:
    """A call of a tool, with its arguments as values: templates print these as JSON, and text would be quoted twice."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
        raise RowProblem(column, 'has a call of a tool that should be {"name": …, "arguments": …} and is '
                                 f"{call!r:.60}")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    whole = function if arguments is None else {**function, "arguments": arguments}
    return {"type": "function", **(call if "function" in call else {}), "function": whole}
