"""Processes that build a target anew are killed at random moments: a whole version is in force, and the next one goes on."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.core.clock import ManualClock
from headwater.operators.zset.delta import concat_rows
from headwater.sinks.base.applier import Applier
from headwater.sinks.base.sink_verify import check
from headwater.sinks.base.target import Target
from tests.sinks.followers import SHAPE, contents_at, feed_at
from tests.sinks.rebuilders import TICK, make, rebuilding

ROOT = Path(__file__).parents[2]
KILLS = 3


OTHERS = [pytest.param(kind, marks=pytest.mark.long) for kind in ("redis", "search", "lake", "parquet")]


@pytest.mark.parametrize("kind", ["postgres", *OTHERS])
def test_a_killed_rebuild_leaves_a_whole_version_in_force(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = str(tmp_path)
    if kind in ("postgres", "redis"):
        place = request.getfixturevalue(f"{kind}_url")
    target = make(kind, place)
    applier = Applier(SHAPE, target, feed_at(TICK), ManualClock())
    while applier.step():
        pass
    dice = random.Random(kind)
    for _ in range(KILLS):
        target.close()
        _killed([kind, place], dice)
        assert_whole(target)
        assert check(applier, feed_at(TICK)).ok
    versions = rebuilding(target)
    if versions.old() is not None:
        versions.drop_old()
    versions.build()
    assert_whole(target)
    target.close()


def assert_whole(target: Target) -> None:
    """All rows are there, whoever looks."""
    target.prepare(SHAPE)
    checkpoint = target.checkpoint()
    assert checkpoint is not None
    assert (checkpoint.tick, checkpoint.whole) == (TICK, True)
    expected = target.stored_form(contents_at(TICK).rows)
    found = concat_rows(list(target.contents()), expected.schema)
    first = expected.schema.names[0]
    assert found.sort_by(first).equals(expected.sort_by(first))


def _killed(arguments: list[str], dice: random.Random) -> None:
    """Start the process, and kill it some time after it has begun to switch versions."""
    program = [sys.executable, "-m", "tests.sinks.rebuilders", *arguments]
    process = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "built"
    try:
        process.wait(dice.random() * 0.5)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    process.stdout.read()
    process.stdout.close()
    assert process.wait() == -signal.SIGKILL
