"""Topics whose columns change under views: an added one changes nothing, a wider one comes with a switch."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.settings import LogSettings
from headwater.engine.tick import backfill_parts
from headwater.engine.tick.listener import Listener
from headwater.testing import inspect_workspace
from tests.serving.test_changes import OneTick

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)


@pytest.fixture
def ws(tmp_path: Path, spark: Any) -> Iterator[Workspace]:
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as opened:
        opened.sql("CREATE TOPIC c (id BIGINT, n INT, PRIMARY KEY (id)); CREATE TOPIC e (id BIGINT, n INT)")
        opened.sql("CREATE MATERIALIZED VIEW v AS SELECT n, count(*) AS k FROM c GROUP BY n")
        opened.sql("CREATE MATERIALIZED VIEW w AS SELECT max(n) AS m, count(*) AS k FROM e")
        opened.sql("CREATE MATERIALIZED VIEW j AS SELECT e.id, e.n, c.n AS cn FROM e JOIN c ON e.n = c.n")
        opened.sql("CREATE MATERIALIZED VIEW above AS SELECT max(n) AS m FROM v")
        opened.sql("CREATE MATERIALIZED VIEW apart AS SELECT count(DISTINCT id) AS k FROM e")
        for i in range(4):
            opened.topic("c").append([{"id": i, "n": i % 2}])
            opened.topic("e").append([{"id": i, "n": i % 3}])
        opened.run()
        yield opened


def rows(ws: Workspace, view: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in ws.view(view).read().to_pylist())


def test_an_added_column_changes_nothing(ws: Workspace) -> None:
    latest = inspect_workspace(ws).manifest()
    assert latest is not None
    built = {name: view.built for name, view in latest.views.items()}
    ws.sql("ALTER TOPIC c ADD COLUMN x STRING; ALTER TOPIC e ADD COLUMN x STRING")
    ws.topic("c").append([{"id": 0, "n": 7, "x": "a"}, {"id": 9, "n": 1, "x": "b"}])
    ws.topic("c").delete([{"id": 1}])
    ws.topic("e").append([{"id": 5, "n": 7, "x": "c"}])
    ws.run()
    assert rows(ws, "v") == [(0, 1), (1, 2), (7, 1)]
    assert ws.verify().ok
    latest = inspect_workspace(ws).manifest()
    assert latest is not None
    assert {name: view.built for name, view in latest.views.items()} == built, "nothing was built anew"
    ws.sql("CREATE MATERIALIZED VIEW x AS SELECT x, count(*) AS k FROM c GROUP BY x")
    ws.run()
    assert {r["x"]: r["k"] for r in ws.view("x").read().to_pylist()} == {None: 2, "a": 1, "b": 1}
    assert ws.verify().ok


def test_views_of_a_wider_column_are_built_beside_and_switched(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 1)
    ws.sql("ALTER TOPIC e ALTER COLUMN n TYPE BIGINT")
    inspect_workspace(ws).on_progress(OneTick())
    ws.topic("e").append([{"id": 8, "n": 2}])
    ws.run()
    assert ws.view("w").read().schema.field("m").type == "int32", "still the one before"
    assert rows(ws, "w") == [(2, 5)]
    inspect_workspace(ws).on_progress(Listener())
    ws.run()
    ws.topic("e").append([{"id": 9, "n": 2**40}])
    ws.run()
    assert rows(ws, "w") == [(2**40, 6)]
    assert ws.view("w").read().schema.field("m").type == "int64"
    assert ws.verify().ok


def test_a_value_that_needs_the_width_stops_only_what_goes_out_anyway(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 1)
    ws.sql("ALTER TOPIC e ALTER COLUMN n TYPE BIGINT")
    ws.topic("e").append([{"id": 9, "n": 2**40}])
    ws.run()
    assert rows(ws, "w") == [(2**40, 5)]
    assert ws.verify().differences == ()


def test_a_wider_column_of_a_table_reaches_the_views_above(ws: Workspace) -> None:
    ws.sql("ALTER TOPIC c ALTER COLUMN n TYPE BIGINT")
    ws.topic("c").append([{"id": 1, "n": 2**40}])
    ws.run()
    assert rows(ws, "above") == [(2**40,)]
    assert ws.verify().ok
    assert ws.view("apart").definition.columns.names == ["k"]


def test_a_wider_key_still_finds_the_rows_that_it_replaces(ws: Workspace) -> None:
    ws.sql("CREATE TOPIC k (a INT, d DECIMAL(5, 1), v INT, PRIMARY KEY (a, d)) WITH (partition_by = 'a')")
    ws.sql("CREATE MATERIALIZED VIEW s AS SELECT sum(v) AS s, count(*) AS k FROM k")
    ws.topic("k").append([{"a": 1, "d": Decimal("1.5"), "v": 1}, {"a": 2, "d": Decimal("2.5"), "v": 2}])
    ws.run()
    ws.sql("ALTER TOPIC k ALTER COLUMN a TYPE BIGINT")
    ws.topic("k").append([{"a": 1, "d": Decimal("1.5"), "v": 10}])
    ws.run()
    assert rows(ws, "s") == [(12, 2)]
    ws.sql("ALTER TOPIC k ALTER COLUMN d TYPE DECIMAL(9, 3)")
    ws.topic("k").append([{"a": 2, "d": Decimal("2.500"), "v": 20}])
    ws.run()
    assert rows(ws, "s") == [(30, 2)]
    assert ws.verify().ok


def test_a_crash_in_the_middle_is_mended_by_the_same_statement(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("headwater.views.view_declarations.hold_from_start", crash)
        with pytest.raises(KeyboardInterrupt):
            ws.sql("ALTER TOPIC e ALTER COLUMN n TYPE BIGINT")
    assert ws.run().stopped["w"] == "the type of a column that it reads has changed"
    ws.sql("ALTER TOPIC e ALTER COLUMN n TYPE BIGINT")
    ws.topic("e").append([{"id": 9, "n": 2**40}])
    assert ws.run().stopped == {}
    assert rows(ws, "w") == [(2**40, 5)]
    assert ws.verify().ok
