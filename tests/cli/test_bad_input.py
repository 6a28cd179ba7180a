"""Bad input: exit code 2, what, where and the fix on standard error, nothing written, no traceback."""

from pathlib import Path

import pytest

CASES = Path(__file__).parents[1] / "cases"
DATA = CASES / "data"
POLITE = ["--reward", "polite_length"]


def offline(model, file):
    return ["--model", model, "--steps", "1", "--data", DATA / file]


@pytest.fixture
def base(model):
    """The arguments of a run that would work."""
    return [*offline(model, "base_prompts.jsonl"), "--set", "rollout.max_completion=16"]


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize(("algo", "said"), [
    ("gpro", "no algorithm 'gpro'. Did you mean 'grpo'?"), ("PPO", "Did you mean 'ppo'?"),
    ("ddpo", "no algorithm 'ddpo'. Did you mean 'dpo'?"),
])
def test_a_near_miss_of_an_algorithm(refused, base, command, algo, said):
    assert said in refused(command, "--algo", algo, *POLITE, *base)


def test_rewards_where_none_is_used_or_none_is_given(refused, rlx, base, model):
    for algo, file in (("sft", "base_sft.jsonl"), ("reward_model", "base_pref.jsonl")):
        assert f"rewards can have no effect: {algo} uses no reward" in refused(
            "train", "--algo", algo, *POLITE, *offline(model, file))
    message = refused("train", "--algo", "ppo", *base)
    assert "ppo needs a reward: give --reward NAME (installed: " in message
    assert "polite_length" in message
    found = rlx("check", "--algo", "dpo", *POLITE, *base)
    assert found.code == 0
    assert "the pairs in the data are not used" in found.out


@pytest.mark.parametrize(("reward", "said"), [
    ("polite_lenght", "no reward 'polite_lenght'. Did you mean 'polite_length'?"),
    ("polite_length=", "'rewards[0].weight' = None: input should be a valid number"),
    ("hf:", "'rewards[0].options.path' = '': string should have at least 1 character"),
    ("polite_length=half", "'rewards[0].weight' = 'half': input should be a valid number"),
    ("polite_length=.inf", "'rewards[0].weight' = inf: input should be a finite number"),
])
def test_a_reward_flag(refused, base, reward, said):
    assert said in refused("train", "--algo", "ppo", "--reward", reward, *base)


def test_a_plugin_that_cannot_be_loaded_is_fatal_when_something_is_missing(refused, rlx, base, install):
    install("P01_import_fails", "P02_same_name_a", "P02_same_name_b")
    message = refused("train", "--algo", "ppo", "--reward", "case_import_fails", *base)
    assert "Plugins that could not be loaded: broken of rlx-case-import-fails (ModuleNotFoundError: " in message
    assert "write 'rlx-case-same-a/case_same' and 'rlx-case-same-b/case_same'" in refused(
        "train", "--algo", "ppo", "--reward", "case_same", *base)
    assert "case_same [-1.0, -1.0" in rlx("check", "--algo", "ppo", "--reward", "rlx-case-same-b/case_same", *base).out


@pytest.mark.parametrize(("setting", "said"), [
    ("train.batch_sise=8", "'train.batch_sise' is an unknown setting. Did you mean 'batch_size'?"),
    ("lr=1", "'lr' is an unknown setting. There is train.optim.policy.lr, train.optim.critic.lr, train"),
    ("train.zero_stage=2", "'train.zero_stage' is an unknown setting. There is engine.zero_stage."),
    ("algo.gama=1", "'algo.gama' is an unknown setting. Did you mean 'gamma'?"),
    ("rollout.temperature=hot", "'rollout.temperature' = 'hot': input should be a valid number"),
    ("train.batch_size", "--set train.batch_size: write it as setting=value, e.g. --set train.batch_size=64"),
    ("train.steps.x=1", "'train.steps.x': 'steps' is already set to 1"),
    ("run.resume=auto", "run.resume = auto continues the run of one name; give it with --name"),
])
def test_a_set_flag(refused, base, setting, said):
    assert said in refused("train", "--algo", "ppo", *POLITE, *base, "--set", setting)


