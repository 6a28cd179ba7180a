"""From settings to a plan: everything wrong is said at once, by name, with the fix."""

import copy
from pathlib import Path

import pytest

from rlx.layers import QUICKSTART, lookup, read_spec_file
from rlx.plan import resolve
from rlx.text import count
from rlx_sdk import SpecError

DROPPED_NOTE = ("--model given: the bundled quickstart's settings are dropped, rlx's defaults apply where you set "
                "nothing")
QUICKSTART_NOTE = "no --model given: using the bundled quickstart"
CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture
def spec_file(model):
    """A case's spec with a model that exists."""

    def read(name):
        tree = read_spec_file(CASES / "specs" / f"{name}.yaml")
        tree["model"]["path"] = model
        return tree

    return read


def test_a_whole_spec_becomes_a_plan(plan, spec_file):
    made = plan(spec_file("S00_ok"))
    assert made.algorithm.options.kl.coef == 0.05
    assert (made.spec.train.optim.policy.lr, made.spec.run.seed, made.group_size) == (1e-6, 7, 2)
    assert [r.name for r in made.rewards] == ["polite_length"]
    assert made.rollout.name == "hf"
    assert made.needs.trains == {"policy", "critic"}
    assert made.needs.frozen == {"reference"}
    assert made.notes == (DROPPED_NOTE,)


def test_the_settings_given_are_left_as_they_were(plan, settings):
    given = settings()
    del given["train"]["steps"]
    before = copy.deepcopy(given)
    with pytest.raises(SpecError):
        plan(given)
    assert given == before


def test_unknown_settings_at_every_level_bring_the_nearest(problems, spec_file):
    found = "\n".join(problems(spec_file("S01_typo_key")))
    for where, near in (("trian", "train"), ("rollout.temprature", "temperature"), ("algo.kl.coeff", "coef"),
                        ("algo.kl.traget", "target"), ("rewards[0].wieght", "weight"),
                        ("rewards[0].options.min_char", "min_chars"), ("rollout.options.batch_token", "batch_tokens")):
        assert f"'{where}' is an unknown setting. Did you mean '{near}'?" in found
    assert "'train.optim.policy.learning_rat' is an unknown setting. (known: lr, schedule," in found


def test_all_values_out_of_range_are_said_at_once(problems, spec_file):
    found = "\n".join(problems(spec_file("S06_out_of_range")))
    for said in ("'train.batch_size' = -4: input should be greater than or equal to 1",
                 "'train.optim.policy.lr' = -1e-06: input should be greater than or equal to 0",
                 "'rollout.temperature' = 0: input should be greater than 0",
                 "'algo.clip_low' = 1.5: input should be less than 1",
                 "'algo.lam' = 1.2: input should be less than or equal to 1",
                 "'algo.kl.target' = 0: input should be greater than 0",
                 "'algo.kl.horizon' = 0: input should be greater than 0"):
        assert said in found


def test_yaml_1_2_numbers_are_numbers(plan, spec_file):
    policy = plan(spec_file("S04_lr_is_text")).spec.train.optim.policy
    assert (policy.lr, policy.weight_decay) == (1e-5, 1e-2)


