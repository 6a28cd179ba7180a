"""Write tasks of reasoning-gym to a data file that the reasoning_gym reward scores.

``python examples/reasoning_gym_tasks.py tasks.jsonl --tasks leg_counting countdown --size 500``, then
``rlx train --algo grpo --reward reasoning_gym --data tasks.jsonl --model …``.
Needs ``pip install 'rlx[reasoning-gym]'``.
"""

from __future__ import annotations

import argparse
import json

INSTRUCTION = "Give your final answer between <answer> and </answer>."


def main() -> None:
    """Make the tasks and write one a line: prompt, answer, and metadata as text, which no file format changes."""
    from reasoning_gym import create_dataset

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("file")
    options.add_argument("--tasks", nargs="+", default=["leg_counting"])
    options.add_argument("--size", type=int, default=100, help="of each kind")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    with open(given.file, "w", encoding="utf-8") as out:
        for name in given.tasks:
            for task in create_dataset(name, size=given.size, seed=given.seed):
                prompt = [{"role": "user", "content": f"{task['question'].strip()}\n\n{INSTRUCTION}"}]
                metadata = json.dumps(task["metadata"], default=str)
                row = {"prompt": prompt, "answer": task["answer"], "metadata": metadata}
                out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
