"""Plays scripts by their seeds, and shortens those that fail: `python -m tests.sources.postgres.model 17 18 "drop slot" --shorten`."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.sources.postgres.model.generate import GAPS, generate
from tests.sources.postgres.model.player import ScriptError, play
from tests.sources.postgres.model.settings import impatient, make_server
from tests.sources.postgres.model.shorten import shortened


def main(first: str, last: str, *more: str) -> None:
    """Play the seeds of a range, with kinds of gaps that are named or those that the seeds choose."""
    gaps = [name for name in GAPS if name in more] or ([] if "calm" in more else None)
    server = make_server()
    failed = []
    with tempfile.TemporaryDirectory() as folder, impatient():
        for seed in range(int(first), int(last)):
            begun = time.monotonic()
            try:
                stops = play(server, generate(seed, gaps), Path(folder))
                print(f"{seed}: equal after {stops} stops, {time.monotonic() - begun:.1f} s", flush=True)
            except ScriptError as error:
                failed.append(seed)
                if "--shorten" in more:
                    error = shortened(server, error, Path(folder), 120)
                print(f"{seed}: {error}", flush=True)
    server.remove()
    print("failed:", failed)


if __name__ == "__main__":
    main(*sys.argv[1:])
