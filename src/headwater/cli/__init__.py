"""The command line. `headwater` and `python -m headwater` both start here.

Ctrl-C while the program is still being loaded ends it as quietly as later.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """The console script."""
    # pyarrow looks for pandas at its first conversion, and loading that takes longer than most commands do. No command
    # uses pandas; one that will takes this away first.
    sys.modules.setdefault("pandas", None)  # type: ignore[arg-type]
    try:
        from headwater.cli.program import cli

        cli(prog_name="headwater")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


__all__ = ["main"]
