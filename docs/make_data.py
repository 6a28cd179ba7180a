"""Writes docs/data.md from core/rlx/data/layouts.yaml and the spec's section: ``python docs/make_data.py``."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import yaml

from rlx.data import layouts
from rlx.data.messages import ROLES
from rlx.spec import DataSpec

PAGE = Path(__file__).with_name("data.md")
TOP = """\
# Data

<!-- Made by docs/make_data.py; edit core/rlx/data/layouts.yaml, the fields of DataSpec, or that script. -->

`rlx data FILE` shows how a file is understood: what each column is taken for, one row through the chat template with
the trained tokens in ⟦ ⟧, lengths, duplicates and problems. `rlx data FILE --json` is the same for programs.

Every row is read, rendered and measured before a model is loaded. What cannot be used is refused with file, row, column
and the fix; what can be used but looks wrong (equal sides of a pair, text that the chat template leaves out, markers of
another model's template) is counted and named.

## Files

parquet, jsonl, json and csv, each also compressed with gzip. A path may be

- a file; its name may lie about compression, which is recognised by content;
- a folder: its data files of one format, by name (names that begin with `_` or `.` are no data);
- a pattern: `--data 'shards/part-*.jsonl'`;
- `hf:NAME` or `hf:NAME@SPLIT` through the datasets package, or a folder that its `save_to_disk` wrote;
- several of these: `data: {path: [a.jsonl, more/]}`;
- several with weights: `data: {path: {a.jsonl: 3, b.parquet: 1}}`. A pass over the data then has three rows of the
  first for each of the second: every row at least once, and those of one source again until the shares are met.

Files are converted once, in a stream, to memory-mapped Arrow files named by the content (`data.cache`); memory does not
grow with the file. What takes longer than a moment shows how far it is (`rlx data` and `rlx check`: on standard error).

json and jsonl are read alike: one list of objects, or objects one after another, on one line or several, commas between
them or not. Text is UTF-8, or UTF-16 with its byte order mark. A csv file may have `,`, `;` or tabs between its cells,
and Excel's `sep=` line; columns without a name, such as the index that pandas writes, are passed over.

Messages name the row in its file, and of several files the file.

Values reach rewards as plain Python objects, as they were written: of jsonl and json `"2024-01-02"` stays text, `007`
in quotes stays `"007"`, an absent key stays absent; parquet keeps its types; every cell of a csv file is text, an empty
one is `""`. A key or a column that stands twice is an error.

## Layouts

What a row is used for depends on the algorithm: `rollouts` (prompts to sample from), `demonstrations` (answers to
learn), `pairs` or `labelled` answers. Of columns that could make the prompt the first of `prompt`, `messages`,
`conversations`, `instruction` is taken; for demonstrations, the first that has its answer. For all else there is
`data.columns`:
`--set data.columns.prompt=Question`; a name with dots reaches inside a column:
`--set data.columns.truth=meta.answer`.
"""
BOTTOM = """
## Prompts and answers as tokens

- The prompt's ids are the same in generation, in demonstrations and on both sides of a pair.
- Messages go through the chat template, with its generation prompt; text gets the tokenizer's BOS, once, and no more.
- What is trained is the answer, up to and with its stop token; a stop token before the answer's end is an error.
- Without a chat template messages are written as plain `User:` and `Assistant:` lines, and that is said. A token that
  the template ends answers with, but nobody named as a stop token, becomes one, and that is said.
- An answer that the template would change (as some do with `<think>` blocks) is trained as it is written, and counted.

## Rows that are too long

`data.max_prompt` limits the prompt; `data.max_length` prompt and answer together (of a pair, the longer side). What is
longer is treated by `data.overlong`, in the same words for prompts, pairs and demonstrations:

| overlong | what happens |
|---|---|
| `error` | the file is refused; the first rows are named with their lengths |
| `drop` | such rows are left out, counted and named |
| `truncate_left` | the prompt loses its start; the answer stays whole |
| `truncate_right` | over max_prompt the prompt loses its end; over max_length the answer does, and its stop token |

A prompt in messages is cut inside its longest message, so that the template around it stays whole; both sides of a pair
keep the same prompt. A row of which nothing would be left, of its prompt or of an answer, is left out and counted as
under `drop`.
"""


def page() -> str:
    """The whole page."""
    found = yaml.safe_load(Path(layouts.__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    parts = [TOP]
    for layout in found:
        parts.append(f"### {layout['name'][0].upper()}{layout['name'][1:]}\n\nFor {', '.join(layout['kinds'])}. "
                     f"{layout['meaning'].strip()}\n\n```json\n"
                     f"{json.dumps(layout['example'], ensure_ascii=False)}\n```\n")
    roles = ", ".join(f"`{theirs}` ({ours})" for theirs, ours in ROLES.items())
    parts.append(f"Speakers of ShareGPT, besides the roles themselves: {roles}.\n")
    parts.append("## Settings\n\n| setting | default | |\n|---|---|---|")
    for name, field in DataSpec.model_fields.items():
        default = "required" if field.is_required() else f"`{json.dumps(field.default)}`"
        meaning = inspect.cleandoc(field.description or "").replace("\n", " ")
        parts.append(f"| `data.{name}` | {default} | {meaning} |")
    return "\n".join(parts) + "\n" + BOTTOM


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
