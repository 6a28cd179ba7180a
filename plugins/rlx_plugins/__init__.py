"""The plugins that come with rlx, registered as a stranger's are: through entry points and hooks.

This module only says what there is. It imports nothing heavy; `lazy` loads a plugin's own module when it is used.
"""

from __future__ import annotations

from rlx_sdk import AlgorithmPlugin, RewardPlugin, RolloutPlugin, TrackerPlugin, hookimpl, lazy


@hookimpl
def rlx_algorithms() -> list[AlgorithmPlugin]:
    """PPO, DPO and SFT."""
    return [
        AlgorithmPlugin(
            name="ppo",
            summary="Proximal policy optimisation: samples, rewards, a critic, clipped updates (arXiv 1707.06347)",
            config=lazy("rlx_plugins.ppo:PPOConfig").resolve,
            needs=lazy("rlx_plugins.ppo:needs"),
            build=lazy("rlx_plugins.ppo:PPO"),
        ),
        AlgorithmPlugin(
            name="dpo",
            summary="Direct preference optimisation from given pairs, or from the policy's own ranked samples "
                    "(arXiv 2305.18290)",
            config=lazy("rlx_plugins.dpo:DPOConfig").resolve,
            needs=lazy("rlx_plugins.dpo:needs"),
            build=lazy("rlx_plugins.dpo:DPO"),
        ),
        AlgorithmPlugin(
            name="sft",
            summary="Supervised fine-tuning: learn given answers token by token",
            config=lazy("rlx_plugins.sft:SFTConfig").resolve,
            needs=lazy("rlx_plugins.sft:needs"),
            build=lazy("rlx_plugins.sft:SFT"),
        ),
    ]


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
    """HF generate and vLLM."""
    return [
        RolloutPlugin(
            name="hf",
            summary="HF generate with the trainer's own weights; needs nothing installed",
            config=lazy("rlx_plugins.options:HFOptions").resolve,
            build=lazy("rlx_plugins.hf_rollout:HFRollout"),
        ),
        RolloutPlugin(
            name="vllm",
            summary="vLLM in the same process and on the same GPU, each weight update proven",
            config=lazy("rlx_plugins.options:VLLMOptions").resolve,
            build=lazy("rlx_plugins.vllm_rollout:VLLMRollout"),
            requires={"vllm": "rlx[vllm]"},
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
