"""Rows as people have them, and what is wrong with those that cannot be used."""

import json
from pathlib import Path

import pytest
import yaml

from rlx.data import layouts
from rlx.data.layouts import missing_columns, read_example
from rlx.data.messages import RowProblem
from rlx_sdk import DataError

HH = "\n\nHuman: Is it?\n\nAssistant:"
USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}
SYSTEM = {"role": "system", "content": "Be."}
CASES = Path(__file__).parents[1] / "cases"


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
    ({"instruction": "do", "output": "o", "system": "Be.", "history": [["q", "a"]]}, "demonstrations",
     [{"role": "system", "content": "Be."}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"},
      {"role": "user", "content": "do"}], ("o",), {"output": "o"}),
    ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yo"}], "system": "Be."},
     "demonstrations", [{"role": "system", "content": "Be."}, USER], ("Yo",), {}),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]}]},
     "rollouts", [USER], (), {}),
    ({"messages": [{"role": "human", "content": "Hi"}, {"role": "Model", "content": "Yo"}]}, "demonstrations", [USER],
     ("Yo",), {}),
    ({"messages": json.dumps([USER, ANSWER])}, "demonstrations", [USER], ("Yo",), {}),
    ({"text": "all of it", "n": 1}, "demonstrations", "", ("all of it",), {"n": 1}),
    ({"prompt": "Hi", "completion": [ANSWER]}, "demonstrations", [USER], (ANSWER,), {"completion": [ANSWER]}),
    ({"prompt": "Hi", "chosen": [ANSWER], "rejected": ANSWER}, "pairs", [USER], (ANSWER, ANSWER),
     {"chosen": [ANSWER], "rejected": ANSWER}),
    ({"prompt": "Hi", "completions": [[ANSWER], "No"], "scores": [1, 0]}, "pairs", [USER], (ANSWER, "No"),
     {"completions": [[ANSWER], "No"], "scores": [1, 0]}),
    ({"prompt": "p", "completion": "c", "label": True}, "labelled", "p", ("c",), {"completion": "c", "label": True}),
    ({"prompt": "Hi", "chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "No"}]}, "pairs", [USER],
     ("Yo", "No"), {"chosen": [USER, ANSWER], "rejected": [USER, {**ANSWER, "content": "No"}]}),
    ({"conversations": [{"from": "human", "value": "Hi"}], "chosen": {"from": "gpt", "value": "Yo"},
      "rejected": {**ANSWER, "content": "No"}}, "pairs", [USER], ("Yo", "No"),
     {"chosen": {"from": "gpt", "value": "Yo"}, "rejected": {**ANSWER, "content": "No"}}),
    ({"chosen": HH + " Yes.", "rejected": HH + " Yes, but no."}, "pairs", HH, (" Yes.", " Yes, but no."),
     {"chosen": HH + " Yes.", "rejected": HH + " Yes, but no."}),
    ({"chosen": "One and two", "rejected": "One and three"}, "pairs", "One and", (" two", " three"),
     {"chosen": "One and two", "rejected": "One and three"}),
    ({"prompt": "p", "completions": ["a", "b", "c"], "scores": [0.5, 2, -1]}, "pairs", "p", ("b", "c"),
     {"completions": ["a", "b", "c"], "scores": [0.5, 2, -1]}),
    ({"prompt": [USER], "system": "", "x": 1}, "rollouts", [USER], (), {"x": 1}),
    ({"messages": [SYSTEM, USER], "system": "No.", "tools": []}, "rollouts", [SYSTEM, USER], (), {"system": "No."}),
    ({"prompt": [USER], "reward_model": {"ground_truth": "7"}}, "rollouts", [USER], (),
     {"reward_model": {"ground_truth": "7"}, "ground_truth": "7"}),
])
def test_known_layouts(row, kind, prompt, answers, rest):
    example = read_example(row, kind)
    assert (example.prompt, example.answers, example.row) == (prompt, answers, rest)


