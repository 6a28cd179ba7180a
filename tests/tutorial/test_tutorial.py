"""Each numbered claim of the tutorial, and that its two languages are one tutorial."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import rlx
from rlx.cli import app
from rlx.layers import lookup
from rlx.plan import resolve
from rlx.registry import Registry
from rlx.trainer import Trainer
from rlx_sdk import Sample, TrainingError

from ..blocks import ANCHOR, read_blocks, unlike
from .conftest import PAGES, ROOT

NAMES = runpy.run_path(str(ROOT / "docs/names_in_tutorial.py"))
PPO = {"algo": {"name": "ppo"}, "rewards": [{"name": "polite_length"}]}
SMALL = {"train": {"batch_size": 4, "minibatches": 1, "update_epochs": 1}, "data": {"eval": 0}, "quiet": True}
SHORT = {"rollout": {"max_completion": 8}}


def metrics_of(run):
    """Metrics without the clock."""
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "speed/"))}
            for line in (run / "metrics.jsonl").read_text().splitlines()]


def claims(language):
    """The table at the end: number to tests."""
    text = PAGES[language].read_text(encoding="utf-8").partition('<a id="claims"></a>')[2]
    return {int(m[1]): re.findall(r"`(tests/\S+)`", m[2])
            for m in re.finditer(r"^\| \[(\d+)\]\(#claim-\1\) \|.*\|(.*)\|$", text, re.MULTILINE)}


@pytest.mark.parametrize("language", PAGES)
def test_every_claim_has_a_place_and_names_tests_that_exist(language):
    found = claims(language)
    assert list(found) == list(range(1, 22))
    anchors = ANCHOR.findall(PAGES[language].read_text(encoding="utf-8"))
    assert sorted(anchors) == sorted(["claims", *(f"claim-{number}" for number in found)])
    for tests in found.values():
        assert tests
        for test in tests:
            file, _, name = test.partition("::")
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert name in {f.name for f in tree.body if isinstance(f, ast.FunctionDef)}, test


def test_both_languages_have_the_same_blocks_in_the_same_places():
    zh, en = (read_blocks(PAGES[language]) for language in ("zh", "en"))
    assert [(b.language, b.section) for b in zh] == [(b.language, b.section) for b in en]
    for one, other in zip(zh, en, strict=True):
        assert one.bare() == other.bare()
    assert claims("zh") == claims("en")


@pytest.mark.parametrize("language", PAGES)
def test_links_lead_somewhere(language):
    page = PAGES[language]
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def assert_shown(followed, but=()):
    """But for numbers, folders and what the model writes; messages without a command are made by tests below."""
    for one in followed.shown:
        if one.printed and one.block.section not in but:
            assert unlike(one.block.code, one.printed) == [], one.printed
    without = [one.block.section for one in followed.shown if not one.printed]
    assert without == ["claim-16"] * len(without)


def test_the_output_shown_is_what_is_printed(followed):
    """Short runs may rank no pair, and start no processes."""
    assert_shown(followed, but=["claim-15", "claim-19", "claim-20"])


@pytest.mark.full
def test_the_output_shown_is_what_is_printed_word_for_word(followed_whole):
    assert_shown(followed_whole, but=["claim-15"])  # the model's own words


def test_01_no_distributed_setup(followed):
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(os.environ)
    assert "done: 3 steps" in followed.printed("claim-5"), "right after the installation"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_01_one_gpu(tmp_path):
    result = rlx.train(algo="ppo", reward="polite_length", steps=1, run={"dir": str(tmp_path)}, **SMALL, **SHORT)
    assert result.metrics["memory/peak_gb"] > 0


def test_02_a_model_of_another_architecture(followed):
    config = json.loads((followed.folder / "my-model/config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert "ppo on my-model" in followed.printed("claim-2")


def characters(samples):
    """It tells any completions of an untrained model apart; a rule might find all alike, and nothing to learn."""
    return [float(len(sample.completion)) for sample in samples]


@pytest.mark.full
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen3", "Phi3", "Gemma", "GPT2", "GPTNeoX", "OlMo2"])
def test_02_any_causal_language_model(name, tmp_path):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(Path(rlx.__file__).parent / "quickstart/rlx-tiny")
    config = {c.lower(): getattr(transformers, c) for c in dir(transformers) if c.endswith("Config")}[
        f"{name.lower()}config"]
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": 256}
    settings = config(vocab_size=len(tokenizer), eos_token_id=1, pad_token_id=0, bos_token_id=None, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(settings)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"instruction": f"Say {i}."}) + "\n" for i in range(8)))
    result = rlx.train(algo="ppo", reward=characters, model=str(tmp_path / "model"), data=str(data), steps=1,
                       run={"dir": str(tmp_path / "runs")}, train=SMALL["train"], quiet=True, **SHORT)
    trained = transformers.AutoModelForCausalLM.from_pretrained(result.checkpoint / "actor")
    assert type(trained) is type(model)
    before = model.state_dict()
    assert any(not torch.equal(weight, before[key]) for key, weight in trained.state_dict().items()), "it has moved"


def test_03_a_long_prompt_brings_both_numbers(followed):
    assert "row 3: the prompt has 16 tokens, the limit (data.max_prompt) is 8" in followed.printed("claim-3")


def test_04_the_training_loop_is_one_file_under_200_lines():
    text = Path(sys.modules[Trainer.__module__].__file__).read_text(encoding="utf-8")
    assert text.count("\n") < 200
    own = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    assert {"fit", "train_step", "evaluate", "_update", "_minibatch", "_losses"} <= own, "the loop, whole"


def test_05_install_import_version_are_three_lines(followed):
    lines = [line for b in read_blocks(PAGES["zh"]) if b.section == "claim-5" and b.language in ("bash", "python")
             for line in b.code.splitlines() if b.language == "python" or line.startswith("pip")]
    assert lines == ["pip install ./sdk .", "import rlx", "print(rlx.__version__)"]
    assert followed.shown[0].printed == f"{rlx.__version__}\n"


@pytest.mark.full
def test_05_the_lines_work_in_a_fresh_environment(tmp_path):
    """With this environment's libraries: all that is installed is rlx itself."""
    install, [code] = "pip install ./sdk .", [b.code for b in read_blocks(PAGES["zh"]) if "__version__" in b.code]
    venv = tmp_path / ".venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    [site] = venv.glob("lib/python3*/site-packages")
    (site / "libraries.pth").write_text("\n".join(p for p in sys.path if p.endswith("site-packages")) + "\n")
    (tmp_path / "copy").mkdir()
    subprocess.run("git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "
                   f"{tmp_path / 'copy'}", shell=True, cwd=ROOT, check=True)
    subprocess.run([venv / "bin/python", "-m", *install.split(), "-q", "--no-deps"], cwd=tmp_path / "copy", check=True)
    done = subprocess.run([venv / "bin/python", "-c", f"{code}print(rlx.__file__)"], cwd=tmp_path, check=True,
                          capture_output=True, text=True)
    version, place = done.stdout.split()
    assert version == rlx.__version__
    assert Path(place).is_relative_to(venv)


