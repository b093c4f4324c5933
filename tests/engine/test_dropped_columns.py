"""Columns that are dropped where a topic is captured from: the views that read them stop at the rows before, and go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.catalog.conform import OPS
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.connectors.manage.source_schema_evolution import define
from headwater.core.settings import LogSettings
from headwater.engine.collections.workload import Workload
from headwater.engine.tick.tick_engine import Engine
from headwater.log.protocol import Append, Producer
from headwater.state.manifest import Manifest
from headwater.testing import inspect_workspace
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
PEOPLE = pa.schema([("id", pa.int64()), ("phone", pa.string()), ("country", pa.string())])
VIEWS = """
    CREATE MATERIALIZED VIEW phones AS SELECT phone, count(*) AS n FROM people GROUP BY phone;
    CREATE MATERIALIZED VIEW highest AS SELECT max(phone) AS phone FROM phones;
    CREATE MATERIALIZED VIEW countries AS SELECT country, count(*) AS n FROM people GROUP BY country;
    CREATE MATERIALIZED VIEW seen AS SELECT count(*) AS n FROM (SELECT * FROM people) p JOIN calls c ON c.id = p.id;
    CREATE MATERIALIZED VIEW distinct_people AS SELECT count(*) AS n FROM (SELECT DISTINCT * FROM people);
    CREATE MATERIALIZED VIEW both AS SELECT n FROM (SELECT country AS n FROM people UNION ALL SELECT phone FROM people);
    CREATE MATERIALIZED VIEW joined AS SELECT p.id, q.phone FROM people p JOIN people q ON p.id = q.id;
