"""Settings that cannot act, and values that cannot work together."""

import contextlib
import re
import shlex
from pathlib import Path

import pytest

from rlx.layers import QUICKSTART, assign, expand_home, leaves, parse_value
from rlx.plan import resolve
from rlx.registry import Registry
from rlx.runs import saved_spec
from rlx_sdk import SpecError


@pytest.mark.parametrize(("algo", "setting", "value", "said"), [
    ("dpo", "train__optim__critic__lr", 1e-4, "train.optim.critic.lr can have no effect: dpo trains no critic. Leave"),
    ("sft", "train__optim__critic__lr", 1e-4, "train.optim.critic.lr can have no effect: sft trains no critic"),
    ("dpo", "model__critic__init", "org/m", "model.critic.init can have no effect: dpo trains no critic"),
    ("sft", "rollout__temperature", 0.7,
     "rollout.temperature can have no effect: sft learns from demonstrations in the data file here, so nothing is"),
    ("dpo", "rollout__group_size", 4, "rollout.group_size can have no effect: dpo learns from pairs in the data file"),
    ("sft", "rollout", {"name": "hf", "temperature": 0.9, "options": {"batch_tokens": 9}},
     "rollout.name, rollout.options.batch_tokens, rollout.temperature can have no effect"),
    *((name, "rewards", [{"name": "polite_length"}], f"rewards can have no effect: {name} uses no reward")
      for name in ("sft", "reward_model")),
    ("ppo", "data__max_length", 100, "data.max_length can have no effect: ppo samples its completions; set roll"),
    ("ppo", "rollout__eval__temperature", 0.0,
     "rollout.eval.temperature can have no effect: there is no data.eval to evaluate on"),
    ("ppo", "run__eval_every", 5, "run.eval_every can have no effect: there is no data.eval to evaluate on"),
])
def test_a_setting_that_cannot_act_is_an_error_that_says_why(problems, settings, algo, setting, value, said):
    [found] = problems(settings(algo, **{setting: value}))
    assert found.startswith(said)


def test_defaults_and_the_quickstart_never_count_as_given(plan, settings):
    assert plan({"algo": {"name": "sft"}}).rollout is None  # the quickstart sets rollout.max_completion
    assert plan(settings("dpo")).rollout is None


@pytest.mark.parametrize(("algo", "options"), [
    *((entry.name, {}) for entry in Registry.discover().entries("algorithm")),
    ("grpo", {"algo__kl__coef": 0.1}), ("ppo", {"algo__kl": {"coef": 0.2, "target": 6, "horizon": 10_000}}),
    ("dapo", {"algo__overlong_margin": 4}), ("dpo", {"algo__loss": "ipo"}), ("sft", {"trackers": [{"name": "wandb"}]}),
])
def test_a_saved_spec_may_name_everything(registry, settings, model, algo, options):
    """Every run can be resumed: of what it wrote down the same plan is made, also with options that do not act."""
    teacher, plans = {"model__reference__path": model, "rollout__max_completion": 16} if algo == "distill" else {}, []
    for rewards in ({}, {"rewards": [{"name": "regex:thanks"}, {"name": "polite_length"}]}):
        with contextlib.suppress(SpecError):  # some need rewards, some can use none
            plans.append(resolve(registry, settings(algo, **teacher, **options, **rewards)))
    assert plans
    for saved in map(saved_spec, plans):
        assert {"rollout", "engine"} <= set(saved)
        assert saved_spec(resolve(registry, saved, saved=True)) == expand_home(saved)


def test_ppo_without_a_reward_lists_what_is_installed(problems, settings):
    [found] = problems(settings("ppo", rewards=[]))
    assert found.startswith("ppo needs a reward: give --reward NAME (installed: ")
    assert "polite_length" in found


def test_dpo_with_a_reward_samples_and_says_so(plan, settings):
    made = plan(settings("dpo", rewards=[{"name": "polite_length"}]))
    assert (made.needs.data, made.group_size, made.rollout.name) == ("rollouts", 2, "hf")
    _, note = made.notes
    assert note.endswith("learns from completions that it samples and ranks: the pairs in the data are not used")
    assert len(plan(settings("dpo")).notes) == 1


@pytest.mark.parametrize("change", [
    {}, {"rewards": [{"name": "polite_length"}, {"name": "length", "weight": 0.5}]},
    {"rollout__name": "hf", "rollout__options": {"batch_tokens": 512}, "rollout__temperature": 0.7},
    {"rollout__group_size": 4, "combine": "normalized"}, {"rollout__max_completion": 16, "data__max_prompt": 32},
    {"data__eval": 2, "run__eval_every": 1, "run__save_every": 1, "run__best": "eval/reward/mean",
     "rollout__eval__temperature": 0.0},
    {"train__minibatches": 2, "train__update_epochs": 2, "train__packing": True, "train__micro_batch": 1},
    {"train__optim__policy__lr": 1e-4, "model__lora__rank": 4}, {"engine__zero_stage": 3, "engine__offload": "all"},
    {"run__sample_every": 1, "run__seed": 3, "trackers": [{"name": "tensorboard"}]},
])
def test_a_job_of_ppo_is_one_of_dpo_with_one_word_changed(plan, settings, change):
    given = {"rewards": [{"name": "polite_length"}], **change}
    assert [plan(settings(algo, **given)).needs.data for algo in ("ppo", "dpo")] == ["rollouts", "rollouts"]


