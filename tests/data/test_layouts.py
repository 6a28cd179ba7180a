"""Rows as people have them, and what is wrong with those that cannot be used."""

import pytest

from rlx.data.layouts import RowProblem, missing_columns, read_example
from rlx_sdk import DataError

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}


@pytest.mark.parametrize(("row", "kind", "prompt", "answers", "rest"), [
    ({"prompt": "p", "x": 1}, "rollouts", "p", (), {"x": 1}),
    ({"prompt": [USER]}, "rollouts", [USER], (), {}),
    ({"instruction": "do", "input": "it", "output": "o", "x": None}, "rollouts",
     [{"role": "user", "content": "do\n\nit"}], (), {"output": "o", "x": None}),
    ({"instruction": "do", "output": "o"}, "demonstrations", [{"role": "user", "content": "do"}], ("o",),
     {"output": "o"}),
    ({"prompt": "p", "completion": "c"}, "demonstrations", "p", ("c",), {"completion": "c"}),
    ({"messages": [USER, ANSWER]}, "demonstrations", [USER], ("Yo",), {}),
    ({"messages": [USER, ANSWER]}, "rollouts", [USER], (), {}),
    ({"messages": [USER]}, "rollouts", [USER], (), {}),
    ({"prompt": "Hi", "messages": [USER, ANSWER]}, "demonstrations", [USER], ("Yo",), {"prompt": "Hi"}),
    ({"prompt": None, "messages": [USER]}, "rollouts", [USER], (), {"prompt": None}),
    ({"prompt": "p", "chosen": "a", "rejected": "b"}, "pairs", "p", ("a", "b"), {"chosen": "a", "rejected": "b"}),
    ({"prompt": [USER], "chosen": [ANSWER], "rejected": [USER, ANSWER]}, "pairs", [USER], ("Yo", "Yo"),
     {"chosen": [ANSWER], "rejected": [USER, ANSWER]}),
    ({"instruction": "do", "chosen": "a", "rejected": "b"}, "pairs", [{"role": "user", "content": "do"}], ("a", "b"),
     {"chosen": "a", "rejected": "b"}),
])
def test_known_layouts(row, kind, prompt, answers, rest):
    example = read_example(row, kind)
    assert (example.prompt, example.answers, example.row) == (prompt, answers, rest)


def test_three_ways_to_leave_input_empty_are_one(rows, tokenizer):
    file = rows("D07_alpaca_empty_input.jsonl")
    examples = [read_example(file[i], "demonstrations") for i in range(4)]
    prompts = [tokenizer().encode_prompt(e.prompt) for e in examples]
    assert prompts[0] == prompts[1] == prompts[2]
    assert "None" not in tokenizer().decode(prompts[0])
    assert examples[3].prompt[0]["content"] == "Translate to Spanish.\n\ngood night"


@pytest.mark.parametrize(("row", "kind", "said"), [
    ({"prompt": None}, "rollouts", "column 'prompt' is missing or null"),
    ({"prompt": ""}, "rollouts", "column 'prompt' is empty"),
    ({"prompt": "  \n"}, "rollouts", "column 'prompt' is empty"),
    ({"prompt": 7}, "rollouts", "column 'prompt' should be text and is int 7"),
    ({"prompt": {"role": "user"}}, "rollouts", "column 'prompt' should be text and is dict"),
    ({"prompt": []}, "rollouts", "column 'prompt' should be a list of messages and is []"),
    ({"prompt": ["hi"]}, "rollouts", "column 'prompt' should hold turns like {\"role\": \"user\", \"content\": \"…\"}"),
    ({"prompt": [{"from": "human"}]}, "rollouts", "column 'prompt' should hold turns like"),
    ({"prompt": [ANSWER]}, "rollouts", "column 'prompt' has no turn before the assistant's"),
    ({"messages": None}, "rollouts", "column 'messages' should be a list of messages and is None"),
    ({"messages": [USER]}, "demonstrations", "column 'messages' should end with an assistant turn to learn and ends"),
    ({"messages": [USER, {"role": "assistant", "content": ""}]}, "demonstrations", "column 'messages' is empty"),
    ({"instruction": None}, "rollouts", "column 'instruction' is missing or null"),
    ({"instruction": "a", "input": 3}, "rollouts", "column 'input' should be text and is int 3"),
    ({"instruction": "a", "output": None}, "demonstrations", "column 'output' is missing or null"),
    ({"prompt": "p", "chosen": "a", "rejected": None}, "pairs", "column 'rejected' is missing or null"),
    ({"prompt": "p", "chosen": [USER], "rejected": "b"}, "pairs", "column 'chosen' should end with an assistant turn"),
    ({"prompt": "half \ud83d of one"}, "rollouts", "column 'prompt' holds half a character at position 5"),
    ({"prompt": [{"role": "user", "content": "\udc00"}]}, "rollouts", "column 'prompt' holds half a character"),
    ({"instruction": "a", "input": "\ud800"}, "rollouts", "column 'input' holds half a character"),
])
def test_what_is_wrong_with_a_row(row, kind, said):
    with pytest.raises(RowProblem) as error:
        read_example(row, kind)
    assert str(error.value).startswith(said)


