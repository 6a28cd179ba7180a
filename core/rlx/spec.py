"""The typed spec of a run. Every field is described; ``rlx schema`` prints it all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rlx.machine import gpu_is_there

MAX_FAILED = 0.5
_Beta = Annotated[float, Field(ge=0, lt=1)]
Overlong = Literal["error", "drop", "truncate_left", "truncate_right"]


class Section(BaseModel):
    """A part of the spec: strict, and closed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False,
                              use_attribute_docstrings=True)


class CriticSpec(Section):
    """The critic's start."""

    init: str | None = None
    """Folder or hub name to start the critic from: a language model or a one-label classifier. Default: the policy."""


class LoraSpec(Section):
    """Train a low-rank adapter instead of the weights."""

    rank: int = Field(16, ge=1)
    """Of the adapter's two factors."""
    alpha: int = Field(32, ge=1)
    """The adapter is scaled by alpha / rank."""
    targets: str | tuple[str, ...] = "all-linear"
    """Modules that get one."""


class ReferenceSpec(Section):
    """The frozen model that the policy is compared with."""

    path: str | None = None
    """Folder, hub name or .gguf file of another model with the same vocabulary. Default: the policy as it began."""
    cache: bool = True
    """Keep its logprobs of given data on disk and the model out of memory; sampled completions are always new."""


class ModelSpec(Section):
    """The policy."""

    path: str
    """HF folder, hub name, or a .gguf file."""
    chat_template: str | None = None
    """A Jinja template, or a file with one, instead of the model's own."""
    trust_remote_code: bool = False
    """Run Python code from the model's folder."""
    lora: LoraSpec | None = None
    """Train an adapter of the policy; its reference is then the policy without it."""
    critic: CriticSpec = CriticSpec()
    reference: ReferenceSpec = ReferenceSpec()


class DataSpec(Section):
    """The training data."""

    path: str | list[str] | dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    """A parquet, jsonl, json or csv file, a folder or pattern of them, or hf:NAME through the datasets package; a list
    of these; or each with its weight in a pass over the data."""
    columns: dict[str, str] = {}
    """rlx's column name: the file's, e.g. prompt: Question."""
    max_prompt: int | None = Field(None, ge=1)
    """Tokens a prompt may have; default: what the model's context leaves."""
    max_length: int | None = Field(None, ge=2)
    """Tokens of prompt and answer together, for pairs and demonstrations; default: the model's context."""
    overlong: Overlong = "error"
    """What happens to longer rows: the file is refused; they are left out and counted; or cut, and counted: the start
    of the prompt (truncate_left), or the end of the prompt or of the answers (truncate_right)."""
    eval: int | str = Field(0, union_mode="left_to_right")
    """Rows held out from the end of the file for evaluation, or a file of its own."""
    source: str | None = None
    """Column that says where a row is from; evaluations then have figures of each. Default: data_source or source."""
    cache: str = "~/.cache/rlx"
    """Folder for converted files."""


class AlgoSpec(BaseModel):
    """The algorithm: its name, and its own options beside it."""

    model_config = ConfigDict(extra="allow", frozen=True, use_attribute_docstrings=True)

    name: str
    """As ``rlx plugins`` lists it."""


class RewardSpec(Section):
    """A reward provider."""

    name: str
    """As ``rlx plugins`` lists it, package/name, file.py:function, module:function, hf:MODEL, or a service's URL."""
    label: str | None = None
    """What it is called in metrics; default: its name."""
    weight: float = 1.0
    """Its share in the sum."""
    on_error: Literal["stop", "skip"] | float = "stop"
    """A sample it fails on stops the run, counts as not judged, or gets this value."""
    max_failed: float = Field(MAX_FAILED, ge=0, le=1)
    """Share of its last 100 samples that it may fail on, under on_error skip or a value; beyond it the run ends."""
    timeout: float = Field(600.0, gt=0)
    """Seconds that one call may take. In rlx's own process a plain function that takes longer ends the run; an async or
    an isolated one has failed on the samples of the call."""
    isolate: Literal["process"] | None = None
    """Run it in a process of its own, which is started again when it dies or gets stuck."""
    options: dict[str, Any] = {}
    """Its own options."""


