"""From a row as people have it to one `Example`.

layouts.yaml lists what is recognised, with examples; docs/data.md is made from it.
A prompt in messages goes through the chat template; plain text does not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlx.data.messages import RowProblem, from_json, read_turns, whole_text, without_nulls
from rlx.text import nearest
from rlx_sdk import DataKind, Message

Prompt = str | list[Message]
Answer = str | Message
KINDS: tuple[DataKind, ...] = ("pairs", "labelled", "demonstrations", "rollouts")
KNOWN = ("instruction", "input", "output", "prompt", "completion", "messages", "chosen", "rejected", "conversations",
         "completions", "scores", "label", "margin")
_ANSWER_COLUMNS = {"prompt": "completion", "messages": "messages", "conversations": "conversations",
                   "instruction": "output", "text": "text"}
"""Columns that make a prompt, in the order they are looked for, and where a demonstration has its answer."""
_CHATS = ("messages", "conversations")
_BESIDE = ("instruction", "input", "system", "history")
_ALIASES = {"question": "prompt", "query": "prompt", "answer": "completion", "response": "completion"}
_WANTED = {
    "rollouts": "a prompt column (instruction, prompt, messages or conversations)",
    "demonstrations": "a prompt and its answer (instruction and output, prompt and completion, messages, conversations "
                      "or text)",
    "pairs": "a prompt column, and the columns chosen and rejected (without a prompt, what both begin with is the "
             "prompt) or completions and scores",
    "labelled": "a prompt and its answer (instruction and output, prompt and completion, messages or conversations), "
                "and a column label of true and false",
}
_TURN = "\n\nAssistant:"


@dataclass(frozen=True, slots=True)
class Example:
    """One row, understood.

    Attributes:
        prompt: plain text, or messages that end with a user or tool turn; empty for plain text to learn.
        answers: what to learn (demonstrations, labelled), or chosen and rejected (pairs).
        row: all columns that did not make the prompt.
        label: of labelled data.
        tools: what the template is told of tools.
        dialogue: a conversation to learn from, of which the prompt's assistant turns count too.
        margin: of pairs, by how much the chosen answer is better.
        hidden: a column that elsewhere is part of a prompt is none of this one's.
    """

    prompt: Prompt
    answers: tuple[Answer, ...] = ()
    row: Mapping[str, Any] = field(default_factory=dict)
    label: bool | None = None
    tools: Sequence[Any] | None = None
    dialogue: bool = False
    margin: float = 0.0
    hidden: bool = False


MAP = " Map your columns to these names"
"""Begins what is said to whoever can give settings."""


def missing_columns(columns: Sequence[str], kind: DataKind) -> str | None:
    """What a file lacks for a kind of data, with the columns it has and the nearest names; None if nothing."""
    prompt = _layout(columns, kind)
    lacking = _lacking(columns, kind, prompt)
    if not lacking:
        return None
    guesses = {c: _ALIASES.get(c.lower()) or nearest(c, KNOWN) for c in columns if c not in KNOWN}
    example = next((f"data.columns.{ours}={theirs}" for theirs, ours in guesses.items() if ours),
                   f"data.columns.{lacking[0] if prompt else 'prompt'}={next(iter(guesses), 'NAME')}")
    return f"needs {_WANTED[kind]}; it has the columns {', '.join(columns)}.{MAP}, e.g. --set {example}."


def _lacking(columns: Collection[str], kind: str, prompt: str | None) -> list[str]:
    if kind == "pairs":
        sided = {"chosen", "rejected"} <= set(columns)
        scored = prompt is not None and {"completions", "scores"} <= set(columns)
        return [] if sided or scored else [c for c in ("chosen", "rejected") if c not in columns]
    wanted = [_ANSWER_COLUMNS[prompt or "prompt"]] * (kind != "rollouts") + ["label"] * (kind == "labelled")
    return [c for c in wanted if c not in columns] or ([] if prompt else ["prompt"])


def understood(columns: Sequence[str], kind: DataKind) -> str:
    """What each column is taken for."""
    prompt = _layout(columns, kind)
    sides = ("chosen", "rejected") if "chosen" in columns else ("completions", "scores")
    answer = _ANSWER_COLUMNS.get(prompt or "", "")
    roles = [f"{prompt} makes the prompt" if prompt else "what both sides begin with is the prompt"]
    roles += [f"{' and '.join(sides)} are the sides"] if kind == "pairs" else []
    if kind in ("demonstrations", "labelled"):
        roles.append(f"{answer} {'ends with' if answer == prompt else 'is'} the answer")
    taken = _BESIDE if prompt == "instruction" else ("system", "tools") if prompt in _CHATS else ()
    rest = [c for c in columns if c not in (prompt, *taken)]
    return "; ".join([*roles, *([f"rewards also see {', '.join(rest)}"] if rest and kind == "rollouts" else [])])


def read_example(row: Mapping[str, Any], kind: DataKind) -> Example:
    """Understand one row.

    Raises:
        RowProblem: a value is missing, empty or of the wrong type.
    """
    there = {k: v for k, v in row.items() if v is not None}
    layout = _layout(there, kind) or _layout(row, kind) or "prompt"
    if kind == "pairs":
        used, prompt, answers = _pair(row, layout)
    else:
        used, (prompt, last) = (layout,), _prompt(row, layout, kind)
        answers = () if kind == "rollouts" else (last or _answer(row, _ANSWER_COLUMNS[layout], prompt),)
    if isinstance(prompt, str) and any(not isinstance(a, str) for a in answers):
        prompt = [{"role": "user", "content": prompt}]
    made = {"instruction": _BESIDE}.get(layout, used)
    if isinstance(prompt, list):
        prompt = prompt if prompt[0]["role"] in ("system", "developer") else _before(row, "") + prompt
        made = (*made, "tools", *["system"][: row.get("system") in (None, "", prompt[0]["content"])])
    rest = {k: v for k, v in row.items() if k not in made}
    return Example(prompt, answers, _with_truth(rest), _label(row) if kind == "labelled" else None,
                   _tools(row) if isinstance(prompt, list) else None, kind == "demonstrations" and layout in _CHATS,
                   _margin(row) if kind == "pairs" else 0.0, any(map(rest.get, (*_BESIDE[1:], "tools"))))


def _layout(columns: Collection[str], kind: str) -> str | None:
    """The column that makes the prompt: the first there is, for demonstrations with its answer if one has."""
    learned = kind in ("demonstrations", "labelled")
    there = [c for c in _ANSWER_COLUMNS if c in columns]
    there = [c for c in there if c != "text" or (kind == "demonstrations" and there == ["text"])]
    whole = [c for c in there if not learned or _ANSWER_COLUMNS[c] in columns]
    return next(iter(whole or there), None)


def _prompt(row: Mapping[str, Any], layout: str, kind: str) -> tuple[Prompt, Answer | None]:
    """The prompt, and the answer if that is the last of its messages or the text itself."""
    learned = kind in ("demonstrations", "labelled")
    if layout == "text":
        return "", _text(row, "text")
    if layout == "instruction":
        return [*_before(row, "instruction"), {"role": "user", "content": _instruction(row)}], None
    if layout in _CHATS or isinstance(row.get(layout), list):
        turns = read_turns(row[layout], layout)
        if layout == "prompt" and turns[-1]["role"] == "assistant":
            raise RowProblem(layout, "should end with a user or tool turn and ends with 'assistant'")
        system = [] if layout == "prompt" or turns[0]["role"] == "system" else _before(row, layout)
        return _split(system + turns, layout, learned and layout in _CHATS)
    return _text(row, "prompt"), None


def _before(row: Mapping[str, Any], layout: str) -> list[Message]:
    """Turns that stand in columns of their own."""
    turns: list[Message] = [{"role": "system", "content": _text(row, "system")}] if row.get("system") else []
    history = row.get("history") if layout == "instruction" else None
    for old in (history if isinstance(history, list) else [history]) if history else ():
        if not isinstance(old, list) or len(old) != 2:
            raise RowProblem("history", f'should be a list of ["question", "answer"] and holds {old!r:.60}')
        turns += [{"role": role, "content": _text({"history": text}, "history")}
                  for role, text in zip(("user", "assistant"), old, strict=True)]
    return turns


def _instruction(row: Mapping[str, Any]) -> str:
    instruction, extra = _text(row, "instruction"), row.get("input")
    if extra is not None and not isinstance(extra, str):
        raise RowProblem("input", f"should be text and is {type(extra).__name__} {extra!r:.60}")
    return f"{instruction}\n\n{whole_text(extra, 'input')}" if extra and extra.strip() else instruction


def _split(turns: list[Message], column: str, wants_answer: bool) -> tuple[list[Message], Answer | None]:
    """The turns before the last assistant turn, and that."""
    ends_with_answer = turns[-1]["role"] == "assistant"
    if wants_answer and not ends_with_answer:
        raise RowProblem(column, f"should end with an assistant turn to learn and ends with '{turns[-1]['role']}'")
    before = turns[:-1] if ends_with_answer else turns
    if not before:
        raise RowProblem(column, "has no turn before the assistant's")
    return before, _spoken(turns[-1], column) if wants_answer else None


def _spoken(turn: Message, column: str) -> Answer:
    """An assistant's turn: its text, or all of it where it is more than that."""
    text = "" if turn.get("tool_calls") else _text({column: turn["content"]}, column)
    return text if turn.keys() <= {"role", "content"} else turn


