"""Writes docs/spec.md, the reference of all settings, from the typed spec: ``python docs/make_spec.py``."""

from __future__ import annotations

from pathlib import Path

from rlx.cli import _settings
from rlx.describe import Option, options
from rlx.spec import Spec

PAGE = Path(__file__).with_name("spec.md")
TOP = """\
# Settings

<!-- Made by docs/make_spec.py from core/rlx/spec.py; edit the fields' docstrings there, or that script. -->

A run is one spec: a YAML file, flags on top of it, and `--set a.b=value` for every setting that has no flag of its own.
Later ones win. In Python the sections are keyword arguments: `rlx.train(algo="ppo", train={"batch_size": 64})`.

```yaml
# spec.yaml
algo: {name: ppo, kl: {coef: 0.02}}
rewards: [{name: polite_length}]
train:
  steps: 2
  batch_size: 4
  optim: {policy: {lr: 1.0e-4}}
```

```bash
rlx check spec.yaml
rlx train spec.yaml --steps 1 --set train.optim.policy.lr=2e-4
```

Unknown and ill-typed settings are refused, all at once, with the nearest name. So is a setting that could not act in
the combination that was asked for. `spec.yaml` in a run's folder has every setting, given or default; what
depends on the machine stays `null` or `auto` there. `rlx schema` prints all of this page as JSON schema, with the
options of the installed plugins.

Without `--model`, the bundled quickstart (`core/rlx/quickstart/quickstart.yaml`) gives model, data, lengths, learning
rates and steps in place of the defaults below; naming a model leaves all of it out.

| flag | setting |
|---|---|
"""
FLAGS = {"algo": "V", "reward": ["V"], "model": "V", "data": "V", "rollout": "V", "steps": 1, "resume": "V",
         "name": "V", "eval_data": "V", "sample_every": 1}
SEE = {
    "data": "[data.md](data.md) shows the layouts of rows.",
    "algo": "Beside the name stand the algorithm's own options: [algorithms.md](algorithms.md) links to each.",
    "rewards": "[rewards.md](rewards.md) explains them.",
    "rollout": "[rollouts.md](rollouts.md) explains them; each backend's own options: [hf](rollouts/hf.md), "
               "[vllm](rollouts/vllm.md), [vllm_server](rollouts/vllm_server.md).",
    "engine": "[engine.md](engine.md) explains them.",
    "run": "[reliability.md](reliability.md) explains saving and resuming.",
    "trackers": "[console](trackers/console.md), [jsonl](trackers/jsonl.md), [tensorboard](trackers/tensorboard.md) "
                "and [wandb](trackers/wandb.md) come with rlx.",
}


def page() -> str:
    """The whole page."""
    parts = [TOP + "".join(map(_flag, FLAGS)) + "| `--set a.b=value` | any setting |\n"]
    found = list(options(Spec.model_json_schema()))
    for name in dict.fromkeys(option.name.partition(".")[0].removesuffix("[]") for option in found):
        head = next(option for option in found if option.name == name)
        inner = [o for o in found if o.name.startswith((f"{name}.", f"{name}[].")) and o.type != "group"] or [head]
        parts.append(f"## {name}\n\n{head.meaning} {SEE.get(name, '')}".rstrip() + "\n\n"
                     "| setting | type | default | what it does |\n|---|---|---|---|\n" + "".join(map(_row, inner)))
    return "\n".join(parts)


def _flag(name: str) -> str:
    tree, path = _settings(None, **{name: FLAGS[name]}), []
    while not isinstance(tree, str | int):
        key, tree = next(iter(tree.items())) if isinstance(tree, dict) else ("[]", tree[0])
        path.append(key)
    return f"| `--{name.replace('_', '-')}` | `{'.'.join(path).replace('.[]', '[]')}` |\n"


def _row(option: Option) -> str:
    default = "required" if option.default is None else f"`{option.default}`"
    cells = (f"`{option.name}`", option.type.replace(" | ", ", "), default, option.meaning)
    return f"| {' | '.join(cell.replace('|', '∣').replace('``', '`') for cell in cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
