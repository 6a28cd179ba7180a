from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.ops import gae, kl_estimate, token_rewards

numbers = partial(torch.tensor, dtype=torch.float64)
assert_close = partial(torch.testing.assert_close, atol=1e-6, rtol=0)
examples = settings(deadline=None, max_examples=50, derandomize=True)
small = st.floats(-10, 10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
@pytest.mark.parametrize(("gamma", "lam", "mask", "advantages", "returns"), [
    (1, 1, [1, 1, 1, 1], [0.9, 0.8, 0.7, 0.6], [1, 1, 1, 1]),
    (0.99, 0.95, [1, 1, 1, 1], [0.77329043, 0.71801215, 0.6603, 0.6], [0.87329043, 0.91801215, 0.9603, 1]),
    (0.99, 0.95, [1, 0, 1, 1], [0.81801215, 0, 0.6603, 0.6], [0.91801215, 0, 0.9603, 1]),
])
def test_gae(gamma, lam, mask, advantages, returns, dtype, tolerance):
    rewards, values = numbers([[0, 0, 0, 1]]).to(dtype), numbers([[0.1, 0.2, 0.3, 0.4]]).to(dtype)
    found = gae(rewards, values, torch.tensor([mask]), gamma, lam)
    assert_close(found[0], numbers([advantages]).to(dtype), atol=tolerance)
    assert_close(found[1], numbers([returns]).to(dtype), atol=tolerance)


def settings_of(key):
    return [float(part.split("=")[1]) for part in key.split(",")]


def test_padding_stays_out_of_advantages(case):
    m01 = case("M01_gae_padding")
    rewards, values, mask = (numbers(m01["inputs"][name]) for name in ("rewards", "values", "mask"))
    for key, expected in m01["expected"].items():
        for garbage in (0.0, torch.nan, torch.inf):
            advantages, returns = gae(torch.where(mask.bool(), rewards, rewards + garbage),
                                      torch.where(mask.bool(), values, values + garbage), mask, *settings_of(key))
            assert_close(advantages, numbers(expected["advantages"]))
            assert_close(returns, numbers(expected["returns"]))


def test_tool_tokens_neither_decay_nor_end_the_episode(case):
    m02 = case("M02_gae_tool_tokens_inside")
    rewards, values, mask = (numbers([m02["inputs"][name]]) for name in ("rewards", "values", "response_mask"))
    for key, expected in m02["expected"].items():
        advantages, returns = gae(rewards, values, mask, *settings_of(key))
        assert_close(advantages, numbers([expected["advantages"]]))
        assert_close(returns, numbers([expected["returns"]]))
        wrong = m02["known_wrong_values"][key]
        assert not torch.allclose(advantages, numbers([wrong["mask_cuts_the_episode"]]))
        if key != "gamma=1.0,lambda=1.0":  # without decay a step too many changes nothing
            assert not torch.allclose(advantages, numbers([wrong["tool_tokens_as_steps"]]))


@examples
@given(st.lists(st.tuples(small, small), min_size=1, max_size=6), st.data())
def test_tokens_in_between_may_stand_anywhere(steps, data):
    """GAE over the kept tokens alone equals GAE with masked tokens strewn in."""
    kept, wide = [], []
    for step in steps:
        wide += [(torch.nan, torch.nan)] * data.draw(st.integers(0, 2))
        kept.append(len(wide))
        wide.append(step)
    wide += [(torch.nan, torch.nan)] * data.draw(st.integers(0, 2))
    mask = torch.zeros(1, len(wide)).bool()
    mask[0, kept] = True
    dense, strewn = numbers(steps).T[:, None], numbers(wide).T[:, None]
    expected = gae(dense[0], dense[1], torch.ones(1, len(steps)).bool(), 0.9, 0.8)
    for found, wanted in zip(gae(strewn[0], strewn[1], mask, 0.9, 0.8), expected, strict=True):
        assert_close(found[:, kept], wanted)
        assert found[~mask].abs().sum() == 0


@examples
@given(st.lists(st.tuples(small, small), min_size=1, max_size=6), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_discounted_sum_of_td_errors(steps, gamma, lam):
    rewards, values = zip(*steps, strict=True)
    following = [*values[1:], 0.0]
    delta = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    expected = [sum((gamma * lam) ** k * d for k, d in enumerate(delta[t:])) for t in range(len(steps))]
    advantages, returns = gae(numbers([rewards]), numbers([values]), torch.ones(1, len(steps)), gamma, lam)
    assert_close(advantages, numbers([expected]))
    assert_close(returns, numbers([expected]) + numbers([values]))


def test_the_score_lands_on_the_last_token_that_was_written(case):
    m04 = case("M04_reward_on_eos")
    inputs = m04["inputs"]
    kl = kl_estimate(numbers([inputs["logp"]]), numbers([inputs["ref_logp"]]))
    for name, length in (("own_pad", 3), ("pad_is_eos", inputs["rows"]["pad_is_eos"]["lengths_from_generator"]),
                         ("cut_by_length", 5)):
        mask = (torch.arange(5) < length)[None]
        scores, expected = token_rewards(numbers([inputs["score"]]), mask), m04["expected"][name]
        assert scores[0].nonzero().flatten().tolist() == [expected["index"]]
        assert_close((scores - inputs["beta"] * kl * mask)[0], numbers(expected["rewards"]))


def test_scores_skip_prompt_tool_output_and_padding():
    mask = torch.tensor([[0, 1, 1, 0, 1, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
    assert token_rewards(numbers([2, -1, 5]), mask).tolist() == [[0, 0, 0, 0, 2, 0], [0, 0, -1, 0, 0, 0], [0] * 6]


def test_no_rows_give_no_rewards():
    assert token_rewards(torch.zeros(0), torch.zeros(0, 1).bool()).shape == (0, 1)
