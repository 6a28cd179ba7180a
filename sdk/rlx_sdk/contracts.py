"""The contracts of rewards, rollout backends and trackers: what each must do, and what it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["stop", "length"]
Message = Mapping[str, Any]


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
        tokens: that the policy wrote, its stop token included; None where nobody counted.
    """

    prompt: str
    completion: str
    messages: Sequence[Message] = ()
    finish_reason: FinishReason = "stop"
    row: Mapping[str, Any] = field(default_factory=dict)
    tokens: int | None = None


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


Scores = Sequence["float | Score | Exception | None"]


@runtime_checkable
class Reward(Protocol):
    """A reward provider, built once a run.

    Where `score` is ``async def``, or the attribute ``is_async`` is true, it is called with each prompt's completions
    as they finish, while others are still being sampled. Else it is called on the main thread with all of them.
    """

    def score(self, samples: Sequence[Sample]) -> Scores | Awaitable[Scores]:
        """One number, `Score`, None (abstains) or exception (it failed on that one) a sample, in order."""
        ...

    def close(self) -> None:
        """Give back what was opened."""
        ...


@dataclass(frozen=True, slots=True)
class RewardContext:
    """What a reward may use while it is built.

    Attributes:
        device: of this rank's training.
        seed: of the run.
        trial: it is only seen whether it works, as by ``rlx check``: what is not there is not waited for.
    """

    device: str = "cpu"
    seed: int = 0
    trial: bool = False


# --- rollouts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn: from ``softmax(logits / temperature)``, or the likeliest one at temperature 0.

    Cut to the ``top_k`` likeliest, and of these to the smallest set of mass ``top_p``; neither in training.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 64
    top_k: int | None = None


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
        logprobs: of those tokens under ``softmax(logits / temperature)``. Nobody reads them where ``top_p`` or
            ``top_k`` cuts or the temperature is 0.
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
        tokens: that this rank will sample at most, if that is known.
        makes_room: masters and moments leave the device before each `sync`, until the next update.
        at_once: completions that this rank samples at once at most, and tokens of the longest, its prompt included.
        spare: bytes of the device that training leaves free when it needs most, by estimate.
    """

    policy: Any
    model_path: str
    stop_token_ids: tuple[int, ...]
    pad_token_id: int
    device: str
    dtype: str
    max_length: int
    whole: Callable[[], AbstractContextManager[None]] = nullcontext
    tokens: int | None = None
    makes_room: bool = False
    at_once: tuple[int, int] | None = None
    spare: int | None = None


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
        """After collecting, before training: give memory back; a `sync` follows before the next `generate`.

        Of a backend that samples ahead (``RolloutPlugin.concurrent``), which keeps its memory, after evaluations alone.
        """
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


# --- trackers -----------------------------------------------------------------------------------------------------


Split = Literal["train", "eval", "chosen"]
"""Of samples: those of a training step, of held-out rows, or of the few prompts that are looked at again and again."""


@dataclass(frozen=True, slots=True)
class TrackerContext:
    """The run a tracker follows.

    Attributes:
        run_name: of its folder.
        run_dir: its folder.
        spec: the resolved one.
        state: what `Tracker.state_dict` gave for the checkpoint that the run goes on from, if it does.
        resumed: that checkpoint's step; what a tracker has of later ones is made again. None from the beginning.
        steps: of the whole run.
        terminal: a ``rich.console.Console``, where the user looks: during a run ``sys.stdout`` is a log file.
    """

    run_name: str
    run_dir: Path
    spec: Mapping[str, Any]
    state: Mapping[str, Any] | None = None
    resumed: int | None = None
    steps: int = 0
    terminal: Any = None


class Tracker(Protocol):
    """Follows a run. An exception in a tracker is reported and never stops the training."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics of one step, or of an evaluation after it (``eval/…``)."""
        ...

    def samples(self, step: int, table: Sequence[Mapping[str, Any]], split: Split) -> None:
        """Prompts and completions, at least one."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to go on in the same place, JSON-able."""
        ...

    def finish(self) -> None:
        """The run ended, well or not."""
        ...
