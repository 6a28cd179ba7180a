"""Samples and scores as JSON: what a reward service and an isolated reward are sent, and what they answer.

Of a request: ``{"samples": [{"prompt", "completion", "messages", "finish_reason", "row", "tokens"}]}``,
where only the first two must be there. Of an answer:
``{"scores": [0.5, null, {"value": 1.0, "parts": {"a": 1.0}, "spans": [[12, 0.5]]}, {"error": "why"}]}``, one a
sample in their order. Values that JSON has none of are ``{"$": "date", "value": "2026-12-01"}``: date, datetime, time,
decimal, bytes (base64).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from rlx_sdk.contracts import Sample, Score
from rlx_sdk.errors import cause
from rlx_sdk.scores import ScoreError

_READ: Mapping[str, Any] = {
    "datetime": datetime.fromisoformat, "date": date.fromisoformat, "time": time.fromisoformat, "decimal": Decimal,
    "bytes": lambda text: base64.b64decode(text)}


def dump_samples(samples: Sequence[Sample], **more: Any) -> str:
    """A request: one line of JSON."""
    plain = [{"prompt": s.prompt, "completion": s.completion, "messages": list(s.messages),
              "finish_reason": s.finish_reason, "row": dict(s.row), "tokens": s.tokens} for s in samples]
    return json.dumps({"samples": plain, **more}, default=_plain)


def load_samples(text: str | bytes) -> list[Sample]:
    """The samples of a request.

    Raises:
        ValueError: it is not one.
    """
    try:
        found = json.loads(text, object_hook=_value)["samples"]
        return [Sample(s["prompt"], s["completion"], s.get("messages", ()), s.get("finish_reason", "stop"),
                       s.get("row", {}), s.get("tokens")) for s in found]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'not {{"samples": [{{"prompt": …, "completion": …}}, …]}}: {error!r}') from error


def dump_scores(scores: Sequence[Score | Exception | None]) -> str:
    """An answer: one line of JSON."""
    return json.dumps({"scores": [_score(s) for s in scores]})


def read_score(value: Any) -> Any:
    """One of an answer's scores; anything unusable is left as it is, for `rlx_sdk.scores.check_scores` to name."""
    if not isinstance(value, dict):
        return value
    if "error" in value:
        return ScoreError(f"it failed: {value['error']}")
    try:
        return Score(value["value"], value.get("parts", {}), value.get("spans", ()))
    except KeyError:
        return value


def _score(score: Score | Exception | None) -> Any:
    if score is None:
        return None
    if isinstance(score, Exception):
        return {"error": str(score) if isinstance(score, ScoreError) else cause(score)}
    if not score.parts and not score.spans:
        return score.value
    return {"value": score.value, "parts": dict(score.parts), "spans": [list(span) for span in score.spans]}


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return {"$": type(value).__name__, "value": value.isoformat()}
    if isinstance(value, Decimal):
        return {"$": "decimal", "value": str(value)}
    if isinstance(value, bytes):
        return {"$": "bytes", "value": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | set | frozenset):
        return list(value)
    return str(value)


def _value(found: dict[str, Any]) -> Any:
    if found.keys() == {"$", "value"} and found["$"] in _READ:
        return _READ[found["$"]](found["value"])
    return found
