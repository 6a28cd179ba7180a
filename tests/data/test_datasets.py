"""``hf:`` data through the datasets package."""

import datasets
import pytest

from rlx.data.files import open_rows
from rlx_sdk import DataError

ROWS = [{"prompt": f"p{i}", "truth": i, "tags": [str(i)]} for i in range(5)]


def test_a_saved_dataset_is_read_as_it_is(tmp_path):
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    rows = open_rows(f"hf:{tmp_path / 'saved'}", tmp_path / "cache")
    assert [rows[i] for i in range(len(rows))] == ROWS
    assert rows.columns == ("prompt", "truth", "tags")


def test_a_split_is_named_after_an_at_sign(tmp_path):
    parts = {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:2])}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "saved")
    assert len(open_rows(f"hf:{tmp_path / 'saved'}", tmp_path / "cache")) == 5
    assert len(open_rows(f"hf:{tmp_path / 'saved'}@test", tmp_path / "cache")) == 2


def test_a_split_that_is_not_there_brings_those_that_are(tmp_path):
    datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match=r"has no split 'test'; it has train\. Name one, e\.g\. hf:.*saved@train\."):
        open_rows(f"hf:{tmp_path / 'saved'}@test", tmp_path / "cache")


def test_a_folder_that_is_no_dataset_is_named(tmp_path):
    with pytest.raises(DataError, match=r"data 'hf:.*' cannot be had through datasets: "):
        open_rows(f"hf:{tmp_path}", tmp_path / "cache")


def test_without_the_package_there_is_the_install_line(tmp_path, monkeypatch):
    monkeypatch.setattr("rlx.data.files.importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"needs the package 'datasets'.*pip install 'rlx\[datasets\]'"):
        open_rows("hf:org/name", tmp_path)
