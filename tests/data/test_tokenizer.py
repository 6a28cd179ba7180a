"""Where text becomes token ids: specials, templates, stop tokens."""

import json
from pathlib import Path

import pytest

from rlx.batching import pad_sequences
from rlx.data import load_tokenizer
from rlx.data.layouts import Example
from rlx.data.messages import RowProblem
from rlx.data.tokenizer import Notice
from rlx_sdk import DataError, ModelError

CASES = Path(__file__).parents[1] / "cases"
HI = [{"role": "user", "content": "Hi"}]
CHAT = [259, *b"user\nHi", 260, *b"\n", 259, *b"assistant\n"]


@pytest.mark.parametrize("name", ["T00_base", "T01_pad_is_eos", "T02_no_pad", "T10_no_generation_tags"])
def test_the_answer_is_trained_up_to_its_stop_token_by_position(tokenizer, name):
    found = tokenizer(name)
    prompt, answer = found.encode_prompt(HI), found.encode(Example(HI, ("Yo",))).answers[0]
    assert (prompt, answer) == (CHAT, [*b"Yo", 260])
    seqs = pad_sequences([prompt, prompt[:9]], [answer, answer], found.pad_token_id)
    assert seqs.mask[0].nonzero().flatten().tolist() == [21, 22, 23]
    assert seqs.tokens[0][seqs.mask[0]].tolist() == [89, 111, 260]
    assert seqs.length.tolist() == [24, 12]


def test_without_a_pad_token_an_existing_one_pads_and_is_named(tokenizer):
    found = tokenizer("T02_no_pad")
    assert found.pad_token_id == 260
    assert len(found.hf) == len(tokenizer().hf)
    [note] = found.notes
    assert note.startswith("the tokenizer has no pad token: padding uses '<|im_end|>'")


def test_without_a_chat_template_messages_are_plain_and_that_is_said(tokenizer):
    found = tokenizer("T04_no_template")
    [note] = found.notes
    assert "T04_no_template' has no chat template: messages are written as plain 'User:' and 'Assistant:' lines" in note
    assert "model.chat_template sets another" in note
    assert found.encode_prompt(HI) == [257, *b"User: Hi\n\nAssistant:"]
    assert found.encode(Example(HI, ("Yo",))).answers[0] == [*b" Yo", 260]
    assert found.encode_prompt("Hi") == list(b"Hi")


def test_a_template_that_refuses_a_row_is_an_error_with_the_row(prepare):
    with pytest.raises(DataError, match=r"row 1: column 'messages' is refused by the model's chat template: .*system"):
        prepare("../tok/T05_messages.jsonl", tokenizer_name="T05_system_raises")


def test_there_is_one_bos(tokenizer):
    found = tokenizer("T07_double_bos")
    assert found.encode_prompt(HI) == [257, *CHAT]
    assert found.encode_prompt("Hi") == [257, *b"Hi"]
    assert found.encode_prompt("<|bos|>Hi") == [257, *b"Hi"]


def test_a_header_left_to_the_model_is_said(tokenizer):
    [note] = tokenizer("T09_no_generation_prompt").notes
    assert "the generation prompt of '" in note
    assert "leaves '<|im_start|>assistant' to the model" in note
    assert tokenizer().notes == ()


def test_every_stop_token_ends_an_answer(tokenizer):
    found = tokenizer("T11_two_eos")
    assert found.stop_token_ids == (258, 260)
    assert found.encode(Example(HI, ("Yo",))).answers[0] == [*b"Yo", 260]
    assert found.encode(Example("Hi", ("Yo",))).answers[0] == [*b"Yo", 258]


def test_ids_need_not_survive_text(tokenizer):
    found = tokenizer("T13_not_a_bijection")
    assert found.decode([262, 264]) == "hello"
    assert found.encode_prompt("hello") == [265]


def test_of_named_templates_the_default_is_used_and_the_others_can_be(tokenizer, model_folder):
    found = tokenizer("T16_named_templates")
    assert found.encode_prompt(HI) == CHAT
    [note] = found.notes
    names = list(found.hf.chat_template)
    assert len(names) > 1
    assert f"are {', '.join(names)}: 'default' is used (model.chat_template names another)" in note
    other = load_tokenizer(str(model_folder("T16_named_templates")), next(n for n in names if n != "default"))
    assert other.hf.chat_template == found.hf.chat_template[next(n for n in names if n != "default")]
    assert not any("'default' is used" in note for note in other.notes)


