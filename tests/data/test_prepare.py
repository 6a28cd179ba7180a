"""Rows as token ids: limits, columns, held-out rows."""

import json
from pathlib import Path

import pytest

from rlx.data import Limits, describe
from rlx.sources import read_rows
from rlx_sdk import DataError

CASES = Path(__file__).parents[1] / "cases"


def kept(prepared):
    return [prepared.row_index(i) for i in range(len(prepared))]


@pytest.mark.parametrize(("file", "tokens", "limit", "fits"), [
    ("D19_limit_raw.jsonl", [31, 32, 33, 33, 32], 32, [0, 1, 4]),
    ("D19_limit_chat.jsonl", None, None, [0, 1]),
])
def test_the_limit_passes_and_one_above_is_dropped_and_counted(prepare, file, tokens, limit, fits):
    everything = prepare(file)
    lengths = [len(everything.ids(i, "prompt")) for i in range(len(everything))]
    assert tokens is None or lengths == tokens  # tokens, not characters
    limit = limit or lengths[1]
    found = prepare(file, limits=Limits(limit, overlong="drop"))
    assert kept(found) == fits
    assert found.dropped == len(lengths) - len(fits)
    count = "1 row" if found.dropped == 1 else "2 rows"
    assert f"{count} dropped as too long" in describe(found)


def test_one_above_the_limit_is_refused_with_row_length_and_limit(prepare):
    assert len(prepare("D19_limit_raw.jsonl", limits=Limits(33))) == 5
    with pytest.raises(DataError) as error:
        prepare("D19_limit_raw.jsonl", limits=Limits(32))
    assert "D19_limit_raw.jsonl': 2 rows too long" in str(error.value)
    assert "row 3: the prompt has 33 tokens, the limit (data.max_prompt) is 32" in str(error.value)
    assert "row 4: the prompt has 33 tokens" in str(error.value)
    assert str(error.value).endswith("Raise the limit, or leave such rows out with data.overlong=drop.")


def test_a_long_row_is_named_once_with_its_length(prepare):
    with pytest.raises(DataError) as error:
        prepare("D29_long_row.jsonl", limits=Limits(256))
    assert str(error.value).count("row 2") == 1
    assert "row 2: the prompt has 42,000 tokens, the limit (data.max_prompt) is 256" in str(error.value)


def test_a_pair_is_as_long_as_its_longer_side_and_never_cut(prepare):
    file = "D23_truncated_to_nothing.jsonl"
    everything = prepare(file, "pairs")
    lengths = [len(everything.ids(i, "prompt")) + max(len(everything.ids(i, c)) for c in ("chosen", "rejected"))
               for i in range(3)]
    assert lengths == [52, 43, 51]
    assert kept(prepare(file, "pairs", Limits(total=51, overlong="drop"))) == [1, 2]
    with pytest.raises(DataError, match=r"row 1: prompt and answer have 40 \+ 12 tokens, the limit \(data"):
        prepare(file, "pairs", Limits(total=51))
    with pytest.raises(DataError, match=r"all 3 rows are over the limits and were dropped\. Raise data\.max_prompt or"):
        prepare(file, "pairs", Limits(total=32, overlong="drop"))


def test_equal_sides_are_a_pair(prepare):
    found = prepare("D22_chosen_equals_rejected.jsonl", "pairs")
    assert len(found) == 3
    assert found.ids(1, "chosen") == found.ids(1, "rejected")


def test_rewards_see_every_other_column_as_plain_values(prepare):
    found = prepare("D31_numeric_truth.parquet")
    row = found.example(0).row
    assert row.keys() == {"ground_truth", "maybe_int", "level", "big", "dec"}
    assert (row["ground_truth"], type(row["ground_truth"]), row["big"]) == (72, int, 2**53 + 1)
    assert found.example(1).row["level"] is None


def test_a_null_in_another_column_stays_none(tmp_path, prepare):
    (tmp_path / "d.jsonl").write_text('{"prompt": "p", "ground_truth": null}\n{"prompt": "q", "extra": [1]}\n')
    found = prepare(tmp_path / "d.jsonl")
    assert [found.example(i).row for i in range(2)] == [{"ground_truth": None}, {"extra": [1]}]


