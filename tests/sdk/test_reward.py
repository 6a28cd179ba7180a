"""``@reward``: a function becomes a plugin and stays a function."""

import inspect

import pluggy
import pytest
from pydantic import ValidationError

from rlx_sdk import Config, Reward, RewardContext, RewardPlugin, Sample, hooks, lazy, reward

SAMPLES = [Sample("p", "abc"), Sample("p", "")]


class Options(Config):
    """Options."""

    factor: float = 2.0
    """Factor."""


@reward("plain")
def plain(samples):
    """Counts characters.

    More text.
    """
    return [float(len(s.completion)) for s in samples]


@reward("scaled", config=Options)
def scaled(samples, options):
    return [options.factor * len(s.completion) for s in samples]


@reward("later")
async def later(samples):
    return [1.0 for _ in samples]


@reward("later_scaled", config=Options, requires={"json": "rlx-json"})
async def later_scaled(samples, options):
    return [options.factor for _ in samples]


def built(decorated, **options):
    plugin = decorated.plugin
    return plugin.build(plugin.config()(**options), RewardContext())


def test_the_function_stays_callable_and_keeps_its_name():
    assert plain(SAMPLES) == [3.0, 0.0]
    assert scaled(SAMPLES, Options(factor=3)) == [9.0, 0.0]
    assert plain.__name__ == "plain"
    assert plain.__doc__.startswith("Counts characters.")


def test_it_is_a_plugin_with_one_reward():
    manager = pluggy.PluginManager("rlx")
    manager.add_hookspecs(hooks)
    manager.register(plain)
    manager.check_pending()
    [[record]] = manager.hook.rlx_rewards()
    assert isinstance(record, RewardPlugin)
    assert (record.name, record.summary, record.requires) == ("plain", "Counts characters.", {})


def test_options_are_bound_when_it_is_built():
    assert built(plain).score(SAMPLES) == [3.0, 0.0]
    assert built(scaled).score(SAMPLES) == [6.0, 0.0]
    assert built(scaled, factor=0.5).score(SAMPLES) == [1.5, 0.0]
    assert isinstance(built(scaled), Reward)
    built(scaled).close()


@pytest.mark.parametrize("decorated", [later, later_scaled])
def test_async_functions_give_an_awaitable(decorated):
    result = built(decorated).score(SAMPLES)
    assert inspect.iscoroutine(result)
    result.close()


def test_requirements_are_kept():
    assert later_scaled.plugin.requires == {"json": "rlx-json"}


def test_a_reward_without_options_refuses_any():
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        plain.plugin.config()(factor=1)


def test_options_are_strict_and_frozen():
    with pytest.raises(ValidationError, match="valid number"):
        Options(factor="2")
    with pytest.raises(ValidationError, match="finite number"):
        Options(factor=float("nan"))
    with pytest.raises(ValidationError, match="frozen"):
        Options().factor = 1.0


def test_an_extra_argument_with_a_default_is_no_option():
    @reward("threshold")
    def threshold(samples, threshold=2):
        return [float(len(s.completion) > threshold) for s in samples]

    assert built(threshold).score(SAMPLES) == [1.0, 0.0]


@pytest.mark.parametrize(("function", "config"), [
    (lambda samples: [], Options), (lambda samples, options: [], None), (lambda: [], None),
    (lambda samples, options, more: [], Options),
])
def test_other_arguments_are_refused_where_the_reward_is_written(function, config):
    with pytest.raises(TypeError, match=r"reward 'bad': its function must take \(samples(, options)?\) and takes \("):
        reward("bad", config=config)(function)


def test_lazy_imports_when_called():
    late = lazy("rlx_sdk.no_such_module:thing")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        late()
    assert lazy("json:dumps")([1]) == "[1]"
    assert lazy("json:dumps").resolve().__name__ == "dumps"
