"""The command line. `headwater` and `python -m headwater` both start here.

Ctrl-C while the program is still being loaded ends it as quietly as later: nothing is open then.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

INTERRUPTED = 130


def main() -> None:
    """The console script."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as behind nohup
        signal.signal(signal.SIGINT, _leave)
    try:
        from headwater.cli.program import cli

        cli(prog_name="headwater")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            sys.stdout.flush()
            sys.stderr.flush()
            _leave()  # all is closed; a conversation with the JVM that was cut off would have its say at the end
        raise


def _leave(*_: Any) -> None:
    """End at once. An exception could come up anywhere in an import, and become some other error there."""
    os._exit(INTERRUPTED)


__all__ = ["main"]