def _pair(row: Mapping[str, Any], layout: str) -> tuple[tuple[str, ...], Prompt, tuple[Answer, ...]]:
    """Columns that made the prompt, the prompt, and both answers."""
    if row.get("chosen") is None and row.get("rejected") is None and row.get("scores") is not None:
        return (layout,), _prompt(row, layout, "pairs")[0], _ranked(row)
    sides = [row.get("chosen"), row.get("rejected")]
    if all(isinstance(side, list) and len(side) > 1 for side in sides) and not isinstance(row.get(layout), list):
        return (layout,), *_shared_turns(*(read_turns(row[c], c) for c in ("chosen", "rejected")))
    if layout == "prompt" and "prompt" not in row and all(isinstance(side, str) for side in sides):
        return (), *_shared_text(_text(row, "chosen"), _text(row, "rejected"))
    prompt = _prompt(row, layout, "pairs")[0]
    return (layout,), prompt, (_answer(row, "chosen", prompt), _answer(row, "rejected", prompt))


def _shared_turns(chosen: list[Message], rejected: list[Message]) -> tuple[Prompt, tuple[Answer, ...]]:
    if chosen[:-1] != rejected[:-1] or any(side[-1]["role"] != "assistant" for side in (chosen, rejected)):
        raise RowProblem("chosen", "and 'rejected' should be the same turns but for the last, an assistant's")
    return chosen[:-1], (_spoken(chosen[-1], "chosen"), _spoken(rejected[-1], "rejected"))


