"""The contract of algorithms: what one says it needs, what it must do, and the models it sees."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from rlx_sdk.data import Batch, Demonstrations, Group, Labelled, Loss, Pairs, Role, Rollouts, Sequences

if TYPE_CHECKING:
    from torch import Tensor

DataKind = Literal["rollouts", "pairs", "labelled", "demonstrations"]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an algorithm needs, read by the plan before anything is loaded.

    Attributes:
        data: the kind of data that ``prepare`` receives.
        trains: roles that are updated.
        frozen: roles that only answer.
        min_group: completions of one prompt that the algorithm cannot do without.
        group_size: completions of one prompt where the user says nothing; default: ``min_group``.
        min_completion: tokens that a completion must at least be allowed to have.
        rounds: how often a step may sample prompts, until enough groups are kept (`Algorithm.keep`).
        row_per_prompt: whether all completions of a prompt become one row of the batch, such as a pair.
        rewards: whether completions must be scored; false for algorithms that only imitate or compare given text.
        token_rewards: whether it reads what rewards say of parts of a completion (`Score.spans`).
        teacher: whether the reference must be another model than the policy (``model.reference.path``).
        several_updates: options that act only when one batch makes several updates.
    """

    data: DataKind
    trains: frozenset[Role]
    frozen: frozenset[Role] = frozenset()
    min_group: int = 1
    group_size: int | None = None
    min_completion: int = 1
    rounds: int = 1
    row_per_prompt: bool = False
    rewards: bool = False
    token_rewards: bool = False
    teacher: bool = False
    several_updates: frozenset[str] = frozenset()


class LanguageModel(Protocol):
    """A causal language model as an algorithm sees it; it splits, moves and pads on its own."""

    def logprobs(self, seqs: Sequences) -> Tensor:
        """``[B, T]`` log-probabilities at the sampling temperature, 0 where the mask is false."""
        ...

    def pair_logprobs(self, chosen: Sequences, rejected: Sequences) -> tuple[Tensor, Tensor]:
        """The same of both sides of each pair; where that is possible, what both begin with is computed once."""
        ...

    def logprobs_and_entropy(self, seqs: Sequences) -> tuple[Tensor, Tensor]:
        """The same, and ``[B, T]`` entropy (nats) of the distribution each token was drawn from."""
        ...


class ValueModel(Protocol):
    """A model with one number a position."""

    def values(self, seqs: Sequences) -> Tensor:
        """``[B, T]``: ``values[:, t] = v(tokens[:, :t])``, 0 at t = 0 and where the mask is false."""
        ...


class ScoreModel(Protocol):
    """A model with one number a sequence."""

    def scores(self, seqs: Sequences) -> Tensor:
        """``[B]``, read at the last real token."""
        ...


class Context(Protocol):
    """What an algorithm may use beside its data. A role it did not declare raises, naming the algorithm."""

    @property
    def policy(self) -> LanguageModel:
        """The trained policy."""
        ...

    @property
    def reference(self) -> LanguageModel:
        """The policy as the run began."""
        ...

    @property
    def critic(self) -> ValueModel:
        """The value model."""
        ...

    @property
    def reward(self) -> ScoreModel:
        """The reward model in training."""
        ...

    @property
    def step(self) -> int:
        """Training steps done before this one."""
        ...

    @property
    def temperature(self) -> float:
        """Of sampling; the policy's and the reference's logprobs use it too. 1 for given data."""
        ...

    @property
    def single_update(self) -> bool:
        """True when each batch is used for one update only: the old policy is then the current one."""
        ...

    @property
    def exact_rollouts(self) -> bool:
        """True when ``rollout_logprobs`` are those of the trainer's own policy to float32 accuracy."""
        ...

    @property
    def max_completion(self) -> int:
        """Tokens a completion may have."""
        ...

    def all_sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks."""
        ...


D = TypeVar("D", Rollouts, Pairs, Labelled, Demonstrations, Rollouts | Pairs)


class Algorithm(ABC, Generic[D]):
    """One readable file. Only `prepare` and `loss` must be written."""

    @abstractmethod
    def prepare(self, data: D, ctx: Context) -> Batch:
        """What the update needs, computed once a batch without gradients.

        Changes no state: it is also called for evaluation. Every rank must ask the models and `Context.all_sum` the
        same number of times, also one that has no rows.
        """

    @abstractmethod
    def loss(self, role: Role, rows: Batch, ctx: Context) -> Loss:
        """The loss of some rows for one trained role, on the graph.

        Must be finite for a row with an empty mask: with several ranks such rows fill up.
        """

    def keep(self, group: Group) -> bool:
        """Whether a prompt's completions are worth learning from; in place of others more prompts are sampled."""
        return True

    def trains(self, role: Role, step: int) -> bool:
        """Whether the role is updated in this step (critic warm-up)."""
        return True

    def check(self, metrics: Mapping[str, float]) -> None:
        """Called with the global metrics of each step and each evaluation, both under the names of a step.

        Raises:
            TrainingError: they say that going on makes no sense.
        """

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Called once a step with the global metrics; adaptive coefficients move here."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep, JSON-able."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""