def test_06_the_parquet_trains_as_it_is(followed):
    rows = pd.read_parquet(followed.folder / "train.parquet")
    assert (list(rows), len(rows)) == (["instruction", "input", "output"], 3)
    samples = pd.read_parquet(followed.folder / "runs/three/samples")
    assert samples["step"].nunique() == 4, "before the first, and three"
    assert set(samples["row"]) == {0, 1, 2}


def test_07_a_script_of_12_lines(followed):
    [block] = [b for b in read_blocks(PAGES["zh"]) if b.section == "claim-7" and b.language == "python"]
    script = (ROOT / "examples/three_rows.py").read_text(encoding="utf-8")
    assert block.code == f"# examples/three_rows.py\n{script}"
    assert sum(bool(line.strip()) for line in script.splitlines()) == 12
    assert "trained: runs/" in followed.printed("claim-7")


def test_08_the_time_of_each_phase_is_printed(followed):
    seconds = r"\d+\.\d\ds"
    assert re.search(rf"\(rollout {seconds}, reward {seconds}, chosen {seconds}, prepare {seconds}, update {seconds} "
                     rf"\(critic {seconds}, policy {seconds}\), sync {seconds}, record {seconds}\)",
                     followed.printed("claim-5"))
    line = json.loads((followed.folder / "runs/first/metrics.jsonl").read_text().splitlines()[1])
    assert 0 < line["time/update/policy"] + line["time/update/critic"] <= line["time/update"] < line["time/step"]


def test_09_a_missing_pad_token_is_seen_to(followed):
    config = json.loads((followed.folder / "my-model/tokenizer_config.json").read_text())
    assert config.get("pad_token") is None
    assert "the tokenizer has no pad token: padding uses '<|end|>'" in followed.printed("claim-2")
    assert (followed.folder / "runs/mine/checkpoints/global_step_2/actor/model.safetensors").is_file()


