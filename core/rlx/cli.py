"""The command line. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from rlx.looks.commands import compare, report, sample
from rlx.terminal import errors as _errors
from rlx.terminal import print_json as _print_json

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
                  help="Train language models after pretraining, from plugins.")

SpecFile = Annotated[Path | None, typer.Argument(metavar="[SPEC.yaml]", help="Settings; flags go on top.")]
Algo = Annotated[str | None, typer.Option(help="Algorithm, e.g. ppo, grpo, dpo, sft; rlx plugins lists all.")]
RewardFlag = Annotated[list[str] | None, typer.Option(
    "--reward", help="NAME of rlx plugins, file.py:function, hf:MODEL or a URL; =WEIGHT may follow. May be repeated.")]
Model = Annotated[str | None, typer.Option(help="HF folder, hub name or .gguf file. Default: the bundled quickstart.")]
Data = Annotated[str | None, typer.Option(help="A parquet, jsonl, json or csv file, a folder, a pattern, or hf:NAME.")]
EvalData = Annotated[str | None, typer.Option(help="Data to evaluate on, given like --data.")]
SampleEvery = Annotated[int | None, typer.Option(min=1, help="Steps between looks at a few chosen prompts.")]
Rollout = Annotated[str | None, typer.Option(help="Rollout backend of rlx plugins. Default: the best there is.")]
Steps = Annotated[int | None, typer.Option(help="Steps to train.")]
Resume = Annotated[str | None, typer.Option(help="Go on from: 'auto' (the newest), or a checkpoint's folder.")]
RunName = Annotated[str | None, typer.Option("--name", help="Name of the run's folder, under runs/.")]
Gpus = Annotated[int | None, typer.Option(min=1, help="GPUs to train on; without any, processes on the CPU.")]
SetFlag = Annotated[list[str] | None, typer.Option("--set", help="Any setting: train.batch_size=8; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output, all else on standard error.")]


class _WithSettings(typer.core.TyperCommand):
    """A command with --set: an option that it has not may be meant for a setting."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What typer reads of the words."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":
                from rlx.problems import settings_called

                unknown: Any = error
                found = settings_called(unknown.option_name.lstrip("-").replace("-", "_"))
                unknown.possibilities = [f"--set {name}=VALUE" for name in found] or unknown.possibilities
            raise


@app.command(cls=_WithSettings)
def train(spec: SpecFile = None, algo: Algo = None, reward: RewardFlag = None, model: Model = None, data: Data = None,
          eval_data: EvalData = None, rollout: Rollout = None, steps: Steps = None, sample_every: SampleEvery = None,
          resume: Resume = None, name: RunName = None, gpus: Gpus = None, settings: SetFlag = None,
          json: Json = False) -> None:
    """Train a model, by default a bundled small one.

    Example: rlx train --algo ppo --reward polite_length
    """
    given = _settings(spec, settings, reward, algo=algo, model=model, data=data, eval_data=eval_data, rollout=rollout,
                      steps=steps, sample_every=sample_every, resume=resume, name=name)
    _train(lambda registry: _resolve(registry, given), gpus, json)


@app.command(cls=_WithSettings)
def resume(run: Annotated[Path, typer.Argument(help="A run's folder.")], steps: Steps = None, gpus: Gpus = None,
           settings: SetFlag = None, json: Json = False) -> None:
    """Continue a run from its newest checkpoint."""
    def plan(registry: Any) -> Any:
        from rlx.layers import assign, merge
        from rlx.plan import resolve
        from rlx.runs import load_saved_spec

        tree = merge(load_saved_spec(run), _settings(None, settings, steps=steps))
        assign(tree, "run.dir", str(run.absolute().parent))
        assign(tree, "run.name", run.absolute().name)
        assign(tree, "run.resume", "auto")
        return resolve(registry, tree, saved=True)

    _train(plan, gpus, json)


