"""What flows between the data source, the algorithm and the trainer.

One convention everywhere: entry ``t`` of a ``[B, T]`` tensor describes token ``t``. So ``logprobs[:, t]`` is the
log-probability of ``tokens[:, t]`` given the tokens before it (``logprobs[:, 0] = 0``), and ``values[:, t]`` is
``v(tokens[:, :t])``: the value before token ``t`` is known.

torch is imported for type checking only: a reward package that depends on rlx-sdk never loads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

Role = Literal["policy", "reference", "critic", "reward"]


@dataclass(frozen=True, slots=True)
class Sequences:
    """Right-padded token sequences.

    Attributes:
        tokens: ``[B, T]`` int64; entries from ``length`` on are padding and may hold anything.
        length: ``[B]`` int64, real tokens of each row, at least 1.
        mask: ``[B, T]`` bool, true for tokens that the policy wrote (or should learn to write).
        per_token: further ``[B, T]`` float tensors by name.
    """

    tokens: Tensor
    length: Tensor
    mask: Tensor
    per_token: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of rows."""
        return int(self.tokens.shape[0])

    def __getitem__(self, rows: Any) -> Sequences:
        """The given rows (a slice or an index tensor), trimmed to the longest of them."""
        length = self.length[rows]
        width = int(length.max()) if len(length) else 1
        cut = {name: tensor[rows, :width] for name, tensor in self.per_token.items()}
        return Sequences(self.tokens[rows, :width], length, self.mask[rows, :width], cut)

    def to(self, device: Any) -> Sequences:
        """The same sequences on another device."""
        moved = {name: tensor.to(device) for name, tensor in self.per_token.items()}
        return Sequences(self.tokens.to(device), self.length.to(device), self.mask.to(device), moved)

    def with_(self, **per_token: Tensor) -> Sequences:
        """The same sequences with more ``[B, T]`` tensors."""
        return replace(self, per_token={**self.per_token, **per_token})


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Completions that the policy sampled, with their rewards.

    Attributes:
        seqs: prompt and completion; ``per_token["rollout_logprobs"]`` as the sampler saw them, and
            ``per_token["token_rewards"]`` what rewards said of parts (`Score.spans`) if `Needs.token_rewards` is set,
            ``per_token["sample"]`` the row's number in the table of samples.
        rewards: ``[B]`` float, the weighted sum over reward providers; 0 where not judged.
        judged: ``[B]`` bool, false where every provider abstained or failed under ``on_error: skip``.
        group: ``[B]`` int64, equal for completions of one prompt.
        truncated: ``[B]`` bool, true where the length limit ended the completion.
    """

    seqs: Sequences
    rewards: Tensor
    judged: Tensor
    group: Tensor
    truncated: Tensor

    def __len__(self) -> int:
        """The number of completions."""
        return len(self.seqs)

    def __getitem__(self, rows: Any) -> Rollouts:
        """The given rows."""
        return Rollouts(self.seqs[rows], self.rewards[rows], self.judged[rows], self.group[rows], self.truncated[rows])


@dataclass(frozen=True, slots=True)
class Group:
    """The completions of one prompt, before an algorithm learns from them.

    Attributes:
        rewards: of those that were judged.
        size: completions in all.
    """

    rewards: tuple[float, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Pairs:
    """Preference pairs: row ``i`` of both sides has the same prompt tokens.

    Attributes:
        row: ``[B]`` data row.
        margin: ``[B]`` float, by how much the data says that the chosen answer is better; None where it says nothing.
    """

    chosen: Sequences
    rejected: Sequences
    row: Tensor
    margin: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Conversations to imitate; the mask marks every assistant turn. Attribute ``row``: ``[B]`` data row."""

    seqs: Sequences
    row: Tensor


@dataclass(frozen=True, slots=True)
class Labelled:
    """Answers that somebody called good or bad. Attributes: ``label`` ``[B]`` bool, ``row`` ``[B]`` data row."""

    seqs: Sequences
    label: Tensor
    row: Tensor


@dataclass(frozen=True, slots=True)
class Mean:
    """A metric averaged over everything it counted: ``total / count``, over micro-batches and ranks."""

    total: Tensor | float
    count: Tensor | float


@dataclass(frozen=True, slots=True)
class Sum:
    """A metric added up over micro-batches and ranks."""

    value: Tensor | float


@dataclass(frozen=True, slots=True)
class Max:
    """A metric whose largest value is reported."""

    value: Tensor | float


@dataclass(frozen=True, slots=True)
class Min:
    """A metric whose smallest value is reported."""

    value: Tensor | float


Metric = Mean | Sum | Max | Min


@dataclass(frozen=True, slots=True)
class Batch:
    """What one update learns from; a row is a sequence or a pair.

    Attributes:
        sequences: one or more `Sequences` of ``B`` rows each, by name.
        weight: for each trained role ``[B]``, the share of a row in the loss: the trainer minimises
            ``Σ weight·loss / Σ weight`` over the global minibatch, however it is split. Weight 0 removes a row.
        values: further ``[B]`` tensors by name.
        metrics: what ``prepare`` measured; never cut by row.
    """

    sequences: Mapping[str, Sequences]
    weight: Mapping[Role, Tensor]
    values: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of rows."""
        return len(next(iter(self.sequences.values())))

    def __getitem__(self, rows: Any) -> Batch:
        """The given rows, each `Sequences` trimmed to the longest of them."""
        return Batch(
            {name: seqs[rows] for name, seqs in self.sequences.items()},
            {role: tensor[rows] for role, tensor in self.weight.items()},
            {name: tensor[rows] for name, tensor in self.values.items()},
        )

    def to(self, device: Any) -> Batch:
        """The same batch on another device."""
        return Batch(
            {name: seqs.to(device) for name, seqs in self.sequences.items()},
            {role: tensor.to(device) for role, tensor in self.weight.items()},
            {name: tensor.to(device) for name, tensor in self.values.items()},
            self.metrics,
        )


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a micro-batch.

    Attributes:
        rows: ``[B]``, one loss a row, on the graph; so that a bad row can be named.
        metrics: what to report beside it.
        per_token: ``[B, T]`` what became known of the rows' only sequences, for the table of samples.
    """

    rows: Tensor
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    per_token: Mapping[str, Tensor] = field(default_factory=dict)
