"""A reward model scores as a plain transformers loop does, and what is no trained reward model is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertForSequenceClassification

import rlx
from rlx.registry import Registry
from rlx_plugins.rewards import hf
from rlx_plugins.rewards.options import HFOptions
from rlx_sdk import ModelError, RewardContext, Sample
from rlx_sdk.testing import check_reward

TINY = Path(rlx.__file__).parent / "quickstart/rlx-tiny"
ENTRY = Registry.discover().get("reward", "hf")
CHAT = [{"role": "user", "content": "What is 2 + 2?"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reward model with random weights, large enough that no two texts score alike."""
    path = tmp_path_factory.mktemp("rm") / "judge"
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(TINY, num_labels=1)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TINY / name, path)
    return path


@pytest.fixture(scope="module")
def samples():
    """Chats and plain texts of many lengths, some ending in the text of a special token."""
    texts = ["", "4", "It is 4. " * 9, "四" * 30, "<|im_end|>", "👍"]
    return [Sample("What is 2 + 2?", text, messages) for text in texts for messages in (CHAT, ())]


def close(wanted):
    """To float32's rounding, which differs between kinds of processors."""
    return pytest.approx(wanted, abs=1e-5 * max(1.0, *map(abs, wanted)))


def built(path, **options):
    return ENTRY.call("build", ENTRY.call("config")(path=str(path), **options), RewardContext())


def plain(path, samples, **more):
    """One text at a time, nothing padded."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path, **more)
    scores = []
    for sample in samples:
        chat = [*sample.messages, {"role": "assistant", "content": sample.completion}]
        ids = (tokenizer.apply_chat_template(chat, return_tensors="pt", return_dict=True)["input_ids"]
               if sample.messages else tokenizer(sample.prompt + sample.completion, return_tensors="pt")["input_ids"])
        with torch.no_grad():
            scores.append(model.eval()(input_ids=ids).logits.item())
    return scores


@pytest.mark.parametrize("options", [{}, {"batch_tokens": 100}, {"offload": True}, {"dtype": "float32"}])
def test_it_agrees_with_a_plain_loop(folder, samples, options):
    wanted = plain(folder, samples)
    assert len({round(w, 3) for w in wanted}) > len(samples) // 2
    assert built(folder, **options).score(samples) == close(wanted)


def test_bfloat16_is_what_plain_transformers_makes_of_it(folder, samples):
    wanted = plain(folder, samples, dtype=torch.bfloat16)
    found = built(folder, dtype="bfloat16").score(samples)
    assert found == pytest.approx(wanted, abs=0.02 * max(map(abs, wanted)))
    assert found != close(plain(folder, samples))


def test_on_a_gpu_auto_is_bfloat16(folder, monkeypatch):
    asked = []

    def loads(path, dtype, trust):
        asked.append(dtype)
        return SimpleNamespace(to=lambda device: None), SimpleNamespace(chat_template="")

    monkeypatch.setattr(hf, "load_reward_model", loads)
    for device in ("cuda:0", "cpu"):
        hf.HFReward(HFOptions(path=str(folder), max_length=9), RewardContext(device))
    assert asked == [torch.bfloat16, torch.float32]


@pytest.mark.parametrize("offload", [True, False])
def test_an_offloaded_model_is_on_its_device_only_while_it_scores(folder, samples, monkeypatch, offload):
    """The device is called cpu:0, so that moves to it and to the CPU's memory can be told apart."""
    moves, to = [], torch.nn.Module.to

    def recorded(module, device):
        moves.append(device)
        return to(module, device)

    monkeypatch.setattr(torch.nn.Module, "to", recorded)
    reward = hf.HFReward(HFOptions(path=str(folder), offload=offload, batch_tokens=100), RewardContext("cpu:0"))
    reward._model.register_forward_pre_hook(lambda *_: moves.append("forward"))
    reward.score(samples)
    batches = moves.count("forward")
    assert batches > 2
    assert moves == (["cpu", "cpu:0", *["forward"] * batches, "cpu"] if offload
                     else ["cpu:0", "cpu:0", *["forward"] * batches])

    def broken(*_):
        raise RuntimeError("out of memory")

    reward._model.register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        reward.score(samples)
    assert (moves[-1] == "cpu") is offload, "after an error too"