def test_nulls_that_arrow_put_into_turns_are_left_out():
    turn = {"role": "user", "content": None, "name": None, "tool_calls": [1]}
    [found] = read_example({"prompt": [turn]}, "rollouts").prompt
    assert found == {"role": "user", "content": None, "tool_calls": [1]}


@pytest.mark.parametrize(("columns", "kind"), [
    (["prompt"], "rollouts"), (["messages"], "rollouts"), (["instruction", "output"], "rollouts"),
    (["prompt", "completion"], "demonstrations"), (["messages"], "demonstrations"),
    (["prompt", "messages"], "demonstrations"), (["instruction", "output"], "demonstrations"),
    (["messages", "chosen", "rejected"], "pairs"),
])
def test_columns_that_suffice(columns, kind):
    assert missing_columns(columns, kind) is None


@pytest.mark.parametrize(("columns", "kind", "said"), [
    (["Question", "Answer"], "rollouts",
     "needs a prompt column (instruction, prompt or messages); it has the columns Question, Answer. Map your columns "
     "to these names, e.g. --set data.columns.prompt=Question."),
    (["promt", "n"], "rollouts", "--set data.columns.prompt=promt."),
    (["text"], "rollouts", "--set data.columns.prompt=text."),
    (["prompt", "Answer"], "demonstrations",
     "needs a prompt and its answer (instruction and output, prompt and completion, or messages); it has the columns "
     "prompt, Answer. Map your columns to these names, e.g. --set data.columns.completion=Answer."),
    (["prompt", "text"], "demonstrations", "--set data.columns.completion=text."),
    (["prompt", "chosen"], "pairs", "needs a prompt column, and the columns chosen and rejected; it has the columns"),
    (["chosen", "rejected"], "pairs", "--set data.columns.prompt=NAME."),
])
def test_missing_columns_bring_those_found_and_the_way_out(columns, kind, said):
    assert said in missing_columns(columns, kind)


@pytest.mark.parametrize(("file", "kind", "said"), [
    ("D37_wrong_layout.jsonl", "rollouts", ["Question, Answer", "--set data.columns.prompt=Question"]),
    ("base_prompts.jsonl", "pairs", ["row_id, prompt, ground_truth", "the columns chosen and rejected"]),
    ("D06_nulls.parquet", "rollouts", ["1 row cannot be used", "row 2: column 'prompt' is missing or null"]),
    ("D20_zero_tokens.jsonl", "rollouts", ["row 2: column 'prompt' is empty",
                                           "row 3: column 'prompt' should be a list of messages and is []"]),
    ("D30_mixed_prompts.jsonl", "rollouts", ["1 row cannot be used", "row 3: column 'prompt' should be text"]),
])
def test_files_with_unusable_rows_are_refused_by_row(prepare, file, kind, said):
    with pytest.raises(DataError) as error:
        prepare(file, kind)
    assert all(part in str(error.value) for part in [file, *said]), str(error.value)


def test_many_bad_rows_are_counted_and_the_first_shown(tmp_path, prepare):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "p"}\n' + '{"prompt": null}\n' * 1999)
    with pytest.raises(DataError) as error:
        prepare(tmp_path / "bad.jsonl")
    assert "1,999 rows cannot be used\n  row 2: " in str(error.value)
    assert str(error.value).endswith("row 4: column 'prompt' is missing or null\n  … and 1,996 more")