@app.command(cls=_WithSettings)
def check(spec: SpecFile = None, algo: Algo = None, reward: RewardFlag = None, model: Model = None, data: Data = None,
          eval_data: EvalData = None, rollout: Rollout = None, steps: Steps = None, sample_every: SampleEvery = None,
          resume: Resume = None, name: RunName = None, gpus: Gpus = None, settings: SetFlag = None,
          json: Json = False) -> None:
    """Find what could fail in a training; takes train's arguments."""
    given = _settings(spec, settings, reward, algo=algo, model=model, data=data, eval_data=eval_data, rollout=rollout,
                      steps=steps, sample_every=sample_every, resume=resume, name=name)
    with _errors():
        from rlx.check import check_plan
        from rlx.data.cache import unseen
        from rlx.registry import Registry
        from rlx.view import View

        report = check_plan(_resolve(Registry.discover(), given), unseen if json else View(sys.stderr).progress,
                            gpus or 1)
        _print_json(report) if json else typer.echo("\n".join(f"{k}: {v}" for k, v in report.items()))


@app.command()
def data(path: Annotated[str, typer.Argument(metavar="FILE", help="A data file, a folder, a pattern, or hf:NAME.")],
         model: Model = None, settings: SetFlag = None, json: Json = False,
         kind: Annotated[str | None, typer.Option(help="pairs, labelled, demonstrations or rollouts.")] = None,
         row: Annotated[int, typer.Option(help="Number of the row to show.", min=1)] = 1) -> None:
    """Show how a data file is understood.

    Its layout, one rendered row with its trained tokens, lengths, duplicates and problems.
    """
    given = _settings(None, settings, model=model, data=path)
    with _errors():
        from rlx.data.cache import unseen
        from rlx.data.look import lines, look_at
        from rlx.layers import QUICKSTART, lookup, read_spec_file
        from rlx.logs import library_log
        from rlx.view import View

        model = model or lookup(given, "model.path") or lookup(read_spec_file(QUICKSTART), "model.path")
        progress = View(sys.stderr).progress
        with library_log(None):
            report = look_at(given["data"], str(model), kind, row, unseen if json else progress)
        _print_json(report) if json else typer.echo("\n".join(lines(report)))


@app.command()
def plugins(json: Json = False) -> None:
    """List algorithms, rewards, rollout backends and trackers."""
    with _errors():
        from rlx.registry import KINDS, Registry

        registry = Registry.discover()
        found = [{"kind": kind, "name": e.name, "package": e.package, "version": e.version,
                  "summary": e.plugin.summary, "missing": e.missing()}
                 for kind in KINDS for e in registry.entries(kind)]
        broken = [{"name": b.name, "package": b.package, "reason": b.reason} for b in registry.broken]
        if json:
            _print_json({"plugins": found, "broken": broken})
            return
        for p in found:
            lacks = "".join(f"  [needs pip install '{what}']" for what in dict.fromkeys(p["missing"].values()))
            typer.echo(f"{p['kind']:<10} {p['name']:<16} {p['package']} {p['version']:<8} {p['summary']}{lacks}")
        for b in broken:
            typer.echo(f"broken     {b['name']:<16} {b['package']}: {b['reason']}")


@app.command()
def show(name: Annotated[str, typer.Argument(help="A plugin's name.")], json: Json = False) -> None:
    """Show a plugin's options, their types and defaults."""
    with _errors():
        from rlx.describe import describe_plugin, option_lines

        found = describe_plugin(name)
        if json:
            _print_json(found)
            return
        for plugin in found:
            typer.echo(f"{plugin['kind']} {plugin['name']} ({plugin['package']}): {plugin['summary']}")
            if "needs" in plugin:
                typer.echo("\n".join(f"{what}: {value}" for what, value in plugin["needs"].items()))
                typer.echo("\n" + "\n\n".join(filter(None, (plugin["text"], plugin["formula"], "options (algo.…):"))))
            typer.echo("\n".join(option_lines(plugin["options"])) or "  no options")


