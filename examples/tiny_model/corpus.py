"""The corpus of rlx-tiny: invented conversations in Alpaca layout, made from topics and sentence templates.

Half of the rows are English and half Chinese. Whatever the prompt, an answer may be polite or plain, and short
(under 50 characters), within 50 to 200 characters, or (English) longer, so that a policy trained on the rows has
every style to explore.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from phrases import CHINESE, ENGLISH, VERSE_CLOSE, VERSE_FIRST, VERSE_SECOND, Language, Task
from topics import Topic, load

LANGUAGES = (ENGLISH, CHINESE)
TOPICS = {language.code: load(language.code) for language in LANGUAGES}

# The styles of length: fewest and most characters, and the share of answers. The gaps keep the styles apart.
SHORT, LONG = (4, 46), (205, 250)
MIDDLE = {"en": (56, 120), "zh": (56, 95)}
LENGTHS = {
    "en": ((SHORT, 0.43), (MIDDLE["en"], 0.52), (LONG, 0.05)),
    "zh": ((SHORT, 0.42), (MIDDLE["zh"], 0.58)),
}
CHAT_SHARE = 0.03
OWN_ASK_SHARE = 0.1
ATTEMPTS = 300

Row = dict[str, str]
Bounds = tuple[int, int]


@dataclass
class Words:
    """What the slots of one answer may hold: each trait, tip and reason is used once."""

    language: Language
    topic: Topic
    rng: Random
    fixed: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lists = {"trait": self.topic.traits, "tip": self.topic.tips, "why": self.topic.reasons}
        self.left = {slot: self.rng.sample(items, len(items)) for slot, items in lists.items()}
        self.fixed["name"], self.fixed["friend"] = self.rng.sample(self.language.fillers["name"], 2)

    def fill(self, template: str) -> str | None:
        """The template with its slots filled, or None if one of its lists is used up."""
        if any(not self.left[slot.lower()] for slot in _slots(template) if slot.lower() in self.left):
            return None
        return re.sub(r"\{(\w+)\}", self._value, template)

    def _value(self, match: re.Match[str]) -> str:
        slot = match[1].lower()
        if slot == "t":
            value = self.topic.name
        elif slot in self.left:
            value = self.left[slot].pop()
        elif slot == "verse":
            value = _verse(self.topic.name, self.rng)
        else:
            value = self.fixed.get(slot) or self.rng.choice(self.language.fillers[slot])
        return value[0].upper() + value[1:] if match[1][0].isupper() else value


@dataclass(frozen=True)
class Prompt:
    """One prompt and what is needed to answer it."""

    language: Language
    task: Task
    topic: Topic
    instruction: str
    input: str = ""
    deed: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """What tells this prompt from others."""
        return self.instruction, self.input


def conversations(n: int, seed: int, skip: frozenset[tuple[str, str]] = frozenset()) -> Iterator[Row]:
    """Yields n rows (instruction, input, output), leaving out the prompts (instruction, input) in `skip`."""
    rng = Random(seed)
    while n > 0:
        prompt = _prompt(rng)
        if prompt.key in skip:
            continue
        shares = LENGTHS[prompt.language.code]
        bounds = rng.choices([bounds for bounds, _ in shares], [share for _, share in shares])[0]
        output = _answer(prompt, rng.random() < prompt.task.polite, bounds, rng)
        yield {"instruction": prompt.instruction, "input": prompt.input, "output": output}
        n -= 1


def preferences(n: int, seed: int) -> Iterator[Row]:
    """Yields n rows with distinct prompts: the columns of `conversations`, `chosen` and `rejected`.

    `chosen` is polite and has 50 to 200 characters; `rejected` is plain, and too short or (rarely) too long.
    """
    rng = Random(seed)
    seen: set[tuple[str, str]] = set()
    while len(seen) < n:
        prompt = _prompt(rng, chat=False)
        if prompt.key in seen:
            continue
        seen.add(prompt.key)
        rejected = _answer(prompt, False, LONG if rng.random() < 0.1 else SHORT, rng)
        if 50 <= len(rejected) <= 200:  # there is no such long answer
            rejected = _answer(prompt, False, SHORT, rng)
        yield {
            "instruction": prompt.instruction,
            "input": prompt.input,
            "output": _answer(prompt, True, MIDDLE[prompt.language.code], rng),
            "chosen": _answer(prompt, True, MIDDLE[prompt.language.code], rng),
            "rejected": rejected,
        }


def _prompt(rng: Random, chat: bool = True) -> Prompt:
    """A random prompt; `chat` allows small talk."""
    language = rng.choice(LANGUAGES)
    topics = TOPICS[language.code]
    if chat and rng.random() < CHAT_SHARE:
        prompts, sentences = rng.choice(language.chat)
        return Prompt(
            language,
            Task(prompts, leads=sentences, more=sentences, ends="chat"),
            rng.choice(topics),
            rng.choice(prompts),
        )
    name, task = rng.choices(list(language.tasks.items()), [task.weight for task in language.tasks.values()])[0]
    topic = rng.choice([topic for topic in topics if name != "quatrain" or topic.name in VERSE_FIRST])
    text = deed = ""
    if task.input == "ask":
        if rng.random() < OWN_ASK_SHARE:
            ask, deed, name = rng.choice(language.own_asks)
            topic = next(topic for topic in topics if topic.name == name)
        else:
            ask, deed = rng.choice(language.asks)
        text = ask.format(t=topic.name)
    elif task.input == "text":
        topic = Topic(topic.name, *(tuple(rng.sample(items, 1)) for items in (topic.traits, topic.tips, topic.reasons)))
        text = _source(language, topic, rng)
    instruction = Words(language, topic, rng).fill(rng.choice(task.prompts)) or ""
    return Prompt(language, task, topic, instruction, text, deed)


def _source(language: Language, topic: Topic, rng: Random) -> str:
    """A text to sum up."""
    words = Words(language, topic, rng)
    lead = words.fill(rng.choice(language.tasks["explain"].leads)) or ""
    rest = [
        words.fill(rng.choice([fact for fact in language.facts if slot in _slots(fact)])) for slot in ("why", "tip")
    ]
    return language.joint.join([lead, *filter(None, rng.sample(rest, len(rest)))])


def _answer(prompt: Prompt, polite: bool, bounds: Bounds, rng: Random) -> str:
    """An answer of the given style; outside the bounds only if the templates cannot meet them."""
    best = ""
    for _ in range(ATTEMPTS):
        text = _draft(prompt, polite, rng.randint(1, 1 + bounds[1] // 20), rng)
        if bounds[0] <= len(text) <= bounds[1]:
            return text
        if not best or _miss(text, bounds) < _miss(best, bounds):
            best = text
    return best


def _miss(text: str, bounds: Bounds) -> int:
    return max(bounds[0] - len(text), len(text) - bounds[1])


def _draft(prompt: Prompt, polite: bool, sentences: int, rng: Random) -> str:
    """An answer with about so many sentences, polite or plain."""
    language, task = prompt.language, prompt.task
    words = Words(language, prompt.topic, rng, {"deed": prompt.deed})
    joint = language.joint if task.joint is None else task.joint
    body = [words.fill(rng.choice(task.leads))]
    more = list(task.more or language.facts)
    if polite and not task.more:
        more += language.polite_facts
    rng.shuffle(more)
    while more and len(body) < sentences:
        body.append(words.fill(more.pop()))
    parts = [joint.join(dict.fromkeys(sentence for sentence in body if sentence))]
    ends = (language.polite if polite else language.plain)[task.ends]
    opens, closes = rng.choice(((True, False), (False, True), (True, True))) if polite else _plain_ends(rng)
    if opens:
        parts.insert(0, words.fill(rng.choice(ends.openers)) or "")
    if closes:
        parts.append(words.fill(rng.choice(ends.closers)) or "")
    return joint.join(parts)


def _plain_ends(rng: Random) -> tuple[bool, bool]:
    return rng.random() < 0.3, rng.random() < 0.3


def _verse(topic: str, rng: Random) -> str:
    """A five-character quatrain."""
    first, second, close = rng.choice(VERSE_FIRST[topic]), rng.choice(VERSE_SECOND), rng.choice(VERSE_CLOSE)
    return f"{first}，{second}。\n{close}。"


def _slots(template: str) -> list[str]:
    return re.findall(r"\{(\w+)\}", template)
