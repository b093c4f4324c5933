"""Leaves out steps of a script that fails, for as long as it still fails."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from tests.postgres import PostgresServer
from tests.sources.postgres.model.player import ScriptError, play


def shortened(server: PostgresServer, error: ScriptError, folder: Path, seconds: float) -> ScriptError:
    """The failure of the shortest script that was found within a time. Halves of the script are tried first, single steps last."""
    deadline = time.monotonic() + seconds
    steps = list(error.script.steps[: error.step + 1])
    size = len(steps) // 2
    while size:
        begin = 0
        while begin < len(steps) and time.monotonic() < deadline:
            rest = steps[:begin] + steps[begin + size :]
            try:
                play(server, replace(error.script, steps=rest), folder)
                begin += size
            except ScriptError as again:
                error = again
                steps = rest[: again.step + 1]
        size //= 2
    return error
