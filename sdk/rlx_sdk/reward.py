"""``@reward``: a function becomes a publishable reward plugin."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlx_sdk.hooks import hookimpl
from rlx_sdk.plugins import RewardPlugin

if TYPE_CHECKING:
    from rlx_sdk.config import Config
    from rlx_sdk.contracts import Reward, RewardContext, Sample, Scores

Function = Callable[..., "Scores | Awaitable[Scores]"]


class FunctionReward:
    """A reward that is one function of the samples."""

    def __init__(self, function: Callable[[Sequence[Sample]], Scores | Awaitable[Scores]],
                 is_async: bool | None = None) -> None:
        """Keep the function; options are already bound."""
        self._function = function
        self.is_async = inspect.iscoroutinefunction(function) if is_async is None else is_async

    def score(self, samples: Sequence[Sample]) -> Scores | Awaitable[Scores]:
        """What the function returns."""
        return self._function(samples)

    def close(self) -> None:
        """Nothing was opened."""


class RewardFunction:
    """A decorated reward function: still callable, and a pluggy plugin with one reward."""

    def __init__(self, function: Function, plugin_name: str, config: type[Config] | None,
                 requires: Mapping[str, str], argument: str | None = None) -> None:
        """Wrap the function; see `reward`."""
        functools.update_wrapper(self, function)
        self._function, self._takes_options = function, config is not None
        _check_signature(function, plugin_name, ("samples", "options")[: 1 + self._takes_options])
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        self.plugin = RewardPlugin(name=plugin_name, summary=summary, requires=requires, build=self.build,
                                   config=(lambda: config) if config else _no_options, argument=argument)

    def __call__(self, *args: Any, **kwargs: Any) -> Scores | Awaitable[Scores]:
        """Call the function itself."""
        return self._function(*args, **kwargs)

    def build(self, options: Config, context: RewardContext) -> Reward:
        """The reward with its options bound."""
        if self._takes_options:
            return FunctionReward(lambda samples: self._function(samples, options),
                                  inspect.iscoroutinefunction(self._function))
        return FunctionReward(self._function)

    @hookimpl
    def rlx_rewards(self) -> list[RewardPlugin]:
        """The one reward of this plugin."""
        return [self.plugin]


def _check_signature(function: Function, name: str, wanted: tuple[str, ...]) -> None:
    try:
        inspect.signature(function).bind(*wanted)
    except TypeError as error:
        raise TypeError(f"reward '{name}': its function must take ({', '.join(wanted)}) and takes "
                        f"{inspect.signature(function)}; options come second if config= names their class, and only "
                        "then") from error


def _no_options() -> type[Config]:
    from rlx_sdk.config import Config

    return Config


def reward(name: str, *, config: type[Config] | None = None, requires: Mapping[str, str] | None = None,
           argument: str | None = None) -> Callable[[Function], RewardFunction]:
    """Make a function a reward plugin: ``f(samples)``, or ``f(samples, options)`` with ``config``; or ``async def``.

    The first line of its docstring is its summary. The decorated object is a complete pluggy plugin: name it in the
    entry-point group ``rlx`` of a package, and every rlx next to that package finds it.

    Args:
        name: as in ``--reward NAME``.
        config: the class of its options, a subclass of `Config`.
        requires: packages it imports lazily, each with what to ``pip install`` for it.
        argument: the option that ``TEXT`` sets in ``--reward name:TEXT``.

    Raises:
        TypeError: the function takes other arguments.
    """

    def decorate(function: Function) -> RewardFunction:
        return RewardFunction(function, name, config, requires or {}, argument)

    return decorate
