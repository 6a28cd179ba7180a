"""The rules that come with rlx, by hand."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from rlx.registry import Registry
from rlx_sdk import Sample, Score
from rlx_sdk.testing import check_reward

REGISTRY = Registry.discover()
CASES = Path(__file__).parents[1] / "cases"


def scores(name, *texts, row=None, tokens=None, **options):
    entry = REGISTRY.get("reward", name)
    built = entry.call("build", entry.call("config")(**options), None)
    found = built.score([Sample("p", text, row=row or {}, tokens=tokens) for text in texts])
    return [s.value if isinstance(s, Score) else s for s in found]


def test_exact_match():
    assert scores("exact_match", "4", " 4\n", "It is 4", "", row={"ground_truth": 4}) == [1.0, 1.0, 0.0, 0.0]
    assert scores("exact_match", "4") == [None]
    assert scores("exact_match", "4", row={"ground_truth": None}) == [None]
    assert scores("exact_match", "paris", "Lyon", row={"ground_truth": ["Paris", "Lyon"]}) == [0.0, 1.0]
    assert scores("exact_match", "paris", row={"right": "Paris"}, column="right", ignore_case=True) == [1.0]
    assert scores("exact_match", "Answer: 3. Answer: 4", "none", row={"ground_truth": "4"},
                  pattern=r"Answer: (\d+)") == [1.0, 0.0]
    assert scores("exact_match", "3 then 4", row={"ground_truth": "4"}, pattern=r"\d") == [1.0]


def test_regex():
    assert scores("regex", "a\n42", "none", pattern=r"\d+") == [1.0, 0.0]
    assert scores("regex", "42", "a 42", pattern=r"\d+", whole=True) == [1.0, 0.0]
    with pytest.raises(ValidationError, match="is no regular expression"):
        scores("regex", "x", pattern="(")


@pytest.mark.parametrize(("text", "value"), [
    ("<think>why</think><answer>4</answer>", 1.0), (" <think>a\nb</think>\n\n<answer>4</answer>\n", 1.0), ("4", 0.0),
    ("<think>why</think> so <answer>4</answer>", 0.0), ("<think>a</think><think>b</think><answer>4</answer>", 0.0),
    ("<answer>4</answer><think>why</think>", 0.0), ("<think>why</think><answer>4", 0.0), ("", 0.0),
    ("<think>why</think><answer>4</answer> bye", 0.0), ("well <think>why</think><answer>4</answer>", 0.0),
])
def test_format(text, value):
    assert scores("format", text) == [value]


def test_format_with_other_tags_and_an_opened_one():
    assert scores("format", "why</think><answer>4</answer>", opened=True) == [1.0]
    assert scores("format", "<t>why</t><a>4</a>", think="t", answer="a") == [1.0]


@pytest.mark.parametrize(("truth", "text", "value"), [
    ("4", "It is $4$.", 1.0), (4, "\\boxed{4}", 1.0), ("1/2", "\\boxed{0.5}", 1.0), ("\\frac{1}{2}", "so $0.5$", 1.0),
    ("$x^2+1$", "\\boxed{1+x^2}", 1.0), ("4", "\\boxed{5}", 0.0), ("72", "72", 1.0), ("4", "", 0.0),
    ("4", "谢谢 👍", 0.0),
    ("1,000", "\\boxed{1000}", 1.0), ("\\sqrt{8}", "$2\\sqrt{2}$", 1.0),
])
def test_math(truth, text, value):
    assert scores("math", text, row={"ground_truth": truth}) == [value]


def test_math_is_right_in_threads_too(caplog):
    """R11: its library limits time by a signal, which only the main thread may use; it does not say so each time."""
    texts = [f"\\boxed{{{i}}}" for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda text: scores("math", text, row={"ground_truth": 3})[0], texts))
    assert found == [float(i == 3) for i in range(8)]
    assert caplog.text == ""


def test_math_that_cannot_be_decided_is_counted_and_a_truth_that_is_none_is_said(monkeypatch):
    import math_verify

    entry = REGISTRY.get("reward", "math")
    built = entry.call("build", entry.call("config")(), None)
    [odd] = built.score([Sample("p", "4", row={"ground_truth": ""})])
    assert "holds '', which is no mathematical expression" in str(odd)

    def never(*args, **kwargs):
        raise math_verify.errors.TimeoutException("too long")

    monkeypatch.setattr(math_verify, "verify", never)
    assert built.score([Sample("p", "4", row={"ground_truth": "4"})]) == [Score(0.0, {"undecided": 1.0})]
    assert scores("math", "4") == [None]


def test_repetition():
    assert scores("repetition", "a b c d e", "", "a b", "one two three " * 2) == [0.0, 0.0, 0.0, -0.25]
    assert scores("repetition", "好" * 12)[0] == pytest.approx(-0.9)
    assert scores("repetition", "a a a a", ngram=1, penalty=2.0) == [-1.5]


def test_overlong_is_dapos_penalty():
    case = json.loads((CASES / "math/M36_dapo_overlong.json").read_text())
    given, expected = case["inputs"], case["expected"]
    found = [scores("overlong", "x", tokens=n, limit=given["L_max"], margin=given["L_cache"])[0]
             for n in given["lengths"]]
    assert found == pytest.approx(expected["penalty"])
    assert scores("overlong", "x", tokens=90, limit=100, margin=20, penalty=0.5) == [expected["times_factor_0_5_at_90"]]
    assert scores("overlong", "x", limit="100") == [None]
    assert scores("overlong", "x", tokens=90, limit=100) == [-0.5]
    with pytest.raises(ValidationError, match="margin 200 is above limit 100: every completion would be punished"):
        scores("overlong", "x", limit=100, margin=200)


def test_length():
    assert scores("length", "", "x", "x" * 200, "x" * 201) == [0.0, 1.0, 1.0, 0.0]
    words = {"unit": "words", "shortest": 3, "longest": 3, "falloff": 1}
    assert scores("length", "a b", "a b c", "a b c d", **words) == [0.5, 1.0, 0.5]


@pytest.mark.parametrize(("text", "options", "value"), [
    ('{"a": 1}', {}, 1.0), ("[1]", {}, 0.0), ("[1]", {"kind": "array"}, 1.0), ("4", {"kind": "any"}, 1.0),
    ("", {}, 0.0),
    ('```json\n{"a": 1}\n```', {}, 1.0), ('```json\n{"a": 1}\n```', {"fenced": False}, 0.0),
    ("NaN", {"kind": "any"}, 0.0),
    ('{"a": 1}', {"keys": ("a", "b")}, 0.0), ('{"a": 1, "b": 2}', {"keys": ("a", "b")}, 1.0), ("[" * 100_000, {}, 0.0),
])
def test_json_valid(text, options, value):
    assert scores("json_valid", text, **options) == [value]


def test_reasoning_gym_scores_its_own_tasks():
    gym = pytest.importorskip("reasoning_gym")
    for name in ("leg_counting", "countdown"):
        for task in gym.create_dataset(name, size=2, seed=1):
            row = {"answer": task["answer"], "metadata": json.dumps(task["metadata"])}
            right = [task["answer"], f"so <answer> {task['answer']} </answer>"]
            assert scores("reasoning_gym", *right, row=row) == [1.0, 1.0]
            assert scores("reasoning_gym", "no idea", "", row=row)[0] < 0.5
    assert scores("reasoning_gym", "4") == [None]
    [error] = scores("reasoning_gym", "4", row={"metadata": {"source_dataset": "none_such"}})
    assert "none_such" in str(error)


@pytest.mark.parametrize(("name", "options"), [
    ("exact_match", {}), ("math", {}), ("exact_match", {"pattern": "4"})])
def test_they_keep_the_contract_with_a_truth_in_the_row(name, options):
    check_reward(REGISTRY.get("reward", name).plugin, options, row={"ground_truth": "4"})
