"""Views that end in a rank or in whole groups: what they make of changes, and that a key is looked up and not searched."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.engine.collections import collections
from headwater.engine.collections.collections import ViewCollection
from headwater.engine.dataflow.pruning import unread
from headwater.serving import query as reading
from headwater.state.view_reader import view_lookup
from headwater.testing import inspect_workspace

pytestmark = pytest.mark.slow

TOPIC = "CREATE TOPIC t (id BIGINT, k BIGINT, g STRING, v BIGINT, PRIMARY KEY (id));"
OVER = "OVER (PARTITION BY k ORDER BY v DESC, id)"
NAMED = f"SELECT id, k, v, row_number() {OVER} AS n FROM t"
VIEWS = {
    # view: its SELECT, the columns that it is arranged by, whether it looks at ranks
    "top": (f"SELECT v, k, id FROM t QUALIFY row_number() {OVER} <= 2", ["k"], False),
    "below": (f"SELECT k, id FROM ({NAMED}) WHERE n < 3 AND v % 5 <> 0", ["k"], False),
    "numbered": (f"SELECT * FROM ({NAMED}) WHERE n <= 2", ["k"], True),
    "second": (f"SELECT id, k FROM ({NAMED}) WHERE n = 2", ["k"], True),
    "computed": (f"SELECT k, id, v * n AS weighted FROM ({NAMED}) WHERE n <= 2", ["k"], True),
    "odd": (f"SELECT k, id FROM ({NAMED}) WHERE n <= 3 AND n % 2 = 1", ["k"], True),
    "tied": ("SELECT k, v FROM t QUALIFY rank() OVER (PARTITION BY k ORDER BY v) <= 2", ["k"], False),
    "dense": ("SELECT g, k, v FROM t QUALIFY dense_rank() OVER (PARTITION BY k, g ORDER BY v) <= 1", ["k", "g"], False),
    "keyless": (f"SELECT id, v FROM t QUALIFY row_number() {OVER} <= 2", ["id", "v"], False),
    "newest": ("SELECT id, v FROM t ORDER BY v DESC, id LIMIT 3", ["id", "v"], None),
    "listed": ("SELECT array_agg(v ORDER BY v, id) AS vs, k FROM t GROUP BY k", ["k"], None),
    "shares": ("SELECT id, k, sum(v) OVER (PARTITION BY k) AS s FROM t", ["k"], None),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, spark: Any) -> Path:
    """A workspace with the topic and all views."""
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(TOPIC + declared(VIEWS))
    return tmp_path / "ws"


def declared(views: Any) -> str:
    return "".join(f"CREATE MATERIALIZED VIEW {name} AS {VIEWS[name][0]};" for name in views)


def something(chance: random.Random, rows: int = 12) -> list[dict[str, Any]]:
    """Rows that come, are changed and go."""
    return [
        {"id": chance.randrange(25), "k": chance.choice([*range(4), None]), "g": chance.choice("ab"), "v": chance.randrange(9)}
        | ({"_op": "delete"} if chance.random() < 0.2 else {"_op": "upsert"})
        for _ in range(rows)
    ]  # fmt: skip


def arranged_by(ws: hw.Workspace, view: str) -> list[str]:
    """The columns that the stored contents of a view are arranged by."""
    manifest = inspect_workspace(ws).manifest()
    assert manifest is not None
    state = manifest.views[view]
    return [state.arrow_schema.names[k] for k in state.record.key]


def test_views_with_ranks_are_what_their_selects_say(folder: Path, spark: Any) -> None:
    chance = random.Random(7)
    for run in range(2):
        with hw.open(folder, durability="os", spark=spark) as ws:
            for _ in range(5):
                ws.topic("t").append(something(chance))
                assert ws.run(tick_rows=chance.choice([None, 3])).stopped == {}
            assert ws.verify().differences == ()
            if run:
                for name, (_, key, _) in VIEWS.items():
                    assert (name, arranged_by(ws, name)) == (name, key)


def test_a_rank_that_only_bounds_is_not_looked_at(folder: Path, spark: Any) -> None:
    with hw.open(folder, durability="os", spark=spark) as ws:
        ws.run()
        made = {unit.name: unit for unit in inspect_workspace(ws).engine_context().catalog.units()}
        for name, (_, _, reads) in VIEWS.items():
            unit = made[name]
            assert isinstance(unit, ViewCollection)
            assert (name, bool(unread(unit.plan.root))) == (name, reads is False)


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of views that queries have read so far, by lookup; another way to read them is an error."""
    found: list[int] = []

    def counting(*given: Any) -> pa.Table:
        table = view_lookup(*given)
        found.append(table.num_rows)
        return table

    def searched(store: Any, manifest: Any, view: str) -> pa.Table:
        raise AssertionError(f"all of {view} is read")

    monkeypatch.setattr(reading, "view_lookup", counting)
    monkeypatch.setattr(reading, "view_contents", searched)
    return found


