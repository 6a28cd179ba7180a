"""Case files, tokenizers, and a cache of each test's own."""

import shutil
from pathlib import Path

import pytest

from rlx.data import Limits, load_tokenizer, open_rows, prepare_rows

CASES = Path(__file__).parents[1] / "cases"


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """Makes a model folder with the tokenizer of a case."""

    def make(tokenizer):
        folder = tmp_path_factory.mktemp("models") / tokenizer
        shutil.copytree(CASES / "models/tiny", folder)
        shutil.copytree(CASES / "tok" / tokenizer, folder, dirs_exist_ok=True)
        return folder

    return make


@pytest.fixture(scope="session")
def tokenizer(model_folder):
    """Loads the tokenizer of a case, once."""
    loaded = {}

    def load(name="T00_base"):
        if name not in loaded:
            loaded[name] = load_tokenizer(str(model_folder(name)))
        return loaded[name]

    return load


@pytest.fixture
def cache(tmp_path):
    """A cache folder."""
    return tmp_path / "cache"


@pytest.fixture
def rows(cache):
    """Opens a case's file, or any path."""
    return lambda name: open_rows(str(CASES / "data" / name), cache)


@pytest.fixture
def prepare(rows, tokenizer, cache):
    """Prepares a file."""

    def make(name, kind="rollouts", limits=None, columns=None, tokenizer_name="T00_base"):
        return prepare_rows(rows(name), kind, tokenizer(tokenizer_name), limits or Limits(), columns or {}, cache)

    return make