@pytest.mark.parametrize(("row", "kind", "prompt", "hidden"), [
    ({"prompt": "Hi"}, "rollouts", "Hi", False),
    ({"prompt": "Hi", "system": None, "tools": []}, "rollouts", "Hi", False),
    ({"prompt": "Hi", "system": "Be."}, "rollouts", "Hi", True),
    ({"prompt": "Hi", "history": [["q", "a"]]}, "rollouts", "Hi", True),
    ({"prompt": "Hi", "tools": [{"name": "f"}], "completion": "Yo"}, "demonstrations", "Hi", True),
    ({"text": "Hi", "system": "Be."}, "demonstrations", "", True),
    ({"instruction": "Hi", "system": "Be."}, "rollouts", [SYSTEM, USER], False),
    ({"instruction": "Hi", "history": [["Hi", "Yo"]]}, "rollouts", [USER, ANSWER, USER], False),
    ({"prompt": [USER], "system": "Be."}, "rollouts", [SYSTEM, USER], False),
    ({"prompt": [USER], "system": "Be.", "tools": "[]"}, "rollouts", [SYSTEM, USER], False),
    ({"prompt": [SYSTEM, USER], "system": "Be."}, "rollouts", [SYSTEM, USER], False),
    ({"prompt": [SYSTEM, USER], "system": "Be otherwise."}, "rollouts", [SYSTEM, USER], True),
    ({"prompt": [{**SYSTEM, "role": "developer"}, USER], "system": "Be otherwise."}, "rollouts",
     [{**SYSTEM, "role": "developer"}, USER], True),
    ({"messages": [SYSTEM, USER], "system": "Be otherwise."}, "rollouts", [SYSTEM, USER], True),
    ({"messages": [USER], "system": "Be.", "input": "it"}, "rollouts", [SYSTEM, USER], True),
    ({"prompt": [USER], "system": "Be.", "chosen": [USER, ANSWER], "rejected": "No"}, "pairs", [SYSTEM, USER], False),
    ({"chosen": [USER, ANSWER], "rejected": [USER, ANSWER], "system": "Be."}, "pairs", [SYSTEM, USER], False),
    ({"prompt": "Hi", "chosen": ANSWER, "rejected": ANSWER, "system": "Be."}, "pairs", [SYSTEM, USER], False),
])
def test_columns_of_a_role_are_shown_to_the_model_or_said_not_to_be(row, kind, prompt, hidden):
    example = read_example(row, kind)
    assert (example.prompt, example.hidden) == (prompt, hidden)


