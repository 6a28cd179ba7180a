"""The whole of RLHF on the bundled model: SFT, a reward model, PPO and GRPO against it, then samples of each.

    python examples/full_circle.py

Everything lands in ``runs`` beside where it is started. It takes about two minutes of one CPU core.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import rlx

QUICK = Path(rlx.__file__).parent / "quickstart"
PROMPT = "Rewrite this sentence as a business email.\n\nTell me what the seaside costs."


def train(algo: str, steps: int, batch_size: int, held_out: int, optim: dict[str, Any], passes: int = 1,
          **settings: Any) -> rlx.Result:
    """One stage: what differs between the algorithms is their names and these numbers."""
    data = {"path": str(QUICK / "prompts.parquet"), "max_prompt": 96, "eval": held_out}
    return rlx.train(algo=algo, steps=steps, data=data, run={"eval_every": steps},
                     train={"batch_size": batch_size, "minibatches": passes, "update_epochs": passes, "optim": optim},
                     **settings)


def metrics_of(run: Path, name: str) -> list[float]:
    """A metric over the run's steps."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [line[name] for line in lines if name in line]


def main() -> None:
    """All stages, and what came of them."""
    slow, fast = {"lr": 5e-4}, {"lr": 1e-3}
    sft = train("sft", 6, 32, 32, {"policy": slow}, model=str(QUICK / "rlx-tiny"))
    policy = str(sft.checkpoint / "actor")
    judge = train("reward_model", 14, 32, 32, {"reward": fast}, model=policy)
    accuracy = metrics_of(judge.run, "eval/rewards/accuracy")[-1]

    folder = judge.checkpoint / "reward"
    reward, rollout = f"hf:{folder}", {"max_completion": 48}
    ppo = train("ppo", 10, 32, 16, {"policy": slow, "critic": fast}, 2, reward=reward, rollout=rollout,
                model={"path": policy, "critic": {"init": str(folder)}})  # the critic starts as the reward model
    grpo = train("grpo", 12, 16, 16, {"policy": slow}, reward=reward, rollout={**rollout, "group_size": 4},
                 model=policy)

    for stage in (sft, ppo, grpo):
        print(f"--- rlx sample {stage.run}")
        subprocess.run(["rlx", "sample", str(stage.run), "--prompts", PROMPT, "--max-completion", "48"], check=True)
    print(f"held-out accuracy of the reward model: {accuracy:.3f}")
    for name, stage in (("ppo", ppo), ("grpo", grpo)):
        before, after = metrics_of(stage.run, "eval/reward/mean")
        print(f"held-out reward with {name}: {before:.3f} before, {after:.3f} after")


if __name__ == "__main__":
    main()