@app.command()
def schema() -> None:
    """Print the JSON schema of a spec file."""
    with _errors():
        from rlx.describe import spec_schema

        _print_json(spec_schema())


@app.command(name="new-reward")
def new_reward(name: Annotated[str, typer.Argument(help="Of the reward, e.g. short_answer.")],
               into: Annotated[Path, typer.Option(help="Folder to make the package's folder in.")] = Path()) -> None:
    """Write a package with one reward, to change and to publish."""
    with _errors():
        from rlx.new_reward import new_reward as write

        folder = write(name, into)
        typer.echo(f"wrote {folder}\nnext: cd {folder} && pip install -e '.[test]' && pytest")


@app.command(name="serve-reward")
def serve_reward(name: Annotated[str, typer.Argument(help="A reward, as --reward takes it.")],
                 host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
                 port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
                 device: Annotated[str, typer.Option(help="For models, e.g. cuda:0.")] = "cpu",
                 settings: SetFlag = None) -> None:
    """Serve a reward over HTTP, for --reward http://HOST:PORT."""
    with _errors():
        from rlx.serve import serve

        serve(name, _assigned(settings), host, port, device)


for look in (sample, compare, report):
    app.command()(look)


FLAGS = {"algo": "algo.name", "model": "model.path", "data": "data.path", "eval_data": "data.eval",
         "rollout": "rollout.name", "steps": "train.steps", "sample_every": "run.sample_every", "resume": "run.resume",
         "name": "run.name"}


def _settings(spec: Path | None, settings: list[str] | None = None, reward: list[str] | None = None,
              **flags: str | int | None) -> dict[str, Any]:
    """Spec file and flags as one tree of settings."""
    with _errors():
        from rlx.layers import assign, merge, named_weight, read_spec_file

        over: dict[str, Any] = {}
        for flag, value in flags.items():
            if value is not None:
                assign(over, FLAGS[flag], value)
        if reward:
            over["rewards"] = [named_weight(text) for text in reward]
        return merge(read_spec_file(spec) if spec else {}, _assigned(settings, over))


def _assigned(settings: list[str] | None, over: dict[str, Any] | None = None) -> dict[str, Any]:
    """What --set sets, on top of a tree."""
    from rlx.layers import assign, parse_value
    from rlx_sdk import SpecError

    over = {} if over is None else over
    for text in settings or ():
        setting, equals, value = text.partition("=")
        if not equals:
            raise SpecError([f"--set {text}: write it as setting=value, e.g. --set train.batch_size=64"])
        assign(over, setting.strip(), parse_value(value))
    return over


def _resolve(registry: Any, given: dict[str, Any]) -> Any:
    from rlx.plan import resolve

    return resolve(registry, given)


def _train(make_plan: Any, gpus: int | None, json: bool) -> None:
    with _errors():
        from rlx.launch import launch, place_of
        from rlx.registry import Registry
        from rlx.view import View
        from rlx_sdk import SpecError

        place = place_of(os.environ)
        if gpus is not None and place.world not in (1, gpus):
            raise SpecError([f"--gpus {gpus}, but a launcher has started {place.world} processes; leave it out"])
        plan = make_plan(Registry.discover())
        if gpus is not None and gpus > 1 and place.world == 1:
            raise typer.Exit(launch(gpus, plan))
        from rlx.run import run

        view = View(sys.stderr if json else sys.stdout)
        result = run(plan, view)
        if place.rank:
            return
        view.done(result)
        if json:
            _print_json({"run": str(result.run), "checkpoint": str(result.checkpoint), "steps": result.steps,
                         "metrics": dict(result.metrics)})


def main() -> None:
    """The program."""
    if sys.argv[1:] in (["plugins"], ["plugins", "--json"]):  # typer loads pydantic to read even one flag
        try:
            plugins(json="--json" in sys.argv)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader, say head, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return
    from rlx.launch import reporting

    with reporting():
        app(prog_name="rlx")
