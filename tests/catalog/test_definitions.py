"""What a topic may be, and which changes keep old records readable."""

import dataclasses
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest

from headwater.catalog.definitions import (
    TOMBSTONE_RETENTION_US,
    TopicDefinition,
    accept_drop,
    add_column,
    alter_options,
    define_topic,
    difference,
    drop_not_null,
    widen_column,
)
from headwater.catalog.dropped_columns import DroppedColumn
from headwater.core.errors import SchemaError, UsageError
from headwater.core.types import TIMESTAMP
from tests.raising import raises

FIELDS = [
    pa.field("id", pa.int32()),
    pa.field("name", pa.string(), False),
    pa.field("at", TIMESTAMP),
    pa.field("d", pa.decimal128(10, 2)),
    pa.field("tags", pa.list_(pa.string())),
]
SCHEMA = pa.schema(FIELDS)


def topic(
    name: str = "clicks", *, key: tuple[str, ...] = (), time: str | None = None, **options: Any
) -> TopicDefinition:
    return define_topic(name, SCHEMA, key=key, time=time, options=options)


@pytest.mark.parametrize(
    "definition",
    [
        topic(),
        topic(key=("id", "name"), partition_by="name", cleanup="compact", tombstone_retention="1 hour"),
        topic(time="at", partitions=8, partition_by="id, name", max_ahead="1 hour", idle_after="5 s"),
        topic(versioned_by="id", durability="group"),
        topic(retention="7 days", retention_bytes="1 GB"),
        add_column(topic(), pa.field("s", pa.struct([pa.field("x y", pa.int8(), False)]))),
    ],
)
def test_a_definition_is_read_back_from_json(definition: TopicDefinition) -> None:
    plain = orjson.loads(orjson.dumps(definition.to_json()))
    assert TopicDefinition.from_json(plain) == definition


def test_key_columns_are_not_null() -> None:
    assert not topic(key=("id",)).schema.field("id").nullable


def test_rows_are_routed_by_partition_by_else_key_else_version() -> None:
    assert topic(key=("id", "name"), partition_by="id").routing == ("id",)
    assert topic(key=("id", "name")).routing == ("id", "name")
    assert topic(versioned_by="id").routing == ("id",)
    assert topic().routing == ()


def test_options_are_read_with_their_units() -> None:
    found = topic(
        retention="1 day 12 hours", retention_bytes="2 MB", partitions="3", partition_by="id,`name`"
    )
    assert (found.retention_us, found.retention_bytes) == (36 * 3_600_000_000, 2 << 20)
    assert (found.partitions, found.partition_by) == (3, ("id", "name"))


def test_an_option_of_none_is_the_default() -> None:
    nothing = dict.fromkeys(
        ["partitions", "partition_by", "retention", "tombstone_retention", "cleanup", "durability"]
    )
    assert define_topic("clicks", SCHEMA, options=nothing) == topic()
    assert alter_options(
        topic(tombstone_retention="1 s"), {"tombstone_retention": None}
    ).tombstone_retention_us == (TOMBSTONE_RETENTION_US)


