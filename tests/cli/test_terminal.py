"""What someone at a terminal sees of `headwater run`: Spark coming up quietly, its address, and a bar that fills."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from headwater.cli.live_progress import TickProgress
from headwater.core.settings import LogSettings
from headwater.engine.tick.tick_engine import TickReport
from headwater.state.manifest import Manifest, ViewState

ROWS = 40_000
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command at a terminal of 120 columns. `seen` has what it wrote, a line or a frame of a line each."""

    def __init__(self, *arguments: str | Path) -> None:
        self._fd, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
        environ.pop("NO_COLOR", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headwater", *map(str, arguments)],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=environ,
            start_new_session=True,
        )
        os.close(inside)
        self._text = ""

    @property
    def seen(self) -> list[str]:
        frames = (_ESCAPE.sub("", part).strip() for part in re.split(r"[\r\n]+", self._text))
        return [frame for frame in frames if frame]

    def read_until(self, wanted: str | None = None) -> list[str]:
        """Read until a frame has a text in it, or to the end; AssertionError if the end comes first."""
        while wanted is None or not any(wanted in frame for frame in self.seen):
            try:
                data = os.read(self._fd, 65_536)
            except OSError:  # Linux says so at the end
                data = b""
            if not data:
                assert wanted is None, f"no {wanted!r} in {self.seen}"
                break
            self._text += data.decode(errors="replace")
        return self.seen

    def close(self) -> int:
        """The exit status."""
        status = self.process.wait(120)
        os.close(self._fd)
        return status


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "ws"
    with hw.open(place, settings=LogSettings(durability="os", maintenance_every_ms=0)) as ws:
        ws.sql("CREATE TOPIC ev (id BIGINT, k BIGINT)")
        for start in range(0, ROWS, 10_000):
            ids = list(range(start, start + 10_000))
            ws.topic("ev").append(pa.table({"id": ids, "k": [i % 7 for i in ids]}))
    (tmp_path / "views.sql").write_text(
        "CREATE MATERIALIZED VIEW per_k AS SELECT k, count(*) AS n FROM ev GROUP BY k;"
    )
    return tmp_path


def test_an_engine_that_keeps_going_shows_how_far_each_backfill_is(folder: Path) -> None:
    with hw.open(folder / "ws") as ws:
        behind = ViewState("per_k", 1, "backfilling", "", "", positions={"ev": {0: 10_000}})
        live = ViewState("other", 1, "live", "", "", positions={"ev": {0: ROWS}})
        above = ViewState("above", 1, "backfilling", "", "")
        manifest = Manifest(3, 1, 0, 0, {}, views={v.name: v for v in (behind, live, above)})
        ticks = TickProgress(ws.log)
        ticks.ticked(TickReport(3, 10_000, 0.25), manifest)
        assert ticks._line() == (
            "tick 3: 10,000 rows, 250 ms, lag 0 rows; backfilling per_k ━━━━━┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄ 25%"
        )
        assert ticks._line() is None, "it was shown before"


@pytest.mark.slow
def test_spark_comes_up_quietly_and_a_bar_shows_the_backfill(folder: Path) -> None:
    run = ("-w", folder / "ws", "run", folder / "views.sql")
    once = Terminal(*run, "--once", "--tick-rows", "10000")
    seen = once.read_until()
    assert once.close() == 0, seen
    assert any("starting Spark" in frame for frame in seen)
    assert any(re.fullmatch(r"Spark UI: http://127\.0\.0\.1:\d+", frame) for frame in seen)
    bars = [frame for frame in seen if frame.startswith("updating views")]
    assert any(" 0 of 40,000 rows" in frame for frame in bars)
    assert any("40,000 of 40,000 rows" in frame for frame in bars)
    assert re.match(r"tick 4: 40,000 rows in 4 ticks, ", seen[-1])
    known = ("starting Spark", "Spark UI", "view per_k: created", "updating views", "tick ")
    # a spinner stands before some frames
    noise = [frame for frame in seen if not any(word in frame for word in known)]
    assert not noise, "Spark, or something else, said more than was asked for"

    going = Terminal(*run)
    going.read_until("running 1 view; Ctrl-C stops")
    os.killpg(going.process.pid, signal.SIGINT)
    seen = going.read_until()
    assert going.close() == 0, seen
    assert seen[-1].startswith("stopped at tick 4")
