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


@hookimpl
def rlx_rewards() -> list[RewardPlugin]:
    """Rule rewards."""
    return [
        RewardPlugin(
            name="polite_length",
            summary="1 for a completion of 50 to 200 characters, and 0.5 for a polite word",
            config=lazy("rlx_plugins.polite_length:Options").resolve,
            build=lazy("rlx_plugins.polite_length:build"),
        ),
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
        ),
    ]


@hookimpl
def rlx_trackers() -> list[TrackerPlugin]:
    """Wandb."""
    return [
        TrackerPlugin(
            name="wandb",
            summary="Weights & Biases",
            config=lazy("rlx_plugins.wandb_tracker:WandbOptions").resolve,
            build=lazy("rlx_plugins.wandb_tracker:WandbTracker"),
            requires={"wandb": "rlx[wandb]"},
        ),
    ]
