"""Writes docs/rewards.md from the installed rewards themselves: ``python docs/make_rewards.py``."""

from __future__ import annotations

from pathlib import Path

from rlx.describe import option_lines
from rlx.registry import Entry, Registry
from rlx.spec import RewardSpec

PAGE = Path(__file__).with_name("rewards.md")
TOP = """\
# Rewards

<!-- Made by docs/make_rewards.py from the plugins; edit their docstrings and options, or that script. -->

`--reward` takes, as often as you like, any of these, and behind each `=WEIGHT`:

| what | example |
|---|---|
| an installed reward | `polite_length`, `rlx/polite_length` (package/name) |
| one with its argument | `hf:path/to/reward_model`, `judge:gpt-oss-120b`, `regex:\\d+`, `overlong:256` |
| a function of a file | `rules/short.py:score` |
| a function of a module | `my_package.rules:score`, also of the working folder |
| a service | `http://localhost:8000`, `https://…` |

In Python, `rlx.train(reward=…)` takes the same texts, functions, and lists of both. A function takes a list of
`rlx_sdk.Sample`; functions for TRL, `f(prompts, completions, **columns)`, and for verl, `compute_score(data_source,
solution_str, ground_truth, extra_info)`, run unchanged. The signature tells which it is; where it does not, `options:
{style: trl}` says so.

Every rank finds its rewards by these names and scores its own samples; nothing is pickled. Plain functions are called
on the main thread with all of a step's samples, `async` ones with each prompt's completions as they finish, while
others are still being sampled. What a reward prints goes to the run's log, and the global random generators are put
back after it.

## In a spec file

```yaml
rewards:
  - {name: math, weight: 1.0}
  - {name: "hf:models/helpful", weight: 0.5, on_error: skip, label: helpful}
  - {name: "rules/parse.py:score", isolate: process, timeout: 5, on_error: 0.0, options: {style: trl}}
combine: sum
```

ENTRY

`combine: sum` adds the weighted scores. `combine: normalized` first takes each provider's scores to `(r − mean) /
(std + 1e-4)` among a prompt's completions, so that one of large scale does not drown the others (GDPO, arXiv
2601.05242); an algorithm that takes no second normalisation, such as `dr_grpo`, then learns from exactly their sum,
and `grpo` divides by the group's spread once more. A sample that one provider leaves unjudged keeps the scores of the
others; one that nobody judged is left out of the step. `reward/mean` and the samples show the plain weighted sum in
either case.

## When it fails

An exception, a wrong number of scores, NaN or infinity is a failure of the samples it concerns: a call that raised is
repeated sample by sample to find them. The message names the reward, its package and version, the data row and the
completion; the whole trace is in the run's `libraries.log`. `on_error` says what then becomes of the sample;
a provider that fails on more than `max_failed` of its last 100 samples (default: half) ends the run all the same.
Of the made-up completion at the start of a run only `on_error: stop` ends it; else what failed is said.

`timeout` bounds one call, by default to ten minutes. A plain function that is stuck is interrupted and ends the run
with the place where it was stuck: what it left half done is unknown. With `isolate: process` it runs in a process of
its own, which is killed and started again, so `on_error` applies; so it does to a reward that crashes its process.

Of each provider `metrics.jsonl` holds `reward/NAME/` with `mean`, `std`, `min`, `max`, `zero_variance` (the share of
prompts all of whose completions score alike: nothing is learnt from these), `abstained` and `failed` (shares of
samples), and the parts of its scores.

## Services

`rlx serve-reward NAME` serves any reward over HTTP: `--reward http://HOST:8000` asks it. The contract, for services
of your own:

```text
POST, JSON   {"samples": [{"prompt": "…", "completion": "…", "messages": […], "finish_reason": "stop", "row": {…},
                           "tokens": 17}, …]}
200, JSON    {"scores": [0.5, null, {"value": 1.0, "parts": {"a": 1.0}, "spans": [[12, 0.5]]}, {"error": "why"}, …]}
```

One score a sample, in their order; null abstains. Values of a row that JSON has none of come as `{"$": "date",
"value": "2026-12-01"}` (`datetime`, `date`, `time`, `decimal`, `bytes` in base64). Requests are sent again, with
growing pauses, after failed connections and statuses from 500 on, never after 4xx. Answers are bounded in size and
time.

## The rewards that come with rlx

| name | what it gives | needs |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    entries = [e for e in Registry.discover().entries("reward") if e.package == "rlx" and e.name != "https"]
    entry = "Of each entry:\n\n```text\n" + "\n".join(option_lines(RewardSpec.model_json_schema())) + "\n```"
    return TOP.replace("ENTRY", entry) + "".join(map(_row, entries))


def _row(entry: Entry) -> str:
    needs = ", ".join(f"`pip install '{what}'`" for what in dict.fromkeys(entry.plugin.requires.values()))
    return f"| [{entry.name}](rewards/{entry.name}.md) | {entry.plugin.summary} | {needs} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
