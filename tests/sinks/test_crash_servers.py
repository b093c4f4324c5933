"""Processes that are killed while they write to a Postgres or a Redis: what is there is of one tick, and goes on."""

import itertools
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.core.clock import ManualClock
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.sinks.base.applier import Applier
from headwater.sinks.base.sink_verify import check
from headwater.sinks.redis import target as redis_sink
from tests.sinks.followers import SHAPE, contents_at, feed_at, make

ROOT = Path(__file__).parents[2]


def killed_after(kind: str, url: str, first: int, ticks: int, pause_s: float) -> int:
    """Let the process apply some ticks and kill it a moment later; the last tick that it said."""
    program = [sys.executable, "-m", "tests.sinks.followers", kind, url, str(first)]
    process = subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = list(itertools.islice(process.stdout, ticks))
    assert len(lines) == ticks
    try:
        process.wait(pause_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().split()
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    return int((rest or lines)[-1])


@pytest.mark.parametrize(
    "kind", ["postgres", pytest.param("redis", marks=pytest.mark.long), "redis in parts"]
)
def test_a_killed_process_leaves_a_tick_and_the_next_goes_on(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue("postgres_url" if kind == "postgres" else "redis_url")
    for name in ("ROWS_AT_ONCE", "ROWS_OF_A_PART"):
        monkeypatch.setattr(redis_sink, name, getattr(redis_sink, name))  # put back afterwards
    chance = random.Random(kind)
    tick = 1
    for _ in range(3):
        said = killed_after(kind, url, tick, chance.randrange(1, 4), chance.random() * 0.15)
        target = make(kind, url)
        target.prepare(SHAPE)
        checkpoint = target.checkpoint()
        assert checkpoint is not None
        assert checkpoint.tick >= said
        if checkpoint.whole:
            expected = Delta.of(target.stored_form(contents_at(checkpoint.tick).rows))
            there = [Delta.of(batch).negated() for batch in target.contents()]
            assert not len(consolidate(concat([expected, *there], expected.rows.schema)))
        else:
            assert kind == "redis in parts"
        tick = checkpoint.tick + 1
        feed = feed_at(tick)
        applier = Applier(SHAPE, target, feed, ManualClock())
        while applier.step():
            pass
        assert check(applier, feed).ok
        applier.close()