def test_10_a_reward_is_a_plain_function_over_a_batch(followed):
    polite = runpy.run_path(str(followed.folder / "polite.py"))["polite"]
    texts = ["短", "谢谢", "长" * 49, "长" * 50, "长" * 200, "长" * 201, "Thank you, " + "x" * 60, "请" + "长" * 99]
    assert polite([Sample("提示", text) for text in texts]) == [0.0, 0.5, 0.0, 1.0, 1.0, 0.0, 1.5, 1.5]
    assert "polite [0.5, 0.5, 0.5, 0.5]" in followed.printed("claim-10")


def facts(text):
    """Step to reward, characters and share of polite ones, from the printed table."""
    return {int(m[1]): tuple(map(float, m.groups()[1:]))
            for m in re.finditer(r"^(\d+)\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)$", text, re.MULTILINE)}


def test_11_the_figures_are_computed_from_the_samples(followed):
    printed = facts(followed.printed("claim-11"))
    assert list(printed) == [0, 6]
    samples = pd.read_parquet(followed.folder / "runs/polite/samples").query("split == 'eval'")
    assert printed[0][1] == pytest.approx(samples[samples["step"] == 0]["completion"].str.len().mean(), abs=0.01)


@pytest.mark.full
def test_11_lengths_near_80_and_all_polite(followed_whole):
    [shown] = [facts(b.code) for b in read_blocks(PAGES["zh"]) if b.section == "claim-11" and b.language == "text"]
    printed = facts(followed_whole.printed("claim-11"))
    print(printed)
    assert list(printed) == list(shown) == [0, 28]
    reward, characters, polite = printed[28]
    assert polite == shown[28][2] == 1.0
    assert 72 <= characters <= 92
    assert 72 <= shown[28][1] <= 92
    assert reward >= 1.4
    assert printed[0] == pytest.approx(shown[0], abs=0.02), "the untrained model, from the same seed"
    assert printed[0][2] < 0.5


def test_12_five_settings_with_their_defaults():
    [section] = re.findall(r'<a id="claim-12">(.*?)<a id=', PAGES["zh"].read_text(encoding="utf-8"), re.DOTALL)
    rows = {m[1]: json.loads(m[2]) for m in re.finditer(r"^\| `([\w.]+)` \| `([\w.]+)` \|", section, re.MULTILINE)}
    plan = resolve(Registry.discover(), PPO)
    defaults = {**plan.spec.model_dump(), "algo": plan.algorithm.options.model_dump()}
    assert rows == {name: lookup(defaults, name) for name in (
        "train.micro_batch", "algo.kl.coef", "run.save_every", "algo.gamma", "algo.lam")}
    assert plan.spec.train.pass_tokens == 2048  # no GPU is needed to test
    assert plan.needs.frozen == {"reference"}
    assert resolve(Registry.discover(), {**PPO, "algo": {"name": "ppo", "kl": {"coef": 0}}}).needs.frozen == set()


def test_12_what_they_do(followed):
    spec = json.loads(json.dumps(rlx.layers.read_spec_file(followed.folder / "runs/knobs/spec.yaml")))
    assert (spec["train"]["micro_batch"], spec["algo"]["gamma"], spec["algo"]["lam"]) == (8, 0.99, 0.9)
    assert {p.name for p in (followed.folder / "runs/knobs/checkpoints").iterdir()} == {
        "global_step_1", "global_step_2"}
    assert [p.name for p in (followed.folder / "runs/first/checkpoints").iterdir()] == ["global_step_3"]
    assert json.loads((followed.folder / "runs/knobs/metrics.jsonl").read_text().splitlines()[1])["kl/coef"] == 0.05


def test_12_the_micro_batch_changes_no_result(tmp_path):
    one, other = (rlx.train(algo="ppo", reward="polite_length", steps=1, run={"dir": str(tmp_path), "name": f"{size}"},
                            **SHORT, **{**SMALL, "train": {**SMALL["train"], "micro_batch": size}}) for size in (1, 4))
    for a, b in zip(metrics_of(one.run), metrics_of(other.run), strict=True):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-5)


def test_13_chosen_prompts_every_5_steps(followed):
    samples = pd.read_parquet(followed.folder / "runs/polite/samples").query("split == 'chosen'")
    assert sorted(samples["step"].unique()) == [0, 5]
    assert samples.groupby("step")["prompt"].apply(list).map(tuple).nunique() == 1
    assert len(samples) == 6
    assert followed.printed("claim-13").count("  after step 5 [") == 3