@pytest.mark.parametrize(("flag", "said"), [
    ("--batch-size", "No such option: --batch-size (Possible options: --set train.batch_size=VALUE)"),
    ("--rewards", "--reward"), ("--nothing", "No such option: --nothing\n"),
])
def test_a_flag_that_is_a_setting(refused, base, flag, said):
    assert said in refused("train", "--algo", "ppo", *POLITE, *base, flag, "8")


def test_a_file_in_the_wrong_place(refused, base):
    data = DATA / "base_prompts.jsonl"
    assert f"is no spec file (SPEC.yaml): data is given with --data {data}" in refused("train", data)
    assert "a setting with --set NAME=VALUE" in refused("train", "--algo", "ppo", "--set", "train.steps=1", "8")
    assert "base_prompts.jsonl' is a file; give the folder with the model's config.json" in refused(
        "train", "--algo", "ppo", *POLITE, *base, "--model", data)


def test_a_reward_file_with_a_mistake_of_syntax_names_one_place(refused, base, tmp_path):
    (tmp_path / "wrong.py").write_text("def score(samples)\n    return 1\n")
    message = refused("train", "--algo", "ppo", "--reward", f"{tmp_path}/wrong.py:score", *base)
    assert "SyntaxError: expected ':' (wrong.py, line 1)\n" in message


def test_everything_wrong_is_said_at_once(refused, model):
    message = refused("train", "--algo", "ppo", "--model", model + "x", "--data", "d.jsonl", "--steps", "1",
                      "--set", "train.minibatches=99", "--set", "run.eval_every=1")
    assert message.startswith("error: 4 problems in the spec:\n  - ")
    for said in ("needs a reward", "run.eval_every can have no effect", "no such folder", "train.minibatches = 99"):
        assert said in message


def test_a_missing_tracker_package_gives_the_install_line(refused, base, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "wandb", None)
    assert "pip install 'rlx[wandb]'" in refused("train", "--algo", "ppo", *POLITE, *base, "--set",
                                                 "trackers=[{name: wandb}]")


@pytest.mark.parametrize("spec", ["S02_empty", "S02_only_comment", "S02_top_level_list", "S02_two_documents", "none"])
def test_a_file_that_is_no_spec(refused, spec):
    assert f"{spec}.yaml' " in refused("train", CASES / f"specs/{spec}.yaml")


@pytest.mark.parametrize(("spec", "said"), [
    ("S01_typo_key", "'algo.kl.coeff' is an unknown setting. Did you mean 'coef'?"),
    ("S06_out_of_range", "'train.batch_size' = -4"),
    ("S13_longer_than_model", "200 + 100 > 256, the model's context"),
])
def test_a_spec_with_mistakes(refused, model, spec, said):
    assert said in refused("train", CASES / f"specs/{spec}.yaml", "--model", model)


def test_no_setting_takes_the_reference_from_a_kl(refused, base, model):
    """Its coefficient is what loads the reference, so the two cannot be set against each other."""
    assert "'model.reference' = 'none': write it as {path: none}" in refused(
        "check", CASES / "specs/S03_kl_without_reference.yaml", "--model", model)
    grpo = ["check", "--algo", "grpo", *POLITE, *base, "--set"]
    assert "'algo.kl': coef is 0, so there is no KL and estimator can have no effect" in refused(
        *grpo, "algo.kl.estimator=k3")
    assert "model.reference.path can have no effect: grpo compares with no reference here. Leave it out." in refused(
        *grpo, f"model.reference.path={model}")


