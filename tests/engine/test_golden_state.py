"""State of every format that was ever released is read and gone on from, not made anew; and so is the base of a view.

A copy is opened as a checkout has it: no hard links, no empty folders, another place, and a clock that has gone on.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.clock import ManualClock, from_us
from headwater.core.settings import LogSettings
from headwater.state.base_ticks import Bases
from headwater.state.damage import damaged
from headwater.state.manifest import FORMAT, Manifest
from headwater.testing import inspect_workspace
from tests.golden.contents import VIEWS, view_rows
from tests.raising import raises
from tests.repo.tree import ROOT

pytestmark = pytest.mark.slow

GOLDEN = sorted((ROOT / "tests" / "golden").glob("state-*"))
EXPECTED: dict[str, Any] = {
    home.name: json.loads((home / "expected.json").read_text(encoding="utf-8")) for home in GOLDEN
}
SETTINGS = LogSettings(maintenance_every_ms=0)

Ticks = dict[str, dict[str, list[str]]]
Contents = dict[str, list[str]]
Open = Callable[[], hw.Workspace]


@pytest.fixture(params=GOLDEN, ids=lambda home: home.name)
def home(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def ticks(home: Path) -> Ticks:
    """What the views held: all ticks from the base on."""
    return EXPECTED[home.name]["ticks"]


@pytest.fixture
def clock(home: Path) -> ManualClock:
    """A minute after it was made: retention has nothing more to remove."""
    return ManualClock(EXPECTED[home.name]["made_at_us"] + 60_000_000)


@pytest.fixture
def copy(home: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    shutil.copytree(home / "workspace", folder)
    for place, _, _ in os.walk(folder, topdown=False):
        if not os.listdir(place):
            os.rmdir(place)
    return folder


@pytest.fixture
def open_ws(copy: Path, clock: ManualClock, spark: Any) -> Iterator[Open]:
    opened: list[hw.Workspace] = []

    def again() -> hw.Workspace:
        for ws in opened:
            ws.close()
        opened.append(hw.open(copy, create=False, spark=spark, settings=SETTINGS, clock=clock))
        return opened[-1]

    yield again
    opened[-1].close()


def contents(ws: hw.Workspace, as_of: int | None = None) -> Contents:
    return {name: view_rows(ws, name, as_of) for name in VIEWS}


def latest(ws: hw.Workspace) -> Manifest:
    manifest = inspect_workspace(ws).manifest()
    assert manifest is not None
    return manifest


def append(ws: hw.Workspace, clock: ManualClock) -> None:
    """Something of everything that the views read: new rows, a row that replaces one, and a delete."""
    clock.advance("1 minute")
    now = from_us(clock.now_us())
    ws.append(
        {
            "orders": [
                {"customer": 1, "amount": Decimal("99.25"), "weight": 4.0, "note": "12"},
                {"customer": 9, "amount": Decimal("-1"), "weight": None, "note": "bad"},
            ],
            "customers": [{"id": 1, "country": "it"}, {"id": 9, "country": "fr"}],
            "clicks": [
                {"user": 1, "url": "/new", "at": now - timedelta(hours=1)},
                {"user": 5, "url": "/0", "at": now},
            ],
        }
    )
    ws.topic("prices").append([{"item": 7, "price": 1000}])
    ws.topic("prices").delete([{"item": 2}])


def on_base(ws: hw.Workspace) -> set[str]:
    """Verify, and say which views that took the base for; AssertionError if one differs."""
    verified = ws.verify()
    assert verified.ok, verified.differences
    assert {check.view for check in verified.views} == set(VIEWS)
    return {check.view for check in verified.views if check.on_base}


def test_the_present_format_has_a_golden_workspace() -> None:
    assert f"state-{FORMAT}" in EXPECTED, "run scripts/make_golden_state.py"


def test_it_is_small(home: Path) -> None:
    assert sum(path.stat().st_size for path in home.rglob("*") if path.is_file()) < 400_000


def test_it_has_every_part_of_the_format(home: Path) -> None:
    there = {path.relative_to(home / "workspace").parts[:-1] for path in (home / "workspace").rglob("*.*")}
    assert {("state",), ("state", "manifests"), ("state", "runs"), ("state", "cuts")} <= there
    assert {("bases",), ("bases", "runs")} <= there


def test_runs_share_streams_in_the_present_format(home: Path) -> None:
    newest = max((home / "workspace" / "state" / "manifests").glob("*.json"))
    runs = [run for runs in json.loads(newest.read_text())["arrangements"].values() for run in runs]
    assert any(len(run) == 12 for run in runs) == (home.name == f"state-{FORMAT}")


def test_its_state_is_whole_and_nothing_of_it_is_made_anew(open_ws: Open, ticks: Ticks) -> None:
    ws = open_ws()
    before = latest(ws)
    assert damaged(inspect_workspace(ws).store, before) == {}
    assert {view.status for view in before.views.values()} == {"live"}
    report = ws.run()  # a view that was planned otherwise, or could not be read, would be begun anew: a tick
    assert (report.ticks, report.tick, report.stopped) == (0, before.tick, {})
    assert contents(ws) == ticks[str(before.tick)]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu"])
def test_its_contents_are_what_they_were_wherever_it_is_read(
    zone: str, copy: Path, clock: ManualClock, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        with hw.open(copy, create=False, settings=SETTINGS, clock=clock) as ws:
            assert contents(ws) == ticks[max(ticks)]
            n = ws.query("SELECT sum(n) AS n FROM per_minute").to_pylist()[0]["n"]
            assert n == len(ticks[max(ticks)]["steps"])
    finally:
        monkeypatch.undo()
        time.tzset()


def test_its_views_go_on_from_their_state(open_ws: Open, clock: ManualClock, ticks: Ticks) -> None:
    ws = open_ws()
    before = latest(ws)
    append(ws, clock)
    assert ws.run().stopped == {}
    after = latest(ws)
    assert after.tick == before.tick + 1
    assert after.epoch == before.epoch + 1
    built = {name: (view.history, view.record.identity) for name, view in after.views.items()}
    assert built == {name: (view.history, view.record.identity) for name, view in before.views.items()}
    assert contents(ws) != ticks[str(before.tick)]
    assert on_base(ws) == {"spent", "by_country", "noted"}


def test_its_past_ticks_are_read_from_their_files(open_ws: Open, clock: ManualClock, ticks: Ticks) -> None:
    ws = open_ws()
    kept = inspect_workspace(ws).ticks()
    assert len(kept) == 2
    append(ws, clock)
    ws.run()
    for tick in kept:
        assert contents(ws, tick) == ticks[str(tick)]
    changes = ws.view("best").changes(since=kept[0]).to_pylist()
    assert {change["_tick"] for change in changes} <= {*kept[1:], latest(ws).tick}


def test_its_ticks_of_long_ago_are_computed_from_the_base_or_refused(open_ws: Open, ticks: Ticks) -> None:
    ws = open_ws()
    kept = inspect_workspace(ws).ticks()
    (computed,) = sorted(set(map(int, ticks)) - set(kept))
    assert contents(ws, computed) == ticks[str(computed)]
    with raises(hw.TickNotKeptError, reason="history-removed", view="spent", tick=1):
        ws.view("spent").read(as_of=1)


def test_its_base_is_all_that_its_views_need_beside_the_log(
    open_ws: Open, copy: Path, clock: ManualClock, ticks: Ticks
) -> None:
    base = Bases(inspect_workspace(open_ws()).store.storage).newest()
    assert base is not None
    before = latest(open_ws())
    assert base.tick < before.tick
    shutil.rmtree(copy / "state")
    ws = open_ws()
    assert ws.run().stopped == {}
    assert latest(ws).tick > before.tick
    assert contents(ws) == ticks[str(before.tick)]
    append(ws, clock)
    ws.run()
    assert on_base(ws) == {"spent", "by_country", "noted"}


def test_its_next_base_takes_the_place_of_the_one_it_has(
    open_ws: Open, copy: Path, clock: ManualClock
) -> None:
    ws = open_ws()
    append(ws, clock)
    ws.run()
    before = contents(ws)
    clock.advance("2 hours")
    assert ws.maintain().rows_removed > 0
    base = Bases(inspect_workspace(ws).store.storage).newest()
    assert base is not None
    assert base.tick == latest(ws).tick
    assert {path.name for path in (copy / "bases" / "runs").iterdir()} == base.files
    shutil.rmtree(copy / "state")
    ws = open_ws()
    ws.run()
    assert contents(ws) == before