def test_rows_may_hold_text_and_messages(prepare, tmp_path, rows):
    lines = (json.dumps(rows("D30_mixed_prompts.jsonl")[i]) + "\n" for i in range(2))
    (tmp_path / "mixed.jsonl").write_text("".join(lines))
    found = prepare(tmp_path / "mixed.jsonl")
    assert found.ids(0, "prompt") == list(b"plain text")
    assert found.ids(1, "prompt")[0] == 259


def test_text_round_trips_byte_for_byte(prepare, tokenizer):
    found = prepare("D27_unicode.jsonl")
    assert [len(found.ids(i, "prompt")) for i in range(9)] == [24, 29, 20, 56, 5, 6, 8, 21, 8]
    for i in range(9):
        assert tokenizer().decode(found.ids(i, "prompt")) == found.example(i).prompt


def test_columns_are_mapped(prepare):
    found = prepare("D37_wrong_layout.jsonl", "demonstrations", columns={"prompt": "Question", "completion": "Answer"})
    assert found.ids(1, "prompt") == list(b"2+2?")
    assert found.ids(1, "completion") == [*b"4", 260]
    assert found.example(0).row == {"completion": "2"}


def test_a_mapped_column_takes_the_place_of_one_with_that_name(tmp_path, prepare):
    (tmp_path / "d.jsonl").write_text('{"question": "better", "prompt": "worse", "n": 1}\n')
    found = prepare(tmp_path / "d.jsonl", columns={"prompt": "question"}).example(0)
    assert (found.prompt, found.row) == ("better", {"n": 1})
    swapped = prepare(tmp_path / "d.jsonl", columns={"prompt": "question", "question": "prompt"}).example(0)
    assert (swapped.prompt, swapped.row) == ("better", {"n": 1, "question": "worse"})


def test_a_mapping_from_a_column_that_is_nowhere_is_refused(tmp_path, prepare):
    (tmp_path / "d.jsonl").write_text('{"prompt": "p"}\n{"prompt": "q", "truth": 1}\n')
    assert prepare(tmp_path / "d.jsonl", columns={"ground_truth": "truth"}).example(1).row == {"ground_truth": 1}
    with pytest.raises(DataError, match=r"d\.jsonl' has no column trut, which data\.columns names; it has prompt"):
        prepare(tmp_path / "d.jsonl", columns={"ground_truth": "trut"})


def test_held_out_rows_are_the_last_ones(prepare):
    everything = prepare("base_prompts.jsonl")
    train, held_out = everything.split(3)
    assert (kept(train), kept(held_out)) == ([0, 1, 2, 3, 4], [5, 6, 7])
    assert held_out.ids(0, "prompt") == everything.ids(5, "prompt")
    assert held_out.example(2).row == everything.example(7).row
    with pytest.raises(DataError, match=r"data\.eval: 8 rows are to be held out of '.*', which has 8 usable rows"):
        everything.split(8)
    with pytest.raises(DataError, match=r"-1 rows are to be held out"):
        everything.split(-1)


def test_a_system_prompt_that_no_template_takes_is_said(prepare, tmp_path):
    file = tmp_path / "d.jsonl"
    file.write_text('{"prompt": "p"}\n{"prompt": "p", "system": "Be."}\n')
    assert "1 row has a column system, input, history or tools that the model is not shown" in describe(prepare(file))
    taken = prepare(file, columns={"instruction": "prompt"})
    assert "\n" not in describe(taken)
    assert [len(taken.ids(row, "prompt")) for row in (0, 1)] == [20, 33]  # a byte a token, with ChatML around


def test_a_file_is_described_in_one_line(prepare):
    described = describe(prepare("base_prompts.jsonl"))
    assert described.endswith("base_prompts.jsonl: 8 rows (row_id, prompt, ground_truth), prompts of 14 to 28 tokens")


def texts(prepared, tokenizer):
    names = [n for n in prepared.table.column_names if n not in ("row", "label", "turns", "margin")]
    return [[tokenizer.decode(prepared.ids(i, n), True) for n in names] for i in range(len(prepared))]


