"""Columns that cannot be PRIVATE: each is refused for what it is, at its place in the statement, and nothing is made."""

from __future__ import annotations

from typing import Any

import pytest

import headwater as hw
from tests.raising import raises

ID = "id BIGINT NOT NULL"
WATERMARK = "WATERMARK FOR at AS at - INTERVAL '1 minute'"

REFUSED = {
    "key": (
        f"CREATE TOPIC t ({ID}, e STRING @PRIVATE BY (id)@, PRIMARY KEY (id, e))",
        {"private": "e", "role": "key"},
    ),
    "key of one column": (
        f"CREATE TOPIC t ({ID}, e STRING PRIMARY KEY @PRIVATE BY (id)@)",
        {"private": "e", "role": "key"},
    ),
    "partition": (
        f"CREATE TOPIC t ({ID}, e STRING @PRIVATE BY (id)@) WITH (partitions = 2, partition_by = 'e')",
        {"private": "e", "role": "partition"},
    ),
    "one of several partition columns": (
        f"CREATE TOPIC t ({ID}, e STRING @PRIVATE BY (id)@) WITH (partitions = 2, partition_by = 'id, e')",
        {"private": "e", "role": "partition"},
    ),
    "version": (
        f"CREATE TOPIC t ({ID}, v STRING NOT NULL @PRIVATE BY (id)@) WITH (versioned_by = 'v')",
        {"private": "v", "role": "partition"},
    ),
    "time": (
        f"CREATE TOPIC t ({ID}, at TIMESTAMP @PRIVATE BY (id)@, {WATERMARK})",
        {"private": "at", "role": "time"},
    ),
    "the second is wrong": (
        f"CREATE TOPIC t ({ID}, e STRING PRIVATE BY (id), at TIMESTAMP @PRIVATE BY (id)@, {WATERMARK})",
        {"private": "at", "role": "time"},
    ),
    "not null": (
        f"CREATE TOPIC t ({ID}, e STRING NOT NULL @PRIVATE BY (id)@)",
        {"private": "e", "reason": "not-null"},
    ),
    "nested": (
        f"CREATE TOPIC t ({ID}, e ARRAY<STRING> @PRIVATE BY (id)@)",
        {"private": "e", "reason": "nested"},
    ),
    "its own subject": (
        "CREATE TOPIC t (e STRING NOT NULL @PRIVATE BY (e)@)",
        {"private": "e", "reason": "private-subject"},
    ),
    "a private subject": (
        f"CREATE TOPIC t ({ID}, s STRING PRIVATE BY (id), z STRING @PRIVATE BY (s)@)",
        {"private": "z", "reason": "private-subject"},
    ),
    "no subject": (
        f"CREATE TOPIC t ({ID}, e STRING @PRIVATE BY (idd)@)",
        {"private": "e", "reason": "no-such-column"},
    ),
    "a subject that may be NULL": (
        "CREATE TOPIC t (id BIGINT, e STRING @PRIVATE BY (id)@)",
        {"private": "e", "reason": "nullable-subject"},
    ),
    "a subject of no such type": (
        "CREATE TOPIC t (id DOUBLE NOT NULL, e STRING @PRIVATE BY (id)@)",
        {"private": "e", "reason": "subject-type"},
    ),
    "added: its own subject": (
        "ALTER TOPIC made ADD COLUMN z STRING @PRIVATE BY (z)@",
        {"private": "z", "reason": "private-subject"},
    ),
    "added: a private subject": (
        "ALTER TOPIC made ADD COLUMN z STRING @PRIVATE BY (e)@",
        {"private": "z", "reason": "private-subject"},
    ),
    "added: no subject": (
        "ALTER TOPIC made ADD COLUMN z STRING @PRIVATE BY (no)@",
        {"private": "z", "reason": "no-such-column"},
    ),
    "added: may be NULL": (
        "ALTER TOPIC made ADD COLUMN z STRING @PRIVATE BY (s)@",
        {"private": "z", "reason": "nullable-subject"},
    ),
    "added: nested": (
        "ALTER TOPIC made ADD COLUMN z MAP<STRING, STRING> @PRIVATE BY (id)@",
        {"private": "z", "reason": "nested"},
    ),
}
MISREAD = {
    "changed": ("ALTER TOPIC made ALTER COLUMN s @PRIVATE@ BY (id)", "found 'PRIVATE'"),
    "without a subject": (f"CREATE TOPIC t ({ID}, e STRING PRIVATE@)@", "expected BY, found ')'"),
    "twice": (f"CREATE TOPIC t ({ID}, e STRING PRIVATE BY (id) @PRIVATE@ BY (id))", " twice"),
}


@pytest.fixture
def ws() -> Any:
    with hw.open("memory:") as ws:
        ws.sql(
            f"CREATE TOPIC made ({ID}, e STRING PRIVATE BY (id), s STRING, at TIMESTAMP, {WATERMARK}) "
            "WITH (partitions = 2, partition_by = 'id')"
        )
        yield ws


def refused_at_its_place(ws: hw.Workspace, marked: str, facts: dict[str, Any]) -> str:
    """Check that a statement is refused with its marked part underlined; return the message."""
    before, place, after = marked.split("@")
    definitions = dict(ws.log.topics())
    with raises(hw.StatementError, **facts) as refused:
        ws.sql(f"{before}{place}{after}")
    line, under = str(refused.value.detail).splitlines()[1:3]
    assert line.strip() == f"{before}{place}{after}"
    assert (under.index("^") - 4, under.count("^")) == (len(before), len(place))
    assert dict(ws.log.topics()) == definitions
    return str(refused.value.message)


@pytest.mark.parametrize(("marked", "facts"), REFUSED.values(), ids=list(REFUSED))
def test_it_is_refused_at_its_place(ws: hw.Workspace, marked: str, facts: dict[str, Any]) -> None:
    refused_at_its_place(ws, marked, facts)


@pytest.mark.parametrize(("marked", "says"), MISREAD.values(), ids=list(MISREAD))
def test_what_cannot_be_read_is_refused_at_its_place(ws: hw.Workspace, marked: str, says: str) -> None:
    assert says in refused_at_its_place(ws, marked, {})


def test_what_a_private_column_rests_on_stays_as_it_is(ws: hw.Workspace) -> None:
    with raises(hw.SchemaError, private="e", reason="nullable-subject"):
        ws.sql("ALTER TOPIC made ALTER COLUMN id DROP NOT NULL")
    for option in ("partition_by", "watermark", "versioned_by"):
        with raises(hw.SchemaError, option=option, reason="fixed-option"):
            ws.sql(f"ALTER TOPIC made SET ({option} = 'e')")


@pytest.mark.parametrize(
    ("options", "role"),
    [
        ({"key": ["id", "e"]}, "key"),
        ({"partitions": 2, "partition_by": "e"}, "partition"),
        ({"time": "at", "private": {"at": "id"}}, "time"),
    ],
    ids=["key", "partition", "time"],
)
def test_it_is_refused_in_python(ws: hw.Workspace, options: dict[str, Any], role: str) -> None:
    with raises(hw.SchemaError, role=role, reason="needed-by-log"):
        ws.topic("t", f"{ID}, e STRING, at TIMESTAMP", **{"private": {"e": "id"}, **options})
    assert "t" not in ws.log.topics()


def test_a_queue_neither_orders_nor_delays_by_one(ws: hw.Workspace) -> None:
    for options in ({"key": "e"}, {"delay": "e"}):
        with pytest.raises(hw.HeadwaterError, match="private"):
            ws.queue("q", topic="made", **options)