def _shared_text(chosen: str, rejected: str) -> tuple[Prompt, tuple[Answer, ...]]:
    differs = (i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b)
    same = chosen[: next(differs, min(len(chosen), len(rejected)))]
    cut = same.rfind(_TURN) + len(_TURN) if _TURN in same else max(same.rfind(" "), same.rfind("\n"))
    if cut < 1 or not same[:cut].strip():
        raise RowProblem("chosen", "shares no beginning with 'rejected', and there is no column 'prompt'")
    answers = {"chosen": chosen[cut:], "rejected": rejected[cut:]}
    if any("\n\nHuman:" in text for text in answers.values()):
        raise RowProblem("chosen", "and 'rejected' should be the same turns but for the last, an assistant's")
    return same[:cut], tuple(_text(answers, column) for column in answers)


def _ranked(row: Mapping[str, Any]) -> tuple[Answer, ...]:
    """The completions of the highest and the lowest score."""
    found, scores = row.get("completions"), row.get("scores")
    if not isinstance(found, list) or not isinstance(scores, list) or len(found) != len(scores) or len(found) < 2:
        raise RowProblem("scores", "should be as many numbers as there are completions, two at least")
    if not all(isinstance(s, int | float) and s == s for s in scores) or max(scores) == min(scores):
        raise RowProblem("scores", f"should be numbers that are not all equal and are {scores!r:.60}")
    best, worst = (found[scores.index(choose(scores))] for choose in (max, min))
    return _answer({"completions": best}, "completions"), _answer({"completions": worst}, "completions")


def _answer(row: Mapping[str, Any], column: str, prompt: Prompt | None = None) -> Answer:
    """An answer; one written as a message stays one beside a prompt that is not."""
    value = [row[column]] if isinstance(row.get(column), dict) else row.get(column)
    if not isinstance(value, list):
        return _text(row, column)
    turns = read_turns(value, column)
    if turns[-1]["role"] != "assistant":
        raise RowProblem(column, f"should end with an assistant turn and ends with '{turns[-1]['role']}'")
    if len(turns) > 1 and turns[:-1] != prompt:
        raise RowProblem(column, "holds turns before its last that are not those of the prompt")
    spoken = _spoken(turns[-1], column)
    return spoken if isinstance(prompt, list) else turns[-1]


def _label(row: Mapping[str, Any]) -> bool:
    value = row.get("label")
    text = value.strip().lower() if isinstance(value, str) else value
    known = {"true": True, "false": False, "1": True, "0": False, 1: True, 0: False}
    if not isinstance(text, str | int | float) or text not in known:
        raise RowProblem("label", f"should be true or false and is {value!r:.60}")
    return known[text]


def _margin(row: Mapping[str, Any]) -> float:
    value = row.get("margin")
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RowProblem("margin", f"should be a number and is {value!r:.60}")
    return float(value)


def _tools(row: Mapping[str, Any]) -> Sequence[Any] | None:
    tools = from_json(row.get("tools") or None, "tools")
    if tools is not None and not isinstance(tools, list):
        raise RowProblem("tools", f"should be a list of tools and is {tools!r:.60}")
    return [from_json(t, "tools") for t in without_nulls(tools)] if tools else None


def _with_truth(row: dict[str, Any]) -> dict[str, Any]:
    """Verl keeps what rewards compare with one level down."""
    inner = row.get("reward_model")
    found = isinstance(inner, dict) and inner.get("ground_truth") is not None and "ground_truth" not in row
    return {**row, "ground_truth": inner["ground_truth"]} if found and inner else row


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if value is None:
        raise RowProblem(column, "is missing or null")
    if not isinstance(value, str):
        raise RowProblem(column, f"should be text and is {type(value).__name__} {value!r:.60}")
    if not value.strip():
        raise RowProblem(column, "is empty")
    return whole_text(value, column)
