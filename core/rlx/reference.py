"""Logprobs of a frozen reference on given data: computed once, kept on disk, and the model is then not in memory."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from rlx.data.order import Order
from rlx.handles import Handle
from rlx.hf import model_files
from rlx.inputs import Inputs
from rlx.machine import expanded
from rlx.plan import Plan
from rlx.ranks import Ranks
from rlx.sources import read_rows
from rlx.text import count
from rlx_sdk import DataError, Pairs, Sequences

CHUNK = 256
"""Rows of a rank between two gatherings."""
FORMAT = 1
"""Raised when files of earlier versions cannot be used any more."""
_SCHEMA = pa.schema([("key", pa.binary(16)), ("logprobs", pa.list_(pa.float32()))])


class CachedReference:
    """Answers from the file, and from the model only for sequences that are not in it."""

    def __init__(self, table: pa.Table, ranks: Ranks, load: Callable[[], Handle]) -> None:
        """Index the file; ``load`` brings the model when it is needed after all."""
        self._values, self._ranks, self._load = table.column("logprobs").combine_chunks(), ranks, load
        self._row = {key: row for row, key in enumerate(table.column("key").to_pylist())}
        self._model: Handle | None = None

    def logprobs(self, seqs: Sequences) -> Tensor:
        """``[B, T]``, 0 where the mask is false."""
        rows = [self._row.get(key) for key in _keys(seqs)]
        if any(self._ranks.gather(None in rows)):
            return self._loaded().logprobs(seqs)
        out = torch.zeros(seqs.tokens.shape)
        for i, row in enumerate(rows):
            out[i, seqs.mask[i].cpu()] = torch.tensor(self._values[row].values.to_numpy())
        return out.to(seqs.tokens.device)

    def pair_logprobs(self, chosen: Sequences, rejected: Sequences) -> tuple[Tensor, Tensor]:
        """``[B, T]`` of either side."""
        return self.logprobs(chosen), self.logprobs(rejected)

    def logprobs_and_entropy(self, seqs: Sequences) -> tuple[Tensor, Tensor]:
        """``[B, T]`` each; entropies are not kept."""
        return self._loaded().logprobs_and_entropy(seqs)

    def _loaded(self) -> Handle:
        self._model = self._model or self._load()
        return self._model


@torch.no_grad()
def cached_reference(plan: Plan, inputs: Inputs, ranks: Ranks, load: Callable[[], Handle],
                     say: Callable[[str], None]) -> CachedReference:
    """The reference of a run on given data; what is not on disk yet is computed now, each rank its share.

    Args:
        plan: of the run.
        inputs: its data; only rows that the run will use are computed.
        ranks: who shares the work; every machine keeps a file.
        load: loads the model.
        say: tells the user.
    """
    used = Order(len(inputs.train), plan.spec.run.seed).take(0, inputs.total_steps * plan.spec.train.batch_size)
    wanted = [(inputs.train, sorted(set(used)))]
    if inputs.held_out is not None:
        wanted.append((inputs.held_out, list(range(len(inputs.held_out)))))
    model = plan.spec.model
    # Of each prepared file the ids themselves are the key's business; here it is enough which rows they are.
    identity = [FORMAT, model_files(model.reference.path or model.path), model.trust_remote_code,
                plan.spec.engine.dtype, torch.cuda.is_available(), [(prepared.key, rows) for prepared, rows in wanted]]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    path = expanded(plan.spec.data.cache) / f"reference-{key}.arrow"
    if not all(ranks.gather(_kept(path) is not None)):
        begin = time.monotonic()
        _write(path, _compute(wanted, inputs.tokenizer.pad_token_id, load(), ranks), ranks)
        gc.collect()  # the model's output layer refers to itself
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        say(f"reference logprobs of {count(sum(len(rows) for _, rows in wanted), 'row')} computed in "
            f"{time.monotonic() - begin:.0f} s and kept on disk")
    table = _kept(path)
    if table is None:
        raise DataError(f"the kept reference logprobs '{path}' vanished while they were used; start again")
    return CachedReference(table, ranks, load)


def _kept(path: Path) -> pa.Table | None:
    """The file's rows; None if it is not there, or damaged."""
    with contextlib.suppress(OSError, pa.ArrowInvalid), pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()
    return None


def _write(path: Path, batches: Iterator[pa.RecordBatch], ranks: Ranks) -> None:
    """Aside, then renamed, by one rank of each machine; the others help to compute."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(f".{os.urandom(8).hex()}")  # machines that share a disk may number processes alike
    with pa.MockOutputStream() if ranks.local_rank else pa.OSFile(str(aside), "wb") as sink:
        with pa.ipc.new_file(sink, _SCHEMA) as writer:
            for batch in batches:
                writer.write_batch(batch)
    if ranks.local_rank == 0:
        aside.replace(path)
    ranks.gather(None)  # until every machine has its file


def _compute(wanted: Sequence[tuple[Any, list[int]]], pad_id: int, handle: Handle,
             ranks: Ranks) -> Iterator[pa.RecordBatch]:
    """Keys and logprobs of all rows, on every rank."""
    for prepared, rows in wanted:
        for start in range(0, len(rows), CHUNK * ranks.world):
            data = read_rows(prepared, ranks.share(rows[start : start + CHUNK * ranks.world]), pad_id)
            found: list[dict[str, Any]] = []
            for seqs in (data.chosen, data.rejected) if isinstance(data, Pairs) else (data.seqs,):
                logprobs = handle.logprobs(seqs)
                found += [{"key": key, "logprobs": logprobs[i, seqs.mask[i]].tolist()}
                          for i, key in enumerate(_keys(seqs))]
            yield pa.RecordBatch.from_pylist([one for part in ranks.gather(found) for one in part], schema=_SCHEMA)


def _keys(seqs: Sequences) -> list[bytes]:
    """What a row's logprobs depend on, besides the model: its tokens, and which of them are asked for."""
    tokens, mask = seqs.tokens.cpu().numpy(), seqs.mask.cpu().numpy()
    return [hashlib.blake2b(tokens[i, :n].tobytes() + mask[i, :n].tobytes(), digest_size=16).digest()
            for i, n in enumerate(seqs.length.tolist())]
