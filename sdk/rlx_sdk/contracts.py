"""The contracts: what an algorithm, a reward, a rollout backend and a tracker must do, and what they are given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

from rlx_sdk.data import Batch, Demonstrations, Group, Labelled, Loss, Pairs, Role, Rollouts, Sequences

if TYPE_CHECKING:
    from torch import Tensor

DataKind = Literal["rollouts", "pairs", "labelled", "demonstrations"]
FinishReason = Literal["stop", "length"]
Message = Mapping[str, Any]


# --- algorithms ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an algorithm needs, read by the plan before anything is loaded.

    Attributes:
        data: the kind of data that ``prepare`` receives.
        trains: roles that are updated.
        frozen: roles that only answer.
        min_group: completions of one prompt that the algorithm cannot do without.
        group_size: completions of one prompt where the user says nothing; default: ``min_group``.
        rounds: how often a step may sample prompts, until enough groups are kept (`Algorithm.keep`).
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
    rounds: int = 1
    rewards: bool = False
    token_rewards: bool = False
    teacher: bool = False
    several_updates: frozenset[str] = frozenset()


class LanguageModel(Protocol):
    """A causal language model as an algorithm sees it; it splits, moves and pads on its own."""

    def logprobs(self, seqs: Sequences) -> Tensor:
        """``[B, T]`` log-probabilities at the sampling temperature, 0 where the mask is false."""
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

    def after_step(self, metrics: Mapping[str, float]) -> None:
        """Called once a step with the global metrics; adaptive coefficients move here."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep, JSON-able."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave."""


# --- rewards ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """What a reward sees of one completion.

    Attributes:
        prompt: the text the model was given, without the markers of the chat template.
        completion: the text it wrote, without special tokens.
        messages: the conversation so far (empty for plain text prompts).
        finish_reason: ``stop``, or ``length`` if the limit cut it.
        row: every other column of the data row, as plain Python values.
    """

    prompt: str
    completion: str
    messages: Sequence[Message] = ()
    finish_reason: FinishReason = "stop"
    row: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """A reward of a completion.

    Attributes:
        value: the reward.
        parts: what it is made of, each logged as ``reward/<provider>/<part>/mean``.
        spans: rewards of its steps beside ``value``, each as (characters up to its end, reward), in order.
    """

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    spans: Sequence[tuple[int, float]] = ()


Scores = Sequence["float | Score | None"]


@runtime_checkable
class Reward(Protocol):
    """A reward provider, built once a run."""

    def score(self, samples: Sequence[Sample]) -> Scores | Awaitable[Scores]:
        """One number, `Score` or None (abstains) a sample, in order; ``async def`` is awaited on its own thread."""
        ...

    def close(self) -> None:
        """Give back what was opened."""
        ...


@dataclass(frozen=True, slots=True)
class RewardContext:
    """What a reward may use while it is built: the device of this rank's training and the run's seed."""

    device: str = "cpu"
    seed: int = 0


# --- rollouts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn: from ``softmax(logits / temperature)``, cut to the smallest set of mass ``top_p``."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 64


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, as token ids, to be completed ``n`` times.

    ``seed`` alone decides the random numbers, so the same request gives the same completions in any batch.
    """

    tokens: Sequence[int]
    sampling: Sampling
    n: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Generation:
    """One completion.

    Attributes:
        tokens: ids, the stop token included if one was drawn.
        logprobs: of those tokens under ``softmax(logits / temperature)``, before any ``top_p`` cut.
        finish_reason: ``stop`` if the last token is a stop token, else ``length``.
        version: of the weights that wrote it.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    finish_reason: FinishReason
    version: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Σw and Σw² in float64 over all weights an engine holds; tied weights count once."""

    names: int
    total: float
    total_squares: float


@dataclass(frozen=True, slots=True)
class RolloutContext:
    """What a rollout backend is built from.

    Attributes:
        policy: the trainer's own HF model; a backend with weights of its own must not keep it.
        model_path: the HF folder the run started from.
        stop_token_ids: every id that ends a completion.
        pad_token_id: an id to pad with; never used to find the end of a text.
        device: of this rank.
        dtype: of the policy's weights, e.g. ``float32``.
        max_length: prompt and completion together, in tokens.
        whole: to be entered by every rank around a generation with ``policy`` itself, whose weights may be split.
    """

    policy: Any
    model_path: str
    stop_token_ids: tuple[int, ...]
    pad_token_id: int
    device: str
    dtype: str
    max_length: int
    whole: Callable[[], AbstractContextManager[None]] = nullcontext


class RolloutBackend(Protocol):
    """Token ids in, token ids out: text is never tokenised again."""

    @property
    def exact(self) -> bool:
        """True when samples and logprobs are the trainer's policy's to float32 accuracy."""
        ...

    def generate(self, requests: Sequence[Request]) -> Iterator[tuple[int, list[Generation]]]:
        """Yield each request's index with its ``n`` generations as they finish."""
        ...

    def sync(self, weights: Iterator[tuple[str, Tensor]], version: int) -> Fingerprint | None:
        """Take the policy's weights, before the first `generate` and after every step.

        Returns:
            The sums over the weights now in use, or None when the backend samples from the trainer's own module.
        """
        ...

    def release(self) -> None:
        """After collecting, before training: give memory back."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


# --- trackers -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrackerContext:
    """The run a tracker follows: its name, its folder, its resolved spec, and the state of an earlier part of it."""

    run_name: str
    run_dir: Path
    spec: Mapping[str, Any]
    state: Mapping[str, Any] | None = None


class Tracker(Protocol):
    """Follows a run. An exception in a tracker is reported and never stops the training."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of one step."""
        ...

    def samples(self, step: int, table: Iterable[Mapping[str, Any]]) -> None:
        """Prompts and completions of one step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on in the same place, JSON-able."""
        ...

    def finish(self) -> None:
        """The run ended, well or not."""
        ...
