"""State that is damaged under a process which has it in memory is built again from the log by that process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.errors import CorruptionError
from headwater.core.settings import LogSettings
from headwater.engine.tick.tick_engine import CHECK_EVERY_MS, Engine
from headwater.state.ownership import claim
from headwater.state.view_reader import view_contents
from headwater.testing import inspect_workspace

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)


def _flip(path: Path, place: int) -> None:
    """Change a byte in place, at a time that no clock of a file system is too coarse for."""
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))
    then = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(then, then))


def _replace(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    other = path.with_suffix(".other")
    other.write_bytes(data)
    other.rename(path)


def _remove(path: Path, place: int) -> None:
    path.unlink()


def _damage(ws: hw.Workspace, view: str, how: Callable[[Path, int], None]) -> None:
    """Damage a run of what a view shows at the newest tick."""
    store = inspect_workspace(ws).store
    latest = store.latest()
    assert latest is not None
    assert ws.path is not None
    ref = latest.arrangements[latest.views[view].contents][-1]
    how(ws.path / "state" / "runs" / ref.file, ref.offset + ref.length // 2)


def _built(ws: hw.Workspace) -> dict[str, int]:
    latest = inspect_workspace(ws).manifest()
    assert latest is not None
    return {name: view.built for name, view in latest.views.items()}


def test_state_is_built_again_in_the_process_that_wrote_it(
    tmp_path: Path, spark: SparkSession, clock: ManualClock
) -> None:
    with hw.open(tmp_path / "w", spark=spark, settings=SETTINGS, clock=clock) as ws:
        ws.sql("CREATE TOPIC t (k BIGINT, x BIGINT); CREATE TOPIC u (k BIGINT)")
        ws.sql("CREATE MATERIALIZED VIEW sums AS SELECT k, sum(x) AS s FROM t GROUP BY k")
        ws.run()
        ws.topic("t").append([{"k": n % 3, "x": n} for n in range(30)])
        ws.run()
        ws.sql("CREATE MATERIALIZED VIEW others AS SELECT k FROM u")
        ws.topic("u").append([{"k": 1}])
        ws.run()
        wanted = sorted((row["k"], row["s"]) for row in ws.view("sums").read().to_pylist())
        before = _built(ws)

        def check() -> None:
            """It was built again, alone, and is what it was."""
            now = _built(ws)
            assert now["sums"] > before["sums"]
            assert now["others"] == before["others"]
            before.update(now)
            found = sorted((row["k"], row["s"]) for row in ws.view("sums").read().to_pylist())
            assert found == wanted
            with hw.open(tmp_path / "w", spark=spark, settings=SETTINGS) as fresh:  # with nothing in memory
                assert fresh.view("sums").read().num_rows == len(wanted)

        for how in (_flip, _replace, _remove):
            _damage(ws, "sums", how)
            assert not ws.run().stopped
            check()

        # a reader with nothing in memory meets it first, then an engine in its process goes on
        _damage(ws, "sums", _flip)
        with hw.open(tmp_path / "w", spark=spark, settings=SETTINGS) as fresh:
            with pytest.raises(CorruptionError):
                fresh.view("sums").read()
            fresh.run()
        check()

        # `verify` finds it, and the next run builds it again
        _damage(ws, "sums", _flip)
        assert not ws.verify().ok
        ws.run()
        check()
        assert ws.verify().ok

        # an engine that goes on looks by itself
        store = inspect_workspace(ws).store
        engine = Engine(
            ws.log, store, claim(store.storage, clock), inspect_workspace(ws).engine_context(), clock
        )
        with engine._ownership:
            assert engine.tick() is None
            _damage(ws, "sums", _flip)
            assert engine.tick() is None, "it looks so often and not always"
            clock.advance(f"{CHECK_EVERY_MS / 1000:.0f} seconds")
            assert engine.tick() is not None
            assert engine.tick() is None
            engine.finish()
        check()
        assert view_contents(store, store.latest(), "sums").num_rows == len(wanted)
