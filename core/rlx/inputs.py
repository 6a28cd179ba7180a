"""What a plan starts from, read and checked before a model is loaded: tokenizer, data, rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rlx.data import Limits, Prepared, Tokenizer, load_tokenizer, open_rows, prepare_rows
from rlx.data.cache import Progress, unseen
from rlx.data.files import Paths
from rlx.folders import context_length
from rlx.isolate import IsolatedReward
from rlx.machine import expanded
from rlx.plan import Chosen, Plan
from rlx.problems import Problems
from rlx.rewards import Provider, RewardPanel
from rlx.spec import RewardSpec
from rlx.text import listing
from rlx_sdk import DataError, ModelError, RewardContext


@dataclass(frozen=True)
class Inputs:
    """Everything that can be read and checked before a model is loaded."""

    tokenizer: Tokenizer
    train: Prepared
    held_out: Prepared | None
    total_steps: int


def read_inputs(plan: Plan, progress: Progress = unseen) -> Inputs:
    """Tokenizer and data of a plan.

    Raises:
        ModelError: no tokenizer.
        DataError: the data cannot be used.
        InputError: several of these.
    """
    spec, found, model = plan.spec, Problems(), plan.spec.model
    tokenizer = found.of(lambda: load_tokenizer(model.path, model.chat_template, model.trust_remote_code))
    if tokenizer is not None and "reference" in plan.needs.frozen and model.reference.path is not None:
        found.of(partial(_same_vocabulary, tokenizer, model.reference.path, model.trust_remote_code))
    apart = [spec.data.eval] if isinstance(spec.data.eval, str) else []
    parts = [found.of(partial(_prepare, plan, path, tokenizer, progress)) for path in (spec.data.path, *apart)]
    found.end()
    train, held_out = parts[0], parts[1] if apart else None
    assert tokenizer is not None
    assert train is not None
    if spec.data.eval and not apart:
        train, held_out = train.split(int(spec.data.eval))
    if spec.train.steps is not None:
        return Inputs(tokenizer, train, held_out, spec.train.steps)
    rows = len(train) * (spec.train.epochs or 1)
    return Inputs(tokenizer, train, held_out, -(-rows // spec.train.batch_size))


def _same_vocabulary(tokenizer: Tokenizer, reference: str, trust_remote_code: bool) -> None:
    """Logprobs of two models can be compared when a token id means the same to both."""
    ours, theirs = (t.hf.get_vocab() for t in (tokenizer, load_tokenizer(reference, None, trust_remote_code)))
    if ours != theirs:
        differ = sorted(token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token))
        raise ModelError(f"model.reference.path '{reference}' has another vocabulary than the policy ({len(theirs):,} "
                         f"tokens and {len(ours):,}; {len(differ):,} differ, such as {listing(map(repr, differ), 3)}), "
                         "so their logprobs cannot be compared")


def _prepare(plan: Plan, path: Paths, tokenizer: Tokenizer | None, progress: Progress) -> Prepared | None:
    """Without a tokenizer it is only seen whether the files can be read."""
    data, cache = plan.spec.data, expanded(plan.spec.data.cache)
    try:
        rows = open_rows(path, cache, progress)
        return None if tokenizer is None else prepare_rows(rows, plan.needs.data, tokenizer, _limits(plan),
                                                           data.columns, cache, progress)
    except DataError as error:
        if plan.needs.data == plan.needs_with_rewards.data or "it has the columns" not in str(error):
            raise
        raise DataError(f"{error}\nOr give --reward NAME: {plan.algorithm.name} then works with prompts alone, on "
                        "completions that it samples and ranks by the reward.") from error


def _limits(plan: Plan) -> Limits:
    spec = plan.spec
    context = context_length(expanded(spec.model.path))
    if plan.needs.data != "rollouts":
        return Limits(spec.data.max_prompt, spec.data.max_length or context, spec.data.overlong)
    left = None if context is None else context - spec.rollout.max_completion
    return Limits(spec.data.max_prompt or left, None, spec.data.overlong)


def build_rewards(plan: Plan, device: str = "cpu", trial: bool = False) -> RewardPanel:
    """The rewards of a plan; on trial they wait for nothing that is not there."""
    return reward_panel(plan.rewards, plan.spec.rewards, RewardContext(device, plan.spec.run.seed, trial),
                        plan.spec.combine == "normalized")


def reward_panel(chosen: Sequence[Chosen], specs: Sequence[RewardSpec], context: RewardContext,
                 normalised: bool = False) -> RewardPanel:
    """Chosen rewards, built."""
    return RewardPanel([Provider(one.name, one.entry.label, spec, _isolated(one, spec, context) if spec.isolate else
                                 one.build(context)) for one, spec in zip(chosen, specs, strict=True)], normalised)


def _isolated(chosen: Chosen, spec: RewardSpec, context: RewardContext) -> IsolatedReward:
    options = chosen.options.model_dump(mode="json", exclude_unset=True)
    return IsolatedReward(spec.name, options, context, spec.timeout)
