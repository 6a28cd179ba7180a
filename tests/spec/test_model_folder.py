"""What a model folder tells before anything is loaded."""

import json

import pytest

from rlx.folders import context_length


def test_prompt_and_completion_must_fit_the_models_context(problems, plan, settings):
    tree = settings("ppo", data__max_prompt=200, rollout__max_completion=100)
    assert problems(tree) == ["data.max_prompt + rollout.max_completion = 200 + 100 > 256, the model's context "
                              "(max_position_embeddings)"]
    plan(settings("ppo", data__max_prompt=156, rollout__max_completion=100))
    assert problems(settings("ppo", data__max_prompt=157, rollout__max_completion=100))
    plan(settings("ppo", rollout__max_completion=255))
    assert problems(settings("ppo", rollout__max_completion=256)) == [
        "a prompt + rollout.max_completion = 1 or more + 256 > 256, the model's context (max_position_embeddings)"]


def test_given_text_must_fit_it_too(problems, plan, settings):
    plan(settings("sft", data__max_length=256))
    assert problems(settings("sft", data__max_length=257)) == ["data.max_length = 257 > 256, the model's context "
                                                               "(max_position_embeddings)"]
    plan(settings("dpo", data__max_length=32, data__max_prompt=31))
    assert problems(settings("dpo", data__max_length=32, data__max_prompt=32)) == [
        "data.max_length = 32 leaves nothing for an answer after data.max_prompt = 32"]


@pytest.mark.parametrize("path", ["~nobody-of-this-name/model", "./model"])
def test_a_path_with_one_slash_that_no_hub_has_is_a_folder_that_is_not_there(problems, settings, path):
    [found] = problems(settings("sft", model__path=path))
    assert found.startswith(f"model.path '{path}': there is no such folder (looked at /")


@pytest.mark.parametrize("setting", ["model.path", "model.critic.init"])
def test_a_folder_that_is_not_there_brings_the_nearest(problems, settings, tmp_path, setting):
    (tmp_path / "my-model").mkdir()
    wrong = str(tmp_path / "my-modle")
    [found] = problems(settings("ppo", **{setting.replace(".", "__"): wrong}))
    assert found.startswith(
        f"{setting} '{wrong}': there is no such folder (looked at {wrong}). Did you mean 'my-model'? Give one with ")


@pytest.mark.parametrize("setting", ["model.path", "model.critic.init"])
def test_a_folder_without_a_config_lists_what_it_holds(problems, settings, tmp_path, setting):
    (tmp_path / "notes.txt").touch()
    [found] = problems(settings("ppo", **{setting.replace(".", "__"): str(tmp_path)}))
    assert found == f"{setting} '{tmp_path}' ({tmp_path}) has no config.json; the folder holds notes.txt"


def test_a_hub_name_is_left_to_the_hub(plan, settings):
    assert plan(settings("sft", model__path="some-org/some-model")).spec.model.path == "some-org/some-model"


@pytest.mark.parametrize("path", ["no-slash", "/no/such/model", "weights.gguf", "a/b/c"])
def test_what_cannot_be_a_hub_name_must_be_there(problems, settings, path):
    [found] = problems(settings("sft", model__path=path))
    assert found.startswith(f"model.path '{path}': there is no such folder (looked at /")


@pytest.mark.parametrize(("config", "context"), [
    ({"max_position_embeddings": 77}, 77), ({"text_config": {"max_position_embeddings": 78}}, 78), ({}, None),
    ({"text_config": None}, None), ([1], None), ({"max_position_embeddings": "many"}, None),
])
def test_the_context_is_read_where_it_stands(tmp_path, config, context):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert context_length(tmp_path) == context


def test_a_context_that_cannot_be_read_is_unknown(tmp_path):
    assert context_length(tmp_path) is None
    (tmp_path / "config.json").write_text("{")
    assert context_length(tmp_path) is None
