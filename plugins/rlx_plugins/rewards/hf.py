"""A reward model: an HF sequence-classification model with one label, with its own tokenizer and chat template."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from rlx.models import explain_load_failure, pick_dtype
from rlx_plugins.rewards.options import HFOptions
from rlx_sdk import Message, ModelError, RewardContext, Sample


class HFReward:
    """Scores the conversation with its completion, read at the last token.

    The text is the reward model's own chat template over ``messages`` and the completion; for plain text prompts the
    prompt and the completion, as they are. A conversation that is too long for the model is not judged.
    """

    def __init__(self, options: HFOptions, context: RewardContext) -> None:
        """Load the model.

        Raises:
            ModelError: it cannot be loaded, has another number of labels than one, or no trained head.
        """
        self._options, self._device = options, context.device
        self._model, self._tokenizer = load_reward_model(
            options.path, pick_dtype(options.dtype, context.device), options.trust_remote_code)
        self._template = options.chat_template or self._tokenizer.chat_template
        self._limit = options.max_length or _context(self._model)
        self._model.to("cpu" if options.offload else self._device)

    @torch.no_grad()
    def score(self, samples: Sequence[Sample]) -> list[float | None]:
        """One number a sample, None where it is too long."""
        ids = self._encode(samples)
        scores: list[float | None] = [None] * len(ids)
        with self._at_work():
            for rows in self._batches([len(i) for i in ids]):
                for row, value in zip(rows, self._forward([ids[i] for i in rows]), strict=True):
                    scores[row] = value
        return scores

    def close(self) -> None:
        """Give the memory back."""
        self._model = None

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """The model on this rank's device, and with ``offload`` nothing of it there afterwards, also after an error."""
        self._model.to(self._device)
        try:
            yield
        finally:
            if self._options.offload:
                self._model.to("cpu")
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()

    def _encode(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Token ids; a template writes its own special tokens, plain text gets the tokenizer's."""
        texts = [self._render([*s.messages, {"role": "assistant", "content": s.completion}]) if s.messages
                 else s.prompt + s.completion for s in samples]
        ids = [self._tokenizer(text, add_special_tokens=not s.messages)["input_ids"]
               for text, s in zip(texts, samples, strict=True)]
        return [tokens or [self._tokenizer.eos_token_id or 0] for tokens in ids]

    def _render(self, messages: list[Message]) -> str:
        if self._template is None:
            raise ModelError(f"reward model '{self._options.path}' has no chat template and the data has messages; "
                             "give its option chat_template, or data with plain text prompts.")
        text: str = self._tokenizer.apply_chat_template([dict(m) for m in messages], chat_template=self._template,
                                                        tokenize=False)
        return text

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Rows of like length together, as many as the token budget allows; those that are too long are left out."""
        batch: list[int] = []
        for row in sorted(range(len(lengths)), key=lambda i: lengths[i]):
            if self._limit is not None and lengths[row] > self._limit:
                break
            if batch and (len(batch) + 1) * lengths[row] > self._options.batch_tokens:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _forward(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """The model's one logit of each row, in float32."""
        width = max(map(len, rows))
        pad = self._pad_for(rows)
        tokens = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        self._model.config.get_text_config().pad_token_id = pad
        logits = self._model(input_ids=tokens.to(self._device), attention_mask=mask.to(self._device)).logits
        values: list[float] = logits[:, 0].float().tolist()
        return values

    def _pad_for(self, rows: Sequence[Sequence[int]]) -> int:
        """An id that no row holds: HF finds a row's last token as the last that is not the pad."""
        used = set().union(*rows)
        own = self._tokenizer.pad_token_id
        if own is not None and own not in used:
            return int(own)
        return next(i for i in range(len(used) + 1) if i not in used)


def load_reward_model(path: str, dtype: torch.dtype, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """A trained HF sequence-classification model with one label, in ``eval`` mode, and its tokenizer.

    Raises:
        ModelError: it is another kind of model, has more labels, or lacks weights, so that its head would be random.
    """
    args: dict[str, Any] = {"pretrained_model_name_or_path": path, "trust_remote_code": trust_remote_code}
    try:
        config, tokenizer = AutoConfig.from_pretrained(**args), AutoTokenizer.from_pretrained(**args)
        kind = ", ".join(config.architectures or ()) or "no architecture"
        if "SequenceClassification" not in kind and "RewardModel" not in kind:
            raise ModelError(f"reward model '{path}' is no sequence-classification model (its config says {kind}): its "
                             "head would be new and random. Train one with rlx train --algo reward_model.")
        if config.num_labels != 1:
            raise ModelError(f"reward model '{path}' has {config.num_labels} labels; a reward is one number, so a "
                             "model with one label is wanted.")
        model, info = AutoModelForSequenceClassification.from_pretrained(
            **args, dtype=dtype, use_safetensors=True, output_loading_info=True)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(explain_load_failure(path, "reward model", error, "its option trust_remote_code: true",
                                              "--reward hf:PATH a folder with config.json, a tokenizer and "
                                              "*.safetensors, or hf:ORG/NAME of the hub")) from error
    lacks = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if lacks:
        raise ModelError(f"reward model '{path}' lacks weights that would be freshly initialised, and so random: "
                         f"{', '.join(lacks[:4])}. Give the folder of a trained reward model.")
    return model.eval(), tokenizer


def _context(model: Any) -> int | None:
    found = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None