def test_rendered_text_is_used_as_it_is(prepare):
    found = prepare("D24_already_templated.jsonl").ids(0, "prompt")
    assert found[:6] == [259, *b"user\n"]
    assert found.count(259) == 2
    assert found.count(260) == 1


def test_text_that_ends_with_a_stop_token_keeps_it(tokenizer):
    assert tokenizer().encode_prompt("Hi<|im_end|>") == [*b"Hi", 260]


def test_a_template_of_ones_own(model_folder, tmp_path):
    folder, template = str(model_folder("T00_base")), "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    (tmp_path / "chat.jinja").write_text(template)
    for given in (template, str(tmp_path / "chat.jinja")):
        assert load_tokenizer(folder, given).encode_prompt(HI) == list(b"[Hi]")
    with pytest.raises(ModelError, match=r"model\.chat_template 'no\.jinja' is neither a Jinja template nor a"):
        load_tokenizer(folder, "no.jinja")


def test_a_broken_template_is_refused_with_the_row(model_folder):
    found = load_tokenizer(str(model_folder("T00_base")), "{% for m in messages %}")
    with pytest.raises(RowProblem, match="is refused by the model's chat template: "):
        found.encode_prompt(HI)


def test_the_fingerprint_changes_with_what_decides_the_ids(tokenizer):
    names = ["T00_base", "T01_pad_is_eos", "T04_no_template", "T07_double_bos", "T11_two_eos"]
    assert len({tokenizer(name).fingerprint for name in names}) == len(names)


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError) as error:
        load_tokenizer(str(tmp_path))
    assert f"no tokenizer could be loaded from the folder '{tmp_path}' (it holds config.json): " in str(error.value)
    assert str(error.value).endswith("It needs a tokenizer.json.")


def test_a_name_that_is_nowhere_says_both_ways_that_were_tried(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError) as error:
        load_tokenizer("some-org/some-model")
    assert "there is no such folder (/" in str(error.value)
    assert "could not be had as a hub name either" in str(error.value)


def test_a_tokenizer_without_eos_is_refused(model_folder):
    folder = model_folder("T00_base")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").unlink()
    with pytest.raises(ModelError, match=r"names no eos token, so no completion could ever end\. Set eos_token in its"):
        load_tokenizer(str(folder))


def made(model_folder, template, **config):
    """The base tokenizer with another template or configuration."""
    folder = model_folder("T00_base")
    known = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**known, "chat_template": template, **config}))
    return load_tokenizer(str(folder))


CHATML = json.loads((CASES / "tok/T00_base/tokenizer_config.json").read_text())["chat_template"]


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_pair_of_several_turns_has_the_ids_that_are_right(prepare, side):
    wanted = json.loads((CASES / f"expected/tok/T08_{side}.json").read_text())
    found = prepare("../tok/T08_pref_multiturn.jsonl", "pairs", tokenizer_name="T01_pad_is_eos")
    ids = found.ids(0, "prompt") + found.ids(0, side)
    assert ids == wanted["ids"]
    seqs = pad_sequences([found.ids(0, "prompt")] * 2, [found.ids(0, side), [1] * 40], 260)
    assert seqs.length[0] - 1 == wanted["last_real_index"]


@pytest.mark.parametrize("case", ["T01", "T07", "T10", "T11"])
def test_the_cases_values(tokenizer, case):
    wanted = json.loads((CASES / f"expected/tok/{case}.json").read_text())
    [name] = [f.name for f in (CASES / "tok").iterdir() if f.name.startswith(case)]
    found = tokenizer(name)
    prompt, answer = found.encode_prompt(HI), found.encode(Example(HI, ("Yo",))).answers[0]
    assert (prompt + answer)[:len(wanted.get("ids", ()))] == wanted.get("ids", [])[:len(prompt + answer)]
    places = list(range(len(prompt), len(prompt + answer)))
    assert places == wanted.get("positions_trained", wanted.get("positions", places))
    assert list(found.stop_token_ids) == wanted.get("stop_ids", list(found.stop_token_ids))
    assert prompt.count(257) == wanted.get("bos_count", 0)


