"""Text between special tokens is encoded by itself: the ids are those of the whole."""

import re

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, Unigram
from transformers import PreTrainedTokenizerFast

from rlx.data.layouts import Example
from rlx.data.tokenizer import Tokenizer

NAMES = ["<|im|>", "<|im|>x", "<eos>"]
LETTERS = ["▁", *"abx \n<|im>eos"]
MERGED = ["ab", "▁a", "▁ab", "im", "\n\n"]


def merging():
    pairs = [("a", "b"), ("▁", "a"), ("▁", "ab"), ("i", "m"), ("\n", "\n")]
    return Backend(BPE({t: i for i, t in enumerate([*LETTERS, *MERGED])}, pairs, unk_token="x"))


def choosing():
    return Backend(Unigram([("x", -9.0), *((t, -1.0 / len(t)) for t in [*LETTERS, *MERGED] if t != "x")], 0))


def split(backend):
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[a-z]+|\s+|."), "isolated")
    return backend


def spaced(backend, scheme):
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return backend


def folded(backend):
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return backend


MAKE = {
    "bpe": merging, "unigram": choosing, "split": lambda: split(merging()), "prepend": lambda: folded(merging()),
    "always": lambda: spaced(choosing(), "always"), "first": lambda: spaced(choosing(), "first"),
    "never": lambda: spaced(merging(), "never"),
}


def made(name, **special):
    backend = MAKE[name]()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False, **special) for t in NAMES])
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>"), 0, (1,))


FOUND = {(name, where): made(name, **({where: True} if where else {}))
         for name in MAKE for where in ("", "lstrip", "rstrip", "single_word")}
texts = st.lists(st.sampled_from([*NAMES, *LETTERS, "ab", " ab"]), max_size=12).map("".join)


@given(st.lists(texts, min_size=1, max_size=4))
def test_ids_are_those_of_the_whole(some):
    for which, found in FOUND.items():
        wanted = {text: found.hf(text, add_special_tokens=False)["input_ids"] for text in some}
        assert found._encode_all(some) == wanted, which


def test_text_is_parted_wherever_what_is_beside_a_special_token_does_not_matter():
    parted = {which for which, found in FOUND.items() if found._between}
    assert parted == {(name, "") for name in MAKE if name != "first"}


def test_a_turn_that_comes_again_is_encoded_once(tokenizer, monkeypatch):
    found, seen = tokenizer(), []
    whole = type(found)._encode_whole
    monkeypatch.setattr(type(found), "_encode_whole", lambda self, texts: seen.extend(texts) or whole(self, texts))
    turns = [{"role": role, "content": f"{role} {n}"} for n in range(5) for role in ("user", "assistant")]
    encoded = found.encode(Example(turns[:-1], (turns[-1]["content"],), dialogue=True))
    assert len(encoded.turns) == 2 * 4
    assert sum(bool(re.search(r"\d", text)) for text in seen) == 10
