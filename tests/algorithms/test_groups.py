"""The group methods through `prepare` and `loss`: advantages, who is left out, which loss, which aggregation."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from pydantic import ValidationError

from rlx.registry import Registry
from rlx_plugins.dapo import DAPO, DAPOConfig
from rlx_sdk import Group, Rollouts

numbers = partial(torch.tensor, dtype=torch.float64)
assert_close = partial(torch.testing.assert_close, atol=1e-6, rtol=0)
REGISTRY = Registry.discover()


def build(name, **options):
    entry = REGISTRY.get("algorithm", name)
    return entry.call("build", entry.call("config").model_validate(options))


@pytest.fixture
def data(sequences, grid):
    """Completions of these token counts with scores, None for not judged, and logprobs of the sampler."""

    def make(tokens, scores, group, logprobs=None):
        rows = logprobs or [[-1.0] * n for n in tokens]
        seqs = sequences([[1] * n for n in tokens], rollout_logprobs=grid(rows))
        judged = torch.tensor([s is not None for s in scores])
        rewards = numbers([torch.nan if s is None else s for s in scores])
        return Rollouts(seqs, rewards, judged, torch.tensor(group), torch.zeros(len(tokens)).bool())

    return make


def advantages(batch):
    """Of each completion's first token."""
    seqs = batch.sequences["completion"]
    assert all(len(set(row[mask].tolist())) == 1 for row, mask in zip(seqs.per_token["advantages"], seqs.mask,
                                                                     strict=True))
    return seqs.per_token["advantages"][:, 1]


@pytest.mark.parametrize(("name", "expected"), [
    ("grpo", 0.8660239), ("dr_grpo", 0.5), ("rloo", 2 / 3), ("dapo", 0.8660239), ("gspo", 0.8660239),
    ("cispo", 0.8660239),
])
def test_advantages(name, expected, data, context):
    batch = build(name).prepare(data([2, 1, 3, 2], [1, 0, 0, 1], [0] * 4), context())
    assert_close(advantages(batch), expected * numbers([1, -1, -1, 1]))


@pytest.mark.parametrize(("name", "options", "expected"), [
    ("grpo", {}, "unbiased_std,eps=1e-6"), ("grpo", {"std_eps": 1e-4}, "unbiased_std,eps=1e-4"),
    ("gspo", {}, "unbiased_std,eps=1e-6"), ("cispo", {}, "unbiased_std,eps=1e-6"),
    ("dapo", {}, "unbiased_std,eps=1e-6"), ("dr_grpo", {}, "no_std"),
])
def test_groups_of_several_prompts(case, data, context, name, options, expected):
    m30 = case("M30_grpo_groups")
    groups = m30["inputs"]["groups"]
    batch = build(name, **options).prepare(
        data([1] * 12, [r for g in groups for r in g], [i for i, g in enumerate(groups) for _ in g]), context())
    assert_close(advantages(batch), numbers([a for g in m30["expected"][expected] for a in g]))


@pytest.mark.parametrize("group", ["group", "ragged", "with_none"])
def test_each_completion_is_compared_with_the_others(case, data, context, group):
    m34 = case("M34_rloo")
    scores = m34["inputs"][group]
    found = build("rloo").prepare(data([1] * len(scores), scores, [0] * len(scores)), context())
    expected = m34["expected"]["advantages" if group == "group" else group]
    assert_close(advantages(found), numbers([a for a, s in zip(expected, scores, strict=True) if s is not None]))


def test_a_group_of_one_is_left_out(case, data, context):
    [[score]] = case("M32_group_of_one")["inputs"]["groups"]
    for name in ("grpo", "rloo"):
        found = build(name).prepare(data([1, 1, 1], [score, 1, 0], [0, 1, 1]), context())
        assert len(found) == 2
        assert float(found.metrics["groups/single"].total) == 1


def test_what_nobody_judged_leaves_its_group(case, data, context):
    m31 = case("M31_grpo_none_rewards")
    groups = m31["inputs"]["groups"]
    scores = [s for g in groups for s in g]
    found = build("grpo", std_eps=1e-4).prepare(
        data([1] * 16, scores, [i for i, g in enumerate(groups) for _ in g]), context())
    expected = [(a, kept) for g, k in zip(m31["expected"]["advantages"], m31["expected"]["in_loss"], strict=True)
                for a, kept in zip(g, k, strict=True)]
    assert_close(advantages(found), numbers([a for a, kept in expected if kept]))
    assert float(found.metrics["groups/single"].total) == 1


