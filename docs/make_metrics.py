"""Writes docs/metrics.md from what rlx knows of its metrics: ``python docs/make_metrics.py``."""

from __future__ import annotations

from pathlib import Path

from rlx.looks.described import DESCRIBED
from rlx.looks.warn import RULES

PAGE = Path(__file__).with_name("metrics.md")
TOP = """\
# Metrics

<!-- Made by docs/make_metrics.py; edit core/rlx/looks/metrics.yaml and warn.py, or that script. -->

`metrics.jsonl` has one line a step, and one an evaluation: the same names under `eval/`, measured on held-out rows,
never mixed with training's. What was not measured in a step is not in its line; what is not a finite number is null.

```python
import pandas as pd

metrics = pd.read_json("runs/NAME/metrics.jsonl", lines=True)
samples = pd.read_parquet("runs/NAME/samples")  # every completion: prompt, rewards, advantage, length, ...
```

| name | unit | what it is | what good looks like |
|---|---|---|---|
"""
WARNINGS = """
## Warnings

A run says each of these once, in words, on the screen, and `rlx report` repeats them.

| when | what it says |
|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = "".join(f"| `{m.name}` | {m.unit} | {m.meaning} | {m.good} |\n" for m in DESCRIBED)
    return TOP + rows + WARNINGS + "".join(f"| {rule.when} | {rule.says} |\n" for rule in RULES)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
