"""``python -m rlx`` is ``rlx``."""

from rlx.cli import main

main()
