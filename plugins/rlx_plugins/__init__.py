"""The plugins that come with rlx, registered as a stranger's are: through entry points and hooks.

This module only says what there is. It imports nothing heavy; `lazy` loads a plugin's own module when it is used.
"""

from __future__ import annotations

from rlx_sdk import AlgorithmPlugin, RewardPlugin, RolloutPlugin, TrackerPlugin, hookimpl, lazy

# Name, module and class, and what `rlx plugins` says of it.
ALGORITHMS = (
    ("ppo", "ppo:PPO", "Proximal policy optimisation: samples, rewards, a critic, clipped updates (arXiv 1707.06347)"),
    ("grpo", "grpo:GRPO", "Group relative policy optimisation: samples of a prompt compared (arXiv 2402.03300)"),
    ("dr_grpo", "dr_grpo:DrGRPO", "GRPO without dividing by std and length (arXiv 2503.20783)"),
    ("rloo", "rloo:RLOO", "REINFORCE with the other samples of a prompt as baseline (arXiv 2402.14740)"),
    ("reinforce++", "reinforce_pp:ReinforcePP", "REINFORCE with returns whitened over the batch (arXiv 2501.03262)"),
    ("dapo", "dapo:DAPO", "GRPO that samples past dead groups, with a wider clip (arXiv 2503.14476)"),
    ("gspo", "gspo:GSPO", "GRPO with one ratio a completion (arXiv 2507.18071)"),
    ("cispo", "cispo:CISPO", "GRPO whose clipped ratio only weighs (arXiv 2506.13585)"),
    ("distill", "distill:Distill", "Own samples pulled to a teacher, model.reference.path (arXiv 2306.13649)"),
    ("dpo", "dpo:DPO", "Direct preference optimisation from given pairs, or from the policy's own ranked samples "
                       "(arXiv 2305.18290)"),
    ("simpo", "simpo:SimPO", "Preferences by mean likelihood, without a reference (arXiv 2405.14734)"),
    ("orpo", "orpo:ORPO", "Fine-tuning with an odds ratio against the rejected answer (arXiv 2403.07691)"),
    ("kto", "kto:KTO", "From single answers called good or bad (arXiv 2402.01306)"),
    ("reward_model", "reward_model:RewardModel", "A reward model from preferences (arXiv 2203.02155)"),
    ("sft", "sft:SFT", "Supervised fine-tuning: learn given answers token by token"),
)


@hookimpl
def rlx_algorithms() -> list[AlgorithmPlugin]:
    """All of `ALGORITHMS`."""
    return [AlgorithmPlugin(name=name, summary=summary, config=lazy(f"rlx_plugins.{target}Config").resolve,
                            needs=lazy(f"rlx_plugins.{target.partition(':')[0]}:needs"),
                            build=lazy(f"rlx_plugins.{target}"))
            for name, target, summary in ALGORITHMS]


# Name, module, what `rlx plugins` says of it, what its argument sets, and what it needs.
RULES: tuple[tuple[str, str, str, str | None, dict[str, str]], ...] = (
    ("polite_length", "polite_length", "1 for a completion of 50 to 200 characters, and 0.5 for a polite word", None,
     {}),
    ("exact_match", "exact_match", "1 for the text of the column ground_truth, else 0", None, {}),
    ("regex", "pattern", "1 for a completion that matches a pattern, regex:PATTERN", "pattern", {}),
    ("format", "format", "1 for <think>…</think><answer>…</answer>, each tag once and nothing outside", None, {}),
    ("math", "math", "1 for an answer that equals the column ground_truth as mathematics", None,
     {"math_verify": "rlx[math]"}),
    ("repetition", "repetition", "Minus the share of word triples that stood before: 0 to −1", None, {}),
    ("overlong", "overlong", "0, falling to −1 over the last tokens before a limit, overlong:LIMIT", "limit", {}),
    ("length", "length", "1 for a length within bounds, falling outside", None, {}),
    ("json_valid", "json_valid", "1 for a completion that is one JSON object", None, {}),
    ("reasoning_gym", "reasoning_gym", "The score that reasoning-gym gives, from the columns answer and metadata", None,
     {"reasoning_gym": "rlx[reasoning-gym]"}),
)
# The same of models and services, with options and class.
MODELS: tuple[tuple[str, str, str, str, str, dict[str, str]], ...] = (
    ("hf", "options:HFOptions", "hf:HFReward", "A reward model, hf:PATH_OR_ID: sequence classification with one label",
     "path", {}),
    *((name, "http:HttpOptions", "http:HttpReward", f"A service, {name}://…: samples and scores as JSON", "url",
       {"httpx": "rlx[http]", "tenacity": "rlx[http]"}) for name in ("http", "https")),
    ("judge", "judge:JudgeOptions", "judge:JudgeReward",
     "A language model behind an OpenAI-compatible API, judge:MODEL", "model",
     {"httpx": "rlx[http]", "tenacity": "rlx[http]"}),
)


