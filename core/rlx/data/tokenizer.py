"""The tokenizer and the chat template: the one place where text becomes token ids."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlx.data.layouts import Prompt, RowProblem
from rlx.hf import explain_load_failure, pretrained_args
from rlx_sdk import Message, ModelError

PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For models without a chat template."""


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

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt: messages through the chat template, plain text with the tokenizer's own specials.

        Raises:
            RowProblem: the template refuses the messages, or no token is left.
        """
        if isinstance(prompt, str):
            ids, closed = self._encode(prompt), self.hf(prompt)["input_ids"]
            # Of the tokenizer's own specials only the first: some close every text. A text may bring its BOS itself.
            ids = ids if closed[:1] == ids[:1] else [*closed[:1], *ids]
        else:
            ids = self._encode(self._render(prompt, generation=True))
        if not ids:
            raise RowProblem("prompt", "has no tokens")
        return ids

    def encode_answer(self, prompt: Prompt, answer: str) -> list[int]:
        """Ids of an answer as the model should write it after `encode_prompt`, up to and with its stop token."""
        ids = self._encode(self.answer_text(prompt, answer))
        stops = [i for i, token in enumerate(ids) if token in self.stop_token_ids]
        if stops:
            return ids[: stops[-1] + 1]
        return [*ids, self.stop_token_ids[0]]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        text: str = self.hf.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def answer_text(self, prompt: Prompt, answer: str) -> str:
        """The answer with everything the template puts around it after the prompt."""
        if isinstance(prompt, str):
            return answer
        before = self._render(prompt, generation=True)
        whole = self._render([*prompt, {"role": "assistant", "content": answer}], generation=False)
        return whole[len(before):] if whole.startswith(before) else answer

    def _encode(self, text: str) -> list[int]:
        return list(self.hf(text, add_special_tokens=False)["input_ids"])

    def _render(self, messages: Sequence[Message], generation: bool) -> str:
        try:
            text: str = self.hf.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=generation)
        except Exception as error:  # templates raise what they like
            raise RowProblem("messages", f"is refused by the model's chat template: {error}") from error
        return text


def load_tokenizer(path: str, chat_template: str | None = None, trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of a model.

    Args:
        path: model folder, hub name, or ``.gguf`` file.
        chat_template: a Jinja template, or a file with one, instead of the model's own.
        trust_remote_code: allow code from the model folder.
    """
    from transformers import AutoTokenizer

    try:
        hf = AutoTokenizer.from_pretrained(**pretrained_args(path), trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ModelError(explain_load_failure(path, "tokenizer", error)) from error
    notes = []
    if chat_template is not None:
        hf.chat_template = _template_text(chat_template)
    elif not hf.chat_template:
        hf.chat_template = PLAIN_TEMPLATE
        notes.append(f"model '{path}' has no chat template: messages are written as plain 'User:' and 'Assistant:' "
                     "lines (model.chat_template sets another)")
    stops = _stop_token_ids(path, hf)
    if hf.pad_token_id is None:
        notes.append(f"the tokenizer has no pad token: padding uses '{hf.convert_ids_to_tokens(stops[0])}' "
                     "(positions are masked by length, so nothing else changes)")
    tokenizer = Tokenizer(hf, stops[0] if hf.pad_token_id is None else hf.pad_token_id, stops)
    return replace(tokenizer, notes=(*notes, *_unasked_header(path, tokenizer)))


def _unasked_header(path: str, tokenizer: Tokenizer) -> Iterator[str]:
    """A note, if the template writes something before an answer that is not in its generation prompt."""
    probe = "the-answer"
    with contextlib.suppress(RowProblem):
        header = tokenizer.answer_text([{"role": "user", "content": "?"}], probe).partition(probe)[0].strip()
        if header:
            yield (f"the generation prompt of '{path}' leaves {header!r} to the model: completions begin with it, and "
                   "training counts it to the answer (model.chat_template sets another template)")


def _template_text(value: str) -> str:
    if "{" in value:
        return value
    try:
        return Path(value).read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"model.chat_template '{value}' is neither a Jinja template nor a readable file: "
                         f"{error}") from error


def _stop_token_ids(path: str, hf: Any) -> tuple[int, ...]:
    """The tokenizer's eos first, then those of the generation config."""
    from transformers import GenerationConfig

    try:
        eos = GenerationConfig.from_pretrained(path).eos_token_id if not path.endswith(".gguf") else None
    except OSError:  # most base models have none
        eos = None
    more = eos if isinstance(eos, list) else [eos]
    found = [i for i in dict.fromkeys([hf.eos_token_id, *more]) if i is not None]
    if not found:
        raise ModelError(f"the tokenizer of '{path}' names no eos token, so no completion could ever end. Set "
                         "eos_token in its tokenizer_config.json.")
    return tuple(found)
