"""The two kinds of model that training needs, around plain HF modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from rlx.models.logprobs import Kernels, fused, install_logprob_head
from rlx.models.lora import has_lora, merged_weights, plain_model
from rlx.models.rows import branched_states, packed_states
from rlx_sdk import ModelError

Gathered = Callable[..., AbstractContextManager[Any]]
"""Makes parameters whole while it is entered."""


class Trained(nn.Module):
    """What `CausalLM` and `Scorer` share.

    Attributes:
        model: the plain HF model.
        packed: rows of a pass lie behind each other, without padding.
        shares: two sides of a pair can be computed with their prompt once.
    """

    packed = False
    shares = False

    def __init__(self, model: Any) -> None:
        """Wrap the model."""
        super().__init__()
        self.model = model
        self._checkpointed: list[nn.Module] = []
        self._kernels = Kernels()

    def weights(self, gathered: Gathered = nullcontext) -> Iterator[tuple[str, Tensor]]:
        """All weights by the plain HF model's names, an adapter added in; ``gathered`` makes parameters whole."""
        yield from (merged_weights if has_lora(self.model) else _plain_weights)(self.model, gathered)

    def save(self, folder: Path, weights: dict[str, Tensor], trained: dict[str, Tensor]) -> None:
        """Write `weights` as a plain HF folder; those of an adapter also go, alone, into ``adapter`` beside it."""
        model = plain_model(self.model)
        buffers = {name: tensor for name, tensor in model.named_buffers() if name in model.state_dict()}
        model.save_pretrained(folder, state_dict={**weights, **buffers})
        if has_lora(self.model):
            self.model.save_pretrained(folder.parent / "adapter", state_dict=trained)

    def checkpoint_activations(self) -> None:
        """Keep no activations of a layer in passes with gradients."""
        self._checkpointed = _checkpointed_layers(self.model)

    def fuse(self) -> None:
        """Compute logprobs, and layers that HF marks, with fused kernels from now on; the first passes compile them.

        What cannot be compiled goes on without.
        """
        for layer in _layers(self.model):
            layer.forward = _fused(layer.forward)
        self._kernels = Kernels(*map(fused, self._kernels))

    def pack(self) -> None:
        """Compute rows without padding from now on.

        Raises:
            ModelError: rows would see each other.
        """
        tokens = _some_tokens(self.model, 3)
        found, other = (packed_states(self._decoder(), tokens[rows], tokens.new_tensor([5, 8]))[1]
                        for rows in ([0, 1], [2, 1]))
        if not _same(found, other, self._states(tokens[1:2], None)[0]):
            raise ModelError(f"train.packing: {type(self.model).__name__} lets rows that lie behind each other see "
                             "each other; leave packing out")
        self.packed, self.shares = True, False

    def _decoder(self) -> Any:
        return self.model.get_decoder()

    def _states(self, tokens: Tensor, length: Tensor | None) -> Tensor:
        """``[B, T, H]`` last hidden states."""
        with _recomputing(self._checkpointed):
            if self.packed:
                full = torch.full_like(tokens[:, 0], tokens.shape[1])
                return packed_states(self._decoder(), tokens, full if length is None else length)
            states: Tensor = self._decoder()(input_ids=tokens, use_cache=False).last_hidden_state
            return states