@hookimpl
def rlx_rewards() -> list[RewardPlugin]:
    """All of `RULES` and `MODELS`."""
    home = "rlx_plugins.rewards"
    return [
        *(RewardPlugin(name=name, summary=summary, config=lazy(f"{home}.{module}:Options").resolve,
                       build=lazy(f"{home}.{module}:build"), argument=argument, requires=requires)
          for name, module, summary, argument, requires in RULES),
        *(RewardPlugin(name=name, summary=summary, config=lazy(f"{home}.{options}").resolve,
                       build=lazy(f"{home}.{target}"), argument=argument, requires=requires)
          for name, options, target, summary, argument, requires in MODELS),
    ]


@hookimpl
def rlx_rollouts() -> list[RolloutPlugin]:
    """HF generate, vLLM in process, and vLLM servers."""
    return [
        RolloutPlugin(
            name="hf",
            summary="HF generate with the trainer's own weights; needs nothing installed",
            config=lazy("rlx_plugins.options:HFOptions").resolve,
            build=lazy("rlx_plugins.hf_rollout:HFRollout"),
            auto=lambda gpu: 1,
            cached_tokens=lambda options: int(options.batch_tokens),
            deterministic=True,
        ),
        RolloutPlugin(
            name="vllm",
            summary="vLLM in the same process and on the same GPU, each weight update proven",
            config=lazy("rlx_plugins.options:VLLMOptions").resolve,
            build=lazy("rlx_plugins.vllm_rollout:VLLMRollout"),
            requires={"vllm": "rlx[vllm]"},
            auto=lambda gpu: 2 if gpu else 0,
        ),
        RolloutPlugin(
            name="vllm_server",
            summary="vLLM servers on other GPUs or machines, each weight update proven",
            config=lazy("rlx_plugins.options:VLLMServerOptions").resolve,
            build=lazy("rlx_plugins.vllm_server:VLLMServerRollout"),
            requires={"httpx": "rlx[vllm]"},
            concurrent=True,
        ),
    ]


@hookimpl
def rlx_trackers() -> list[TrackerPlugin]:
    """The screen and metrics.jsonl, which every run has; Wandb and TensorBoard."""
    return [
        TrackerPlugin(
            name="console",
            summary="The screen: a live table on a terminal, lines anywhere else",
            config=lazy("rlx_sdk:Config").resolve,
            build=lazy("rlx_plugins.console_tracker:ConsoleTracker"),
            always=True,
        ),
        TrackerPlugin(
            name="jsonl",
            summary="metrics.jsonl in the run's folder",
            config=lazy("rlx_sdk:Config").resolve,
            build=lazy("rlx_plugins.jsonl_tracker:JsonlTracker"),
            always=True,
        ),
        TrackerPlugin(
            name="wandb",
            summary="Weights & Biases",
            config=lazy("rlx_plugins.wandb_tracker:WandbOptions").resolve,
            build=lazy("rlx_plugins.wandb_tracker:WandbTracker"),
            preflight=lazy("rlx_plugins.wandb_tracker:preflight"),
            requires={"wandb": "rlx[wandb]"},
        ),
        TrackerPlugin(
            name="tensorboard",
            summary="TensorBoard event files in the run's folder",
            config=lazy("rlx_plugins.tensorboard_tracker:TensorboardOptions").resolve,
            build=lazy("rlx_plugins.tensorboard_tracker:TensorboardTracker"),
            requires={"tensorboard": "rlx[tensorboard]"},
        ),
    ]
