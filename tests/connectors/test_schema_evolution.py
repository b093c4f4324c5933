"""What a topic becomes when what it is captured from has other columns: nothing is lost, and what is gone is marked."""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition, accept_drop, define_topic
from headwater.connectors.manage.source_schema_evolution import define
from headwater.core.clock import ManualClock
from headwater.core.errors import SchemaError
from headwater.log.memory import MemoryLog
from headwater.views.view_manager import Views
from tests.raising import raises


def wanted(**columns: pa.DataType) -> TopicDefinition:
    made = define_topic("people", pa.schema([("id", pa.int64()), *columns.items()]), key=("id",))
    return dataclasses.replace(made, captured_by="crm")


def no_views() -> Views:
    raise AssertionError("there are none")


def after(log: MemoryLog, topic: TopicDefinition, place: str | None = None) -> TopicDefinition:
    define(log, no_views, topic, lambda: place)
    return log.topic("people")


def test_columns_come_widen_go_and_come_back() -> None:
    log = MemoryLog(ManualClock())
    text, small, large = pa.string(), pa.int32(), pa.int64()
    assert after(log, wanted(phone=text, age=small)).schema_version == 0
    wide = after(log, wanted(phone=text, age=large, country=text))
    assert wide.schema.names == ["id", "phone", "age", "country"]
    assert (wide.schema.field("age").type, wide.schema_version) == (large, 1)
    assert after(log, wanted(phone=text, age=small, country=text)) == wide, "wide enough already"

    sequence = log.sequence()
    gone = after(log, wanted(age=large, country=text), "0/1A")
    assert gone.schema.equals(wide.schema)
    (lost,) = gone.dropped
    assert lost.change == "source 'crm' no longer has the column, after 0/1A"
    assert (lost.column, lost.sequence, gone.schema_version) == ("phone", sequence, 1)
    assert after(log, wanted(age=large, country=text), "0/2B") == gone, "the first time counts"

    log.alter_topic(gone, accept_drop(gone, "phone"))
    both = after(log, wanted(age=large))
    assert [(one.column, one.accepted) for one in both.dropped] == [("phone", True), ("country", False)]
    back = after(log, wanted(phone=text, age=large))
    assert [one.column for one in back.dropped] == ["country"]
    assert back.schema.equals(wide.schema)


def test_what_old_records_would_not_survive_is_refused() -> None:
    log = MemoryLog(ManualClock())
    known = after(log, wanted(phone=pa.string()))
    with raises(SchemaError, column="phone", reason="not-wider"):
        after(log, wanted(phone=pa.int32()))
    without_key = dataclasses.replace(
        define_topic("people", pa.schema([("phone", pa.string())])), captured_by="crm"
    )
    with raises(SchemaError, column="id", reason="key-column"):
        after(log, without_key)
    assert log.topic("people") == known
