"""Builds the bundled model rlx-tiny and the prompts of the quickstart.

    python examples/tiny_model/build.py --work /tmp/rlx-tiny

The work folder receives the SFT corpus, the model with random weights and the training run. The trained model, its
model card and the prompts go to core/rlx/quickstart.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import torch
from corpus import conversations, preferences
from tokenizer import MAX_LENGTH, train
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

QUICKSTART = Path(__file__).parents[2] / "core" / "rlx" / "quickstart"
CARD = Path(__file__).with_name("model_card.md")
CORPUS_ROWS = 60_000
PROMPT_ROWS = 384
LONGEST_ANSWER = 96
STEPS = 4000


def prompts(seed: int) -> pd.DataFrame:
    """The quickstart's prompts, with an answer and a pair of better and worse answers each."""
    return pd.DataFrame(preferences(PROMPT_ROWS, seed + 1))


def corpus(seed: int) -> pd.DataFrame:
    """The SFT corpus; the quickstart's prompts are not in it."""
    held_out = frozenset(zip(*(prompts(seed)[column] for column in ("instruction", "input")), strict=True))
    return pd.DataFrame(conversations(CORPUS_ROWS, seed, held_out))


def new_tokenizer(rows: pd.DataFrame) -> PreTrainedTokenizerFast:
    """A tokenizer trained on all the text of the corpus."""
    return train(text for column in ("instruction", "input", "output") for text in rows[column] if text)


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A Llama of about 1.15 million random weights."""
    torch.manual_seed(seed)
    end_and_pad = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        initializer_range=0.05,
        intermediate_size=320,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=None,
        **end_and_pad,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(do_sample=True, max_new_tokens=LONGEST_ANSWER, **end_and_pad)
    return model


def run_sft(start: Path, data: Path, runs: Path) -> Path:
    """Trains the model in `start` on `data` with rlx, and returns the folder of the trained model."""
    settings = {
        "run.dir": runs,
        "train.batch_size": 32,
        "train.optim.policy.lr": 5e-3,
        "train.optim.policy.schedule": "cosine",
        "train.optim.policy.warmup_steps": 60,
        "train.optim.policy.weight_decay": 0.01,
    }
    overrides = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    arguments = ["--model", str(start), "--data", str(data), "--steps", str(STEPS), "--name", "sft", *overrides]
    subprocess.run([sys.executable, "-m", "rlx", "train", "--algo", "sft", *arguments], check=True)
    return runs / "sft" / "checkpoints" / f"global_step_{STEPS}" / "actor"


def main() -> None:
    """Builds everything."""
    parser = argparse.ArgumentParser(description="Build rlx-tiny and the quickstart's prompts.")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is made on the way")
    parser.add_argument("--out", type=Path, default=QUICKSTART, help="folder of the model and the prompts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-train", action="store_true", help="stop before the training")
    args = parser.parse_args()

    start, data = args.work / "start", args.work / "corpus.parquet"
    for folder in (args.work, args.out):
        folder.mkdir(parents=True, exist_ok=True)
    prompts(args.seed).to_parquet(args.out / "prompts.parquet", index=False)
    rows = corpus(args.seed)
    rows.to_parquet(data, index=False)
    tokenizer = new_tokenizer(rows)
    tokenizer.save_pretrained(start)
    new_model(tokenizer, args.seed).save_pretrained(start)
    if not args.no_train:
        target = args.out / "rlx-tiny"
        shutil.copytree(run_sft(start, data, args.work / "runs"), target, dirs_exist_ok=True)
        shutil.copyfile(CARD, target / "README.md")


if __name__ == "__main__":
    main()
