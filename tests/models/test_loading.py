import json

import pytest
import torch
from transformers import BertConfig, BertModel, LlamaForSequenceClassification

from rlx.handles import Handle
from rlx.models import Scorer, load_causal_lm, load_scorer, pick_device, pick_dtype
from rlx_sdk import ModelError


@pytest.fixture
def folder(llama, tmp_path):
    """A saved language model."""
    llama().save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_language_model_comes_back_as_it_was_saved(llama, folder):
    model = load_causal_lm(folder, torch.float32)
    tokens = torch.arange(10)[None]
    assert torch.equal(model(tokens).logits, llama()(tokens).logits)
    assert not model.training
    assert load_causal_lm(folder, torch.bfloat16).lm_head.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("inert", [{"temperature": 0.6, "top_p": 0.9}, {"early_stopping": True}, {"num_beams": 1}])
def test_settings_of_generation_that_cannot_act_do_not_end_the_first_checkpoint(folder, tmp_path, inert):
    """As many published models have them."""
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"do_sample": False, "eos_token_id": [2, 5], "max_length": 77, **inert}))
    load_causal_lm(folder, torch.float32).save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "generation_config.json").read_text())
    assert (saved["eos_token_id"], saved["max_length"]) == ([2, 5], 77)
    assert not saved.get("do_sample")


def test_a_critic_begun_from_a_language_model_values_everything_at_zero_and_can_learn(folder, llama, sequences):
    model = load_scorer(folder, torch.float32)
    critic = Handle(Scorer(model), torch.device("cpu"), 10_000)
    values = critic.values(sequences([(2, 5), (1, 3)]))
    assert not values.any()
    values.sum().backward()
    assert model.score.weight.grad.abs().sum() > 0
    trunk = llama().model.state_dict()
    assert all(torch.equal(weight, trunk[name]) for name, weight in model.model.state_dict().items())


def test_a_trained_head_is_kept(scorer, tmp_path):
    saved = scorer()
    saved.model.save_pretrained(tmp_path)
    loaded = Scorer(load_scorer(str(tmp_path), torch.float32))
    tokens = torch.arange(1, 11)[None]
    assert loaded(tokens).abs().min() > 0
    assert torch.equal(loaded(tokens), saved(tokens))


def test_a_classifier_with_several_labels_is_no_critic(llama, tmp_path):
    LlamaForSequenceClassification(llama(num_labels=3).config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no model could be loaded from the folder"):
        load_scorer(str(tmp_path), torch.float32)


def test_an_architecture_without_such_a_head_is_refused(tmp_path):
    BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
                         vocab_size=64)).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"BertForSequenceClassification.*no head named 'score'"):
        load_scorer(str(tmp_path), torch.float32)


@pytest.mark.parametrize("load", [load_causal_lm, load_scorer])
def test_a_folder_without_a_model_names_itself_and_its_contents(load, tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(ModelError, match=r"no model could be loaded from the folder .* \(it holds notes.txt\)"):
        load(str(tmp_path), torch.float32)


def test_pickled_weights_are_not_read(llama, folder, tmp_path):
    (tmp_path / "model.safetensors").unlink()
    torch.save(llama().state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin"):
        load_causal_lm(folder, torch.float32)


def test_precision_follows_the_device():
    assert pick_dtype("auto", "cpu") == torch.float32
    assert pick_dtype("auto", "cuda:3") == torch.bfloat16
    assert pick_dtype("bfloat16", "cpu") == torch.bfloat16
    assert pick_device() == ("cuda:0" if torch.cuda.is_available() else "cpu")


def test_code_of_a_model_folder_is_not_run_unless_asked_for(tmp_path):
    config = {"model_type": "of_its_own", "architectures": ["Own"],
              "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(ModelError, match="trust_remote_code"):
        load_causal_lm(str(tmp_path), torch.float32)
    assert not (tmp_path / "ran").exists()