def written(folder, *rows):
    (folder / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "d.jsonl"


@pytest.mark.parametrize(("overlong", "kept"), [("truncate_left", "456789"), ("truncate_right", "012345")])
def test_long_prompts_are_cut_on_the_side_that_was_asked_for(tmp_path, prepare, tokenizer, overlong, kept):
    file = written(tmp_path, {"prompt": "0123456789"}, {"prompt": "short"})
    found = prepare(file, limits=Limits(6, overlong=overlong))
    assert texts(found, tokenizer()) == [[kept], ["short"]]
    assert "1 row has been cut to the limits (row 1)" in describe(found)


@pytest.mark.parametrize(("overlong", "kept"), [("truncate_left", "6789"), ("truncate_right", "0123")])
def test_of_messages_the_longest_is_cut_and_the_template_stays_whole(tmp_path, prepare, tokenizer, overlong, kept):
    prompt = [{"role": "system", "content": "Be."}, {"role": "user", "content": "0123456789"}]
    file = written(tmp_path, {"prompt": prompt})
    limit = len(prepare(file).ids(0, "prompt")) - 6
    found = prepare(file, limits=Limits(limit, overlong=overlong))
    [[text]] = texts(found, tokenizer())
    assert text == ("<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\n" + kept + "<|im_end|>\n"
                    "<|im_start|>assistant\n")
    assert len(found.ids(0, "prompt")) == limit


def test_pairs_cut_on_the_right_are_what_was_meant_and_one_cut_to_nothing_is_dropped_and_named(prepare):
    case = json.loads((CASES / "expected/data/D23.json").read_text())["completion_tokens_left_keep_start"]
    found = prepare("D23_truncated_to_nothing.jsonl", "pairs", Limits(total=32, overlong="truncate_right"))
    assert (kept(found), found.dropped) == ([1, 2], 1)
    assert "2 rows (prompt, chosen, rejected), " in describe(found)
    assert "1 row dropped as too long (row 1)" in describe(found)
    assert [[len(found.ids(i, side)) for side in ("chosen", "rejected")] for i in range(2)] == [
        case["row 2"], case["row 3"]]


def test_pairs_cut_on_the_left_keep_their_answers_and_one_prompt(tmp_path, prepare, tokenizer):
    found = prepare(written(tmp_path, {"prompt": "0123456789", "chosen": "yes", "rejected": "n"}), "pairs",
                    Limits(total=8, overlong="truncate_left"))
    assert texts(found, tokenizer()) == [["6789", "yes<|im_end|>", "n<|im_end|>"]]


@pytest.mark.parametrize(("overlong", "kept"), [("truncate_left", ["5", "678<|im_end|>"]),
                                                ("truncate_right", ["0", "1234"])])
def test_plain_text_is_learned_but_for_its_first_token(tmp_path, prepare, tokenizer, overlong, kept):
    file = written(tmp_path, {"text": "012345678"})
    assert texts(prepare(file, "demonstrations"), tokenizer()) == [["0", "12345678<|im_end|>"]]
    assert texts(prepare(file, "demonstrations", Limits(total=5, overlong=overlong)), tokenizer()) == [kept]


@pytest.mark.parametrize("overlong", ["truncate_left", "truncate_right"])
def test_a_demonstration_of_which_nothing_would_be_left_is_dropped_and_counted(tmp_path, prepare, overlong):
    rows = [{"prompt": "0123456789", "completion": "yes"}, {"prompt": "0", "completion": "1"}]
    found = prepare(written(tmp_path, *rows), "demonstrations", Limits(total=4, overlong=overlong))
    assert (kept(found), len(found.ids(0, "completion"))) == ([1], 2)
    assert "1 row dropped as too long (row 1)" in describe(found)


@pytest.mark.parametrize("overlong", ["truncate_left", "truncate_right"])
def test_nothing_is_cut_to_nothing(tmp_path, prepare, overlong):
    file = written(tmp_path, {"prompt": [{"role": "user", "content": "Hi"}]})
    with pytest.raises(DataError, match=r"all 1 row are over the limits and were dropped\. Raise data\.max_prompt"):
        prepare(file, limits=Limits(19, overlong=overlong))


def test_labels_are_a_column(tmp_path, prepare):
    found = prepare(written(tmp_path, *({"prompt": "p", "completion": "c", "label": v} for v in (True, 0, "false"))),
                    "labelled")
    assert found.table.column_names == ["row", "prompt", "completion", "label"]
    assert found.table.column("label").to_pylist() == [True, False, False]


def test_a_column_may_come_from_inside_another(tmp_path, prepare):
    file = written(tmp_path, {"meta": {"q": {"text": "p"}}, "prompt": None, "n": 1})
    found = prepare(file, columns={"prompt": "meta.q.text"})
    assert (found.example(0).prompt, found.example(0).row) == ("p", {"meta": {"q": {"text": "p"}}, "n": 1})
    with pytest.raises(DataError, match=r"has no column meta\.q\.x, which data\.columns names"):
        prepare(file, columns={"prompt": "meta.q.text", "truth": "meta.q.x"})


CHAT = [{"role": "system", "content": "Be."}, {"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}, {"role": "user", "content": "3+3"},
        {"role": "assistant", "content": "6"}]


def learned(found, tokenizer, row=0):
    """Texts of the earlier turns to learn."""
    bounds, ids = found.ids(row, "turns"), found.ids(row, "prompt")
    return [tokenizer.decode(ids[a:b], specials=True) for a, b in zip(bounds[::2], bounds[1::2], strict=True)]


def test_every_assistant_turn_of_a_conversation_is_learned_to_its_stop_token(tmp_path, prepare, tokenizer):
    last = {"prompt": CHAT[:-1], "completion": "6"}
    found = prepare(written(tmp_path, {"messages": CHAT}, {"messages": CHAT[1:3]}), "demonstrations")
    assert learned(found, tokenizer()) == ["2<|im_end|>", "4<|im_end|>"]
    assert found.ids(1, "turns") == []
    seqs = read_rows(found, [0, 1], 0).seqs
    text = [tokenizer().decode(ids[mask].tolist(), specials=True) for ids, mask in zip(seqs.tokens, seqs.mask,
                                                                                   strict=True)]
    assert text == ["2<|im_end|>4<|im_end|>6<|im_end|>", "2<|im_end|>"]
    assert prepare(written(tmp_path, last), "demonstrations").ids(0, "turns") == []  # a prompt is no answer


THOUGHTLESS = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content if loop.last else "
               "m.content.split('|')[-1] }}<|im_end|>\n{% endfor %}"
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def test_a_turn_that_the_template_writes_otherwise_later_is_not_learned_and_counted(tmp_path, prepare, tokenizer,
                                                                                   monkeypatch):
    monkeypatch.setattr(tokenizer().hf, "chat_template", THOUGHTLESS)
    chat = [dict(m) for m in CHAT]
    chat[2]["content"] = "well|2"
    found = prepare(written(tmp_path, {"messages": chat}), "demonstrations")
    assert learned(found, tokenizer()) == ["4<|im_end|>"]
    assert "1 row has earlier turns that the chat template writes otherwise" in describe(found)


def test_pairs_may_have_margins(tmp_path, prepare):
    sides = {"prompt": "p", "chosen": "a", "rejected": "b"}
    found = prepare(written(tmp_path, {**sides, "margin": 1.5}, {**sides, "margin": None}, sides), "pairs")
    assert read_rows(found, [2, 0, 1], 0).margin.tolist() == [0, 1.5, 0]
    for wrong in ("much", True):
        with pytest.raises(DataError, match=r"row 1: .*margin.* should be a number and is"):
            prepare(written(tmp_path, {**sides, "margin": wrong}), "pairs")


def test_the_longer_answer_decides_how_the_prompt_of_a_pair_is_cut(tmp_path, prepare):
    m21 = json.loads((CASES / "math/M21_dpo_truncation.json").read_text())
    expected, limit = m21["expected"], m21["inputs"]["max_length"]
    pair = {"prompt": "012345", "chosen": "abcd", "rejected": "ab"}  # each answer has a stop token too

    def lengths(overlong):
        found = prepare(written(tmp_path, pair), "pairs", Limits(total=limit, overlong=overlong))
        return [len(found.ids(0, name)) for name in ("prompt", "chosen", "rejected")]

    start, end = expected["keep_start"], expected["keep_end"]
    assert lengths("truncate_right") == [6, start["chosen_tokens"], start["rejected_tokens"]]
    assert lengths("truncate_left") == [end["chosen_prompt_tokens_left"], 5, 3]
    with pytest.raises(DataError, match="all 1 row are over the limits"):
        prepare(written(tmp_path, {**pair, "prompt": "012345678"}), "pairs",
                Limits(total=limit, overlong="truncate_right"))
