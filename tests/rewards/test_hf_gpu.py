"""A reward model on a GPU: bfloat16, what a plain transformers loop gives there, and memory given back."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

import rlx
from rlx.registry import Registry
from rlx_sdk import RewardContext, Sample

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
TINY = Path(rlx.__file__).parent / "quickstart/rlx-tiny"
ENTRY = Registry.discover().get("reward", "hf")
CHAT = [{"role": "user", "content": "What is 2 + 2?"}]
MIB = 2**20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A reward model of 50 million random weights, with the bundled model's tokenizer."""
    path = tmp_path_factory.mktemp("rm") / "judge"
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(LlamaConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(TINY)), hidden_size=512, intermediate_size=2048,
        num_hidden_layers=12, num_attention_heads=8, max_position_embeddings=1024, num_labels=1,
        initializer_range=0.05))
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TINY / name, path)
    return path


@pytest.fixture(scope="module")
def samples():
    """Chats and plain texts of many lengths."""
    texts = [f"{text} {number}" for number in range(8) for text in ("4", "It is 4. " * 9, "四" * 30, "no " * 60)]
    return [Sample("What is 2 + 2?", text, messages) for text in texts for messages in (CHAT, ())]


def built(path, **options):
    return ENTRY.call("build", ENTRY.call("config")(path=str(path), **options), RewardContext("cuda:0"))


def plain(path, samples, dtype):
    """One text at a time on the GPU, nothing padded."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=dtype).eval().to("cuda:0")
    scores = []
    for sample in samples:
        chat = [*sample.messages, {"role": "assistant", "content": sample.completion}]
        ids = (tokenizer.apply_chat_template(chat, return_tensors="pt", return_dict=True)["input_ids"]
               if sample.messages else tokenizer(sample.prompt + sample.completion, return_tensors="pt")["input_ids"])
        with torch.no_grad():
            scores.append(model(input_ids=ids.to("cuda:0")).logits.float().item())
    return scores


def held():
    """Bytes of tensors on the GPU, and bytes that torch holds there."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()


def test_float32_agrees_with_a_plain_loop(folder, samples):
    wanted = plain(folder, samples, torch.float32)
    assert len({round(value, 3) for value in wanted}) > len(samples) // 2
    scale = max(map(abs, wanted))
    assert built(folder, dtype="float32").score(samples) == pytest.approx(wanted, abs=1e-5 * max(1.0, scale))


def test_auto_is_bfloat16_and_agrees_with_a_plain_loop_in_bfloat16(folder, samples):
    reward = built(folder)
    assert {p.dtype for p in reward._model.parameters()} == {torch.bfloat16}
    found, rounded = torch.tensor(reward.score(samples)), torch.tensor(plain(folder, samples, torch.bfloat16))
    exact = torch.tensor(plain(folder, samples, torch.float32))
    assert not torch.allclose(found, exact, atol=1e-5), "it computed in bfloat16"
    error = (rounded - exact).pow(2).mean().sqrt()
    assert (found - exact).pow(2).mean().sqrt() < 1.5 * error, "no further off than the plain loop is"


def test_an_offloaded_model_gives_its_memory_back(folder, samples):
    before = held()
    reward = built(folder, offload=True)
    weights = sum(p.numel() * p.element_size() for p in reward._model.parameters())
    assert weights > 90 * MIB
    assert held() == before, "loading it took nothing on the GPU"
    torch.cuda.reset_peak_memory_stats()
    first = reward.score(samples)
    assert torch.cuda.max_memory_allocated() - before[0] > weights, "it scored there"
    assert {p.device.type for p in reward._model.parameters()} == {"cpu"}
    allocated, reserved = held()
    # cuBLAS keeps a workspace of its own once it has multiplied.
    assert allocated - before[0] < 40 * MIB
    assert reserved - before[1] < 64 * MIB
    assert reward.score(samples) == first, "and again"
    assert held()[0] == allocated, "nothing is left behind the second time"
    resident = built(folder)
    assert resident.score(samples) == first
    reward.close()
    resident.close()
    del reward, resident
    assert held()[0] <= allocated


def test_a_run_gets_the_same_rewards_from_an_offloaded_model(folder, tmp_path):
    found = {}
    for offload in (False, True):
        result = rlx.train(
            algo="grpo", quiet=True, rewards=[{"name": f"hf:{folder}", "options": {"offload": offload}}],
            run={"dir": str(tmp_path), "name": str(offload)}, data={"eval": 0},
            rollout={"name": "hf", "max_completion": 16},
            train={"steps": 2, "batch_size": 4, "minibatches": 1, "update_epochs": 1})
        found[offload] = result.metrics
    assert found[True]["reward/mean"] == pytest.approx(found[False]["reward/mean"], abs=1e-3)
    assert found[True]["reward/std"] > 0
