"""Files that go away, and folders that cannot be written."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlx.rewards import DRY_COMPLETION
from rlx_sdk import DataError, Sample, SpecError

from ..e2e.conftest import metrics_of

ROWS = [{"prompt": f"What is {i}?", "answer": i} for i in range(16)]


@pytest.mark.fault("data deleted in mid-run")
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_data_deleted_in_mid_run_is_still_there_for_the_run(train, tmp_path, ending):
    """The file and all caches go when the reward is first called, before step 1; all rows are read afterwards."""
    data, cache, seen = tmp_path / f"rows.{ending}", tmp_path / "cache", list[int]()
    if ending == "jsonl":
        data.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    else:
        pq.write_table(pa.Table.from_pylist(ROWS), data, row_group_size=4)

    def reward(samples: Sequence[Sample]) -> list[float]:
        shutil.rmtree(cache, ignore_errors=True)
        data.unlink(missing_ok=True)
        seen.extend(sample.row["answer"] for sample in samples if sample.completion != DRY_COMPLETION)
        return [float(len(sample.completion)) for sample in samples]

    settings = {"reward": reward, "rollout": {"max_completion": 4, "group_size": 2},
                "data": {"path": str(data), "cache": str(cache)},
                "train": {"steps": 4, "batch_size": 4, "optim": {"policy": {"lr": 3e-4}}}}
    result = train("grpo", **settings, run={"name": "orphan", "save_every": 2, "sample_every": None})
    assert [line["step"] for line in metrics_of(result.run)] == [1, 2, 3, 4]
    assert sorted(seen) == sorted([*range(16), *range(16)])
    with pytest.raises(DataError, match=rf"rows.{ending}"):
        train("grpo", **settings, run={"name": "orphan", "resume": "auto", "sample_every": None})


@pytest.mark.fault("read-only run folder")
def test_a_read_only_folder_is_found_before_the_start(train, small_disk):
    disk: Path = small_disk(8)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(SpecError, match=r"run folder cannot be made in '.*disk', which is read-only"):
        train("sft", run={"dir": str(disk), "name": "ro"})
