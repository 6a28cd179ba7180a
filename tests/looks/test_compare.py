"""`rlx compare`: two models on the same prompts, seeds and sampling."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import rlx
from rlx.cli import app
from rlx.looks.stats import difference, verdict, win_rate
from rlx.models import load_causal_lm
from rlx.text import printable

from .conftest import HOSTILE, HOSTILE_NAME, Page

TINY = Path(rlx.__file__).parent / "quickstart" / "rlx-tiny"
PROMPTS = ["Say [b]hello[/b].", "<script>alert(1)</script>", "Write to my boss."]


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"instruction": text}) + "\n" for text in PROMPTS))
    return file


def compare(*arguments):
    return CliRunner().invoke(app, ["compare", *map(str, arguments), "--max-completion", "10"])


def test_a_model_and_a_run_of_it_side_by_side(run, prompts, tmp_path):
    page = tmp_path / "compare.html"
    done = compare(TINY, run, "--prompts", prompts, "--n", 2, "--html", page, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)

    assert [row["prompt"] for row in found["prompts"]] == PROMPTS
    assert all(len(row[side]) == 2 for row in found["prompts"] for side in ("base", "tuned"))
    rewards = [line["reward"] for row in found["prompts"] for line in row["tuned"]]
    assert found["summary"]["tuned"]["reward/polite_length"] == pytest.approx(sum(rewards) / 6), "the run's own reward"
    assert found["win_rate"]["wins"] + found["win_rate"]["ties"] + found["win_rate"]["losses"] == 3
    assert 0 < found["kl"]["token"] < 0.1, "three small steps away"
    parsed = Page(page.read_text(encoding="utf-8"))
    assert len(parsed.of_class("sample")) == 3
    assert not [tag for tag, _ in parsed.tags if tag in ("script", "img", "link")]
    assert "<script>alert(1)</script>" in parsed.text


def test_whatever_models_prompts_and_rewards_hold_is_shown_and_does_nothing(monkeypatch, tmp_path):
    """Which models there are does not matter here: what was found is given."""
    said = {"completion": HOSTILE, "length": 5, "finish_reason": "stop", "reward": 1.0,
            "rewards": {HOSTILE_NAME: 0.5, "other": 0.5}}
    summary = {"reward": 1.0, f"reward/{HOSTILE_NAME}": 0.5}
    monkeypatch.setattr("rlx.looks.compare.compare", lambda base, tuned, *_, **__: {
        "base": base, "tuned": tuned, "prompts": [{"prompt": HOSTILE, "base": [said], "tuned": [said]}],
        "sampling": {"temperature": 1.0}, "summary": {"base": summary, "tuned": summary}, "win_rate": None,
        "difference": None, "kl": None, "notes": [HOSTILE]})
    done = compare(HOSTILE_NAME, HOSTILE, "--prompts", "any", "--html", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.stdout
    page = Page((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert page.text.count(HOSTILE) == 6, "tuned, prompt, two completions, note, title"
    assert page.text.count(HOSTILE_NAME) == 5, "base, title, twice a reward, once in the summary"
    assert not [tag for tag, _ in page.tags if tag in ("script", "img", "link")]
    assert not [a for _, a in page.tags if any(name.startswith("on") for name in a)]


def test_a_run_alone_is_compared_with_the_model_it_began_from(run, prompts):
    done, both = compare(run, "--prompts", prompts, "--json"), compare(TINY, run, "--prompts", prompts, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads(both.stdout)


def test_a_model_compared_with_itself_differs_in_nothing(prompts):
    done = compare(TINY, TINY, "--prompts", prompts, "--reward", "polite_length")
    assert done.exit_code == 0, done.output
    assert "tuned wins 0 of 3 prompts and draws 3: win rate 50%" in done.stdout
    assert "so this may be chance" in done.stdout
    assert "KL(tuned‖base) 0.000 nats a token" in done.stdout
    assert "Say [b]hello[/b]." in done.stdout


def test_the_kl_is_that_of_the_whole_distributions(prompts, tmp_path):
    model = load_causal_lm(str(TINY), torch.float32)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1.1)
    model.save_pretrained(tmp_path / "other")
    for file in TINY.glob("*token*"):
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    for file in TINY.glob("*.jinja"):
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    done = compare(TINY, tmp_path / "other", "--prompts", prompts, "--limit", 1, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)

    from rlx.data import load_tokenizer

    tokenizer = load_tokenizer(str(TINY))
    start = tokenizer.encode_prompt([{"role": "user", "content": PROMPTS[0]}])
    length = found["prompts"][0]["tuned"][0]["length"]
    from rlx.sample import OpenModel
    from rlx_sdk import Sampling

    tuned = OpenModel(str(tmp_path / "other"))
    [[generation]] = tuned.complete(tuned.prompts(str(prompts), 1), Sampling(max_tokens=10), 1, 0)
    assert len(generation.tokens) == length
    ids = torch.tensor([[*start, *generation.tokens]])
    with torch.no_grad():
        p, q = (m(input_ids=ids).logits[0, len(start) - 1 : -1].double().log_softmax(-1)
                for m in (tuned.hf, load_causal_lm(str(TINY), torch.float32).eval()))
    assert found["kl"]["completion"] == pytest.approx(float((p.exp() * (p - q)).sum()), rel=1e-4)
    assert found["kl"]["token"] == pytest.approx(found["kl"]["completion"] / length)
    assert found["win_rate"] is None
    assert "give --reward NAME" in found["notes"][0]


def test_the_interval_of_the_win_rate_is_wilsons():
    """16 of 20: 0.584 to 0.919 (Wilson, by any table)."""
    found = win_rate([(0.0, 1.0)] * 16 + [(1.0, 0.0)] * 4)
    assert (found["rate"], found["low"], found["high"]) == pytest.approx((0.8, 0.584, 0.919), abs=1e-3)
    assert win_rate([(1.0, 1.0)] * 4)["rate"] == 0.5
    assert win_rate([]) is None
    assert difference([(0.0, 1.0)]) is None
    assert difference([(0.0, 1.0), (0.0, 3.0)])["mean"] == 2.0


def test_a_verdict_says_whether_training_helped():
    """Two completions of a row count as their mean; a row that was not judged both times counts nothing."""
    def lines(*rewards):
        return [{"row": i // 2, "reward": reward} for i, reward in enumerate(rewards)]

    before = lines(0.0, 1.0, 0.0, 0.0, 0.0, 0.2, None, None)
    after = lines(1.5, 1.5, 1.0, 1.2, 1.0, 1.1, 9.0, 9.0)
    assert verdict(before, after) == ("On 3 held-out prompts the reward went from 0.200 to 1.217: +1.017 a prompt (95% "
                                      "interval +0.930 to +1.103), which are too few to tell.")
    assert verdict(before, lines(None, None, None, None)) is None
    none, some = lines(*[0.0] * 16), lines(*[1.0, 0.5] * 8)
    assert verdict(none, some).endswith("so training helped.")
    assert verdict(some, none).endswith("so training did harm.")
    assert "so this may be chance" in verdict(none, lines(*[0.0] * 12, 1.0, -0.5, 0.5, 0.5))


def test_bad_input_is_refused(prompts, tmp_path):
    for arguments, why in (([TINY, TINY, "--prompts", ""], "--prompts is empty"),
                           ([TINY, TINY, "--prompts", prompts, "--reward", "polite"], "Did you mean 'polite_length'"),
                           ([TINY, "--prompts", prompts], "is no run, so nothing says which model it began from"),
                           ([TINY, tmp_path / "none", "--prompts", prompts], "none")):
        done = compare(*arguments)
        assert (done.exit_code, why in done.stderr) == (2, True), done.output


def test_a_terminal_is_not_steered_by_what_a_model_wrote():
    assert "\x1b" not in printable(HOSTILE)
    assert printable("a\tb\n写 👩‍👩‍👧") == "a\tb\n写 👩‍👩‍👧"