@pytest.mark.parametrize(("setting", "value", "said"), [
    ("train__steps", "ten", "'train.steps' = 'ten': input should be a valid integer"),
    ("train__steps", 1.5, "'train.steps' = 1.5: input should be a valid integer"),
    ("train__steps", True, "'train.steps' = True: input should be a valid integer"),
    ("train__optim", {"policy": {"lr": "1e-5"}}, "'train.optim.policy.lr' = '1e-5': input should be a valid number"),
    ("train__optim", {"policy": {"betas": [0.9]}}, "'train.optim.policy.betas[1]' is missing"),
    ("train__optim", {"policy": {"betas": [0.9, "x"]}}, "'train.optim.policy.betas[1]' = 'x': input should be a valid"),
    ("run__name", 7, "'run.name' = 7: input should be a valid string"),
    ("engine__dtype", "fp16", "'engine.dtype': float16 overflows without loss scaling"),
    ("data__eval", [1], "'data.eval' = [1]: input should be a valid integer; or: input should be a valid string"),
    ("data__columns", {"prompt": 1}, "'data.columns.prompt' = 1: input should be a valid string"),
    ("algo__gamma", "x", "'algo.gamma' = 'x': input should be a valid number"),
    ("algo__clip_high", True, "'algo.clip_high' = True: input should be a valid number"),
    ("algo__kl", {"coef": 0, "where": "loss"}, "'algo.kl': coef is 0, so there is no KL and where can have no effect"),
    ("algo__kl", {"target": 6.0}, "'algo.kl': target and horizon belong together"),
    ("rewards", [{"name": "polite_length", "options": {"min_chars": 300}}],
     "'rewards[0].options': min_chars 300 is above max_chars 200"),
    ("rewards", [{"name": "polite_length", "weight": "half"}], "'rewards[0].weight' = 'half': input should be a valid"),
    ("rewards", [{"name": "polite_length", "on_error": "ignore"}],
     "'rewards[0].on_error' = 'ignore': input should be 'stop' or 'skip'; or: input should be a valid number"),
    ("rewards", [{"name": "polite_length", "max_failed": 0.1}],
     "rewards[0].max_failed can have no effect: its on_error = stop ends the run at the first failure"),
    ("rewards", [{"name": "polite_length", "on_error": "skip", "max_failed": 1.5}],
     "'rewards[0].max_failed' = 1.5: input should be less than or equal to 1"),
    ("rewards", [{"weight": 1.0}], "'rewards[0].name' is missing"),
    ("rewards", [{"name": "polite_length", "options": 3}], "'rewards[0].options' = 3: input should be an object"),
    ("rollout__options", {"batch_tokens": 0}, "'rollout.options.batch_tokens' = 0: input should be greater than or"),
    ("rollout__name", "holodeck", "no rollout 'holodeck'. Installed: "),
    ("trackers", [{"name": "wandbb"}], "no tracker 'wandbb'. Did you mean 'wandb'?"),
])
def test_wrong_values_are_named_with_what_is_wanted(problems, settings, setting, value, said):
    found = problems(settings(**{setting: value}))
    assert [p for p in found if p.startswith(said)], found
    assert len(found) == 1, found


@pytest.mark.parametrize(("setting", "value", "said"), [
    ("model", "MODEL", "'model' = 'MODEL': write it as {path: MODEL}"),
    ("data", "a.jsonl", "'data' = 'a.jsonl': write it as {path: a.jsonl}"),
    ("algo", "ppo", "'algo' = 'ppo': write it as {name: ppo}"),
    ("train", 10, "'train' = 10: write it as {steps: 10}"),
    ("rollout", None, "'rollout' = None: a section without settings; leave it out"),
    ("rewards", None, "'rewards' = None: a section without settings; leave it out"),
    ("run", ["a"], "'run' = ['a']: input should be an object"),
    ("rollout", "hf", "'rollout' = 'hf': write it as {name: hf}"),
    ("rewards", "polite_length", "'rewards' = 'polite_length': write it as [{name: polite_length}]"),
    ("rewards", ["polite_length"], "'rewards[0]' = 'polite_length': write it as {name: polite_length}"),
])
def test_a_value_in_the_place_of_a_section_is_shown_as_it_should_be(problems, settings, setting, value, said):
    assert said in problems({**settings(), setting: value})


def test_problems_of_different_parts_come_together(problems, settings):
    tree = settings("gpro", rewards=[{"name": "polite_length"}, {"name": "polit_length"}], trackers=[{"name": "nope"}],
                    rollout__name="hff", train__steps=0)
    found = problems(tree)
    for said in ("'train.steps' = 0", "no algorithm 'gpro'", "no reward 'polit_length'. Did you mean 'polite_length'?",
                 "no tracker 'nope'", "no rollout 'hff'. Did you mean 'hf'?"):
        assert any(p.startswith(said) for p in found), (said, found)


@pytest.mark.parametrize(("name", "near"), [("PPO", "ppo"), ("ddpo", "dpo"), ("sfft", "sft")])
def test_a_near_miss_of_an_algorithm_brings_its_name(problems, settings, name, near):
    [found] = problems(settings(name))
    assert found.startswith(f"no algorithm '{name}'. Did you mean '{near}'?")


