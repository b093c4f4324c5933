"""Topics that a source fills: what their records say of where they come from, and who may write to them."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.catalog.conform import OPS
from headwater.catalog.definitions import CAPTURED, TopicDefinition, define_topic
from headwater.catalog.rules import check_topic
from headwater.core.errors import SchemaError, UsageError
from headwater.core.types import TIMESTAMP
from headwater.log.protocol import Append, Producer
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = pa.schema([("id", pa.int64()), ("rate", pa.int64())])
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HISTORY = [
    ("snapshot", 1, 10, 100, 0, 7),
    ("snapshot", 2, 20, 100, 0, 7),
    ("update", 1, 11, 200, 60, 8),
    ("insert", 3, 30, 300, 120, 9),
    ("delete", 2, None, 300, 120, 9),
]
"""What happened, which row, its new value, where in the source's log, seconds after noon, in which transaction."""


def captured(name: str = "rates", key: tuple[str, ...] = ("id",)) -> TopicDefinition:
    made = define_topic(name, COLUMNS, key=key, options={"partitions": 2})
    return dataclasses.replace(made, captured_by="shop")


def rows(topic: TopicDefinition, history: list[tuple[Any, ...]]) -> pa.RecordBatch:
    plain = [
        {
            "id": key,
            "rate": value,
            "_op": OPS.index(op),
            "_source_position": position,
            "_source_time": NOON + timedelta(seconds=after),
            "_transaction": transaction,
        }
        for op, key, value, position, after, transaction in history
    ]
    return pa.RecordBatch.from_pylist(plain, schema=topic.row_schema)


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Any:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as workspace:
        workspace.log.create_topic(captured())
        yield workspace


def fill(ws: hw.Workspace, history: list[tuple[Any, ...]], sequence: int) -> None:
    topic = ws.log.topic("rates")
    ws.log.append(Append({"rates": [rows(topic, history)]}, Producer("source:shop", sequence)))


def test_where_a_row_comes_from_can_be_asked_for_and_is_no_part_of_all_columns(ws: hw.Workspace) -> None:
    ws.sql("CREATE MATERIALIZED VIEW every AS SELECT * FROM rates")
    ws.sql(
        "CREATE MATERIALIZED VIEW told AS SELECT id, _op, _source_position, _source_time, _transaction FROM rates"
    )
    for number, some in enumerate((HISTORY[:2], HISTORY[2:3], HISTORY[3:])):
        fill(ws, some, number)
        ws.run()
        assert ws.verify().ok
    assert ws.query("SELECT * FROM every ORDER BY id").to_pylist() == [
        {"id": 1, "rate": 11},
        {"id": 3, "rate": 30},
    ]
    first, third = ws.query("SELECT * FROM told ORDER BY id").to_pylist()
    assert (first["_op"], first["_source_position"], first["_transaction"]) == ("update", 200, 8)
    assert (third["_op"], third["_source_time"]) == ("insert", NOON + timedelta(seconds=120))
    newest = "SELECT max(_source_position) AS p, count(DISTINCT _transaction) AS n FROM rates"
    assert ws.query(newest).to_pylist() == [{"p": 300, "n": 2}]
    names = ["id", "_op", *CAPTURED.names]
    records = pa.Table.from_batches(list(ws.topic("rates").read("earliest", columns=names)))
    assert sorted(records.column("_source_position").to_pylist()) == [100, 100, 200, 300, 300]


def test_it_is_the_same_after_sealing_and_a_restart(ws: hw.Workspace, spark: SparkSession) -> None:
    fill(ws, HISTORY[:3], 0)
    ws.maintain()
    fill(ws, HISTORY[3:], 1)
    assert ws.path is not None
    with hw.open(ws.path, spark=spark) as again:
        got = again.query("SELECT id, _op, _source_position AS p, _transaction AS t FROM rates ORDER BY id")
    assert got.to_pylist() == [
        {"id": 1, "_op": "update", "p": 200, "t": 8},
        {"id": 3, "_op": "insert", "p": 300, "t": 9},
    ]


def test_versions_begin_when_they_were_committed_at_their_source(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC sales (id BIGINT, kind BIGINT, at TIMESTAMP)")
    ws.sql(
        "CREATE MATERIALIZED VIEW taxed AS SELECT s.id, r.rate FROM sales s "
        "JOIN rates FOR SYSTEM_TIME AS OF s.at AS r ON r.id = s.kind"
    )
    fill(ws, HISTORY, 0)
    at = [NOON + timedelta(seconds=s) for s in (-1, 0, 59, 60, 1_000)]
    ws.topic("sales").append([{"id": i, "kind": 1, "at": moment} for i, moment in enumerate(at)])
    ws.run()
    got = ws.query("SELECT * FROM taxed ORDER BY id").to_pylist()
    assert [(row["id"], row["rate"]) for row in got] == [(1, 10), (2, 10), (3, 11), (4, 11)]
    assert ws.verify().ok


def test_only_its_source_writes_to_it(ws: hw.Workspace) -> None:
    with raises(UsageError, topic="rates", source="shop"):
        ws.topic("rates").append([{"id": 1, "rate": 2}])
    with raises(UsageError, topic="rates", source="shop"):
        ws.topic("rates").delete([{"id": 1}])
    assert ws.topic("rates").partitions()[0].end == 0


def test_a_table_with_a_column_of_such_a_name_is_no_captured_topic() -> None:
    schema = pa.schema([("id", pa.int64()), ("_source_time", TIMESTAMP)])
    plain = define_topic("t", schema, key=("id",))
    assert plain.row_schema.names == ["id", "_source_time", "_op"]
    with raises(SchemaError, topic="t", column="_source_time"):
        check_topic(dataclasses.replace(plain, captured_by="shop"))
