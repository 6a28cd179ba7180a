"""Sampled ids reach training as they were sampled; text is for rewards and tables only."""

import contextlib

import pytest

from rlx.data import Limits, open_rows, prepare_rows
from rlx.data.order import Order
from rlx.looks.held_out import HeldOut
from rlx.ranks import Ranks
from rlx.rewards import Provider, RewardPanel
from rlx.rollouts import RolloutSource
from rlx.sources import Cursor
from rlx.spec import RewardSpec
from rlx_sdk import Generation, Needs, RewardError, Sampling
from rlx_sdk.reward import FunctionReward

EVAL = HeldOut(Sampling(), 1, None, None)
SAMPLED = [262, 264, 260]  # he·llo and the stop token; "hello" alone would be the one token 265


PHASES: list[str] = []
"""That are open."""


@contextlib.contextmanager
def phase(name):
    PHASES.append(name)
    yield
    PHASES.remove(name)


class _Backend:
    """Samples the same ids for every prompt."""

    exact = True
    released_in = None

    def generate(self, requests):
        for i, request in reversed(list(enumerate(requests))):
            yield i, [Generation(SAMPLED, [-0.5, -0.25, -0.125], "stop", 0) for _ in range(request.n)]

    def sync(self, weights, version):
        pass

    def release(self):
        self.released_in = [*PHASES]

    def close(self):
        pass


@pytest.fixture
def collected(prepare, tokenizer):
    """One batch of two prompts with two completions each, and the samples that the reward saw."""
    seen, found = [], tokenizer("T13_not_a_bijection")
    prepared = prepare("D31_numeric_truth.parquet", tokenizer_name="T13_not_a_bijection")
    reward = FunctionReward(lambda samples: seen.extend(samples) or [1.0] * len(samples))
    panel = RewardPanel([Provider("seen", "'seen'", RewardSpec(name="seen"), reward)])
    cursor = Cursor(Order(len(prepared), 0), 2, Ranks())
    source = RolloutSource(prepared, None, cursor, found, _Backend(), panel, Sampling(max_tokens=3), EVAL, 2, 0,
                           Needs(data="rollouts", trains=frozenset({"policy"})), lambda group: True)
    source.sync(iter([]), 0)
    yield source.collect(phase), seen
    assert source._backend.released_in == ["rollout"], "the time that giving memory back takes belongs to a phase"
    source.close()


def test_a_reward_that_fails_names_file_and_row(tmp_path, cache, tokenizer):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(f'{{"prompt": "{name}"}}\n')
    found, rows = tokenizer("T13_not_a_bijection"), open_rows(str(tmp_path), cache)
    prepared = prepare_rows(rows, "rollouts", found, Limits(), {}, cache)
    panel = RewardPanel([Provider("bad", "'bad'", RewardSpec(name="bad"), FunctionReward(
        lambda samples: [{"a": 1.0}[s.prompt] for s in samples]))])
    source = RolloutSource(prepared, None, Cursor(Order(2, 0), 2, Ranks()), found, _Backend(), panel, Sampling(),
                           EVAL, 1, 0, Needs(data="rollouts", trains=frozenset({"policy"})), lambda group: True)
    source.sync(iter([]), 0)
    with pytest.raises(RewardError, match=r"\(data b\.jsonl, row 1, completion 'hello'\): KeyError: 'b'"):
        source.collect(lambda name: contextlib.nullcontext())
    source.close()


def test_ids_are_never_made_from_text_again(collected):
    seqs = collected[0].data.seqs
    assert all(seqs.tokens[i][seqs.mask[i]].tolist() == SAMPLED for i in range(4))
    assert all(seqs.per_token["rollout_logprobs"][i][seqs.mask[i]].tolist() == [-0.5, -0.25, -0.125] for i in range(4))


def test_rewards_see_text_and_plain_values(collected):
    seen = collected[1]
    assert {s.completion for s in seen} == {"hello"}
    assert {type(s.row["ground_truth"]) for s in seen} == {int}
    assert all(s.prompt.endswith("?") and s.messages == () for s in seen)
    assert seen[0].row == seen[1].row != seen[2].row
