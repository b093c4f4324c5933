"""Views of every kind of operator go on from a base that an older release made, with history removed below them.

The fingerprint of a view's plan is stored with its state and with its base. If a release plans one of these views with another
fingerprint, the view cannot go on, for the records that it was made of are gone.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.clock import ManualClock, from_us
from headwater.core.settings import LogSettings
from headwater.operators import graph as g
from headwater.operators.graph_text import FORMS
from headwater.testing import inspect_workspace
from tests.golden.contents import view_rows
from tests.golden.graph_views import VIEWS, append, declare_functions
from tests.repo.tree import ROOT

pytestmark = pytest.mark.slow

HOME = ROOT / "tests" / "golden" / "graph-1"
EXPECTED: dict[str, Any] = json.loads((HOME / "expected.json").read_text(encoding="utf-8"))
SETTINGS = LogSettings(maintenance_every_ms=0)

Open = Callable[[], hw.Workspace]


@pytest.fixture
def clock() -> ManualClock:
    """A minute after the workspace was made: retention has nothing more to remove."""
    return ManualClock(EXPECTED["made_at_us"] + 60_000_000)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    shutil.copytree(HOME / "workspace", folder)
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
        declare_functions(opened[-1])
        return opened[-1]

    yield again
    opened[-1].close()


def contents(ws: hw.Workspace) -> dict[str, list[str]]:
    return {name: view_rows(ws, name) for name in VIEWS}


def kinds_in(value: Any) -> set[type]:
    """Every class that is stored as a part of a graph."""
    parts = value if isinstance(value, tuple) else []
    here: set[type] = set()
    if (form := FORMS.get(type(value))) is not None:
        here = {type(value)}
        parts = [getattr(value, attribute) for _, attribute in form.fields]
    return here.union(*(kinds_in(part) for part in parts))


def test_every_kind_of_node_is_in_a_view_whose_history_was_removed(open_ws: Open) -> None:
    ws = open_ws()
    units = inspect_workspace(ws).engine_context().catalog.workload({}).units
    roots = {unit.name: unit.plan.root for unit in units if unit.name in VIEWS}
    assert roots.keys() == set(VIEWS)
    assert set().union(*map(kinds_in, roots.values())) == FORMS.keys()
    assert any(isinstance(n, g.Join) and n.range for root in roots.values() for n in g.walk(root))
    assert all(bounds.first > 0 for name in ("orders", "payments", "prices")
               for bounds in ws.topic(name).partitions().values())  # fmt: skip


def test_state_is_gone_on_from_as_it_is(open_ws: Open, clock: ManualClock) -> None:
    ws = open_ws()
    report = ws.run()
    assert (report.ticks, report.stopped) == (0, {}), "a view with another fingerprint would be built again"
    assert contents(ws) == EXPECTED["views"]
    clock.advance("1 minute")
    append(ws, from_us(clock.now_us()), 5)
    assert ws.run().stopped == {}
    verified = ws.verify()
    assert verified.ok, verified.differences
    on_base = {check.view for check in verified.views if check.on_base}
    assert set(VIEWS) - on_base == {"price_sessions", "versions"}, (
        "these are computed from the base of the table below"
    )


def test_bases_take_the_place_of_state_that_is_lost(open_ws: Open, copy: Path) -> None:
    open_ws()
    shutil.rmtree(copy / "state")
    ws = open_ws()
    assert ws.run().stopped == {}
    assert contents(ws) == EXPECTED["views"]
