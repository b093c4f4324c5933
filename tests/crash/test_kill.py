"""Real processes, killed for real (SIGKILL) at any moment, while others append and maintain."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.catalog.definitions import define_topic
from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Producer
from tests.crash.script import append, problems
from tests.crash.workers import BUSY, WIDTH, rows_of, value

ROOT = Path(__file__).parents[2]
KILLS = 60 if os.environ.get("HEADWATER_LONG") == "1" else 8
WRITERS = 3
PATIENCE_S = 60.0


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.workers", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def kill(child: subprocess.Popen[str]) -> list[list[int]]:
    """End it, and read what was acknowledged to it; a line that was cut short was not."""
    child.kill()
    said = child.communicate()[0]
    return [json.loads(line) for line in said.splitlines(keepends=True) if line.endswith("\n")]


def end(children: list[subprocess.Popen[str]]) -> None:
    """Leave none behind, whatever happened."""
    for child in children:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def wait_rows(log: EmbeddedLog, appends: int) -> None:
    """Until so many appends more are there."""
    wanted = sum(log.ends(["left"])["left"].values()) + appends
    deadline = time.monotonic() + PATIENCE_S
    while sum(log.ends(["left"])["left"].values()) < wanted:
        assert time.monotonic() < deadline, "nothing is appended"
        log.wait_commit(log.sequence(), 100)


@pytest.mark.parametrize("idempotent", ["no", "yes"])
def test_appenders_are_killed(tmp_path: Path, idempotent: str) -> None:
    folder = str(tmp_path / "ws")
    log = EmbeddedLog.open(folder, settings=BUSY)
    schema = pa.schema([pa.field("n", pa.int64())])
    for name in ("left", "right"):
        log.create_topic(define_topic(name, schema, options={"partitions": 2, "partition_by": "n"}))
    chooser = random.Random(1)
    acknowledged: list[dict[int, int]] = [{} for _ in range(WRITERS)]
    following = [0] * WRITERS
    writers = [start("appender", folder, str(n), "0", idempotent) for n in range(WRITERS)]
    upkeep = start("maintainer", folder)
    try:
        for round_number in range(KILLS):
            wait_rows(log, 2)  # however long it takes them to start
            time.sleep(chooser.uniform(0.2, 0.8))
            number = chooser.randrange(WRITERS)
            acknowledged[number] |= dict(kill(writers[number]))
            last = max(acknowledged[number], default=-1)
            # with a name the append under way is tried again; without one that would be a second copy, so it is left out
            following[number] = last + 1 if idempotent == "yes" else last + 2
            writers[number] = start("appender", folder, str(number), str(following[number]), idempotent)
            if round_number % 2:
                kill(upkeep)
                upkeep = start("maintainer", folder)
        kill(upkeep)
        for number, writer in enumerate(writers):
            acknowledged[number] |= dict(kill(writer))
    finally:
        end([*writers, upkeep])
    assert sum(map(len, acknowledged)) > KILLS, "hardly anything was appended"
    judge(log, acknowledged, idempotent == "yes")
    log.close()


def judge(log: EmbeddedLog, acknowledged: list[dict[int, int]], once: bool) -> None:
    """Every acknowledged row once, unacknowledged ones whole or not at all, order and offsets as they should be."""
    if once:
        for number, done in enumerate(acknowledged):
            sequence = max(done, default=-1) + 1
            rows = rows_of(number, sequence)
            first = append(log, {"left": rows, "right": rows}, producer=Producer(f"p{number}", sequence))
            assert (
                append(log, {"left": rows, "right": rows}, producer=Producer(f"p{number}", sequence)) == first
            )
    assert problems(log) == []
    by_topic = {}
    for name in ("left", "right"):
        seen: list[int] = []
        for partition, info in log.partitions(name).items():
            offsets, latest = [], {}
            for batch in log.read(name, partition, 0, info.end):
                for row in batch.to_pylist():
                    offsets.append(row["_offset"])
                    producer = row["n"] // (100 * WIDTH)
                    assert latest.get(producer, -1) < row["n"], "a producer's rows are out of order or twice"
                    latest[producer] = row["n"]
                    seen.append(row["n"])
            assert offsets == list(range(info.end)), "offsets have gaps"
        assert len(set(seen)) == len(seen)
        by_topic[name] = set(seen)
    assert by_topic["left"] == by_topic["right"], "an atomic append is there in part"
    for number, done in enumerate(acknowledged):
        for sequence, count in done.items():
            assert {value(number, sequence, row) for row in range(count)} <= by_topic["left"], (
                "acknowledged, and lost"
            )