class CausalLM(Trained):
    """An HF causal language model that answers with logprobs of chosen tokens instead of logits.

    The decoder runs over the whole sequence; the head only over positions whose next token is in the mask.
    """

    def __init__(self, model: Any) -> None:
        """Wrap the model; raises `ModelError` if its head does more than one linear map."""
        super().__init__(model)
        _refuse_transformed_logits(model)
        install_logprob_head(model.get_output_embeddings())
        self.shares = _can_branch(model)

    def forward(self, tokens: Tensor, mask: Tensor, temperature: float = 1.0, entropy: bool = True,
                length: Tensor | None = None, branch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logprobs and entropy, ``[B, T]`` float32 each, 0 where the mask is false.

        Args:
            tokens: ``[B, T]``, right-padded: no real token attends to padding, so no attention mask is needed.
            mask: ``[B, T]`` bool; column 0 is ignored, since nothing predicts token 0.
            temperature: logits are divided by it.
            entropy: compute it; without, it is 0 everywhere.
            length: ``[B]`` real tokens, for packing; default: all.
            branch: ``[B, T]`` of `rlx.models.rows.joined`, for two answers behind one prompt.
        """
        wanted = mask[:, 1:].bool()
        if branch is None:
            before = self._states(tokens, length)[:, :-1]
        else:
            with _recomputing(self._checkpointed):
                before = branched_states(self._decoder(), tokens, branch)[:, 1:]
        head, targets = self.model.get_output_embeddings(), tokens[:, 1:][wanted]
        picked = head(before[wanted], targets=targets, temperature=temperature, entropy=entropy, kernels=self._kernels)
        return _scatter(picked[0], wanted), _scatter(picked[1], wanted)

    def example(self, device: torch.device) -> tuple[Tensor, ...]:
        """Arguments of `forward` that reach every weight."""
        return torch.zeros(1, 2, dtype=torch.long, device=device), torch.ones(1, 2, dtype=torch.bool, device=device)


class Scorer(Trained):
    """An HF sequence-classification model with one label: a critic, or a reward model.

    Attribute ``model`` is the plain HF model.
    """

    def example(self, device: torch.device) -> tuple[Tensor, ...]:
        """Arguments of `forward` that reach every weight."""
        return (torch.zeros(1, 2, dtype=torch.long, device=device),)

    def forward(self, tokens: Tensor, length: Tensor | None = None) -> Tensor:
        """``[B, T]`` float32: the number read off each token, having seen it and all before."""
        scores: Tensor = self.model.score(self._states(tokens, length)).squeeze(-1)
        return scores.float()

    def _decoder(self) -> Any:
        return getattr(self.model, self.model.base_model_prefix)


def _plain_weights(model: Any, gathered: Gathered) -> Iterator[tuple[str, Tensor]]:
    for name, weight in model.named_parameters():
        with gathered(weight):
            yield name, weight


def _checkpointed_layers(model: Any) -> list[nn.Module]:
    """Layers that HF can compute again; raises `ModelError` if it knows none."""
    try:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError as error:
        raise ModelError(f"engine.activation_checkpointing: {type(model).__name__} does not support it") from error
    layers = _layers(model)
    if not layers:
        raise ModelError(f"engine.activation_checkpointing: {type(model).__name__} has no layers that support it")
    return layers


def _layers(model: Any) -> list[nn.Module]:
    """Of the decoder, as HF marks them; none if it does not."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


@contextmanager
def _recomputing(layers: list[nn.Module]) -> Iterator[None]:
    """HF recomputes in train mode only, in which it also uses dropout and no KV cache: so only these, only now."""
    for layer in layers:
        layer.training = torch.is_grad_enabled()
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def _fused(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's forward pass, compiled; one that generates, with a KV cache that grows, goes on without."""
    compiled = fused(plain)

    def forward(*args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        if past_key_values is not None:
            return plain(*args, past_key_values=past_key_values, **kwargs)
        return compiled(*args, **kwargs)

    return forward


def _scatter(picked: Tensor, wanted: Tensor) -> Tensor:
    """``[N]`` back to ``[B, T]``, on the graph, with a first column of zeros."""
    grid = picked.new_zeros(wanted.shape).masked_scatter(wanted, picked)
    return nn.functional.pad(grid, (1, 0))


def _some_tokens(model: Any, rows: int) -> Tensor:
    """``[rows, 8]`` of any tokens."""
    config = model.config.get_text_config()
    tokens = torch.arange(1, 1 + 8 * rows, device=next(model.parameters()).device).reshape(rows, 8)
    return tokens % int(config.vocab_size)


def _same(found: Tensor, other: Tensor, plain: Tensor) -> bool:
    """Whether states do not change with what they must not see, and are what they are by themselves."""
    rounding = torch.finfo(plain.dtype).eps ** 0.5
    return torch.allclose(found, other, rtol=1e-4, atol=1e-5) and torch.allclose(found, plain, rounding, rounding)


@torch.no_grad()
def _can_branch(model: Any) -> bool:
    """Whether an attention mask of ours is all that decides what a token sees; a window would be lost."""
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None) or [getattr(config, "sliding_window", None) or "full_attention"]
    if set(kinds) != {"full_attention"} or config._attn_implementation != "sdpa":
        return False
    tokens = _some_tokens(model, 2)[[0, 1, 1]]
    tokens[2, 2:5] = tokens[0, 2:5]
    decoder, branch = model.get_decoder(), tokens.new_tensor([0, 0, 1, 1, 1, 2, 2, 2]).expand(1, 8)
    found, other = (branched_states(decoder, row[None], branch)[0, 6:] for row in tokens[1:])
    plain = decoder(input_ids=tokens[1:2, [0, 1, 5, 6, 7]], use_cache=False).last_hidden_state[0, 2:4]
    return _same(found, other, plain)


@torch.no_grad()
def _refuse_transformed_logits(model: Any) -> None:
    """Some architectures cap or scale logits around the head; their logprobs would be silently wrong.

    Large numbers are put in place of the head's answer: a cap hardly shows on the small logits of untrained weights.
    """
    tokens = _some_tokens(model, 1)
    seen: list[tuple[Tensor, Tensor]] = []

    def replace(head: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
        large = torch.linspace(-100, 100, output.shape[-1], device=output.device).to(output.dtype).expand_as(output)
        seen.append((args[0], large))
        return large

    hook = model.get_output_embeddings().register_forward_hook(replace)
    try:
        logits = model(input_ids=tokens, use_cache=False).logits
    finally:
        hook.remove()
    hidden = model.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
    if len(seen) != 1 or not (torch.allclose(seen[0][0], hidden, rtol=1e-2, atol=1e-2)
                              and torch.equal(seen[0][1].float(), logits.float())):
        raise ModelError(f"{type(model).__name__} changes its logits around the output layer (soft-capping, scaling); "
                         "rlx would compute wrong logprobs for it, so it is refused. Use another architecture.")