def test_a_query_for_a_key_reads_its_rows_alone(tmp_path: Path, spark: Any, looked_up: list[int]) -> None:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(TOPIC + declared(["top", "dense", "listed", "shares"]))
        rows = [{"id": n, "k": n % 500, "g": "ab"[n % 2], "v": n} for n in range(2_000)]
        ws.topic("t").append(rows)
        ws.run()
        asked: dict[str, list[dict[str, Any]]] = {
            "SELECT * FROM top WHERE k = 5": [
                {"v": 1505, "k": 5, "id": 1505},
                {"v": 1005, "k": 5, "id": 1005},
            ],
            "SELECT v FROM dense WHERE g = 'b' AND k = 7 AND v > 0": [{"v": 7}],
            "SELECT vs FROM listed WHERE k = 5": [{"vs": [5, 505, 1005, 1505]}],
            "SELECT s FROM shares WHERE k = 5 ORDER BY id LIMIT 1": [{"s": 3020}],
            "SELECT * FROM top WHERE k = 1000": [],
        }
        for query, wanted in asked.items():
            assert sorted(map(str, ws.query(query).to_pylist())) == sorted(map(str, wanted))
        assert looked_up == [2, 1, 1, 4, 0]
        ws.topic("t").delete([{"id": 1505}])
        ws.run()
        assert ws.query("SELECT id FROM top WHERE k = 5 ORDER BY v")["id"].to_pylist() == [505, 1005]
        assert looked_up[5:] == [2]


# --- state of a version that arranged these views by all columns -------------------------------------------------------


OLD = ("top", "numbered", "listed", "shares", "newest")
Open = Callable[..., hw.Workspace]


@pytest.fixture
def open_ws(tmp_path: Path, spark: Any) -> Iterator[Open]:
    """Open the workspace, as the version before would if `old`, after closing it."""
    clock = ManualClock()
    settings = LogSettings(durability="os", maintenance_every_ms=0)
    opened: list[hw.Workspace] = []
    with pytest.MonkeyPatch.context() as patch:

        def again(*, old: bool = False, pass_by: str | None = None) -> hw.Workspace:
            for ws in opened:
                ws.close()
            patch.undo()
            if old:
                patch.setattr(collections, "partition_columns", lambda root: None)
            if pass_by is not None:
                clock.advance(pass_by)
            opened.append(hw.open(tmp_path / "ws", spark=spark, settings=settings, clock=clock))
            return opened[-1]

        yield again
        opened[-1].close()


def contents(ws: hw.Workspace) -> dict[str, list[str]]:
    return {name: sorted(map(str, ws.view(name).read().to_pylist())) for name in OLD}


@pytest.mark.long
def test_contents_arranged_by_all_columns_are_read_and_arranged_again_with_their_next_change(
    open_ws: Open,
) -> None:
    chance = random.Random(3)
    ws = open_ws(old=True)
    ws.sql(TOPIC + declared(OLD))
    for _ in range(4):
        ws.topic("t").append(something(chance))
        ws.run()
    before, histories = contents(ws), built(ws)
    assert all(arranged_by(ws, name) == ws.view(name).schema.names for name in OLD)

    ws = open_ws()
    assert ws.run().ticks == 0
    assert contents(ws) == before
    ones = [row for row in before["top"] if "'k': 1," in row]
    assert sorted(map(str, ws.query("SELECT * FROM top WHERE k = 1").to_pylist())) == ones
    for _ in range(3):
        ws.topic("t").append(something(chance))
        assert ws.run().stopped == {}
        assert ws.verify().differences == ()
    assert built(ws) == histories
    assert all(arranged_by(ws, name) == VIEWS[name][1] for name in OLD)

    ws = open_ws()
    ws.topic("t").append(something(chance))
    ws.run()
    assert ws.verify().differences == ()


def built(ws: hw.Workspace) -> dict[str, Any]:
    manifest = inspect_workspace(ws).manifest()
    assert manifest is not None
    return {name: (manifest.views[name].history, manifest.views[name].record.identity) for name in OLD}


@pytest.mark.long
def test_a_base_of_contents_arranged_by_all_columns_is_gone_on_from(open_ws: Open) -> None:
    chance = random.Random(4)
    topic = "CREATE TOPIC s (id BIGINT, k BIGINT, g STRING, v BIGINT) WITH (retention = '1 hour');"
    ws = open_ws(old=True)
    ws.sql(topic + declared(OLD).replace("FROM t", "FROM s"))

    def more() -> None:
        rows = ({name: v for name, v in row.items() if name != "_op"} for row in something(chance))
        ws.topic("s").append(list(rows))
        ws.run()

    for _ in range(3):
        more()
    ws = open_ws(old=True, pass_by="2 hours")
    assert ws.maintain().rows_removed > 0
    more()
    before = contents(ws)

    ws = open_ws()
    assert ws.verify().differences == ()  # on the base
    assert contents(ws) == before
    assert ws.path is not None
    shutil.rmtree(ws.path / "state")
    ws = open_ws()
    assert ws.run().stopped == {}
    assert contents(ws) == before
    for _ in range(2):
        more()
        assert ws.verify().differences == ()
    assert all(arranged_by(ws, name) == VIEWS[name][1] for name in OLD)
