"""Command line: the `headwater` program.

Ctrl-C while the program is still loading ends it quietly, as it does later.

Called by the console script and `python -m headwater`; imports catalog, connectors, core, deletion, engine,
execution, lineage, log, queues, serving, sinks, sources, spark, sql, state, verify, views, web, workspace.

In import order, bottom to top:

    logs           the log file `logs/headwater.log`, in JSON lines
    output         printing: tables, JSON, errors, progress
    project        the project that `headwater init --project` creates
    inputs         input files of `headwater append`, in chunks
    overview       the live table of `headwater run`
    results        printing results of statements
    session        the workspace of a command, opened on demand
    live_progress  progress while an engine runs
    commands/      the commands, one module each
    program        the program: global options, list of commands, exit status
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