def test_the_statement_that_makes_a_topic_names_all_that_differs_from_the_default() -> None:
    text = topic(key=("id",), time="at", partitions=2, retention="7 days", cleanup="compact").to_sql()
    for part in (
        "CREATE TOPIC clicks",
        "name STRING NOT NULL",
        "PRIMARY KEY (id)",
        "WATERMARK FOR at",
        "'1 week'",
    ):
        assert part in text
    assert "durability" not in text


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"name": "1clicks"}, {"reason": "invalid-name"}),
        ({"name": "clicks\n"}, {"reason": "invalid-name"}),
        ({"name": "a/b"}, {"reason": "invalid-name"}),
        ({"name": "x" * 201}, {"reason": "invalid-name"}),
        ({"schema": pa.schema([])}, {"reason": "no-columns"}),
        (
            {"schema": pa.schema([("a", pa.int8()), ("A", pa.int8())])},
            {"column": "a", "reason": "duplicate-column"},
        ),
        ({"schema": pa.schema([("_Offset", pa.int8())])}, {"column": "_Offset", "reason": "reserved-column"}),
        ({"schema": pa.schema([("a", pa.uint8())])}, {"column": "a", "type": "uint8"}),
        ({"key": ("nothing",)}, {"column": "nothing", "reason": "no-such-column"}),
        ({"key": ("tags",)}, {"column": "tags", "reason": "nested"}),
        ({"time": "id"}, {"column": "id", "reason": "not-timestamp"}),
        ({"lateness": -1}, {"reason": "negative-lateness"}),
        ({"options": {"partitions": 0}}, {"option": "partitions", "value": 0}),
        ({"options": {"partitions": 5_000}}, {"option": "partitions", "value": 5_000}),
        ({"options": {"partition_by": "nothing"}}, {"column": "nothing", "reason": "no-such-column"}),
        ({"options": {"partition_by": "tags"}}, {"column": "tags", "reason": "nested"}),
        (
            {"key": ("id",), "options": {"partition_by": "name"}},
            {"option": "partition_by", "reason": "not-in-key"},
        ),
        ({"options": {"cleanup": "compact"}}, {"option": "cleanup", "reason": "no-primary-key"}),
        ({"options": {"cleanup": "shred"}}, {"option": "cleanup", "value": "shred"}),
        ({"options": {"max_ahead": "1 hour"}}, {"option": "max_ahead", "reason": "no-watermark"}),
        ({"options": {"durability": "hope"}}, {"option": "durability", "value": "hope"}),
        ({"options": {"retention": "0 s"}}, {"option": "retention", "reason": "not-positive"}),
        ({"options": {"versioned_by": "id", "retention": "1 day"}}, {"reason": "event-sourced"}),
        ({"options": {"versioned_by": "id", "retention_bytes": 5}}, {"reason": "event-sourced"}),
        (
            {"key": ("id",), "options": {"versioned_by": "id", "cleanup": "compact"}},
            {"reason": "event-sourced"},
        ),
        ({"options": {"versioned_by": "id", "cleanup": "compact"}}, {"reason": "event-sourced"}),
        ({"options": {"retention_bytes": 0}}, {"option": "retention_bytes", "reason": "not-positive"}),
        ({"options": {"retention_bytes": -5}}, {"option": "retention_bytes", "reason": "not-positive"}),
        ({"options": {"retention_bytes": "0 MB"}}, {"option": "retention_bytes", "reason": "not-positive"}),
        ({"options": {"versioned_by": 5}}, {"column": 5, "reason": "no-such-column"}),
        ({"options": {"cleanup": True}}, {"option": "cleanup", "value": True}),
        (
            {"options": {"versioned_by": "id", "partition_by": "name"}},
            {"option": "partition_by", "reason": "not-versioned-by"},
        ),
    ],
)
def test_what_cannot_be_a_topic_is_refused_with_the_reason(
    arguments: dict[str, Any], facts: dict[str, Any]
) -> None:
    with raises(SchemaError, **facts):
        define_topic(**{"name": "clicks", "schema": SCHEMA, **arguments})


@pytest.mark.parametrize(
    "options",
    [
        {"colour": "red"},
        {"partitions": "many"},
        {"partitions": 2.7},
        {"partitions": True},
        {"partitions": "-1"},
        {"retention": "soon"},
        {"retention": 7},
        {"retention": True},
        {"idle_after": 1.5},
        {"retention_bytes": 1.5},
        {"retention_bytes": True},
        {"retention_bytes": "much"},
        {"partition_by": 5},
        {"partition_by": [5]},
        {"partition_by": True},
    ],
)
def test_options_that_cannot_be_read_are_a_usage_error(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        define_topic("clicks", SCHEMA, options=options)
    assert caught.value.hint


def test_a_lateness_without_a_unit_is_a_usage_error() -> None:
    with raises(UsageError, argument="lateness", value=1.5) as caught:
        define_topic("clicks", SCHEMA, time="at", lateness=1.5)
    assert "10 minutes" in (caught.value.hint or "")


def test_counts_may_come_from_numpy_and_from_text() -> None:
    assert topic(partitions=np.int64(4)) == topic(partitions="4") == topic(partitions=4)


def test_a_column_can_be_added_at_the_end() -> None:
    added = add_column(topic(), pa.field("more", pa.int64()))
    assert added.schema.names == [*SCHEMA.names, "more"]
    assert added.schema_version == 1


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (pa.field("id", pa.int8()), "duplicate-column"),
        (pa.field("new", pa.int8(), False), "not-null"),
        (pa.field("NAME", pa.int8()), "duplicate-column"),
    ],
)
def test_other_columns_cannot_be_added(field: pa.Field, reason: str) -> None:
    with raises(SchemaError, column=field.name.lower(), reason=reason):
        add_column(topic(), field)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("id", pa.int64()),
        ("d", pa.decimal128(12, 4)),
        ("d", pa.decimal128(38, 2)),
        ("d", pa.decimal128(10, 2)),
    ],
)
def test_a_column_can_be_widened(column: str, kind: pa.DataType) -> None:
    assert widen_column(topic(), column, kind).schema.field(column).type == kind


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("id", pa.int16()),
        ("id", pa.float64()),
        ("id", pa.string()),
        ("d", pa.decimal128(10, 4)),
        ("d", pa.decimal128(9, 2)),
        ("name", pa.binary()),
        ("nothing", pa.int64()),
    ],
)
def test_changes_that_could_change_a_value_are_refused(column: str, kind: pa.DataType) -> None:
    with raises(SchemaError, column=column, reason="no-such-column" if column == "nothing" else "not-wider"):
        widen_column(topic(), column, kind)


