"""The contract test of algorithms, on toy models; torch is imported when it is called."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from rlx_sdk.algorithms import Algorithm, Needs
from rlx_sdk.data import (
    Batch,
    Demonstrations,
    Group,
    Labelled,
    Loss,
    Max,
    Mean,
    Min,
    Pairs,
    Role,
    Rollouts,
    Sequences,
    Sum,
)
from rlx_sdk.plugins import AlgorithmPlugin
from rlx_sdk.testing.common import demand, failure, options_of, owned

if TYPE_CHECKING:
    from torch import Tensor

_VOCAB, _PROMPT, _LONGEST = 11, 3, 6


def check_algorithm(plugin: AlgorithmPlugin, options: Any = None) -> None:
    """Check what the trainer relies on, with and without rewards.

    `Needs` that say what is used; `prepare` gives a weight a row for every trained role, changes no state and works
    without any row; `loss` is one finite number a row, whatever rows are beside it and also for a row without a token,
    with gradients for its own role alone; `keep`, `trains`, `check`, `after_step` and the state do as typed.

    Args:
        plugin: what the ``rlx_algorithms`` hook returns.
        options: a mapping, or an object of the plugin's class; default: every option's default.

    Raises:
        AssertionError: what was given, what came back, and what to change.
    """
    demand(isinstance(plugin, AlgorithmPlugin), f"check_algorithm was given {plugin!r:.80}. Give it the "
           "AlgorithmPlugin that your rlx_algorithms hook returns.")
    name = f"algorithm '{plugin.name}'"
    made = options_of(name, plugin, options)
    for rewards in (False, True):
        given = f"with{'' if rewards else 'out'} rewards"
        with owned(name, f"asked for its needs {given}", "needs(options, rewards_given) must return Needs"):
            needs = plugin.needs(made, rewards)
        _check_needs(name, needs)
        if rewards or not needs.rewards:
            _Check(name, plugin, made, needs).run()


def _check_needs(name: str, needs: Any) -> None:
    demand(isinstance(needs, Needs), f"{name}: its needs are {needs!r:.80}; an rlx_sdk.Needs is wanted.")
    roles = set(get_args(Role))
    demand(needs.trains and needs.trains | needs.frozen <= roles, f"{name}: its needs train {set(needs.trains)} and "
           f"freeze {set(needs.frozen)}; name at least one role to train, of {sorted(roles)}.")
    demand(not needs.trains & needs.frozen, f"{name}: {set(needs.trains & needs.frozen)} are both trained and frozen.")
    demand(not needs.rewards or needs.data == "rollouts", f"{name}: it needs rewards and its data are {needs.data}; "
           "only rollouts have rewards.")


class _Check:
    """One plugin with one kind of data."""

    def __init__(self, name: str, plugin: AlgorithmPlugin, options: Any, needs: Needs) -> None:
        self.name, self.plugin, self.options, self.needs = f"{name} on {needs.data}", plugin, options, needs
        self.context = _Context(name, needs)

    def run(self) -> None:
        import torch

        torch.manual_seed(0)
        with owned(self.name, "when built", "build(options) must return an Algorithm"):
            algorithm = self.plugin.build(self.options)
        demand(isinstance(algorithm, Algorithm), f"{self.name}, when built: it gave {algorithm!r:.80}; a subclass of "
               "rlx_sdk.Algorithm is wanted.")
        data = _data(self.needs, self.context)
        batch = self._prepare(algorithm, data)
        self._check_rows(data, batch)
        for role in sorted(self.needs.trains):
            self._check_loss(algorithm, role, batch)
        self._prepare(algorithm, _first(data, 0), rows=False)
        self._check_rest(algorithm)

    def _prepare(self, algorithm: Any, data: Any, rows: bool = True) -> Batch:
        import torch

        given = "given its data" if rows else "given data without a row, as a rank may have"
        before = (json.dumps(algorithm.state_dict(), default=str), self.context.weights())
        fix = "prepare(data, context) must return a Batch"
        with owned(self.name, given, fix), torch.no_grad():
            batch, again = (algorithm.prepare(data, self.context) for _ in range(2))
        demand(isinstance(batch, Batch), f"{self.name}, {given}: prepare gave {batch!r:.80}; an rlx_sdk.Batch is "
                                         "wanted.")
        demand(before == (json.dumps(algorithm.state_dict(), default=str), self.context.weights()),
               f"{self.name}, {given}: prepare changed its state or a model; it is also called for evaluation, so "
               "change state in after_step.")
        for role in self.needs.trains:
            weight = batch.weight.get(role)
            demand(weight is not None and weight.shape == (len(batch),) and bool((weight >= 0).all()),
                   f"{self.name}, {given}: the batch's weight of '{role}' is {weight!r:.80}; one number ≥ 0 a row is "
                   "wanted for every trained role.")
            demand(weight is not None and torch.equal(weight, again.weight[role]),
                   f"{self.name}, {given}: two calls of prepare gave different weights; draw no random numbers.")
            demand(not rows or (weight is not None and float(weight.sum()) > 0),
                   f"{self.name}, {given}: every weight of '{role}' is 0, so nothing would be learnt.")
        _check_metrics(self.name, batch.metrics)
        return batch  # type: ignore[no-any-return]

    def _check_rows(self, data: Any, batch: Batch) -> None:
        if isinstance(data, Rollouts):
            prompts = len(set(data.group.tolist()))
            demand(self.needs.row_per_prompt == (len(batch) <= prompts),
                   f"{self.name}: {len(data.group)} completions of {prompts} prompts became {len(batch)} rows; set "
                   "row_per_prompt in its Needs where a prompt's completions make one row, and only there.")

    def _check_loss(self, algorithm: Any, role: Role, batch: Batch) -> None:
        import torch

        used = batch[batch.weight[role] > 0]
        whole = self._loss(algorithm, role, used, f"asked for the loss of '{role}'")
        (whole.rows * used.weight[role]).sum().backward()  # type: ignore[no-untyped-call]
        moved = {r for r, model in self.context.models.items() if model.moved()}
        demand(role in moved, f"{self.name}: the loss of '{role}' has no gradient for the {role}; compute it from "
               f"context.{role}, on the graph.")
        demand(moved <= {role}, f"{self.name}: the loss of '{role}' also has gradients for {sorted(moved - {role})}; "
               "detach what the others say, or compute it in prepare.")
        rows = whole.rows.detach()
        for i in range(len(used)):
            given = f"asked for the loss of '{role}', one row alone"
            one = self._loss(algorithm, role, used[i:i + 1], given).rows.detach()
            demand(torch.allclose(one[0], rows[i], atol=1e-4),
                   f"{self.name}: row {i + 1} has the loss {float(rows[i]):.6f} among others and "
                   f"{float(one[0]):.6f} alone; results must not depend on micro-batches, so compute what joins rows "
                   "in prepare.")
        self._loss(algorithm, role, _without_tokens(used), f"asked for the loss of '{role}', rows without any token")

    def _loss(self, algorithm: Any, role: Role, rows: Batch, given: str) -> Loss:
        import torch

        for model in self.context.models.values():
            model.zero()
        with owned(self.name, given, "loss(role, rows, context) must return a Loss"):
            loss = algorithm.loss(role, rows, self.context)
        demand(isinstance(loss, Loss) and loss.rows.shape == (len(rows),), f"{self.name}, {given}: it gave "
               f"{loss!r:.80}; a Loss whose rows are one number for each of the {len(rows)} rows is wanted.")
        demand(bool(torch.isfinite(loss.rows).all()), f"{self.name}, {given}: it gave {loss.rows.tolist()}; every loss "
               "must be finite.")
        _check_metrics(self.name, loss.metrics)
        return loss  # type: ignore[no-any-return]

    def _check_rest(self, algorithm: Any) -> None:
        groups = [Group((0.0, 1.0), 2), Group((1.0, 1.0), 2), Group((), 2)]
        with owned(self.name, "asked what it keeps and trains", "keep and trains must return True or False"):
            answers = [*map(algorithm.keep, groups),
                       *(algorithm.trains(role, step) for role in self.needs.trains for step in (0, 9))]
        demand(all(isinstance(a, bool) for a in answers), f"{self.name}: keep and trains gave {answers}; True or False "
               "is wanted.")
        with owned(self.name, "after a step", "after_step must do with the metrics there are: use metrics.get"):
            for metrics in ({"kl/mean": 0.5}, {}, dict.fromkeys(("kl/mean", "reward/mean", "completions"), math.nan)):
                algorithm.check(metrics)
                algorithm.after_step(metrics)
        with owned(self.name, "asked for its state", "state_dict must be JSON-able, also after a step whose metrics "
                   "were not finite, and load_state_dict take it back"):
            state = json.loads(json.dumps(algorithm.state_dict(), allow_nan=False))
            other = self.plugin.build(self.options)
            other.load_state_dict(state)
            after = json.loads(json.dumps(other.state_dict()))
        demand(after == state, f"{self.name}: its state was {state}, and {after} after it was loaded into a new one.")


def _check_metrics(name: str, metrics: Any) -> None:
    for metric, value in metrics.items():
        demand(isinstance(value, Mean | Sum | Max | Min), f"{name}: its metric '{metric}' is {value!r:.60}; a Mean, "
               "Sum, Max or Min is wanted, so that it is right over micro-batches and ranks.")


def _without_tokens(batch: Batch) -> Batch:
    import torch

    return replace(batch, sequences={n: replace(s, mask=torch.zeros_like(s.mask)) for n, s in batch.sequences.items()})


def _first(data: Any, n: int) -> Any:
    """The first rows of any kind of data."""
    if isinstance(data, Rollouts):
        return data[:n]
    if isinstance(data, Pairs):
        return Pairs(data.chosen[:n], data.rejected[:n], data.row[:n])
    if isinstance(data, Labelled):
        return Labelled(data.seqs[:n], data.label[:n], data.row[:n])
    return Demonstrations(data.seqs[:n], data.row[:n])


class _Model:
    """A language, value and score model in one: tables by the token before, or by the last token."""

    def __init__(self, temperature: float) -> None:
        import torch

        self._temperature = temperature
        self.tables = [torch.randn(_VOCAB, width, requires_grad=True) for width in (_VOCAB, 1, 1)]

    def logprobs(self, seqs: Sequences) -> Tensor:
        return self.logprobs_and_entropy(seqs)[0]

    def pair_logprobs(self, chosen: Sequences, rejected: Sequences) -> tuple[Tensor, Tensor]:
        return self.logprobs(chosen), self.logprobs(rejected)

    def logprobs_and_entropy(self, seqs: Sequences) -> tuple[Tensor, Tensor]:
        import torch

        logp = torch.log_softmax(self.tables[0][seqs.tokens[:, :-1]] / self._temperature, -1)
        chosen = logp.gather(-1, seqs.tokens[:, 1:, None])[..., 0]
        return tuple(self._shifted(x, seqs) for x in (chosen, -(logp.exp() * logp).sum(-1)))  # type: ignore[return-value]

    def values(self, seqs: Sequences) -> Tensor:
        return self._shifted(self.tables[1][seqs.tokens[:, :-1]][..., 0], seqs)

    def scores(self, seqs: Sequences) -> Tensor:
        import torch

        last = seqs.tokens[torch.arange(len(seqs)), seqs.length - 1]
        return self.tables[2][last][:, 0]

    def _shifted(self, x: Tensor, seqs: Sequences) -> Tensor:
        import torch

        return torch.where(seqs.mask, torch.nn.functional.pad(x, (1, 0)), 0.0)

    def moved(self) -> bool:
        return any(t.grad is not None and bool((t.grad != 0).any()) for t in self.tables)

    def zero(self) -> None:
        for table in self.tables:
            table.grad = None


class _Context:
    """What an algorithm may use; models that it did not declare are an error that says so."""

    step, temperature, single_update, exact_rollouts, max_completion = 0, 1.0, False, True, _LONGEST

    def __init__(self, name: str, needs: Needs) -> None:
        self._name = name
        self.models = {role: _Model(self.temperature) for role in sorted(needs.trains | needs.frozen)}

    def __getattr__(self, role: str) -> Any:
        if role in self.models:
            return self.models[role]
        raise failure(f"{self._name}: it asked for context.{role}, which its needs do not name; add it to trains or "
                      "frozen.") if role in get_args(Role) else AttributeError(role)

    def all_sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def weights(self) -> list[Any]:
        return [table.tolist() for model in self.models.values() for table in model.tables]


def _data(needs: Needs, context: _Context) -> Any:
    """Two prompts' worth of data of the kind that is needed."""
    import torch

    size = max(needs.min_group, needs.group_size or 1, 3)
    rows = 2 * size
    index = torch.arange(rows)
    if needs.data == "pairs":
        return Pairs(_sequences(rows, 0), _sequences(rows, 1), index)
    if needs.data == "labelled":
        return Labelled(_sequences(rows, 0), index % 2 == 0, index)
    if needs.data == "demonstrations":
        return Demonstrations(_sequences(rows, 0), index)
    seqs = _sequences(rows, 0)
    sampler = context.models.get("policy") or _Model(1.0)
    per_token = {"rollout_logprobs": sampler.logprobs(seqs).detach()}
    if needs.token_rewards:
        per_token["token_rewards"] = torch.zeros_like(seqs.mask, dtype=torch.float)
    rewards = torch.tensor([math.sin(i) for i in range(rows)])
    judged = index != 1
    return Rollouts(seqs.with_(**per_token), torch.where(judged, rewards, 0.0), judged, index // size,
                    index % size == 2)


def _sequences(rows: int, seed: int) -> Sequences:
    """Completions of 1 to 6 tokens after prompts of 2 or 3; both sides of a pair share their prompts."""
    import torch

    prompts = [2 + i % 2 for i in range(rows)]
    lengths = [p + 1 + (3 * i + seed) % _LONGEST for i, p in enumerate(prompts)]
    tokens = torch.randint(0, _VOCAB, (rows, _PROMPT + _LONGEST), generator=torch.Generator().manual_seed(seed))
    shared = torch.randint(0, _VOCAB, (rows, _PROMPT), generator=torch.Generator().manual_seed(9))
    place = torch.arange(tokens.shape[1])
    begin, end = torch.tensor(prompts)[:, None], torch.tensor(lengths)[:, None]
    tokens[:, :_PROMPT] = torch.where(place[:_PROMPT] < begin, shared, tokens[:, :_PROMPT])
    width = max(lengths)
    mask = ((place >= begin) & (place < end))[:, :width]
    return Sequences(tokens[:, :width], torch.tensor(lengths), mask)