def test_what_must_be_given_is_asked_for_by_its_flag(problems, model):
    assert problems({"model": {"path": model}}) == ["'data' is missing: give --data FILE",
                                                    "'algo' is missing: give --algo NAME (rlx plugins lists them)"]
    assert problems({"model": {"path": model}, "algo": {"gamma": 1.0}, "data": {"max_prompt": 3}}) == [
        "'data.path' is missing: give --data FILE", "'algo.name' is missing: give --algo NAME (rlx plugins lists them)"]


def test_a_value_that_yaml_could_not_hold_is_an_error(problems, settings):
    assert "the spec holds a value that YAML could not: " in problems(settings(train__steps={1, 2}))[0]


def test_without_a_model_the_quickstart_stands_below(plan):
    made = plan({"algo": {"name": "sft"}})
    quickstart = read_spec_file(QUICKSTART)
    assert made.spec.model.path == quickstart["model"]["path"]
    assert made.spec.train.steps == quickstart["train"]["steps"]
    assert made.notes == (f"{QUICKSTART_NOTE} (model, data, learning rates, lengths, steps)",)
    assert plan({"algo": {"name": "sft"}, "train": {"epochs": 2}}).spec.train.steps is None


def test_with_a_model_the_whole_quickstart_is_dropped(plan, problems, model):
    assert any(p.startswith("'data' is missing") for p in problems({"algo": {"name": "sft"}, "model": {"path": model}}))
    made = plan({"algo": {"name": "sft"}, "model": {"path": model}, "data": {"path": "x.jsonl"}, "train": {"steps": 1}})
    assert made.spec.train.optim.policy.lr != lookup(read_spec_file(QUICKSTART), "train.optim.policy.lr")
    assert made.notes == (DROPPED_NOTE,)


@pytest.mark.parametrize(("algo", "given", "prompts"), [
    ("grpo", {}, 8), ("rloo", {}, 16), ("dpo", {}, 32), ("ppo", {}, 64), ("sft", {}, 64),
    ("grpo", {"rollout": {"group_size": 4}}, 16), ("grpo", {"train": {"batch_size": 24}}, 24),
    ("ppo", {"rollout": {"group_size": 128}}, 1),
])
def test_the_quickstart_samples_as_many_completions_for_groups_as_for_single_ones(plan, algo, given, prompts):
    rewards = {} if algo == "sft" else {"rewards": [{"name": "polite_length"}]}
    made = plan({"algo": {"name": algo}, **rewards, **given})
    assert made.spec.train.batch_size == prompts
    said = any(f"{count(prompts, 'prompt')} a step with" in note for note in made.notes)
    assert said == (prompts not in (64, 24))


def test_a_model_of_ones_own_has_the_batch_that_was_asked_for(plan, settings):
    made = plan(settings("grpo", rewards=[{"name": "polite_length"}], train__batch_size=16))
    assert made.spec.train.batch_size == 16


def test_with_data_of_ones_own_the_quickstarts_held_out_rows_go(plan):
    made = plan({"algo": {"name": "sft"}, "data": {"path": "x.jsonl"}})
    assert (made.spec.data.eval, made.spec.run.eval_every) == (0, None)
    assert made.notes == (f"{QUICKSTART_NOTE} (model, learning rates, lengths, steps)",)


def test_a_plugin_whose_options_cannot_be_imported_is_one_of_the_problems(registry, settings):
    from rlx.registry import Registry
    from rlx_sdk import RewardPlugin, hookimpl, lazy

    class Broken:
        @hookimpl
        def rlx_rewards(self):
            return [RewardPlugin(name="lost", summary="", config=lazy("no_such_module:Options").resolve, build=print)]

    own = Registry.discover()
    own.add(Broken(), "lost-rewards", "0.3")
    with pytest.raises(SpecError) as error:
        resolve(own, settings(rewards=[{"name": "lost"}], train__steps=0))
    steps, lost = error.value.problems
    assert steps.startswith("'train.steps' = 0")
    assert lost.startswith("plugin 'lost' (lost-rewards 0.3) failed in its config: ModuleNotFoundError: No module "
                           "named 'no_such_module'")