def test_a_routing_column_is_not_widened_where_its_hash_would_change() -> None:
    with raises(SchemaError, column="d", reason="not-wider"):
        widen_column(topic(partition_by="d"), "d", pa.decimal128(12, 4))
    assert widen_column(topic(partition_by="id"), "id", pa.int64()).schema.field("id").type == pa.int64()


def test_a_column_can_be_made_nullable_unless_it_is_key_or_time() -> None:
    assert drop_not_null(topic(), "name").schema.field("name").nullable
    for column, role in (("id", "key"), ("at", "time")):
        with raises(SchemaError, column=column, reason=f"{role}-column"):
            drop_not_null(topic(key=("id",), time="at"), column)


def test_some_options_can_be_changed_and_others_are_fixed() -> None:
    assert alter_options(topic(), {"retention": "1 day"}).retention_us == 86_400_000_000
    assert alter_options(topic(retention="1 day"), {"retention": None}).retention_us is None
    for fixed in ("partitions", "partition_by", "versioned_by", "max_ahead"):
        with raises(SchemaError, option=fixed, reason="fixed-option"):
            alter_options(topic(), {fixed: None})


def test_a_dropped_column_is_kept_in_the_definition_and_can_be_accepted() -> None:
    lost = DroppedColumn("name", "public.people.name was dropped in source 'crm', after 0/1A", 17)
    people = dataclasses.replace(topic("people", key=("id",)), dropped=(lost,))
    assert TopicDefinition.from_json(orjson.loads(orjson.dumps(people.to_json()))) == people
    assert people != topic("people", key=("id",))
    assert accept_drop(people, "name").dropped == (dataclasses.replace(lost, accepted=True),)
    with raises(SchemaError, column="id", reason="not-dropped"):
        accept_drop(people, "id")
    with raises(SchemaError, column="fax", reason="no-such-column"):
        accept_drop(people, "fax")


def test_what_earlier_versions_do_not_know_is_said_only_where_it_is_meant() -> None:
    assert {"dropped", "schema_changes"}.isdisjoint(topic().to_json())
    strict = topic(schema_changes="refuse")
    assert strict.to_json()["schema_changes"] == "refuse"
    assert "schema_changes = 'refuse'" in strict.to_sql()
    with raises(SchemaError, option="schema_changes", value="never"):
        topic(schema_changes="never")


def test_a_change_is_checked_like_a_new_topic() -> None:
    with raises(SchemaError, option="cleanup", reason="no-primary-key"):
        alter_options(topic(), {"cleanup": "compact"})


def test_differences_are_told_line_by_line() -> None:
    old, new = topic(), widen_column(alter_options(topic(), {"retention": "1 day"}), "id", pa.int64())
    assert difference(old, old) == []
    assert difference(old, new) == ["- id INT", "+ id BIGINT", "- retention = None", "+ retention = 1 day"]


def test_another_order_of_columns_is_a_difference() -> None:
    turned = define_topic("clicks", pa.schema(FIELDS[::-1]))
    assert difference(topic(), turned) != []
