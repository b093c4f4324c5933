"""Columns that cannot be PRIVATE: each is refused for what it is, at its place in the statement, and nothing is made."""

from __future__ import annotations

from typing import Any

import pytest

import headwater as hw

ID = "id BIGINT NOT NULL"
WATERMARK = "WATERMARK FOR at AS at - INTERVAL '1 minute'"

REFUSED = {
    "key": (f"CREATE TOPIC t ({ID}, e STRING @PRIVATE BY (id)@, PRIMARY KEY (id, e))", "it is a key column"),
    "key of one column": (
        f"CREATE TOPIC t ({ID}, e STRING PRIMARY KEY @PRIVATE BY (id)@)",
        "it is a key column",
    ),
    "partition": (
        f"CREATE TOPIC t ({ID}, e STRING @PRIVATE BY (id)@) WITH (partitions = 2, partition_by = 'e')",
        "it is a partition column",
    ),
    "one of several partition columns": (
        f"CREATE TOPIC t ({ID}, e STRING @PRIVATE BY (id)@) WITH (partitions = 2, partition_by = 'id, e')",
        "it is a partition column",
    ),
    "version": (
        f"CREATE TOPIC t ({ID}, v STRING NOT NULL @PRIVATE BY (id)@) WITH (versioned_by = 'v')",
        "it is a partition column",
    ),
    "time": (f"CREATE TOPIC t ({ID}, at TIMESTAMP @PRIVATE BY (id)@, {WATERMARK})", "it is the time column"),
    "the second is wrong": (
        f"CREATE TOPIC t ({ID}, e STRING PRIVATE BY (id), at TIMESTAMP @PRIVATE BY (id)@, {WATERMARK})",
        "column 'at' of topic 't' cannot be PRIVATE: it is the time column",
    ),
    "not null": (f"CREATE TOPIC t ({ID}, e STRING NOT NULL @PRIVATE BY (id)@)", "PRIVATE and NOT NULL"),
    "nested": (f"CREATE TOPIC t ({ID}, e ARRAY<STRING> @PRIVATE BY (id)@)", "it is nested"),
    "its own subject": ("CREATE TOPIC t (e STRING NOT NULL @PRIVATE BY (e)@)", "that is itself"),
    "a private subject": (
        f"CREATE TOPIC t ({ID}, s STRING PRIVATE BY (id), z STRING @PRIVATE BY (s)@)",
        r"PRIVATE BY \(s\): that is a column that is PRIVATE too",
    ),
    "no subject": (f"CREATE TOPIC t ({ID}, e STRING @PRIVATE BY (idd)@)", "there is no column 'idd'"),
    "a subject that may be NULL": ("CREATE TOPIC t (id BIGINT, e STRING @PRIVATE BY (id)@)", "may be NULL"),
    "a subject of no such type": (
        "CREATE TOPIC t (id DOUBLE NOT NULL, e STRING @PRIVATE BY (id)@)",
        "a subject is a whole number or a text",
    ),
    "added: its own subject": ("ALTER TOPIC made ADD COLUMN z STRING @PRIVATE BY (z)@", "that is itself"),
    "added: a private subject": (
        "ALTER TOPIC made ADD COLUMN z STRING @PRIVATE BY (e)@",
        "that is a column that is PRIVATE too",
    ),
    "added: no subject": (
        "ALTER TOPIC made ADD COLUMN z STRING @PRIVATE BY (no)@",
        "there is no column 'no'",
    ),
    "added: may be NULL": ("ALTER TOPIC made ADD COLUMN z STRING @PRIVATE BY (s)@", "s may be NULL"),
    "added: nested": ("ALTER TOPIC made ADD COLUMN z MAP<STRING, STRING> @PRIVATE BY (id)@", "it is nested"),
    "changed": ("ALTER TOPIC made ALTER COLUMN s @PRIVATE@ BY (id)", "found 'PRIVATE'"),
    "without a subject": (f"CREATE TOPIC t ({ID}, e STRING PRIVATE@)@", r"expected BY, found '\)'"),
    "twice": (f"CREATE TOPIC t ({ID}, e STRING PRIVATE BY (id) @PRIVATE@ BY (id))", "is PRIVATE twice"),
}


@pytest.fixture
def ws() -> Any:
    with hw.open("memory:") as ws:
        ws.sql(
            f"CREATE TOPIC made ({ID}, e STRING PRIVATE BY (id), s STRING, at TIMESTAMP, {WATERMARK}) "
            "WITH (partitions = 2, partition_by = 'id')"
        )
        yield ws


@pytest.mark.parametrize(("marked", "says"), REFUSED.values(), ids=list(REFUSED))
def test_it_is_refused_at_its_place(ws: hw.Workspace, marked: str, says: str) -> None:
    before, place, after = marked.split("@")
    definitions = dict(ws.log.topics())
    with pytest.raises(hw.StatementError, match=says) as refused:
        ws.sql(f"{before}{place}{after}")
    line, under = refused.value.detail.splitlines()[1:3]
    assert line.strip() == f"{before}{place}{after}"
    assert (under.index("^") - 4, under.count("^")) == (len(before), len(place))
    assert dict(ws.log.topics()) == definitions


def test_what_a_private_column_rests_on_stays_as_it_is(ws: hw.Workspace) -> None:
    with pytest.raises(hw.SchemaError, match=r"cannot be PRIVATE BY \(id\): id may be NULL"):
        ws.sql("ALTER TOPIC made ALTER COLUMN id DROP NOT NULL")
    for option in ("partition_by = 'e'", "watermark = 'e'", "versioned_by = 'e'"):
        with pytest.raises(hw.SchemaError, match="is fixed when the topic is created"):
            ws.sql(f"ALTER TOPIC made SET ({option})")


@pytest.mark.parametrize(
    ("options", "role"),
    [
        ({"key": ["id", "e"]}, "a key column"),
        ({"partitions": 2, "partition_by": "e"}, "a partition column"),
        ({"time": "at", "private": {"at": "id"}}, "the time column"),
    ],
    ids=["key", "partition", "time"],
)
def test_it_is_refused_in_python(ws: hw.Workspace, options: dict[str, Any], role: str) -> None:
    with pytest.raises(hw.SchemaError, match=f"cannot be PRIVATE: it is {role}"):
        ws.topic("t", f"{ID}, e STRING, at TIMESTAMP", **{"private": {"e": "id"}, **options})
    assert "t" not in ws.log.topics()


def test_a_queue_neither_orders_nor_delays_by_one(ws: hw.Workspace) -> None:
    for options in ({"key": "e"}, {"delay": "e"}):
        with pytest.raises(hw.HeadwaterError, match="private"):
            ws.queue("q", topic="made", **options)