def test_dead_groups_are_counted_and_add_nothing(data, context, lookup, grid):
    rows = data([1] * 5, [1, 1, 0, 1, 1], [0, 0, 1, 1, 1])
    algorithm = build("grpo")
    found = algorithm.prepare(rows, context())
    dead = found.metrics["groups/dead"]
    assert float(dead.total) / float(dead.count) == pytest.approx(0.5)
    policy = lookup(torch.full((5, 2), -1.0).double().requires_grad_())
    loss = algorithm.loss("policy", found, context(policy=policy)).rows
    loss[:2].sum().backward(retain_graph=True)
    assert not policy.table.grad.any()


@pytest.mark.parametrize(("name", "aggregation"), [
    ("grpo", "seq-mean-token-mean"), ("dr_grpo", "seq-mean-token-sum-norm"), ("rloo", "token-mean"),
    ("reinforce++", "token-mean"), ("dapo", "token-mean"), ("gspo", "seq-mean-token-mean"), ("cispo", "token-mean"),
])
def test_how_token_losses_become_one_number(name, aggregation, data, context, lookup, objective):
    """With ratio 1 the loss of a token is minus its advantage; CISPO's is that times its logprob."""
    algorithm = build(name, kl={"coef": 0})
    assert algorithm.options.aggregation == aggregation
    rows = data([3, 1], [1, 0], [0, 0])
    ctx = context(policy=lookup(torch.full((2, 4), -1.0).double()), max_completion=4)
    batch = algorithm.prepare(rows, ctx)
    seqs = batch.sequences["completion"]
    token = -torch.where(seqs.mask, seqs.per_token["advantages"], 0) * (-1 if name == "cispo" else 1)
    sums = token.sum(1)
    expected = {"token-mean": sums.sum() / 4, "seq-mean-token-mean": (sums / seqs.mask.sum(1)).mean(),
                "seq-mean-token-sum-norm": (sums / 4).mean()}[aggregation]
    assert_close(objective(algorithm, "policy", batch, ctx), expected)
    assert_close(objective(algorithm, "policy", batch, ctx, [[0], [1]]), expected)


def test_reinforce_whitens_the_returns_of_tokens(data, context, lookup):
    algorithm = build("reinforce++", kl={"coef": 0.5})
    rows = data([2, 1], [1.0, 0.0], [0, 1], [[-1.0, -2.0], [-3.0]])
    reference = lookup(torch.full((2, 3), -1.5).double())
    found = algorithm.prepare(rows, context(reference=reference)).sequences["completion"]
    # KL of tokens 0.5, -0.5, -1.5, half of it taken off; the score at the last token; summed from the end.
    returns = numbers([1.0 - 0.25 + 0.25, 1.0 + 0.25, 0.75])
    white = (returns - returns.mean()) / (returns.var() + 1e-8).sqrt()
    assert_close(found.per_token["advantages"][found.mask], white)


def test_rloo_takes_the_kl_off_the_reward(data, context, lookup):
    rows = data([2, 1], [1.0, 0.0], [0, 0])
    reference = lookup(torch.full((2, 3), -1.5).double())
    found = build("rloo", kl={"coef": 0.2}).prepare(rows, context(reference=reference))
    assert_close(advantages(found), numbers([1.0 - 0.2 - (0 - 0.1), -0.1 - 0.8]))


def test_grpo_puts_k3_into_the_loss(data, context, lookup, objective):
    algorithm = build("grpo", kl={"coef": 0.3})
    rows = data([1, 1], [1.0, 1.0], [0, 0])
    ctx = context(policy=lookup(torch.full((2, 2), -1.0).double()), reference=lookup(torch.full((2, 2), -1.2).double()))
    batch = algorithm.prepare(rows, ctx)
    assert objective(algorithm, "policy", batch, ctx).item() == pytest.approx(0.3 * 0.01873075, abs=1e-6)


def test_distillation_follows_the_teacher_token_by_token(data, context, lookup):
    rows = data([2], [None], [0], [[-1.0, -2.0]])
    teacher = lookup(numbers([[0, -0.5, -4.0]]))
    batch = build("distill").prepare(rows, context(reference=teacher))
    seqs = batch.sequences["completion"]
    assert_close(seqs.per_token["advantages"][seqs.mask], numbers([0.5, -2.0]))
    assert float(batch.metrics["kl/mean"].total) == pytest.approx(1.5)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_distillation_in_the_loss_falls_towards_the_teacher(data, context, lookup, objective, estimator):
    """Of a token that the teacher finds likelier, and of one that it does not."""
    rows = data([1, 1], [None, None], [0, 1], [[-1.0], [-1.0]])
    policy = lookup(torch.full((2, 2), -1.0).double().requires_grad_())
    ctx = context(reference=lookup(numbers([[0, -0.5], [0, -2.0]])), policy=policy)
    algorithm = build("distill", kl={"estimator": estimator, "where": "loss"})
    objective(algorithm, "policy", algorithm.prepare(rows, ctx), ctx).backward()
    assert policy.table.grad[0, 1] < 0 < policy.table.grad[1, 1]


