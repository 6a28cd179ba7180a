"""The format of reasoning models: thoughts in one pair of tags, then the answer in another, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from rlx_sdk import Config, Sample, Score, reward


class Options(Config):
    """The tags, and what the parts are worth."""

    think: str = "think"
    """Tag around the thoughts."""
    answer: str = "answer"
    """Tag around the answer."""
    opened: bool = False
    """The prompt already ends in the opening tag of the thoughts, so that the completion begins inside it."""


@reward("format", config=Options)
def tags(samples: Sequence[Sample], options: Options) -> list[Score]:
    """1 for <think>…</think><answer>…</answer>, each tag once and nothing outside."""
    return [_score(sample.completion, options) for sample in samples]


def _score(text: str, options: Options) -> Score:
    text = f"<{options.think}>{text}" if options.opened else text
    wanted = [f"<{options.think}>", f"</{options.think}>", f"<{options.answer}>", f"</{options.answer}>"]
    once = [text.count(tag) == 1 for tag in wanted]
    places = [text.find(tag) for tag in wanted]
    outside = text[:places[0]] + text[places[1] + len(wanted[1]):places[2]] + text[places[3] + len(wanted[3]):]
    whole = all(once) and places == sorted(places) and not outside.strip()
    return Score(float(whole), {"tags": sum(once) / len(wanted)})


build = tags.build
