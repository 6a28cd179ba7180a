"""Train from three rows with a reward of your own. Run it from anywhere: ``python examples/three_rows.py``."""

from pathlib import Path

import rlx


def reward(samples: list) -> list[float]:
    """1 for 50 to 200 characters, 0.5 for a polite word."""
    good = [50 <= len(s.completion) <= 200 for s in samples]
    polite = [any(word in s.completion for word in ("谢谢", "您好", "请")) for s in samples]
    return [g + 0.5 * p for g, p in zip(good, polite, strict=True)]


data = Path(__file__).parent / "data" / "train.parquet"
result = rlx.train(algo="ppo", reward=reward, data=data, steps=5, train={"batch_size": 3})
print("mean reward of the last step:", round(result.metrics["reward/mean"], 3))
print("trained:", result.checkpoint / "actor")