@pytest.mark.parametrize(("rewards", "kept"), [((1.0, 1.0), False), ((0.3, 0.3 + 1e-10), False), ((), False),
                                               ((1.0,), False), ((0.0, 1.0), True), ((-1.0, -1.1), True)])
def test_dapo_keeps_groups_with_something_to_learn(rewards, kept):
    assert DAPO(DAPOConfig()).keep(Group(rewards, 4)) is kept


def test_dapo_s_penalty_comes_after_the_choice_of_groups(data, context):
    algorithm = build("dapo", overlong_margin=4)
    rows = data([8, 4, 6, 2], [1, 1, 0, 0], [0] * 4)
    found = algorithm.prepare(rows, context(max_completion=8))
    scores = numbers([1 - 1, 1, -0.5, 0])
    assert_close(advantages(found), (scores - scores.mean()) / (scores.std() + 1e-6))


@pytest.mark.parametrize(("name", "options"), [("gspo", {"dual_clip": 3.0}), ("cispo", {"dual_clip": 3.0}),
                                               ("dr_grpo", {"std_eps": 1e-4}), ("distill", {"kl": {"coef": 0}}),
                                               ("distill", {"kl": {"where": "loss"}}),
                                               ("distill", {"kl": {"estimator": "k3"}}),
                                               ("dapo", {"overlong_coef": 0.5})])
def test_options_that_could_not_act_do_not_exist(name, options):
    with pytest.raises(ValidationError):
        build(name, **options)


def test_several_rewards_are_summed_before_a_group_is_normalised(case, data, context):
    m39 = case("M39_two_rewards")
    given = m39["inputs"]
    scores = [a + b for a, b in zip(given["reward_a"], given["reward_b"], strict=True)]  # what a panel of both gives
    found = build("grpo", std_eps=given["eps"]).prepare(data([1] * 4, scores, [0] * 4), context())
    torch.testing.assert_close(advantages(found), numbers(m39["expected"]["sum_then_normalise"]), atol=1e-5, rtol=0)


def test_returns_are_whitened_over_the_tokens_that_count(case, data, context):
    m13 = case("M13_whitening")
    given, found = m13["inputs"], build("reinforce++", kl={"coef": 0})
    scores = [value if kept else None for value, kept in zip(given["values"], given["mask"], strict=True)]
    batch = found.prepare(data([1] * 6, scores, range(6)), context())
    assert_close(advantages(batch), numbers(m13["expected"]["unbiased_var"][:4]))
    alone = found.prepare(data([1, 1], [3.0, None], [0, 1]), context())
    assert advantages(alone).tolist() == [0.0]
    assert len(found.prepare(data([1, 1], [None, None], [0, 1]), context())) == 0


def test_dapo_s_penalty_by_length(case, data, context):
    """Also of a completion without a token, which teaches nothing by itself."""
    m36 = case("M36_dapo_overlong")
    given, penalty = m36["inputs"], numbers(m36["expected"]["penalty"])
    algorithm = build("dapo", overlong_margin=given["L_cache"], overlong_coef=0.5)
    batch = algorithm.prepare(data(given["lengths"], [1.0] * 8, [0] * 8), context(max_completion=given["L_max"]))
    measured = batch.metrics["reward/overlong"]
    assert float(measured.total) / float(measured.count) == pytest.approx(0.5 * float(penalty.mean()))
    expected = 0.5 * (penalty - penalty.mean()) / (0.5 * penalty.std() + 1e-6)
    assert_close(batch.sequences["completion"].per_token["advantages"][1:, 1], expected[1:])
    assert batch.weight["policy"].tolist() == given["lengths"]


@pytest.mark.parametrize("name", ["grpo", "gspo"])
def test_a_ratio_of_each_token_or_of_the_whole_completion(case, sequences, grid, lookup, context, name):
    m38 = case("M38_token_vs_sequence_ratio")
    given, expected = m38["inputs"], m38["expected"]
    seqs = sequences([[1] * 4], old_logprobs=grid([given["logp_old"]]), advantages=grid([[given["advantage"]] * 4]))
    algorithm = build(name, clip_low=given["clip"], clip_high=given["clip"])
    loss = algorithm.loss("policy", algorithm.batch(seqs, {}), context(policy=lookup(grid([given["logp_new"]]))))
    assert loss.rows.item() == pytest.approx(expected[f"{name}_loss"], abs=1e-6)
    ratios = expected["grpo_ratio"] if name == "grpo" else [expected["gspo_ratio"]] * 4
    assert float(loss.metrics["policy/ratio"].total) == pytest.approx(sum(ratios), abs=1e-6)
