"""Reward functions as they are: of samples, TRL's and verl's, told apart by their signature."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from pydantic import model_validator

from rlx_sdk.config import Config
from rlx_sdk.contracts import Reward, RewardContext, Sample, Score
from rlx_sdk.plugins import RewardPlugin
from rlx_sdk.reward import FunctionReward

Style = Literal["samples", "trl", "verl"]
_WANTED = "f(samples), TRL's f(prompts, completions, **columns), verl's f(data_source, solution_str, ground_truth, …)"


class FunctionOptions(Config):
    """How a plain function is called."""

    style: Style | None = None
    """samples, trl or verl; null: as its signature says."""


def function_plugin(function: Callable[..., Any], name: str) -> RewardPlugin:
    """A reward plugin of a function that is written in any `Style`."""
    summary = (inspect.getdoc(function) or "").partition("\n")[0]

    def build(options: FunctionOptions, context: RewardContext) -> Reward:
        return FunctionReward(adapted(function, options.style))

    class Options(FunctionOptions):
        @model_validator(mode="after")
        def _callable(self) -> Self:
            if self.style is None:
                style_of(function, name)
            return self

    return RewardPlugin(name=name, summary=summary, config=lambda: Options, build=build)


def adapted(function: Callable[..., Any], style: Style | None = None) -> Callable[[Sequence[Sample]], Any]:
    """The function as one of samples.

    Args:
        function: a plain one or an ``async`` one.
        style: what it is; default: what its signature says.

    Raises:
        ValueError: its signature is none of these.
    """
    style = style or style_of(function)
    return function if style == "samples" else {"trl": _trl, "verl": _verl}[style](function)


def style_of(function: Callable[..., Any], name: str = "") -> Style:
    """The style that a function's signature shows.

    Raises:
        ValueError: none does.
    """
    signature = inspect.signature(function)
    if {"solution_str", "ground_truth"} <= set(signature.parameters):
        return "verl"
    if "completions" in signature.parameters:
        return "trl"
    kinds = [p.kind for p in signature.parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        try:
            signature.bind("samples")
            return "samples"
        except TypeError:
            pass
    name = name or getattr(function, "__name__", "")
    raise ValueError(f"the function {name}{signature} is none of {_WANTED}; if it is one all the same, say so with the "
                     "option style: samples, trl or verl")


def _trl(function: Callable[..., Any]) -> Callable[[Sequence[Sample]], Any]:
    """Lists of prompts and completions, and of every column of the data; chats where the data has chats."""

    def score(samples: Sequence[Sample]) -> Any:
        if not samples:
            return []
        names = dict.fromkeys(name for sample in samples for name in sample.row)
        given: dict[str, Any] = {name: [sample.row.get(name) for sample in samples] for name in names}
        given["prompts"] = [list(s.messages) if s.messages else s.prompt for s in samples]
        given["completions"] = [[{"role": "assistant", "content": s.completion}] if s.messages else s.completion
                                for s in samples]
        return function(**_accepted(function, given))

    return score


def _verl(function: Callable[..., Any]) -> Callable[[Sequence[Sample]], Any]:
    """One call a sample; a mapping it returns is its ``score`` and further numbers."""

    def one(sample: Sample) -> Any:
        row = sample.row
        inner = row.get("reward_model")
        truth = row.get("ground_truth", inner.get("ground_truth") if isinstance(inner, dict) else None)
        given = {"data_source": row.get("data_source"), "solution_str": sample.completion, "ground_truth": truth,
                 "extra_info": row.get("extra_info")}
        try:
            return function(**_accepted(function, given))
        except Exception as error:  # its sample is the one that failed
            return error

    def score(samples: Sequence[Sample]) -> Any:
        found = [one(sample) for sample in samples]
        if any(inspect.isawaitable(result) for result in found):
            return _gathered(found)
        return [_verl_score(result) for result in found]

    return score


async def _gathered(results: Sequence[Any]) -> list[Any]:
    async def wait(result: Any) -> Any:
        return await result if inspect.isawaitable(result) else result

    return [_verl_score(r) for r in await asyncio.gather(*map(wait, results), return_exceptions=True)]


def _verl_score(result: Any) -> Any:
    if not isinstance(result, dict):
        return result
    if "score" not in result:
        return KeyError(f"score (it returned {result!r:.60})")
    parts = {name: value for name, value in result.items()
             if name != "score" and isinstance(value, int | float)}
    return Score(result["score"], parts)


def _accepted(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that the function takes."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}
