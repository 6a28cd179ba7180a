"""The tokenizer and the chat template: the one place where text becomes token ids."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from rlx.data.layouts import Answer, Example, Prompt
from rlx.data.messages import RowProblem, whole_text
from rlx_sdk import Message

T = TypeVar("T")
_THINK = "<think>"
_MARKERS = re.compile(r"<\|[a-z_]+\|>|\[/?INST\]|</?s>|<(?:start|end)_of_turn>|<｜[^｜<>]+｜>")
"""What chat templates write between turns."""


class Notice(IntFlag):
    """What the user should know of a row that can be used."""

    LOST = 1
    FOREIGN = 2
    EQUAL = 4
    EMPTY = 8
    SPECIAL = 16
    REWRITTEN = 32
    CUT = 64
    FIXED = 128
    HIDDEN = 256


@dataclass(frozen=True, slots=True)
class Encoded:
    """A row as token ids, where of the prompt earlier turns to learn begin and end, and what is to be known of it."""

    prompt: list[int]
    answers: tuple[list[int], ...] = ()
    notice: Notice = Notice(0)  # noqa: RUF009 - immutable
    turns: tuple[int, ...] = ()


class _Written(NamedTuple):
    """A row as texts: the prompt, its answers; of each earlier turn what the model had before it, and that with it."""

    example: Example
    texts: tuple[str, ...]
    notice: Notice


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer with every decision about it made.

    Attributes:
        hf: the HF tokenizer.
        pad_token_id: an id to pad with. Padding is always found by length, never by this id: it may be the eos.
        stop_token_ids: every id that ends a completion; the first is appended to answers that lack one.
        notes: what the user should know about these decisions.
    """

    hf: Any
    pad_token_id: int
    stop_token_ids: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """A hash of everything that decides which ids a row becomes."""
        state = [self.hf.backend_tokenizer.to_str(), str(self.hf.chat_template), str(self.hf.special_tokens_map),
                 self.stop_token_ids]
        return hashlib.sha256(json.dumps(state).encode()).hexdigest()

    @cached_property
    def lead(self) -> list[int]:
        """What the tokenizer puts before a text by itself: a BOS, or nothing. What it puts behind is never used."""
        closed: list[int] = self.hf("a")["input_ids"]
        return closed[:1] if closed[:1] != self._encode("a")[:1] else []

    def encode_prompt(self, prompt: Prompt, tools: Sequence[Any] | None = None) -> list[int]:
        """Ids of a prompt: messages through the chat template, plain text with the tokenizer's own BOS.

        Raises:
            RowProblem: the template refuses the messages, or no token is left.
        """
        return self._prompt_ids(prompt, self._encode(self._before(prompt, tools)))

    def encode(self, example: Example) -> Encoded:
        """Ids of a whole row; its answers follow the very same prompt ids.

        Raises:
            RowProblem: as `encode_prompt`; or an answer holds a stop token in its middle.
        """
        written = self._write(example)
        return self._finish(written, self._encode_all(written.texts))

    def encode_many(self, examples: Sequence[Example]) -> list[Encoded | RowProblem]:
        """Each row's ids, or what is wrong with it; together they are several times faster than one by one."""
        written = [_caught(self._write, example) for example in examples]
        ids = self._encode_all([text for one in written if isinstance(one, _Written) for text in one.texts])
        return [_caught(self._finish, one, ids) if isinstance(one, _Written) else one for one in written]

    def _write(self, example: Example) -> _Written:
        """A row as texts, before they become ids."""
        prompt, tools = example.prompt, example.tools
        before = self._before(prompt, tools)
        texts = [self.answer_text(prompt, answer, tools, before) for answer in example.answers]
        notice = (self._notice(prompt, before) if prompt else Notice(0)) | Notice.HIDDEN * example.hidden
        if any(rewritten for _, rewritten in texts):
            notice |= Notice.REWRITTEN
        if any(_thought(answer) not in text for answer, (text, _) in zip(example.answers, texts, strict=True)):
            notice |= Notice.LOST
        if len(texts) == 2 and texts[0][0].strip() == texts[1][0].strip():
            notice |= Notice.EQUAL
        earlier = self._earlier(prompt, tools) if example.dialogue and not isinstance(prompt, str) else ()
        return _Written(example, (before, *(text for text, _ in texts), *earlier), notice)

    def _earlier(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> Iterator[str]:
        """For each assistant turn what stood there when the model had it to write, and with it; twice "" if refused."""
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                try:
                    yield from [self._render(messages[:n], n == i, tools) for n in (i, i + 1)]
                except RowProblem:  # a template may refuse a part of a conversation
                    yield from ("", "")

    def _finish(self, written: _Written, ids: Mapping[str, list[int]]) -> Encoded:
        example, texts, notice = written
        names = ("chosen", "rejected") if len(example.answers) == 2 else ("completion",)
        answers = tuple(self._closed(text, ids[text], name)
                        for text, name, _ in zip(texts[1:], names, example.answers, strict=False))
        if example.prompt:
            prompt = self._prompt_ids(example.prompt, ids[texts[0]])
            turns, fixed = self._earlier_turns(prompt, [ids[text] for text in texts[1 + len(answers):]])
            return Encoded(prompt, answers, notice | (Notice.FIXED if fixed else Notice(0)), turns)
        whole = answers[0] if answers[0][:1] == self.lead else [*self.lead, *answers[0]]
        if len(whole) < 2:
            raise RowProblem("text", "has no tokens")
        return Encoded(whole[:1], (whole[1:],), notice)

    def decode(self, ids: Sequence[int], specials: bool = False) -> str:
        """Text, without special tokens if they are not asked for."""
        text: str = self.hf.decode(list(ids), skip_special_tokens=not specials, clean_up_tokenization_spaces=False)
        return text

    def answer_text(self, prompt: Prompt, answer: Answer, tools: Sequence[Any] | None = None,
                    before: str | None = None) -> tuple[str, bool]:
        """The answer with everything the template puts around it after the prompt; and whether it could not be had.

        A template that leaves a part of the answer out (as some do with thinking), or writes the prompt otherwise once
        an answer follows, is not asked: the answer is taken as it is written.
        """
        if isinstance(prompt, str):
            return str(answer), False
        before = self._before(prompt, tools) if before is None else before
        message = {"role": "assistant", "content": answer} if isinstance(answer, str) else answer
        text, names = str(message["content"]), _names(message)
        whole = self._render([*prompt, message], False, tools)
        tail = whole[len(before):]
        if whole.startswith(before) and text.strip() in tail and all(name in tail for name in names):
            return tail, False
        if names:
            raise RowProblem("messages", "end with a call of a tool, which the model's chat template does not write")
        opened = before.rstrip().endswith(_THINK) and text.lstrip().startswith(_THINK)
        return text.lstrip().removeprefix(_THINK) if opened else text, True

    def _earlier_turns(self, prompt: list[int], parts: Sequence[list[int]]) -> tuple[tuple[int, ...], bool]:
        """Begin and end of each assistant turn in a prompt; and whether one cannot be learned.

        It can where the row goes on exactly as it stood when the model had that turn to write: some templates write
        earlier turns otherwise, for example without their thinking.
        """
        found = list[int]()
        for before, whole in zip(parts[::2], parts[1::2], strict=True):
            start = len(before)
            stop = next((k + 1 for k in range(start, len(whole)) if whole[k] in self.stop_token_ids), len(whole))
            if before == whole[:start] and whole[:stop] == prompt[:stop] and start < stop:
                found += [start, stop]
        return tuple(found), len(found) < len(parts)

    def _before(self, prompt: Prompt, tools: Sequence[Any] | None) -> str:
        return prompt if isinstance(prompt, str) else self._render(prompt, True, tools)

    def _prompt_ids(self, prompt: Prompt, ids: list[int]) -> list[int]:
        if isinstance(prompt, str) and ids[:1] != self.lead:  # a text may bring its BOS itself
            ids = [*self.lead, *ids]
        if not ids:
            raise RowProblem("prompt", "has no tokens")
        return ids

    def _notice(self, prompt: Prompt, text: str) -> Notice:
        if isinstance(prompt, str):
            foreign = [m for m in _MARKERS.findall(text) if m not in self._specials]
            return Notice.FOREIGN if foreign else Notice(0)
        contents = [(m["role"], str(m["content"]).strip(), _names(m)) for m in prompt]
        found = Notice(0) if any(content for _, content, _ in contents) else Notice.EMPTY
        for role, content, names in contents:
            thought = role == "assistant" and "</think>" in content
            if role != "tool" and not thought and (content not in text or not all(n in text for n in names)):
                found |= Notice.LOST
            if any(special in content for special in self._specials):
                found |= Notice.SPECIAL
        return found

    @cached_property
    def _specials(self) -> frozenset[str]:
        return frozenset(self.hf.all_special_tokens) | {
            str(token) for token in self.hf.added_tokens_decoder.values() if token.special}

    def _closed(self, text: str, ids: list[int], column: str = "completion") -> list[int]:
        """A text's ids up to and with the first stop token; one is appended to a text without any."""
        first = min((ids.index(token) for token in self.stop_token_ids if token in ids), default=None)
        if first is None:
            return [*ids, self.stop_token_ids[0]]
        if any(token not in self.stop_token_ids for token in ids[first:]) and self.decode(ids[first:]).strip():
            raise RowProblem(column, f"holds the stop token '{self.decode(ids[first:first + 1], True)}' before its "
                                     f"end: {text!r:.60}")
        return ids[: first + 1]

    def _encode(self, text: str) -> list[int]:
        return self._encode_all([text])[text]

    def _encode_all(self, texts: Sequence[str]) -> dict[str, list[int]]:
        """Ids of each text; what stands between special tokens is encoded once, as the turns of chats come again."""
        pieces = {text: self._between.split(text) if self._between else [text] for text in texts}
        once = list(dict.fromkeys(itertools.chain.from_iterable(pieces.values())))
        ids = dict(zip(once, self._encode_whole(once), strict=True))
        return {text: [*itertools.chain.from_iterable(ids[piece] for piece in some)] for text, some in pieces.items()}

    def _encode_whole(self, texts: list[str]) -> list[list[int]]:
        backend = self.hf.backend_tokenizer  # without the offsets that the HF class asks for
        backend.no_truncation()
        backend.no_padding()
        return [found.ids for found in backend.encode_batch_fast(texts, add_special_tokens=False)]

    @cached_property
    def _between(self) -> re.Pattern[str] | None:
        """Finds the tokens around which text is encoded by itself; None where what is beside them matters."""
        added = [t for t in self.hf.backend_tokenizer.get_added_tokens_decoder().values() if not t.normalized]
        names = sorted((token.content for token in added), key=len, reverse=True)
        if not names or any(token.lstrip or token.rstrip or token.single_word for token in added):
            return None
        probe = [" a b ", names[0], "a b"]
        [whole, *parts] = self._encode_whole(["".join(probe), *probe])
        return re.compile(f"({'|'.join(map(re.escape, names))})") if whole == [*itertools.chain(*parts)] else None

    def _render(self, messages: Sequence[Message], generation: bool, tools: Sequence[Any] | None = None) -> str:
        try:
            text: str = self.hf.apply_chat_template(list(messages), tools=tools, tokenize=False,
                                                    add_generation_prompt=generation)
        except Exception as error:  # templates raise what they like
            raise RowProblem("messages", f"is refused by the model's chat template: {error}") from error
        return whole_text(text, "messages")


def _caught(act: Callable[..., T], *args: Any) -> T | RowProblem:
    try:
        return act(*args)
    except RowProblem as problem:
        return problem


def _thought(answer: Answer) -> str:
    """Reasoning beside the text of an answer."""
    return "" if isinstance(answer, str) else str(answer.get("reasoning_content") or "").strip()


def _names(message: Message) -> list[str]:
    """Of the functions that a turn calls."""
    calls = [c.get("function", c) for c in message.get("tool_calls") or () if isinstance(c, dict)]
    return [str(c["name"]) for c in calls if isinstance(c, dict) and "name" in c]
