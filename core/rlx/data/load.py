"""A model's tokenizer, with every decision about pad, stop tokens and chat template made and said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rlx.data.messages import RowProblem
from rlx.data.tokenizer import Tokenizer
from rlx.hf import explain_load_failure, pretrained_args
from rlx_sdk import ModelError

PLAIN_TEMPLATE = (
    "{{ bos_token or '' }}{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For models without a chat template."""


def load_tokenizer(path: str, chat_template: str | None = None, trust_remote_code: bool = False) -> Tokenizer:
    """The tokenizer of a model.

    Args:
        path: model folder, hub name, or ``.gguf`` file.
        chat_template: a Jinja template, a file with one, or the name of one of the model's, instead of its default.
        trust_remote_code: allow code from the model folder.
    """
    from transformers import AutoTokenizer

    try:
        hf = AutoTokenizer.from_pretrained(**pretrained_args(path), trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ModelError(explain_load_failure(path, "tokenizer", error)) from error
    notes, named = [], hf.chat_template if isinstance(hf.chat_template, dict) else {}
    if chat_template is not None:
        hf.chat_template = named.get(chat_template) or _template_text(chat_template)
    elif named:
        notes.append(f"the chat templates of '{path}' are {', '.join(named)}: 'default' is used (model.chat_template "
                     "names another)")
    elif not hf.chat_template:
        hf.chat_template = PLAIN_TEMPLATE
        notes.append(f"model '{path}' has no chat template: messages are written as plain 'User:' and 'Assistant:' "
                     "lines (model.chat_template sets another)")
    stops = _stop_token_ids(path, hf)
    if hf.pad_token_id is None:
        notes.append(f"the tokenizer has no pad token: padding uses '{hf.convert_ids_to_tokens(stops[0])}' "
                     "(positions are masked by length, so nothing else changes)")
    tokenizer = Tokenizer(hf, stops[0] if hf.pad_token_id is None else hf.pad_token_id, stops)
    more, said = _around_answers(path, tokenizer)
    return replace(tokenizer, stop_token_ids=(*stops, *more), notes=(*notes, *said))


def _around_answers(path: str, tokenizer: Tokenizer) -> tuple[list[int], list[str]]:
    """What the template writes around an answer: stop tokens that nobody named, and notes for the user."""
    probe, stops = "the-answer", tokenizer.stop_token_ids
    try:
        before, found, after = tokenizer.answer_text([{"role": "user", "content": "?"}], probe)[0].partition(probe)
    except RowProblem:  # each row will say so
        return [], []
    notes, ids = [], tokenizer.hf(after, add_special_tokens=False)["input_ids"]
    if found and before.strip():
        notes.append(f"the generation prompt of '{path}' leaves {before.strip()!r} to the model: completions begin "
                     "with it, and training counts it to the answer (model.chat_template sets another template)")
    if any(token in stops for token in ids):
        return [], notes
    stop = tokenizer.hf.convert_ids_to_tokens(stops[0])
    if ids and ids[0] in tokenizer.hf.added_tokens_decoder:
        notes.append(f"the chat template ends an answer with '{tokenizer.hf.convert_ids_to_tokens(ids[0])}', which "
                     f"neither tokenizer nor generation config of '{path}' names as a stop token; now it is one")
        return [ids[0]], notes
    notes.append(f"the chat template of '{path}' ends an answer without a stop token; '{stop}' is put behind it")
    return [], notes


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
