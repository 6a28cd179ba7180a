"""Logprobs of a frozen reference on given data: computed once, kept on disk, and the model is then not in memory."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from rlx.data.files import cached_table
from rlx.data.order import Order
from rlx.handles import Handle
from rlx.hf import model_files
from rlx.inputs import Inputs
from rlx.plan import Plan
from rlx.ranks import Ranks
from rlx.sources import read_rows
from rlx_sdk import Pairs, Sequences

CHUNK = 256
"""Rows of a rank between two gatherings."""
_SCHEMA = pa.schema([("key", pa.binary(16)), ("logprobs", pa.list_(pa.float32()))])


class CachedReference:
    """Answers from the file, and from the model only for sequences that are not in it."""

    def __init__(self, table: pa.Table, ranks: Ranks, load: Callable[[], Handle]) -> None:
        """Index the file; ``load`` brings the model when it is needed after all."""
        self._table, self._ranks, self._load = table, ranks, load
        self._row = {key: row for row, key in enumerate(table.column("key").to_pylist())}
        self._model: Handle | None = None

    def logprobs(self, seqs: Sequences) -> Tensor:
        """``[B, T]``, 0 where the mask is false."""
        rows = [self._row.get(key) for key in _keys(seqs)]
        if any(self._ranks.gather(None in rows)):
            return self._loaded().logprobs(seqs)
        out = torch.zeros(seqs.tokens.shape)
        for i, row in enumerate(rows):
            out[i, seqs.mask[i]] = torch.tensor(self._table.column("logprobs")[row].as_py())
        return out

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
    identity = [_SCHEMA.to_string(), model_files(model.reference.path or model.path), plan.spec.engine.dtype,
                torch.cuda.is_available(), [(prepared.key, rows) for prepared, rows in wanted]]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
    path = Path(plan.spec.data.cache).expanduser() / f"reference-{key}.arrow"
    if not all(ranks.gather(path.exists())):
        begin, handle = time.monotonic(), load()
        batches = _compute(wanted, inputs.tokenizer.pad_token_id, handle, ranks)
        if ranks.local_rank == 0:
            path.unlink(missing_ok=True)
            cached_table(path, lambda: (_SCHEMA, batches))
        else:
            for _ in batches:
                pass
        ranks.gather(None)  # until every file is there
        say(f"reference logprobs of {sum(len(rows) for _, rows in wanted):,} rows computed in "
            f"{time.monotonic() - begin:.0f} s and kept; the reference model is out of memory")
    return CachedReference(cached_table(path, lambda: (_SCHEMA, iter(()))), ranks, load)


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
    tokens, mask = seqs.tokens.numpy(), seqs.mask.numpy()
    return [hashlib.blake2b(tokens[i, :n].tobytes() + mask[i, :n].tobytes(), digest_size=16).digest()
            for i, n in enumerate(seqs.length.tolist())]
