"""A process that follows a history into a target until it is killed, and the test that kills it.

As a program: `python -m tests.sinks.killed KIND FOLDER` says each tick that was applied.
"""

import itertools
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from headwater.sinks.base.target import Target
from tests.sinks.samples import contents_at, follow, same_rows, shape

ROOT = Path(__file__).parents[2]


def make(kind: str, folder: Path) -> Target:
    """A target of a kind in a folder, prepared."""
    if kind == "search":
        from headwater.sinks.search.target import SearchTarget

        target: Target = SearchTarget(folder / "index")
    elif kind == "lake":
        from headwater.sinks.iceberg.target import LakeTarget

        target = LakeTarget(folder / "warehouse", "t", file_rows=40, snapshots=5)
    else:
        from headwater.sinks.parquet.target import ParquetTarget

        target = ParquetTarget(folder / "parquet")
    target.prepare(shape())
    return target


def kill_and_compare(kind: str, folder: Path, *, kills: int, seed: int) -> None:
    """Kill a process that follows a history, at random moments; what it leaves is always of the tick that it says."""
    chance = random.Random(seed)
    for _ in range(kills):
        said = _killed_after(kind, folder, ticks=chance.randrange(1, 6), pause_s=chance.random() * 0.1)
        target = make(kind, folder)
        checkpoint = target.checkpoint()
        assert checkpoint is not None
        assert checkpoint.tick >= said
        assert same_rows(target.contents(), [contents_at(checkpoint.tick)])
        follow(target, range(checkpoint.tick + 1, checkpoint.tick + 3))
        assert same_rows(target.contents(), [contents_at(checkpoint.tick + 2)])
        target.close()


def _killed_after(kind: str, folder: Path, *, ticks: int, pause_s: float) -> int:
    """Let the process apply some ticks and kill it a moment later; the last tick that it said."""
    program = [sys.executable, "-m", "tests.sinks.killed", kind, str(folder)]
    process = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [line for line in itertools.islice(process.stdout, ticks) if line]
    assert len(lines) == ticks
    try:
        process.wait(pause_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    return int((rest or lines)[-1])


if __name__ == "__main__":
    made = make(sys.argv[1], Path(sys.argv[2]))
    for tick in itertools.count(1):
        follow(made, range(tick, tick + 1))
        os.write(1, f"{tick}\n".encode())