@pytest.mark.parametrize(("change", "said"), [
    ({"rollout__group_size": 1}, "rollout.group_size = 1: dpo compares completions of one prompt and needs at least 2"),
    ({"train__batch_size": 2, "train__minibatches": 3, "rollout__group_size": 4},
     "train.minibatches = 3 splits a batch of 2 rows (dpo makes one of a prompt's completions) into more parts than it "
     "has"),
])
def test_groups_and_minibatches_must_fit(problems, settings, change, said):
    assert problems(settings("dpo", rewards=[{"name": "polite_length"}], **change)) == [said]


def test_minibatches_may_be_as_many_as_rows(plan, problems, settings):
    [said] = problems(settings("ppo", rollout__group_size=2, train__batch_size=2, train__minibatches=5))
    assert said == "train.minibatches = 5 splits a batch of 4 rows into more parts than it has"
    made = plan(settings("ppo", rollout__group_size=3, train__batch_size=2, train__minibatches=6))
    assert made.spec.train.minibatches == made.group_size * made.spec.train.batch_size


def test_a_length_must_be_given_once(problems, plan, settings):
    [both] = problems(settings("sft", train__epochs=2))
    assert both == "train.steps and train.epochs both say how long to train; give one"
    assert problems(settings("sft", train={})) == ["no length: give --steps N, or train.epochs"]
    assert plan(settings("sft"), {"train": {"epochs": 2}}).spec.train.steps is None


def test_a_reward_is_named_once(problems, settings):
    twice = [{"name": "polite_length"}, {"name": "polite_length", "weight": 2}]
    [found] = problems(settings(rewards=twice))
    assert found == ("reward 'polite_length' is named twice; give it once with the weight you mean, or each a label of "
                     "its own")


def test_resume_auto_needs_a_name(problems, plan, settings):
    [found] = problems(settings("sft", run__resume="auto"))
    assert found == "run.resume = auto continues the run of one name; give it with --name (run.name)"
    plan(settings("sft", run__resume="auto", run__name="mine"))


def test_combinations_are_found_together(problems, settings):
    found = problems(settings("sft", rollout__temperature=0.5, train__epochs=2, rewards=[{"name": "polite_length"}]))
    assert len(found) == 3


@pytest.mark.parametrize("cut", [{"top_p": 0.9}, {"top_k": 50}])
def test_training_samples_the_whole_distribution(problems, plan, settings, cut):
    [name] = cut
    [found] = problems(settings("ppo", **{f"rollout__{name}": cut[name]}))
    assert f"{name} would train on samples of another distribution than the policy's" in found
    assert f"rlx sample has --{name.replace('_', '-')}" in found
    made = plan(settings("ppo", data__eval=4, rollout__eval={**cut, "temperature": 0.5}))
    assert getattr(made.spec.rollout.eval, name) == cut[name]


def test_options_that_need_several_updates_are_refused_with_one(plan, problems, settings):
    """With one update a batch every ratio is exactly 1, so no clip range can matter."""
    [found] = problems(settings("ppo", algo__clip_low=0.1))
    assert found.startswith("algo.clip_low can have no effect: each batch makes one update (train.minibatches and")
    made = plan(settings("ppo", algo__clip_low=0.1, train__update_epochs=2))
    assert made.algorithm.options.clip_low == 0.1


def test_lora_without_peft_gives_the_install_line(problems, settings, monkeypatch):
    monkeypatch.setattr("rlx.combinations.find_spec", lambda name: None)
    [found] = problems(settings("sft", model__lora={}))
    assert found == "model.lora needs the package 'peft', which is not installed: pip install 'rlx[peft]'"


def test_a_margin_of_length_longer_than_a_completion_is_refused(problems, settings):
    job = settings("dapo", rewards=[{"name": "polite_length"}], rollout__max_completion=16, algo__overlong_margin=32)
    assert problems(job) == ["rollout.max_completion = 16: dapo with these options needs at least 32"]


PPO_FLAGS = {"rollout__max_completion": 16, "rollout__temperature": 0.7, "rollout__group_size": 4,
             "train__batch_size": 8, "train__minibatches": 2, "train__update_epochs": 2,
             "train__optim__policy__lr": 1e-5, "run__save_every": 2, "run__keep": 3, "run__sample_every": 1,
             "engine__zero_stage": 2}