def test_a_tokenizer_whose_pad_ends_every_turn_changes_nothing(folder, samples, tmp_path):
    other = shutil.copytree(folder, tmp_path / "pad")
    config = json.loads((other / "tokenizer_config.json").read_text())
    config["pad_token"] = config["eos_token"]
    (other / "tokenizer_config.json").write_text(json.dumps(config))
    assert built(other).score(samples) == close(plain(folder, samples))


def test_an_encoder_serves_as_well(folder, samples, tmp_path):
    torch.manual_seed(0)
    size = AutoTokenizer.from_pretrained(folder).vocab_size + 10
    BertForSequenceClassification(BertConfig(
        vocab_size=size, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, num_labels=1,
        initializer_range=0.5)).save_pretrained(tmp_path / "bert")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(folder / name, tmp_path / "bert")
    assert built(tmp_path / "bert").score(samples) == pytest.approx(plain(tmp_path / "bert", samples), abs=1e-5)


def test_it_keeps_the_contract_and_abstains_from_what_is_too_long(folder):
    check_reward(ENTRY.plugin, {"path": str(folder)})
    assert built(folder, max_length=5).score([Sample("p", "word " * 50), Sample("p", "a")]) == [None, pytest.approx(
        plain(folder, [Sample("p", "a")])[0], abs=1e-5)]


def relabelled(folder, path, labels):
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=labels, ignore_mismatched_sizes=True)
    model.save_pretrained(path)
    shutil.copy(folder / "tokenizer.json", path)
    shutil.copy(folder / "tokenizer_config.json", path)
    return path


def without_head(folder, path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, path)
    weights = load_file(path / "model.safetensors")
    save_file({k: v for k, v in weights.items() if not k.startswith("score")}, path / "model.safetensors",
              metadata={"format": "pt"})
    return path


def test_what_is_no_reward_model_is_refused(folder, tmp_path):
    with pytest.raises(ModelError, match=r"\(its config says .*ForCausalLM\): its head would be new"):
        built(TINY)
    with pytest.raises(ModelError, match="has 3 labels; a reward is one number"):
        built(relabelled(folder, tmp_path / "three", 3))
    with pytest.raises(ModelError, match=r"freshly initialised, and so random: score\.weight"):
        built(without_head(folder, tmp_path / "bare"))
    shutil.copytree(folder, tmp_path / "hurt")
    (tmp_path / "hurt" / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelError, match=r"no reward model could be loaded from the folder '.*hurt' \(it holds "):
        built(tmp_path / "hurt")


def test_a_reward_model_that_is_nowhere_is_said_with_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # else it asks again and again
    monkeypatch.chdir(tmp_path)
    (tmp_path / "judge").mkdir()
    with pytest.raises(ModelError) as error:
        built("jugde")
    said = str(error.value)
    assert said.startswith(f"reward model 'jugde': there is no such folder ({tmp_path}/jugde), and it could not be had "
                           "as a hub name either: ")
    assert said.endswith(" Did you mean 'judge'? Give --reward hf:PATH a folder with config.json, a tokenizer and "
                         "*.safetensors, or hf:ORG/NAME of the hub.")
    assert "\n" not in said


def test_it_judges_in_a_run_under_its_folders_name(folder, tmp_path):
    result = rlx.train(algo="grpo", reward=["polite_length", f"hf:{folder}=0.5"], quiet=True,
                       run={"dir": str(tmp_path)}, rollout={"max_completion": 8}, train={"steps": 1, "batch_size": 2})
    assert abs(result.metrics["reward/mean"] - result.metrics["reward/polite_length/mean"]
               - 0.5 * result.metrics["reward/hf:judge/mean"]) < 1e-6