"""


def wanted(*columns: str) -> TopicDefinition:
    schema = pa.schema([PEOPLE.field(name) for name in columns])
    return dataclasses.replace(define_topic("people", schema, key=("id",)), captured_by="crm")


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", settings=SETTINGS, spark=spark) as opened:
        opened.log.create_topic(wanted("id", "phone", "country"))
        opened.sql("CREATE TOPIC calls (id BIGINT)" + ";" + VIEWS)
        fill(opened, 1, (1, "079", "ch"), (2, "043", "at"))
        opened.topic("calls").append([{"id": 1}])
        opened.run()
        yield opened


def fill(ws: hw.Workspace, sequence: int, *people: tuple[int, str | None, str]) -> None:
    topic = ws.log.topic("people")
    plain = [{"id": i, "phone": p, "country": c, "_op": OPS.index("insert")} for i, p, c in people]
    batch = pa.RecordBatch.from_pylist(plain, schema=topic.row_schema)
    ws.log.append(Append({"people": [batch]}, Producer("source:crm", sequence)))


def drop(ws: hw.Workspace) -> None:
    define(ws.log, lambda: inspect_workspace(ws).views, wanted("id", "country"), lambda: "0/1A")


def rows(ws: hw.Workspace, view: str, **options: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(r.values()) for r in ws.view(view).read(**options).to_pylist()), key=str)


READERS = {"phones", "highest", "distinct_people", "both", "joined"}


@pytest.mark.parametrize("tick_rows", [1, None])
def test_every_view_that_reads_the_column_stops_after_the_last_row_before_the_drop(
    ws: hw.Workspace, tick_rows: int | None
) -> None:
    fill(ws, 2, (3, "031", "ch"))
    drop(ws)
    fill(ws, 3, (4, None, "de"))
    ws.topic("calls").append([{"id": 4}])
    report = ws.run(tick_rows=tick_rows)
    assert set(report.stopped) == READERS
    reason = report.stopped["phones"]
    assert reason.startswith(
        "column 'phone' of topic 'people' no longer exists: source 'crm' no longer has the column"
    )
    assert (
        "after 0/1A; CREATE OR REPLACE MATERIALIZED VIEW phones without it, or ALTER TOPIC people ALTER COLUMN phone"
        in reason
    )
    assert report.stopped["highest"].startswith("it reads phones, which is stopped: column 'phone'")
    with pytest.raises(hw.ViewUnavailableError) as stopped:
        ws.view("phones").read()
    last = stopped.value.last_tick
    assert rows(ws, "phones", as_of=last) == [("031", 1), ("043", 1), ("079", 1)]
    assert rows(ws, "countries", as_of=last) == [("at", 1), ("ch", 2)], "of the same cut"
    assert rows(ws, "countries") == [("at", 1), ("ch", 2), ("de", 1)]
    assert rows(ws, "seen") == [(2,)]
    assert ws.run().ticks == 0, "it rests"


def test_a_column_that_is_dropped_while_a_tick_is_planned_is_not_read_past_that(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, todo = Engine._workload, [lambda: drop(ws), lambda: fill(ws, 2, (4, None, "de"))]

    def and_then_it_is_dropped(engine: Engine, before: Manifest | None) -> Workload:
        found = planned(engine, before)
        while todo:
            todo.pop(0)()
        return found

    monkeypatch.setattr(Engine, "_workload", and_then_it_is_dropped)
    assert set(ws.run().stopped) == READERS
    with pytest.raises(hw.ViewUnavailableError) as error:
        ws.view("phones").read()
    assert rows(ws, "phones", as_of=error.value.last_tick) == [("043", 1), ("079", 1)]


def test_a_view_that_is_replaced_goes_on_with_those_above_it(ws: hw.Workspace, spark: SparkSession) -> None:
    drop(ws)
    fill(ws, 2, (4, None, "de"))
    assert set(ws.run().stopped) == READERS
    assert ws.path is not None
    with hw.open(ws.path, settings=SETTINGS, spark=spark) as again:
        assert set(again.run().stopped) == READERS, "also after a restart"
        again.sql(
            "CREATE OR REPLACE MATERIALIZED VIEW phones AS SELECT country AS phone, count(*) AS n FROM people GROUP BY 1"
        )
        assert set(again.run().stopped) == READERS - {"phones", "highest"}
        assert rows(again, "highest") == [("de",)]


def test_a_view_made_afterwards_reads_the_columns_that_are_left(ws: hw.Workspace) -> None:
    drop(ws)
    fill(ws, 2, (4, None, "de"))
    ws.sql(
        """
        CREATE TOPIC visits (id BIGINT, at TIMESTAMP);
        CREATE MATERIALIZED VIEW every AS SELECT * FROM people;
        CREATE MATERIALIZED VIEW positions WITH (on_error = 'divert') AS SELECT *, _op FROM people WHERE id / 1 > 0;
        CREATE MATERIALIZED VIEW then AS
          SELECT v.id, p.country FROM visits v JOIN people FOR SYSTEM_TIME AS OF v.at AS p ON p.id = v.id;
        """
    )
    ws.topic("visits").append([{"id": 4, "at": datetime(2100, 1, 1, tzinfo=UTC)}])
    ws.run()
    assert rows(ws, "every") == [(1, "ch"), (2, "at"), (4, "de")]
    assert rows(ws, "positions") == [(1, "ch", "insert"), (2, "at", "insert"), (4, "de", "insert")]
    assert rows(ws, "then") == [(4, "de")]
    told = {row["view"]: row["ok"] for row in map(dataclasses.asdict, ws.verify().views)}
    assert {view for view, ok in told.items() if not ok} == READERS
    (found,) = ws.view("every").why({"id": 4}).rows.to_pylist()
    assert found["country"] == "de"
    with ws.subscribe("SELECT country, count(*) AS n FROM people GROUP BY country", timeout=0) as changes:
        first = next(iter(changes)).rows.select(["country", "n"]).to_pylist()
    assert sorted(row["country"] for row in first) == ["at", "ch", "de"]
    assert ws.query("SELECT phone FROM people WHERE id = 1").to_pylist() == [{"phone": "079"}]
    for query in ("SELECT phone FROM people", "SELECT q.id FROM people q WHERE q.PHONE > ''"):
        with raises(hw.ColumnDroppedError, topic="people", column="phone"):
            ws.sql(f"CREATE MATERIALIZED VIEW p AS {query}")
    with raises(hw.StatementError, condition="UNRESOLVED_COLUMN.WITH_SUGGESTION"):
        ws.sql("CREATE MATERIALIZED VIEW p AS SELECT phone, fax FROM people")
    with pytest.raises(hw.ColumnDroppedError):
        ws.fold("f", topic="people", key="id", zero=(0,), step=lambda s, e: s, returns="n INT")