def test_a_ppo_command_line_becomes_dpo_s_by_its_name_alone(plan, problems, settings):
    """Whatever could not act under DPO is named; nothing is silently ignored."""
    rewards = [{"name": "polite_length", "weight": 2.0}]
    ppo, dpo = (plan(settings(name, rewards=rewards, **PPO_FLAGS)) for name in ("ppo", "dpo"))
    assert (dpo.needs.data, dpo.group_size, dpo.spec.train) == ("rollouts", 4, ppo.spec.train)
    critics = {"train__optim__critic__lr": 1e-4, "model__critic__init": "org/m"}
    found = problems(settings("dpo", rewards=rewards, **PPO_FLAGS, **critics))
    assert [p.split(" can have")[0] for p in found] == ["train.optim.critic.lr", "model.critic.init"]


REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
LINES = sorted({line for page in PAGES
                for line in re.findall(r"rlx train (--algo ppo .*)", page.read_text(encoding="utf-8"))})
SETTINGS = {"--model": "model.path", "--data": "data.path", "--name": "run.name", "--steps": "train.steps"}
HERE = {name: str(QUICKSTART.parent / "rlx-tiny") for name in ("model.path", "model.critic.init")}


def under(line, algo):
    """The settings of a command line, without `algo.`; models are one that lies here."""
    words, tree = shlex.split(line), {"algo": {"name": algo}, "rewards": [{"name": "polite_length"}]}
    for flag, value in zip(words[2::2], words[3::2], strict=True):
        setting, value = value.split("=", 1) if flag == "--set" else (SETTINGS.get(flag, "algo."), value)
        if not setting.startswith("algo."):
            assign(tree, setting, HERE.get(setting, parse_value(value)))
    return tree


@pytest.mark.parametrize("line", [line for line in LINES if "batch_sise" not in line])  # a page about mistakes
def test_a_ppo_command_line_of_the_docs_takes_every_algorithm(plan, problems, registry, line):
    """It can run, or it is said which flags cannot act; a reward and a critic are all that some cannot use."""
    for entry in registry.entries("algorithm"):
        tree, needs = under(line, entry.name), entry.call("needs", entry.call("config")(), True)
        if needs.rewards and ("critic" in needs.trains or "critic" not in line):
            plan(tree)
            continue
        said = [problem for problem in problems(tree) if "learns from another model" not in problem]
        named = [name for problem in said for name in problem.partition(" can have no effect: ")[0].split(" and ")]
        assert {*named} <= {*leaves(tree)}
        assert ("rewards" in named, "critic" in str(named)) == (not needs.rewards, "critic" in line)


def test_normalised_scores_need_several_completions_of_a_prompt(problems, plan, settings):
    assert problems(settings(combine="normalized")) == [
        "combine = normalized compares completions of one prompt: rollout.group_size = 1 must be 2 or more"]
    several = plan(settings(algo="grpo", rewards=[{"name": "polite_length"}], combine="normalized"))
    assert several.spec.combine == "normalized"
    inert = problems(settings(algo="sft", combine="sum"))
    assert "combine can have no effect: there is no reward. Leave it out." in inert


def test_a_function_of_the_program_cannot_run_in_another(registry, settings, problems):
    registry.put("reward", registry.get("reward", "length").plugin, "this program")
    try:
        [found] = problems(settings(rewards=[{"name": "this program/length", "isolate": "process"}]))
    finally:
        registry._entries["reward"] = [e for e in registry.entries("reward") if e.package != "this program"]
    assert found.startswith("reward 'length' is a function of the program itself, which no other process could find")


def test_one_plugin_may_judge_twice_with_other_arguments(plan, settings, problems):
    found = plan(settings(rewards=[{"name": "regex:a"}, {"name": "regex:b"}, {"name": "regex:c", "label": "third"}]))
    assert [r.name for r in found.rewards] == ["regex:a", "regex:b", "third"]
    assert problems(settings(rewards=[{"name": "regex:a", "options": {"pattern": "b"}}])) == [
        "rewards[0].options.pattern and 'regex:a' both set it; leave one out"]


def test_a_backend_that_does_not_repeat_itself_is_no_part_of_a_deterministic_run(settings):
    registry = Registry.discover()
    resolve(registry, settings(engine__deterministic=True, rollout__name="hf"))
    object.__setattr__(registry.get("rollout", "hf").plugin, "deterministic", False)
    with pytest.raises(SpecError, match=r"engine.deterministic: what the rollout backend 'hf' samples depends on"):
        resolve(registry, settings(engine__deterministic=True, rollout__name="hf"))


def test_fused_kernels_need_whole_layers(problems, plan, settings):
    assert problems(settings(engine__compile=True, engine__zero_stage=3)) == [
        "engine.compile fuses what engine.zero_stage = 3 gathers and drops layer by layer: use stage 1 or 2"]
    for fine in ({"engine__compile": True}, {"engine__compile": False, "engine__zero_stage": 3}):
        plan(settings(**fine))
