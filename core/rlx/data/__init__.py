"""From files on disk to token ids."""

from rlx.data.files import Rows, open_rows
from rlx.data.layouts import Example
from rlx.data.prepare import Limits, Prepared, describe, prepare_rows
from rlx.data.tokenizer import Tokenizer, load_tokenizer

__all__ = ["Example", "Limits", "Prepared", "Rows", "Tokenizer", "describe", "load_tokenizer", "open_rows",
           "prepare_rows"]