class EvalSampling(Section):
    """How held-out prompts are completed."""

    temperature: float = Field(1.0, ge=0)
    """0 takes the likeliest token each time."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample from the smallest set of tokens with this much probability."""
    top_k: int | None = Field(None, ge=1)
    """Sample from this many tokens, the likeliest ones."""
    group_size: int | None = Field(None, ge=1)
    """Completions of a held-out prompt; default: as in training, and 1 where the temperature is 0."""
    success: float | None = None
    """Reward from which a completion counts as solved: then eval/pass@1, @2, @4, ... up to group_size are measured."""


class RolloutSpec(Section):
    """How completions are sampled."""

    name: str = "auto"
    """The backend; auto is the best one that is installed for a machine such as this."""
    group_size: int | None = Field(None, ge=1)
    """Completions a prompt; default: the algorithm's."""
    max_completion: int = Field(256, ge=1)
    """Tokens a completion may have."""
    temperature: float = Field(1.0, gt=0)
    """Logits are divided by it, in sampling and in training."""
    eval: EvalSampling | None = None
    """Of held-out prompts; default: as in training."""
    ahead: bool = False
    """Sample a step's batch during the step before, with weights one update older; for backends on other devices."""
    options: dict[str, Any] = {}
    """The backend's own options."""

    @model_validator(mode="before")
    @classmethod
    def _whole_distribution(cls, value: Any) -> Any:
        cut = [name for name in ("top_p", "top_k") if isinstance(value, Mapping) and name in value]
        if cut:
            raise ValueError(f"{' and '.join(cut)} would train on samples of another distribution than the policy's; "
                             f"leave it out. Held-out prompts have rollout.eval.{cut[0]}, rlx sample has "
                             f"--{cut[0].replace('_', '-')}")
        return value


class OptimSpec(Section):
    """AdamW and its schedule."""

    lr: float = Field(1e-6, ge=0)
    """Learning rate after warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How it falls to 0 by the end of the run, if it does."""
    warmup_steps: int = Field(0, ge=0)
    """Optimizer steps over which it rises from 0."""
    betas: tuple[_Beta, _Beta] = (0.9, 0.95)
    """AdamW's decay rates."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's ε."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled weight decay."""
    grad_clip: float = Field(1.0, ge=0)
    """Largest norm of the gradient; 0 for no clipping."""


class OptimizersSpec(Section):
    """One optimizer a trained role."""

    policy: OptimSpec = OptimSpec()
    critic: OptimSpec = OptimSpec(lr=1e-5)
    reward: OptimSpec = OptimSpec(lr=1e-5)


class TrainSpec(Section):
    """Length and shape of the training."""

    steps: int | None = Field(None, ge=1)
    """Steps of the run: one batch of data each."""
    epochs: int | None = Field(None, ge=1)
    """Passes over the data, instead of steps."""
    batch_size: int = Field(32, ge=1)
    """Rows of data a step, over all ranks: prompts, pairs or demonstrations."""
    minibatches: int = Field(1, ge=1)
    """Optimizer steps that a batch is split into."""
    update_epochs: int = Field(1, ge=1)
    """Passes over one batch."""
    micro_tokens: int | None = Field(None, ge=1)
    """Tokens in one pass: memory and speed, never results; null: 2048 on a CPU, 8192 to 32768 on a GPU, as fits."""
    micro_batch: int | None = Field(None, ge=1)
    """Rows in one pass at most; default: as many as micro_tokens holds."""
    packing: bool = False
    """Rows of a pass lie behind each other without padding, each seeing only itself; results do not depend on it."""
    max_skipped: int = Field(5, ge=1)
    """Steps in a row without a usable update before the run stops."""
    optim: OptimizersSpec = OptimizersSpec()

    @property
    def pass_tokens(self) -> int:
        """`micro_tokens`, or what suits this machine: caches of a CPU hold more of a small pass."""
        return self.micro_tokens or (8192 if gpu_is_there() else 2048)