def test_three_ways_to_leave_input_empty_are_one(rows, tokenizer):
    file = rows("D07_alpaca_empty_input.jsonl")
    examples = [read_example(file[i], "demonstrations") for i in range(4)]
    prompts = [tokenizer().encode_prompt(e.prompt) for e in examples]
    assert prompts[0] == prompts[1] == prompts[2]
    case = json.loads((CASES / "expected/data/D07.json").read_text())
    assert not any(word in tokenizer().decode(prompt) for word in case["must_not_contain"] for prompt in prompts)
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
    ({"prompt": [ANSWER]}, "rollouts", "column 'prompt' should end with a user or tool turn and ends with 'assistant'"),
    ({"messages": [ANSWER]}, "rollouts", "column 'messages' has no turn before the assistant's"),
    ({"messages": [{"role": "user", "content": None}]}, "rollouts", "column 'messages' has a turn of 'user' whose"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "rollouts", "column 'messages' has a turn of"),
    ({"conversations": [{"from": "narrator", "value": "x"}]}, "rollouts",
     "column 'conversations' has a turn from 'narrator'; known are system, developer, user, assistant, tool, human"),
    ({"conversations": [{"from": "function_call", "value": "{"}]}, "rollouts", "column 'conversations' should be JSON"),
    ({"conversations": [{"from": "function_call", "value": "[1]"}]}, "rollouts", "column 'conversations' has a c"),
    ({"messages": [USER, ANSWER], "tools": "no"}, "demonstrations", "column 'tools' should be JSON text and is 'no'"),
    ({"messages": [USER, ANSWER], "tools": "{}"}, "demonstrations", "column 'tools' should be a list of tools and is"),
    ({"instruction": "a", "output": "b", "history": [["q"]]}, "demonstrations", "column 'history' should be a list of"),
    ({"chosen": "abc", "rejected": "xyz"}, "pairs", "column 'chosen' shares no beginning with 'rejected', and"),
    ({"chosen": HH + " Yes.\n\nHuman: Why?\n\nAssistant: So.", "rejected": HH + " No."}, "pairs",
     "column 'chosen' and 'rejected' should be the same turns but for the last"),
    ({"chosen": [USER, ANSWER], "rejected": [ANSWER, USER]}, "pairs", "column 'chosen' and 'rejected' should be the"),
    ({"chosen": HH, "rejected": HH + " No."}, "pairs", "column 'chosen' is empty"),
    ({"prompt": [USER], "chosen": [USER, ANSWER, USER, ANSWER], "rejected": [ANSWER]}, "pairs",
     "column 'chosen' holds turns before its last that are not those of the prompt"),
    ({"prompt": "p", "completions": ["a"], "scores": [1]}, "pairs", "column 'scores' should be as many numbers as"),
    ({"prompt": "p", "completions": ["a", "b"], "scores": [1, 1]}, "pairs", "column 'scores' should be numbers that"),
    ({"prompt": "p", "completions": ["a", "b"], "scores": [1, "x"]}, "pairs", "column 'scores' should be numbers that"),
    ({"prompt": "p", "completion": "c"}, "labelled", "column 'label' should be true or false and is None"),
    ({"prompt": "p", "completion": "c", "label": 0.5}, "labelled", "column 'label' should be true or false and is 0.5"),
    ({"prompt": "p", "completion": "c", "label": [1]}, "labelled", "column 'label' should be true or false and is [1]"),
    ({"text": " "}, "demonstrations", "column 'text' is empty"),
    ({"messages": "hello"}, "rollouts", "column 'messages' should be JSON text and is 'hello'"),
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
    call = {"function": {"name": "f", "arguments": {"a": 1, "b": None}}}
    turn = {"role": "assistant", "content": None, "name": None, "tool_calls": [call]}
    [found] = read_example({"messages": [turn, ANSWER]}, "rollouts").prompt
    assert found == {"role": "assistant", "content": "",
                     "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}


@pytest.mark.parametrize(("columns", "kind"), [
    (["prompt"], "rollouts"), (["messages"], "rollouts"), (["instruction", "output"], "rollouts"),
    (["prompt", "completion"], "demonstrations"), (["messages"], "demonstrations"),
    (["prompt", "messages"], "demonstrations"), (["instruction", "output"], "demonstrations"),
    (["messages", "chosen", "rejected"], "pairs"), (["chosen", "rejected"], "pairs"), (["conversations"], "rollouts"),
    (["prompt", "completions", "scores"], "pairs"), (["text"], "demonstrations"),
    (["prompt", "completion", "label"], "labelled"), (["conversations", "label"], "labelled"),
])
def test_columns_that_suffice(columns, kind):
    assert missing_columns(columns, kind) is None


@pytest.mark.parametrize(("columns", "kind", "said"), [
    (["Question", "Answer"], "rollouts",
     "needs a prompt column (instruction, prompt, messages or conversations); it has the columns Question, Answer. "
     "Map your columns to these names, e.g. --set data.columns.prompt=Question."),
    (["promt", "n"], "rollouts", "--set data.columns.prompt=promt."),
    (["text"], "rollouts", "--set data.columns.prompt=text."),
    (["prompt", "Answer"], "demonstrations",
     "needs a prompt and its answer (instruction and output, prompt and completion, messages, conversations or text); "
     "it has the columns prompt, Answer. Map your columns to these names, e.g. --set data.columns.completion=Answer."),
    (["prompt", "text"], "demonstrations", "--set data.columns.completion=text."),
    (["prompt", "chosen"], "pairs", "prompt) or completions and scores; it has the columns prompt, chosen. Map"),
    (["prompt", "completion"], "labelled", "and a column label of true and false; it has the columns prompt"),
    (["prompt", "label"], "labelled", "--set data.columns.completion=NAME."),
    (["completions", "scores"], "pairs", "--set data.columns.prompt=NAME."),
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


@pytest.mark.parametrize(("value", "label"), [(True, True), (False, False), (1, True), (0, False), ("True", True),
                                              ("false", False), ("1", True), (" 0 ", False)])
def test_labels_in_their_spellings(value, label):
    assert read_example({"prompt": "p", "completion": "c", "label": value}, "labelled").label is label


def test_calls_of_tools_in_every_spelling_are_one():
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    as_text = {**call, "function": {"name": "f", "arguments": '{"a": 1}'}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call]}
    tools = [{"type": "function", "function": {"name": "f"}}]
    found = [
        read_example({"messages": [USER, turn], "tools": tools}, "demonstrations"),
        read_example({"messages": [USER, {**turn, "tool_calls": [as_text]}], "tools": json.dumps(tools)},
                     "demonstrations"),
        read_example({"conversations": [
            {"from": "human", "value": "Hi"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'}],
            "tools": [json.dumps(tools[0])]}, "demonstrations")]
    assert [(f.prompt, f.answers, f.tools) for f in found] == [([USER], (turn,), tools)] * 3


def test_every_layout_of_the_list_is_read_as_it_says():
    for layout in yaml.safe_load(Path(layouts.__file__).with_suffix(".yaml").read_text()):
        for kind in layout["kinds"]:
            assert missing_columns(list(layout["example"]), kind) is None
            example = read_example(layout["example"], kind)
            assert len(example.answers) == {"rollouts": 0, "pairs": 2}.get(kind, 1)
            assert example.label == (True if kind == "labelled" else None)
