"""The training loop. It knows no algorithm: what differs is in the algorithm, the source and their contracts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlx.batching import concatenate, row_lengths, share_out
from rlx.engine import Engine
from rlx.faults import Seen, accumulate, fitted, passes
from rlx.handles import RunContext
from rlx.looks.samples import explain
from rlx.metrics import Accumulator, Phases
from rlx.ranks import Ranks, seed_everything
from rlx.recorder import Recorder
from rlx.sources import Source
from rlx.spec import RunSpec, TrainSpec
from rlx_sdk import Algorithm, Batch, Mean, Role, Sequences, TrainingError

NO_UPDATE = ("no row had a trainable token and a reward, or the gradient was not finite, or the algorithm held it "
             "back; look at reward/judged, pairs and skipped/* in metrics.jsonl")


@dataclass
class Trainer:
    """Everything a run needs, assembled by `rlx.build`."""

    algorithm: Algorithm[Any]
    source: Source
    engines: Mapping[Role, Engine]
    context: RunContext
    ranks: Ranks
    train: TrainSpec
    run: RunSpec
    total_steps: int
    evaluates: bool
    recorder: Recorder
    step: int = 0
    skipped: int = 0
    budget: int = 0
    owed: bool = False

    def fit(self) -> None:
        """Train to the end, or until the recorder is asked to stop, from wherever this trainer stands."""
        self._sync()
        if self.evaluates and (self.step == 0 or self.owed):
            self.evaluate()
        while self.step < self.total_steps:
            self.train_step()
            last, stop = self.step == self.total_steps, self.recorder.stop_asked()
            due = self.evaluates and (last or _due(self.step, self.run.eval_every))
            self.owed = due and stop and not last  # whoever asked for the end waits; the run that goes on measures it
            if due and not self.owed:
                self.evaluate()
            if last or stop or _due(self.step, self.run.save_every):
                self.recorder.save(self)
            if stop and not last:
                return
        if idle := [role for role, engine in self.engines.items() if engine.updates == 0]:
            raise TrainingError(f"the {' and the '.join(idle)} never moved in {self.total_steps} steps: {NO_UPDATE}")

    def train_step(self) -> None:
        """Collect, prepare, update, sync, record."""
        phase, found = Phases(self.recorder.phase), Accumulator(self.ranks)
        seed_everything(self.run.seed, self.step, self.ranks.rank)
        self.context.step = self.step
        collected = self.source.collect(phase)
        if collected is None:
            raise TrainingError(f"the data ended at step {self.step} of {self.total_steps}")
        with phase("prepare"), torch.no_grad():
            batch = self.algorithm.prepare(collected.data, self.context)
            whole = concatenate(self.ranks.gather(batch))
        made = [*batch.sequences.values()]
        found.add({**batch.metrics, "update/tokens": Mean(int(row_lengths(whole).sum()) * self.train.update_epochs, 1)})
        with phase("update"):
            self._count_skipped(self._update(whole, found, made, phase))
        if collected.chosen is not None:
            self.recorder.chosen(self.step, collected.chosen)
        self.step += 1
        self.source.wait(phase)
        with phase("sync"):
            self._sync()
        with phase("record"):
            found.add(phase.memory())
            explain(collected.samples, made, self.ranks)
            metrics = {**collected.metrics, **found.reduce()}
            self.algorithm.check(metrics)
            self.algorithm.after_step(metrics)
        self.recorder.step(self.step, {**metrics, **phase.metrics(metrics)}, collected.samples)

    @torch.no_grad()
    def evaluate(self) -> None:
        """Measure the held-out data; changes nothing."""
        phase, found = Phases(self.recorder.phase), Accumulator(self.ranks)
        self.context.step = self.step
        seed_everything(self.run.seed, self.step, self.ranks.rank)
        collected = self.source.evaluate(phase)
        if collected is None:
            return
        batch = self.algorithm.prepare(collected.data, self.context)
        made = [*batch.sequences.values()]
        found.add(batch.metrics, "eval/")
        whole = concatenate(self.ranks.gather(batch))
        for role in self.engines:
            list(self._losses(role, whole, made, found, Seen(), "eval/"))  # only measured
        explain(collected.samples, made, self.ranks)
        metrics = {**{f"eval/{name}": value for name, value in collected.metrics.items()}, **found.reduce()}
        self.algorithm.check({name.removeprefix("eval/"): value for name, value in metrics.items()})
        self.recorder.evaluated(self.step, metrics, collected.samples)
        self._sync()  # the backend has given its weights back

    def _update(self, batch: Batch, found: Accumulator, made: list[Sequences], phase: Phases) -> bool:
        """All passes over the batch of all ranks; whether every role that trains in this step moved."""
        trained = {role: False for role in self.engines if self.algorithm.trains(role, self.step)}
        index = self.step * self.train.update_epochs * self.train.minibatches
        generator = torch.Generator().manual_seed(self.run.seed * 1_000_003 + self.step)
        for _ in range(self.train.update_epochs):
            order = torch.randperm(len(batch), generator=generator)
            for rows in order.tensor_split(self.train.minibatches):
                minibatch = batch[rows]
                for role in trained:
                    with phase(f"update/{role}"):
                        trained[role] |= self._minibatch(role, minibatch, made, found, index)
                index += 1
        return all(trained.values())

    def _minibatch(self, role: Role, batch: Batch, made: list[Sequences], found: Accumulator, index: int) -> bool:
        """One optimizer step, ``index`` of the run: ``Σ weight·loss / Σ weight`` over the minibatch of all ranks."""
        engine, total = self.engines[role], float(batch.weight[role].sum())
        if total == 0:
            return False
        for other in self.engines.keys() - {role}:
            self.engines[other].park()
        measured, seen = accumulate(partial(self._losses, role, batch, made), engine, self.ranks, total, self._smaller)
        found.merge(measured)
        result = engine.step(index)
        found.add({f"lr/{role}": Mean(result.lr, 1), f"skipped/{role}": Mean(result.skipped, 1)})
        if result.skipped:
            self.recorder.skipped(self.step + 1, role, [part[~rows.isfinite().cpu()] for part, rows in seen])
        else:
            found.add({f"grad_norm/{role}": Mean(result.grad_norm, 1)})
        return not result.skipped

    def _smaller(self, budget: int) -> None:
        self.budget = budget
        self.recorder.note(f"step {self.step + 1}: out of memory; its gradients are made again, from now on with "
                           f"train.micro_tokens = {budget}")

    def _losses(self, role: Role, batch: Batch, made: list[Sequences], found: Accumulator, seen: Seen,
                prefix: str = "") -> Iterator[Tensor]:
        """``Σ weight·loss`` of each of this rank's micro-batches; ``made`` gets what became known on the way."""
        train, device, budget = self.train, self.engines[role].device, self.budget or self.train.pass_tokens
        used = batch[batch.weight[role] > 0]  # what has no weight may hold anything
        parts = share_out(used, budget, train.micro_batch, self.ranks, train.packing) if len(used) else ()
        for part, real in parts:
            seen.current, rows = part, part.to(device)
            weight, loss = rows.weight[role], self.algorithm.loss(role, rows, self.context)
            weighted = (loss.rows * weight).sum()
            if real:
                found.add({f"loss/{role}": Mean(weighted, weight.sum()), **loss.metrics}, prefix)
                seen.append((part, loss.rows.detach()))
                made += [seqs.with_(**loss.per_token) for seqs in rows.sequences.values() if loss.per_token]
            yield weighted

    def _sync(self) -> None:
        if "policy" in self.engines:
            for engine in self.engines.values():
                engine.park()
            self.source.sync(self.engines["policy"].policy_weights(), self.step)

    def _count_skipped(self, moved: bool) -> None:
        self.skipped = 0 if moved else self.skipped + 1
        if self.skipped >= self.train.max_skipped:
            raise TrainingError(f"no update was possible in {self.skipped} steps in a row (at step {self.step + 1}): "
                                f"{NO_UPDATE}; train.max_skipped sets how many such steps are endured")

    def state_dict(self) -> dict[str, Any]:
        """Everything beside weights and moments, JSON-able."""
        return {"step": self.step, "skipped": self.skipped, "owed": self.owed, "source": self.source.state_dict(),
                "algorithm": self.algorithm.state_dict(), "updates": {r: e.updates for r, e in self.engines.items()},
                "passes": passes(self.train, self.budget)}

    def load_state_dict(self, state: Mapping[str, Any], weights: Callable[[Role], Mapping[str, Tensor]]) -> None:
        """Stand where `state_dict` was taken; ``weights`` gives what each role's `Engine.state` gave, by name."""
        self.step, self.skipped, self.owed = state["step"], state["skipped"], state.get("owed", False)
        self.budget = fitted(state.get("passes"), self.train, self.recorder.note)
        self.source.load_state_dict(state["source"])
        self.algorithm.load_state_dict(state["algorithm"])
        for role, engine in self.engines.items():
            engine.load_state(weights(role), state["updates"][role])


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
