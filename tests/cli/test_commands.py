"""What the commands say when all is well."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml


def test_plugins_are_listed_for_machines_whatever_a_plugin_prints(rlx, install):
    install("L08_noisy", "P01_import_fails")
    result = rlx("plugins", "--json")
    found = json.loads(result.out)
    noisy = next(p for p in found["plugins"] if p["name"] == "case_noisy")
    assert noisy == {"kind": "reward", "name": "case_noisy", "package": "rlx-case-noisy", "version": "0.1",
                     "summary": "Says what it does on standard output.", "missing": {}}
    assert [b["package"] for b in found["broken"]] == ["rlx-case-import-fails"]
    assert "[case_noisy] loaded" in result.err


def test_what_to_install_is_said_once(rlx, monkeypatch):
    monkeypatch.setattr("rlx.registry.is_installed", lambda module: False)
    [http] = [line for line in rlx("plugins").out.splitlines() if line.startswith("reward     http ")]
    assert http.endswith("JSON  [needs pip install 'rlx[http]']")


def test_the_options_of_a_plugin_are_shown_with_types_and_defaults(rlx):
    result = rlx("show", "ppo")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("algorithm ppo (rlx): Proximal policy optimisation")
    for line in ("  gamma: number (>= 0, <= 1) = 1.0  Discount a token.",
                 "  kl: The pull back to the reference.",
                 '    estimator: k1 | k2 | k3 = "k1"  From one sampled token: log-ratio, half its square, or the '
                 "low-variance unbiased one.",
                 "  whiten_advantages: boolean = true  Advantages get mean 0 and variance 1 over the batch."):
        assert line in lines
    [found] = json.loads(rlx("show", "polite_length", "--json").out)
    assert found["options"]["properties"]["min_chars"]["default"] == 50


def test_an_algorithm_is_shown_as_in_the_docs(rlx):
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "algorithms.md").read_text(encoding="utf-8")
    [row] = [line for line in page.splitlines() if line.startswith("| [grpo](algorithms/grpo.md) |")]
    own = (docs / "algorithms" / "grpo.md").read_text(encoding="utf-8")
    shown = rlx("show", "grpo").out
    for part in (own.partition("-->\n\n")[2].partition("\n\n| data")[0], *(c.strip() for c in row.split("|")[3:9])):
        assert part in " ".join(shown.split()) or part in shown
    options = [line.split(" | ") for line in own.splitlines() if line.startswith("| `algo.")]
    assert len(options) > 10
    for name, _, default, meaning in options:
        line = next(line for line in shown.splitlines() if line.strip().startswith(f"{name[8:-1].split('.')[-1]}: ")
                    and meaning.removesuffix(" |") in line)
        assert f" = {default.strip('`')}  " in line
    for name in ("data: rollouts, scored\n", "trains: policy", "samples a prompt: 8", "arXiv 2402.03300"):
        assert name in shown


def test_every_algorithm_says_when_to_use_it_and_where_it_is_from(rlx):
    page = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| [")]
    assert len(rows) == 15
    for name, source, formula, *_, when in rows:
        assert "arXiv" in source or name == "[sft](algorithms/sft.md)"
        assert formula
        assert len(when) > 20


def test_an_unknown_plugin_brings_the_nearest_and_what_is_broken(rlx, install):
    install("P01_import_fails")
    result = rlx("show", "pppo")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("error: no plugin 'pppo'. Did you mean 'ppo'? (rlx plugins lists ")
    assert "Plugins that could not be loaded: broken of rlx-case-import-fails" in result.err


def test_the_schema_is_one_json_document_with_every_plugin(rlx, install):
    install("P00_good", "L08_noisy")
    schema = json.loads(rlx("schema").out)
    assert schema["properties"].keys() == {"model", "data", "algo", "rewards", "rollout", "train", "engine", "run",
                                           "combine", "trackers"}
    assert {"case_good", "case_noisy", "polite_length"} <= schema["x-plugins"]["reward"].keys()
    assert "gamma" in schema["x-plugins"]["algorithm"]["ppo"]["properties"]


def _without_description(schema, path=""):
    for name, field in schema.get("properties", {}).items():
        if "$ref" not in field and not field.get("description"):
            yield f"{path}.{name}"
    for name, nested in schema.get("$defs", {}).items():
        yield from _without_description(nested, name)


def test_every_option_of_every_plugin_is_described(rlx):
    plugins = json.loads(rlx("schema").out)["x-plugins"]
    options = {f"{kind} {name}": schema for kind, named in plugins.items() for name, schema in named.items()}
    assert {name: found for name, schema in options.items() if (found := list(_without_description(schema)))} == {}


@pytest.mark.parametrize(("algo", "kind"), [("ppo", "rollouts"), ("dpo", "pairs"), ("sft", "demonstrations")])
def test_the_bundled_quickstart_is_ready_for_every_algorithm(rlx, algo, kind):
    result = rlx("check", "--algo", algo, *(["--reward", "polite_length"] if algo == "ppo" else []), "--json")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["algorithm"] == f"{algo} ({kind})"
    assert report["notes"].startswith("no --model given: using the bundled quickstart")
    assert report["held out"] > 0


@pytest.mark.parametrize(("algo", "file"), [("sft", "base_sft"), ("dpo", "base_pref")])
def test_given_text_is_read_with_a_model_of_ones_own(rlx, model, algo, file):
    data = Path(__file__).parents[1] / f"cases/data/{file}.jsonl"
    result = rlx("check", "--algo", algo, "--model", model, "--data", data, "--steps", 2)
    assert result.code == 0, result.err
    assert f"data: {data}: 8 rows (" in result.out


def test_a_check_prints_plain_lines_and_names_dropped_rows(rlx, model, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "one", "answer": 1}\n{"prompt": "' + "x" * 60 + '"}\n')
    result = rlx("check", "--algo", "ppo", "--reward", "polite_length=0.5", "--model", model, "--data", data,
                 "--steps", 3, "--set", "rollout.max_completion=16", "--set", "data.max_prompt=32",
                 "--set", "data.overlong=drop")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert f"data: {data}: 1 row (prompt, answer), prompts of 3 to 3 tokens, 1 row dropped as too long " \
           "(row 2)" in lines
    assert "rewards on a made-up completion: polite_length [0.5]" in lines
    assert "steps: 3" in lines


def test_epochs_become_steps(rlx, model, tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text('{"prompt": "p", "completion": "c"}\n' * 10)
    result = rlx("check", "--algo", "sft", "--model", model, "--data", data, "--set", "train.epochs=3",
                 "--set", "train.batch_size=4", "--json")
    assert json.loads(result.out)["steps"] == 8


def test_check_scores_rows_with_a_strangers_noisy_reward(rlx, install):
    install("L08_noisy")
    result = rlx("check", "--algo", "ppo", "--reward", "case_noisy", "--json")
    assert json.loads(result.out)["rewards on a made-up completion"] == "case_noisy [1.0, 1.0, 1.0, 1.0]"
    assert "scoring..." in result.err


def test_flags_go_on_top_of_the_spec_file(rlx, model, tmp_path):
    spec = {"algo": {"name": "sft"}, "model": {"path": model}, "data": {"path": "rows.jsonl"}, "train": {"epochs": 1}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "p", "completion": "c"}\n')
    (tmp_path / "held.jsonl").write_text('{"prompt": "q", "completion": "d"}\n')
    report = json.loads(rlx("check", tmp_path / "spec.yaml", "--steps", 7, "--eval-data", tmp_path / "held.jsonl",
                            "--json").out)
    assert (report["steps"], report["model"]) == (7, model)
    assert str(tmp_path / "rows.jsonl") in report["data"]
    assert report["held out"] == 1


def test_flags_are_settings(monkeypatch):
    """Each flag of training that is one; what a test of its own covers is not repeated."""
    from typer.testing import CliRunner

    from rlx import cli

    seen = []
    monkeypatch.setattr(cli, "_train", lambda plan, gpus, json: seen.append(plan(None)))
    monkeypatch.setattr(cli, "_resolve", lambda registry, given: given)
    assert CliRunner().invoke(cli.app, ["train", "--eval-data", "held.jsonl", "--sample-every", "5"]).exit_code == 0
    assert seen == [{"data": {"eval": "held.jsonl"}, "run": {"sample_every": 5}}]


def test_the_version_is_that_of_the_package():
    import rlx

    assert rlx.__version__ == version("rlx")
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        rlx.trian  # noqa: B018


def test_the_json_of_a_training_is_alone_and_the_noise_is_in_the_log(rlx, install):
    install("L08_noisy")
    small = ("rollout.max_completion=4", "rollout.group_size=2", "train.batch_size=2", "data.eval=0")
    result = rlx("train", "--algo", "grpo", "--reward", "case_noisy", "--steps", "1", "--json",
                 *(word for setting in small for word in ("--set", setting)))
    assert result.code == 0, result.err
    log = (Path(json.loads(result.out)["run"]) / "libraries.log").read_text()
    for noise in ("scoring...", "half way"):
        assert noise in log
        assert noise not in result.err
    assert result.err.count("step 1/1 ") == 1