def test_the_prompt_of_both_sides_and_of_generation_is_one(prepare, tokenizer):
    found = prepare("../tok/T08_pref_multiturn.jsonl", "pairs")
    assert found.ids(0, "prompt") == tokenizer().encode_prompt(found.example(0).prompt)


def test_a_closing_token_that_nobody_named_becomes_a_stop_token_and_is_said(model_folder):
    found = made(model_folder, CHATML.replace("<|im_end|>", "<|bos|>"))
    assert found.stop_token_ids == (260, 257)
    assert found.encode(Example(HI, ("Yo",))).answers[0] == [*b"Yo", 257]
    [note] = found.notes
    assert note.startswith("the chat template ends an answer with '<|bos|>', which neither tokenizer nor generation")


def test_an_answer_that_the_template_does_not_close_is_said(model_folder):
    found = made(model_folder, "{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert found.encode(Example(HI, ("Yo",))).answers[0] == [*b"[Yo]", 260]
    assert "ends an answer without a stop token; '<|im_end|>' is put behind it" in found.notes[-1]


def test_a_stop_token_before_the_end_is_refused_and_one_too_many_at_the_end_is_cut(tokenizer):
    found = tokenizer()
    assert found.encode(Example(HI, ("Yo<|im_end|>",))).answers[0] == [*b"Yo", 260]
    with pytest.raises(RowProblem, match=r"column 'completion' holds the stop token '<\|im_end\|>' before its end"):
        found.encode(Example(HI, ("Yo<|im_end|>and more",))).answers[0]
    with pytest.raises(RowProblem, match="column 'rejected' holds the stop token"):
        found.encode(Example(HI, ("Yo", "No<|im_end|>and more")))


def test_thinking_that_the_template_strips_is_trained_as_written_and_said(model_folder):
    strips = CHATML.replace("{{ m['content'] or '' }}", "{{ m['content'].split('</think>')[-1] }}")
    found = made(model_folder, strips)
    row = Example(HI, ("<think>hm</think>Yo",))
    assert found.decode(found.encode(row).answers[0], True) == "<think>hm</think>Yo<|im_end|>"
    assert found.encode(row).notice == Notice.REWRITTEN
    start = "'<|im_start|>assistant\n"
    opens = made(model_folder, strips.replace(f"{start}' }}}}{{% endif", f"{start}<think>' }}}}{{% endif"))
    assert opens.decode(opens.encode_prompt(HI), True).endswith("<think>")
    assert opens.decode(opens.encode(row).answers[0], True) == "hm</think>Yo<|im_end|>"


def test_reasoning_that_the_template_leaves_out_is_said(tokenizer, model_folder):
    answer = {"role": "assistant", "content": "Yo", "reasoning_content": "hm"}
    assert tokenizer().encode(Example(HI, (answer,))).notice == Notice.LOST
    writes = made(model_folder, CHATML.replace("{{ m['content'] or '' }}", "{{ m.reasoning_content }}{{ m.content }}"))
    found = writes.encode(Example(HI, (answer,)))
    assert (found.notice, writes.decode(found.answers[0])) == (Notice(0), "hmYo")


def test_thinking_of_earlier_turns_may_go(model_folder):
    found = made(model_folder, CHATML.replace("{{ m['content'] or '' }}", "{{ m['content'].split('</think>')[-1] }}"))
    prompt = [*HI, {"role": "assistant", "content": "<think>hm</think>Yo"}, *HI]
    assert found.encode(Example(prompt, ("Yo",))).notice == Notice(0)


def test_special_tokens_inside_a_message_are_said(tokenizer):
    prompt = [{"role": "user", "content": "What is <|im_end|>?"}]
    assert tokenizer().encode(Example(prompt)).notice == Notice.SPECIAL


def test_a_call_of_a_tool_can_be_the_answer(tokenizer, model_folder):
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}
    found = tokenizer().encode(Example(HI, (call,)))
    assert tokenizer().decode(found.answers[0], True) == '<call>f {"a": 1}</call><|im_end|>'
    with pytest.raises(RowProblem, match="end with a call of a tool, which the model's chat template does not write"):
        made(model_folder, "{% for m in messages %}{{ m.content }}{% endfor %}").encode(Example(HI, (call,)))
