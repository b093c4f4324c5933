"""Command line: the `headwater` program.

Ctrl-C ends the program without a traceback, also while it is still loading.

Called by the console script and `python -m headwater`; imports catalog, connectors, core, deletion, engine, execution,
lineage, log, queues, serving, sinks, sources, spark, sql, state, verify, views, web, workspace.

In import order, bottom to top:

    logs           the log file `logs/headwater.log`, in JSON lines
    tables         layout of tables that fit a width
    output         printing: tables, JSON, errors, progress
    listings       columns of listings
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
    """Run the `headwater` program; the entry point of the console script."""
    # not when SIGINT is ignored, as under nohup
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
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
            # everything is closed; an interrupted call to the JVM would otherwise print an error at exit
            _leave()
        raise


def _leave(*_: Any) -> None:
    """End the process at once. An exception could be raised anywhere in an import, and be turned into another error there."""
    os._exit(INTERRUPTED)


__all__ = ["main"]
