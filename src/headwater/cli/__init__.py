"""The command line. `headwater` and `python -m headwater` both start here."""

from headwater.cli.program import main

__all__ = ["main"]