class EngineSpec(Section):
    """How training uses the machine."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the working weights; auto is bfloat16 on a GPU and float32 on a CPU. Masters are float32 always."""
    zero_stage: Literal[1, 2, 3] = 1
    """What is split over the ranks: optimizer states; gradients too; weights too."""
    offload: Literal["optimizer", "all"] | None = None
    """What waits in the CPU's memory: masters and moments; with zero_stage 3 also the weights."""
    offload_while_sampling: bool = False
    """Masters and moments are on the CPU unless their role learns; where several do, two copies a minibatch."""
    activation_checkpointing: bool = False
    """Compute activations a second time in the backward pass instead of keeping them."""
    compile: bool | None = None
    """Fuse kernels with torch.compile: a minute once, and a C compiler; null: on a GPU, for runs that win it back."""
    deterministic: bool = False
    """Only kernels that give the same bits each time, where a GPU has others that are faster."""

    @field_validator("dtype", mode="before")
    @classmethod
    def _not_float16(cls, value: Any) -> Any:
        if value in ("float16", "fp16", "half"):
            raise ValueError("float16 overflows without loss scaling, which skips updates as it searches its scale; "
                             "use bfloat16, or float32 where the GPU has none")
        return value


class RunSpec(Section):
    """The run and its folder."""

    name: str | None = None
    """Folder name; default: algorithm and time."""
    dir: str = "runs"
    """Where run folders lie."""
    seed: int = Field(0, ge=0)
    """Decides data order, sampling and initial weights of new heads."""
    save_every: int | None = Field(None, ge=1)
    """Steps between checkpoints; one is written at the end in any case."""
    keep: int = Field(2, ge=1)
    """Newest checkpoints that stay."""
    best: str | None = None
    """Metric, such as eval/reward/mean, whose best checkpoint stays too; -eval/loss/policy for the lowest."""
    failed_save: Literal["stop", "continue"] = "stop"
    """What follows when a checkpoint or samples cannot be written, say on a full disk."""
    eval_every: int | None = Field(None, ge=1)
    """Steps between evaluations on data.eval; also before the first step and after the last."""
    sample_every: int | None = Field(10, ge=1)
    """Steps between looks at chosen prompts, and tables of samples in trackers; null: none. samples/ has all steps."""
    stuck_after: float = Field(7200, gt=0)
    """Seconds that one phase of a step may take; then each rank's stack is written down and the run ends."""
    resume: str | None = None
    """'auto' continues the run of this name from its newest checkpoint, if there is one; or a checkpoint's folder."""
    resume_changed: bool = False
    """Continue although the data, a model's files, or a setting that makes it another run, have changed."""


class TrackerSpec(Section):
    """A tracker."""

    name: str
    """As ``rlx plugins`` lists it."""
    options: dict[str, Any] = {}
    """Its own options."""


class Spec(Section):
    """A run, whole."""

    model: ModelSpec
    data: DataSpec
    algo: AlgoSpec
    rewards: tuple[RewardSpec, ...] = ()
    """Reward providers; their weighted sum is the reward."""
    combine: Literal["sum", "normalized"] = "sum"
    """The sum is of scores; or of scores that were normalised among each prompt's completions before (GDPO)."""
    rollout: RolloutSpec = RolloutSpec()
    train: TrainSpec
    engine: EngineSpec = EngineSpec()
    run: RunSpec = RunSpec()
    trackers: tuple[TrackerSpec, ...] = ()
    """Besides the screen (console) and metrics.jsonl (jsonl), which every run has."""
