"""Files of the kinds that people reported, against what they should mean."""

import json
from pathlib import Path

import pytest

from rlx.data import Limits, describe
from rlx.data.layouts import read_example
from rlx_sdk import DataError

EXPECTED = Path(__file__).parents[1] / "cases/expected/data"


def expected(case):
    return json.loads((EXPECTED / f"{case}.json").read_text())


def content(prompt):
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


@pytest.mark.parametrize("file", [
    "D01_pandas_index.parquet", "D02_large_types.parquet", "D05_verl_layout.parquet", "D10_bom_crlf.csv",
    "D11_crlf.jsonl", "D12_blank_lines.jsonl", "D26_hf_list_feature.parquet", "D26_hf_unknown_feature.parquet",
    "D32_zipped.jsonl.gz", "D32_zipped_misnamed.jsonl",
])
def test_a_file_gives_the_rows_that_were_meant(prepare, file):
    wanted, found = expected(file[:3]), prepare(file)
    examples = [found.example(i) for i in range(len(found))]
    assert len(examples) == wanted.get("rows", len(examples))
    prompts = [content(e.prompt).replace("\r\n", "\n") for e in examples]
    assert prompts == wanted.get("prompts", prompts)
    if "ground_truth" in wanted:
        assert [e.row["ground_truth"] for e in examples] == wanted["ground_truth"]
    if "extra_info_index" in wanted:
        assert [e.row["extra_info"]["index"] for e in examples] == wanted["extra_info_index"]
        assert all(type(e.row["extra_info"]) is dict for e in examples)


def test_cells_of_csv_are_as_written(prepare):
    found = prepare("D08_literal_null_words.csv", "demonstrations")
    rows = [found.rows[i] for i in range(len(found))]
    assert [r["output"] for r in rows] == expected("D08")["outputs"]
    assert [r["input"] for r in rows] == expected("D08")["inputs"]


def test_the_first_column_after_a_byte_order_mark(prepare):
    assert prepare("D10_bom_crlf.csv").rows.columns == ("prompt", "ground_truth")
    assert prepare("D10_bom_crlf.csv").rows[0]["ground_truth"] == "yes"


def test_a_null_beside_the_prompt_is_none(rows):
    assert read_example(rows("D06_nulls.parquet")[2], "rollouts").row["ground_truth"] is None


def test_system_turns_of_sharegpt(prepare):
    found = prepare("D15_sharegpt_system.jsonl", "demonstrations")
    for i, messages in enumerate(expected("D15")["messages"]):
        example = found.example(i)
        assert [*example.prompt, {"role": "assistant", "content": example.answers[0]}] == messages


def test_unknown_speakers_and_missing_answers_are_named(prepare, rows):
    with pytest.raises(DataError) as error:
        prepare("D16_sharegpt_tags.jsonl", "demonstrations")
    assert all(name in str(error.value) for name in expected("D16")["error_names"])
    assert "row 3: column 'conversations' should end with an assistant turn to learn" in str(error.value)
    assert "2 rows cannot be used" in str(error.value)


def test_calls_of_tools_are_the_same_from_jsonl_and_parquet(prepare, tokenizer):
    found = [prepare(f"D17_tool_calls.{kind}", "demonstrations") for kind in ("jsonl", "parquet")]
    for i in range(2):
        examples = [f.example(i) for f in found]
        assert examples[0] == examples[1]
        call = examples[0].prompt[1]["tool_calls"][0]["function"]
        assert call["arguments"] == expected("D17")["arguments"][i]
        whole = tokenizer().decode(found[0].ids(i, "prompt") + found[0].ids(i, "completion"))
        assert not any(word in whole for word in expected("D17")["must_not_contain_in_rendered_text"])
        assert tokenizer().decode(found[0].ids(i, "completion")) == ["7 degrees.", "About 11.3 km."][i]
        start, stop = found[0].ids(i, "turns")  # the call is the assistant's and is learned; what the tool said is not
        assert tokenizer().decode(found[0].ids(i, "prompt")[start:stop]).startswith("<call>")


def test_a_context_that_the_template_leaves_out_is_said(prepare):
    assert "leaves out" not in describe(prepare("D17_tool_calls.jsonl", "demonstrations"))
    assert "1 row has text that the chat template leaves out of what the model sees (row 1)" in describe(
        prepare("../tok/T05_messages.jsonl", "demonstrations", tokenizer_name="T05_system_dropped"))


def test_equal_sides_are_counted_and_named(prepare):
    assert "2 rows have equal answers on both sides, from which nothing is learned (row 2, row 3)" in describe(
        prepare("D22_chosen_equals_rejected.jsonl", "pairs"))


def test_foreign_markers_are_said_and_ones_own_are_not(prepare):
    assert describe(prepare("D24_already_templated.jsonl")).endswith(
        "1 row has markers of another model's chat template, plain text to this tokenizer (row 2)")


def test_a_prompt_of_template_tokens_only_is_said(tmp_path, prepare):
    (tmp_path / "d.jsonl").write_text('{"prompt": [{"role": "user", "content": ""}]}\n')
    assert "1 row has only empty messages in the prompt (row 1)" in describe(prepare(tmp_path / "d.jsonl"))


@pytest.mark.parametrize(("file", "kind"), [
    ("D06_nulls.parquet", "rollouts"), ("D13_bad_middle.jsonl", "rollouts"), ("D20_zero_tokens.jsonl", "rollouts"),
    ("D25_zero_rows.parquet", "rollouts"), ("D25_zero_rows.jsonl", "rollouts"), ("D25_header_only.csv", "rollouts"),
    ("D30_mixed_prompts.jsonl", "rollouts"), ("D37_wrong_layout.jsonl", "rollouts"),
])
def test_what_cannot_be_used_is_refused_by_name(prepare, file, kind):
    with pytest.raises(DataError) as error:
        prepare(file, kind)
    case = expected(file[:3])
    # A row with text, one with messages: both are used; only the third is not.
    names = [n for n in case["error_names"] if (n != "row 2" or file[:3] != "D30") and not n.startswith("D25")]
    assert all(name in str(error.value) for name in [file, *names]), str(error.value)


def test_a_dropped_row_is_counted_and_named(prepare):
    assert "2 rows dropped as too long (row 3, row 4)" in describe(
        prepare("D19_limit_raw.jsonl", limits=Limits(32, overlong="drop")))


@pytest.mark.parametrize("form", ["text", "chat"])
def test_what_both_sides_begin_with_is_the_prompt(prepare, tokenizer, form):
    found, wanted = prepare(f"D35_implicit_prompt_{form}.jsonl", "pairs"), expected("D35")
    example = found.example(0)
    assert example.prompt == wanted["prompt_text" if form == "text" else "prompt_messages"]
    assert list(example.answers) == wanted["completions_text" if form == "text" else "completions_messages"]
    assert [tokenizer().decode(found.ids(0, side)) for side in ("chosen", "rejected")] == list(example.answers)