def test_13_prompts_of_your_own_with_the_same_random_numbers_each_time(tmp_path, capsys):
    """At a learning rate of almost nothing the same random numbers write the same text, five and ten steps later."""
    prompts = ["Say hello.", "介绍一下彩虹", "Tell me a story.", "Thank a friend."]
    file = tmp_path / "my-prompts.jsonl"
    file.write_text("".join(json.dumps({"instruction": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    done = CliRunner().invoke(app, ["train", "--algo", "grpo", "--reward", "polite_length", "--steps", "11", "--name",
                                    "mine", "--sample-every", "5", "--eval-data", str(file), *(
        word for setting in ("train.batch_size=1", "train.minibatches=1", "rollout.group_size=2",
                             "rollout.max_completion=8", "train.optim.policy.lr=1e-12", f"run.dir={tmp_path}")
        for word in ("--set", setting))])
    assert done.exit_code == 0, done.output
    chosen = pd.read_parquet(tmp_path / "mine/samples").query("split == 'chosen'").sort_values(["step", "row"])
    seen = {step: table[["prompt", "completion"]].values.tolist() for step, table in chosen.groupby("step")}
    assert list(seen) == [0, 5, 10]
    assert [prompt for prompt, _ in seen[0]] == prompts[:3]
    assert seen[0] == seen[5] == seen[10]
    assert len({completion for _, completion in seen[0]}) == 3
    for step in (5, 10):
        assert done.output.count(f"  after step {step} [") == 3


def test_14_base_and_tuned_side_by_side(followed):
    printed = followed.printed("claim-14")
    assert re.search(r"│\s*prompt|┃\s*prompt", printed)
    assert all(word in printed for word in ("base", "tuned", "win rate"))


def test_15_the_checkpoint_is_a_plain_hf_folder(followed):
    """Loaded by transformers alone, in the block; here in a process that cannot import rlx."""
    assert followed.printed("claim-15").strip()
    folder = followed.folder / "runs/polite/checkpoints/global_step_6/actor"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {p.name for p in folder.iterdir()}
    assert [p.name for p in folder.iterdir() if p.suffix in (".py", ".pt", ".bin", ".pkl")] == []


def message(section, *words):
    """The block of a section, in Chinese and in English the same, that has these words."""
    found = [b.code for b in read_blocks(PAGES["zh"]) if b.section == section and b.language == "text"
             and all(word in b.code for word in words)]
    assert len(found) == 1, found
    return found[0]


@pytest.fixture
def little_memory(monkeypatch):
    """From the second step on, a pass over more than so many tokens asks for memory that no machine has."""
    from transformers import LlamaModel

    step, forward = Trainer.train_step, LlamaModel.forward

    def limit(tokens):
        def short(self, input_ids=None, **more):
            if input_ids.numel() > tokens:
                torch.empty(1 << 60, dtype=torch.uint8)
            return forward(self, input_ids=input_ids, **more)

        def limited(self):
            if self.step == 1:
                monkeypatch.setattr(LlamaModel, "forward", short)
            step(self)

        monkeypatch.setattr(Trainer, "train_step", limited)

    return limit


def test_16_too_little_memory_is_helped_by_smaller_passes(tmp_path, little_memory, capsys):
    little_memory(600)
    rlx.train(algo="sft", steps=2, run={"dir": str(tmp_path)}, data={"eval": 0},
              train={"batch_size": 64, "minibatches": 1, "update_epochs": 1})
    assert unlike(message("claim-16", "its gradients are made again"), capsys.readouterr().out) == []


def test_16_too_little_memory_names_what_to_change(tmp_path, little_memory):
    """With ZeRO 2 a pass that failed cannot be made again."""
    little_memory(0)
    with pytest.raises(TrainingError, match=r"out of memory in .*Change, in this order: train.micro_tokens") as error:
        rlx.train(algo="sft", steps=2, run={"dir": str(tmp_path)}, data={"eval": 0}, engine={"zero_stage": 2},
                  train={"batch_size": 64, "minibatches": 1, "update_epochs": 1})
    assert unlike(message("claim-16", "Change, in this order"), str(error.value)) == []


def test_16_an_index_out_of_range_is_found_before_the_training(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny = Path(rlx.__file__).parent / "quickstart/rlx-tiny"
    model = AutoModelForCausalLM.from_pretrained(tiny)
    model.resize_token_embeddings(1000)
    model.save_pretrained(tmp_path / "my-model")
    AutoTokenizer.from_pretrained(tiny).save_pretrained(tmp_path / "my-model")
    data = tmp_path / "data.jsonl"
    data.write_text('{"instruction": "写一首关于春天的五言绝句"}\n')
    done = CliRunner().invoke(app, ["train", "--algo", "ppo", "--reward", "polite_length", "--model",
                                    str(tmp_path / "my-model"), "--data", str(data), "--steps", "1",
                                    "--set", f"run.dir={tmp_path / 'runs'}"])
    assert done.exit_code == 2
    assert unlike(message("claim-16", "embeddings"), done.stderr) == []
    assert not (tmp_path / "runs").exists()


def test_16_a_reward_that_fails_is_named_with_line_and_row(followed):
    assert re.search(r"IndexError: list index out of range \(\S*broken.py:3\)", followed.printed("claim-16"))


def test_16_vllm_where_there_is_none(followed, monkeypatch):
    monkeypatch.setattr("rlx.registry.is_installed", lambda module: module != "vllm")
    done = CliRunner().invoke(app, ["check", "--algo", "ppo", "--reward", "polite_length", "--rollout", "vllm"])
    assert unlike(message("claim-16", "rlx[vllm]"), done.output) == []
    assert "TRL's GRPOConfig.use_vllm is rollout.name here (false is --rollout hf" in followed.printed("claim-16")


def test_16_a_flat_reward_is_said_in_words(followed):
    assert "warning: the reward has no variance" in followed.printed("claim-16")


def test_17_the_distribution_is_shown_and_a_wrong_shape_is_refused(followed):
    assert len(re.findall(r"^rewards of held-out prompts: .* x \d+", followed.printed("claim-13"), re.MULTILINE)) == 2
    assert "it gave 1 reward for 4 completions; a list of 4 numbers is wanted" in followed.printed("claim-17")


@pytest.mark.parametrize(("language", "words"), [
    ("en", r"before, (\d+) of 32 answers got 0, (\d+) got 0.5, (\d+) got 1 and (\d+) got 1.5"),
    ("zh", r"训练前 32 条里，(\d+) 条得 0 分，(\d+) 条 0.5 分，(\d+) 条 1 分，(\d+) 条 1.5 分")])
def test_17_the_distribution_in_words_is_the_one_shown(language, words):
    said = re.search(words, PAGES[language].read_text(encoding="utf-8")).groups()
    [line] = [line for b in read_blocks(PAGES[language]) if b.section == "claim-13" and b.language == "text"
              for line in b.code.splitlines() if line.startswith("rewards of held-out prompts: 0 x ")]
    assert tuple(re.findall(r" x (\d+)", line)) == said


def test_18_a_reward_model_is_one_flag(followed):
    spec = rlx.layers.read_spec_file(followed.folder / "runs/judged/spec.yaml")
    assert [one["name"].partition(":")[0] for one in spec["rewards"]] == ["hf"]
    assert "done: 2 steps" in followed.printed("claim-18")


def test_19_several_processes_are_one_flag(followed):
    assert re.search(r"on 2 ranks, \S+ each", followed.printed("claim-19"))


@pytest.mark.full
def test_19_several_processes_train(followed_whole):
    assert "done: 1 step in" in followed_whole.printed("claim-19")


def test_20_dpo_is_one_flag(followed):
    for name, data in (("dpo", "pairs"), ("dpo-own", "rollouts")):
        run = followed.folder / "runs" / name
        spec = rlx.layers.read_spec_file(run / "spec.yaml")
        assert spec["algo"]["name"] == "dpo"
        assert bool(spec["rewards"]) == (data == "rollouts")
        assert any((run / "samples").glob("step_*.parquet")) == (data == "rollouts")


@pytest.mark.parametrize("given", [{}, {"reward": characters, **SHORT}], ids=["pairs", "own"])
def test_20_it_learns_from_pairs_and_from_what_it_writes(given, tmp_path):
    """Before the first update the loss is log 2 whatever the pairs are; after it, it is not."""
    result = rlx.train(algo="dpo", steps=2, run={"dir": str(tmp_path)}, **given, **SMALL)
    first, second = metrics_of(result.run)
    assert first["pairs"] > 0 < second["pairs"]
    assert first["loss/policy"] == pytest.approx(math.log(2), abs=1e-5)
    assert abs(second["loss/policy"] - math.log(2)) > 1e-4
    assert ("reward/mean" in first) == bool(given)


@pytest.mark.parametrize("language", PAGES)
def test_21_the_tables_of_names_are_current(language):
    page = PAGES[language].read_text(encoding="utf-8")
    assert page == NAMES["page"](language), "run: python docs/names_in_tutorial.py"
    assert page.count("\n| `actor_rollout_ref.") >= 40
    assert len(re.findall(r"^\| `(GRPO|DPO|PPO)Config\.\w+` \|", page, re.MULTILINE)) >= 40
