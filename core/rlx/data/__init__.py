"""From files on disk to token ids."""

from rlx.data.files import Rows, open_rows
from rlx.data.layouts import Example
from rlx.data.limits import Limits
from rlx.data.load import load_tokenizer
from rlx.data.prepare import Prepared, describe, prepare_rows
from rlx.data.tokenizer import Tokenizer

__all__ = ["Example", "Limits", "Prepared", "Rows", "Tokenizer", "describe", "load_tokenizer", "open_rows",
           "prepare_rows"]