@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize(("file", "said"), [
    ("no_such_file.parquet", "there is no data file '"), ("base_promts.jsonl", "Did you mean 'base_prompts.jsonl'?"),
    ("shards/*.parquet", "there is no data file '"), ("", "files; name those of one kind, e.g. "),
    ("D25_zero_rows.parquet", "has 0 rows; there is nothing to train on"), ("D25_zero_rows.jsonl", "has 0 rows"),
    ("D13_bad_middle.jsonl", "D13_bad_middle.jsonl', line 4 is not valid JSON"),
    ("D37_wrong_layout.jsonl", "it has the columns Question, Answer. Map your columns to these names, e.g. --set data"),
    ("D06_nulls.parquet", "row 2: column 'prompt' is missing or null"),
    ("D29_long_row.jsonl", "row 2: the prompt has 42,000 tokens, the limit (data.max_prompt) is 240"),
])
def test_a_data_file(refused, model, command, file, said):
    assert said in refused(command, "--algo", "ppo", *POLITE, "--model", model, "--steps", "1", "--data", DATA / file,
                           "--set", "rollout.max_completion=16")


def test_pairs_that_are_not_there_bring_both_ways_out(refused, model):
    message = refused("train", "--algo", "dpo", *offline(model, "base_prompts.jsonl"))
    assert "needs a prompt column, and the columns chosen and rejected (without a prompt, what both" in message
    assert "Or give --reward NAME: dpo then works with prompts alone" in message


def test_more_rows_held_out_than_there_are(refused, base):
    assert "data.eval: 8 rows are to be held out of" in refused("train", "--algo", "ppo", *POLITE, *base,
                                                                "--set", "data.eval=8")


def test_a_model_folder_without_a_model(refused, base, tmp_path):
    (tmp_path / "empty").mkdir()
    message = refused("train", "--algo", "ppo", *POLITE, *base, "--model", tmp_path / "empty")
    assert "has no config.json; the folder holds nothing" in message


@pytest.mark.parametrize(("flag", "name", "said"), [
    ("--model", "nothere", "/nothere). Give one with config.json and *.safetensors, a .gguf file, or a hub name (ORG/"),
    ("--model", "hf:org/nothere", "hf: is written before data and rewards only; here write 'org/nothere'"),
    ("--data", "hf:org/nothere", "data 'hf:org/nothere' cannot be had through datasets: ConnectionError: Couldn't "
     "reach 'org/nothere' on the Hub (OfflineModeIsEnabled). Give hf:ORG/NAME as the hub has it, a folder that "
     "save_to_disk wrote, or a file"),
    ("--data", f"hf:{DATA}/base_prompts.jsonl", ". A file is named without hf:"),
])
def test_a_name_of_the_hub_that_is_none_gives_the_way_out(refused, base, monkeypatch, flag, name, said):
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # else it asks again and again
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    assert said in refused("train", "--algo", "ppo", *POLITE, *base, flag, name)


def test_a_model_that_is_nowhere(refused, base, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    message = refused("train", "--algo", "ppo", *POLITE, *base, "--model", "some-org/some-model")
    assert "model 'some-org/some-model': there is no such folder (/" in message
    assert "could not be had as a hub name either" in message


@pytest.mark.parametrize("arguments", [["train", "--stepps", "3"], ["trian"], ["train", "--steps", "many"], ["show"]])
def test_flags_that_do_not_exist(rlx, arguments):
    result = rlx(*arguments)
    assert (result.code, result.out) == (2, "")
    assert "Usage: rlx" in result.err


def test_a_reward_that_fails_in_the_dry_run_is_a_failure(rlx, install, base, tmp_path):
    install("P00_good")
    module = tmp_path / "site/rlx_case_good/__init__.py"
    module.write_text(module.read_text().replace("[1.0 for _ in samples]", "[s.row['x'] for s in samples]"))
    result = rlx("check", "--algo", "ppo", "--reward", "case_good", *base)
    assert (result.code, result.out) == (1, "")
    first, second = result.err.splitlines()[:2]
    assert first == "error: reward 'case_good' (rlx-case-good 0.1) failed on"
    assert second == ("  sample 1 of 4 (data row 1, completion 'Thank you, here is an answer.'): KeyError: 'x' "
                      "(rlx_case_good/__init__.py:9)")
