"""Functions written for TRL and verl give here what they give there."""

import asyncio

import pytest

from rlx_sdk import Sample, Score
from rlx_sdk.adapters import adapted, function_plugin, style_of
from rlx_sdk.testing import check_reward

CHAT = [{"role": "user", "content": "2 + 2?"}]
ROWS = [{"data_source": "math", "ground_truth": "4", "extra_info": {"index": i}, "level": i} for i in range(3)]
SAMPLES = [Sample("2 + 2?", text, row=row) for text, row in zip(("4", "5", "4"), ROWS, strict=True)]


def trl(prompts, completions, level, **kwargs):
    return [None if n == 1 else float(len(p) * 10 + len(c))
            for p, c, n in zip(prompts, completions, level, strict=True)]


def trl_chat(completions, ground_truth):
    return [float(c[0]["content"] == g) for c, g in zip(completions, ground_truth, strict=True)]


def verl(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": float(solution_str == ground_truth), "index": extra_info["index"], "note": data_source}


async def verl_later(solution_str, ground_truth, **kwargs):
    await asyncio.sleep(0)
    return float(solution_str == ground_truth)


def test_trl_functions_get_lists_of_texts_and_columns():
    wanted = trl(prompts=["2 + 2?"] * 3, completions=["4", "5", "4"], level=[0, 1, 2])
    assert adapted(trl)(SAMPLES) == wanted == [61.0, None, 61.0]


def test_trl_functions_get_chats_where_the_data_has_chats():
    chats = [Sample(s.prompt, s.completion, CHAT, row=s.row) for s in SAMPLES]
    given = [[{"role": "assistant", "content": text}] for text in ("4", "5", "4")]
    assert adapted(trl_chat)(chats) == trl_chat(given, ["4"] * 3) == [1.0, 0.0, 1.0]
    seen = {}
    adapted(lambda prompts, completions, **columns: seen.update(columns, prompts=prompts) or [0.0] * 3)(chats)
    assert seen["prompts"] == [CHAT] * 3
    assert seen["level"] == [0, 1, 2]


def test_verl_functions_are_called_a_sample():
    wanted = [verl("math", s.completion, "4", s.row["extra_info"]) for s in SAMPLES]
    assert adapted(verl)(SAMPLES) == [Score(w["score"], {"index": w["index"]}) for w in wanted]
    assert [s.value for s in adapted(verl)(SAMPLES)] == [1.0, 0.0, 1.0]
    nested = Sample("p", "4", row={"reward_model": {"style": "rule", "ground_truth": "4"}, "extra_info": {"index": 0}})
    assert adapted(verl)([nested])[0].value == 1.0


def test_async_ones_are_awaited_together():
    assert asyncio.run(adapted(verl_later)(SAMPLES)) == [1.0, 0.0, 1.0]


def test_a_verl_function_that_raises_fails_on_its_sample_only():
    def picky(data_source, solution_str, ground_truth, extra_info):
        return 1.0 / (extra_info["index"] - 1)

    found = adapted(picky)(SAMPLES)
    assert (found[0], found[2]) == (-1.0, 1.0)
    assert isinstance(found[1], ZeroDivisionError)
    assert isinstance(adapted(lambda solution_str, ground_truth: {"acc": 1})(SAMPLES)[0], KeyError)


@pytest.mark.parametrize(("function", "style"), [
    (trl, "trl"), (trl_chat, "trl"), (verl, "verl"), (verl_later, "verl"), (lambda samples: [], "samples"),
    (lambda s, strict=True: [], "samples"),
])
def test_the_signature_tells(function, style):
    assert style_of(function) == style


def test_what_it_does_not_tell_must_be_said():
    def anything(*args, **kwargs):
        return [float(len(c)) for c in kwargs["completions"]]

    plugin = function_plugin(anything, "anything")
    with pytest.raises(ValueError, match=r"the function anything\(\*args, \*\*kwargs\) is none of f\(samples\), TRL's"):
        plugin.config()()
    assert plugin.build(plugin.config()(style="trl"), None).score(SAMPLES) == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="is none of"):
        style_of(lambda a, b: [])


def test_adapted_functions_keep_the_contract():
    def by_length(completions, **kwargs):
        return [float(len(c if isinstance(c, str) else c[0]["content"])) for c in completions]

    check_reward(function_plugin(by_length, "by_length"))
