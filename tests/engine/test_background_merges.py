"""Large runs are merged beside the ticks: a tick takes over what is done, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.settings import LogSettings
from headwater.engine.merging import background_merge
from headwater.state import merge_policy
from headwater.testing import inspect_workspace

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
VIEW = "CREATE MATERIALIZED VIEW s AS SELECT k, sum(v) AS s, max(v) AS m FROM t GROUP BY k"


@pytest.fixture
def ws(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A workspace in which runs of twenty rows are large."""
    small = merge_policy.to_merge
    monkeypatch.setattr(
        "headwater.engine.merging.run_compaction.to_merge", lambda refs: small(refs, now_rows_max=20, fan=2)
    )
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as opened:
        opened.sql("CREATE TOPIC t (id BIGINT, k BIGINT, v BIGINT, PRIMARY KEY (id))")
        opened.sql(VIEW)
        opened.sql("CREATE MATERIALIZED VIEW top AS SELECT k, s FROM s ORDER BY s DESC, k LIMIT 3")
        yield opened


def fill(ws: Workspace, turn: int) -> hw.Receipt:
    rows = [{"id": (turn * 7 + i) % 150, "k": (turn + i) % 60, "v": turn * i % 23} for i in range(25)]
    return ws.topic("t").append(rows)


def test_merges_by_the_thread_are_taken_over_and_change_nothing(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted: list[str] = []
    honest = background_merge.Merging.adopted

    def seen(self: background_merge.Merging, name: str, refs: Any) -> Any:
        after = honest(self, name, refs)
        if after != refs:
            adopted.append(name)
        return after

    monkeypatch.setattr(background_merge.Merging, "adopted", seen)
    with ws.start() as runner:
        for turn in range(40):
            ws.query("SELECT count(*) FROM s", after=fill(ws, turn))
        assert runner.running
    assert adopted, "no merge was ever taken over"
    assert ws.verify().ok
    latest = inspect_workspace(ws).manifest()
    assert latest is not None
    assert max(len(refs) for refs in latest.arrangements.values()) < 12


def test_a_merge_that_fails_leaves_the_runs_as_they_are(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise hw.StorageError("the disk is full")

    monkeypatch.setattr(background_merge, "merged_run", failing)
    with ws.start():
        for turn in range(12):
            ws.query("SELECT count(*) FROM s", after=fill(ws, turn))
    assert ws.verify().ok
    monkeypatch.undo()
    fill(ws, 12)
    ws.run()
    assert ws.verify().ok


def test_a_view_that_is_dropped_and_made_again_meanwhile_has_its_own_runs(ws: Workspace) -> None:
    with ws.start():
        for turn in range(16):
            receipt = fill(ws, turn)
            if turn == 8:
                ws.sql("DROP VIEW top; DROP VIEW s")
                ws.sql(VIEW)
            ws.query("SELECT count(*) FROM t", after=receipt)
    ws.run()
    assert ws.verify().ok
