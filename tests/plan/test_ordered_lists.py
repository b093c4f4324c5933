"""`array_agg(x ORDER BY y)`: lists in a declared order are kept, and are what sorting the rows by hand gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cmp_to_key
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.sql.ordered_aggregates import spark_query
from tests.raising import raises

pytestmark = pytest.mark.slow

Row = dict[str, Any]
Key = tuple[str, bool, bool]
"""A column, whether it ascends, whether NULL is first."""

TOPIC = (
    "CREATE TOPIC t (id BIGINT, k BIGINT, x STRING, y INT, p DOUBLE, m MAP<STRING, INT>, PRIMARY KEY (id))"
)
VIEWS: dict[str, tuple[str, str, list[Key], Callable[[Row], bool]]] = {
    # view: (its list, the value listed, the order, which rows)
    "plain": ("array_agg(x ORDER BY y)", "x", [("y", True, True)], lambda r: True),
    "behind": ("collect_list(x) WITHIN GROUP (ORDER BY y DESC)", "x", [("y", False, False)], lambda r: True),
    "several": (
        "array_agg(id ORDER BY p DESC NULLS FIRST, x NULLS LAST, y)",
        "id",
        [("p", False, True), ("x", True, False), ("y", True, True)],
        lambda r: True,
    ),
    "some": (
        "array_agg(x ORDER BY id DESC) FILTER (WHERE y > 1)",
        "x",
        [("id", False, False)],
        lambda r: (r["y"] or 0) > 1,
    ),
}


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession) -> Path:
    """A workspace with a keyed topic and the views above it."""
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql(TOPIC)
        for name, (listed, *_) in VIEWS.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS SELECT k, {listed} AS l FROM t GROUP BY k")
    return tmp_path / "w"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    """A workspace with the topic alone."""
    with hw.open(tmp_path_factory.mktemp("bare") / "w", durability="os", spark=spark) as ws:
        ws.sql(TOPIC)
        yield ws


def compared(a: Any, b: Any, ascending: bool, nulls_first: bool) -> int:
    if a is None or b is None:
        return 0 if a is b else (-1 if (a is None) == nulls_first else 1)
    return 0 if a == b else (-1 if (a < b) == ascending else 1)


def by_hand(rows: list[Row], value: str, order: list[Key]) -> list[Any]:
    """The list, by plain comparisons of one row with another; ties go by the value."""

    def before(a: Row, b: Row) -> int:
        keys = (compared(a[c], b[c], up, first) for c, up, first in [*order, (value, True, True)])
        return next((found for found in keys if found), 0)

    return [r[value] for r in sorted(rows, key=cmp_to_key(before)) if r[value] is not None]


def check(ws: hw.Workspace, table: dict[int, Row]) -> None:
    for name, (_, value, order, chosen) in VIEWS.items():
        groups: dict[Any, list[Row]] = {}
        for row in table.values():
            groups.setdefault(row["k"], []).append(row)
        wanted = {k: by_hand([r for r in rows if chosen(r)], value, order) for k, rows in groups.items()}
        found = {row["k"]: row["l"] for row in ws.view(name).read().to_pylist()}
        assert found == wanted, name


@pytest.mark.long
def test_lists_are_in_their_order_through_updates_deletions_and_a_restart(
    folder: Path, spark: SparkSession
) -> None:
    chance = random.Random(7)
    table: dict[int, Row] = {}
    for step in range(3):
        with hw.open(folder, durability="os", spark=spark) as ws:
            for number in chance.sample(range(20), 12):
                if number in table and chance.random() < 0.3:
                    del table[number]
                    ws.topic("t").delete([{"id": number}])
                    continue
                table[number] = {
                    "id": number,
                    "k": chance.choice([1, 2, None]),
                    "x": chance.choice(["a", "b", "c", None]),
                    "y": chance.choice([1, 2, 3, None]),
                    "p": chance.choice([0.5, 1.5, None]),
                }
                ws.topic("t").append([table[number]])
            assert ws.run(tick_rows=chance.choice([5, 100])).stopped == {}
            check(ws, table)
            if step == 2:
                assert ws.verify().differences == ()


def test_an_order_may_stand_anywhere_that_a_list_may(folder: Path, spark: SparkSession) -> None:
    with hw.open(folder, durability="os", spark=spark) as ws:
        ws.topic("t").append(
            [{"id": n, "k": n % 2, "x": x, "y": -n} for n, x in enumerate(["a", "b", "a", "b", "c", None])]
        )
        ws.sql("""
            CREATE MATERIALIZED VIEW below AS
              WITH lists AS (
                SELECT k, array_agg(x ORDER BY y) AS l FROM t GROUP BY k
                HAVING array_agg(x ORDER BY y)[0] = 'c'
              )
              SELECT k, l, (SELECT array_agg(DISTINCT x ORDER BY x DESC) FROM t) AS every FROM lists;
            CREATE MATERIALIZED VIEW unnamed AS
              SELECT array_agg(x ORDER BY y), size(array_agg(x ORDER BY y DESC)), listagg(x, '+' ORDER BY id) FROM t;
            CREATE MATERIALIZED VIEW compared AS
              SELECT array_sort(array_agg(struct(x, id)), (l, r) -> length(l.x) - length(r.x)).id AS ids
              FROM t WHERE x IS NOT NULL;
            CREATE MATERIALIZED VIEW nulls AS
              SELECT array_agg(x ORDER BY y) RESPECT NULLS AS l FROM t;
        """)
        ws.run()
        assert ws.view("below").read().to_pylist() == [
            {"k": 0, "l": ["c", "a", "a"], "every": ["c", "b", "a"]}
        ]
        (row,) = ws.view("unnamed").read().to_pylist()
        assert row == {
            "array_agg(x ORDER BY y)": ["c", "b", "a", "b", "a"],
            "size(array_agg(x ORDER BY y DESC))": 5,
            next(name for name in row if "listagg" in name): "a+b+a+b+c",
        }
        assert ws.view("compared").read().to_pylist() == [{"ids": [0, 2, 1, 3, 4]}]  # all are as long: ties
        assert ws.view("nulls").read().to_pylist() == [{"l": [None, "c", "b", "a", "b", "a"]}]
        assert ws.verify().differences == ()
        told = ws.sql("EXPLAIN nulls")
        assert told is not None
        (statement,) = (r["value"] for r in told.to_pylist() if r["property"] == "statement")
        assert "array_agg(x ORDER BY y) RESPECT NULLS" in statement


def test_a_query_may_order_a_list_too(bare: hw.Workspace) -> None:
    bare.topic("t").append([{"id": n, "k": n % 2, "x": x} for n, x in enumerate("abcd")])
    found = bare.query("SELECT k, array_agg(x ORDER BY id DESC) AS l FROM t GROUP BY k ORDER BY k")
    assert found.to_pylist() == [{"k": 0, "l": ["c", "a"]}, {"k": 1, "l": ["d", "b"]}]


@pytest.mark.parametrize(
    ("listed", "facts", "underlined"),
    [
        ("array_agg(x)", {"reason": "depends-on-order"}, "array_agg(x)"),
        (
            "array_agg(DISTINCT x ORDER BY y)",
            {"reason": "distinct-list-order"},
            "array_agg(DISTINCT x ORDER BY y)",
        ),
        (
            "array_agg(x ORDER BY m)",
            {"condition": "DATATYPE_MISMATCH.INVALID_ORDERING_TYPE"},
            "array_agg(x ORDER BY m)",
        ),
        (
            "array_agg(x ORDER BY m DESC)",
            {"condition": "DATATYPE_MISMATCH.INVALID_ORDERING_TYPE"},
            "array_agg(x ORDER BY m DESC)",
        ),
        ("array_agg(x ORDER BY y, nothing)", {"condition": "UNRESOLVED_COLUMN.WITH_SUGGESTION"}, "nothing"),
        (
            "array_agg(x ORDER BY y) AS l, count(nothing)",
            {"condition": "UNRESOLVED_COLUMN.WITH_SUGGESTION"},
            "nothing",
        ),
        ("array_agg(x, y ORDER BY y)", {"reason": "list-arguments"}, "array_agg(x, y ORDER BY y)"),
        ("array_agg(x ORDER BY y) AS l, now()", {"reason": "depends-on-time"}, "now()"),
    ],
)
def test_what_is_wrong_with_a_list_is_underlined_where_it_was_written(
    bare: hw.Workspace, listed: str, facts: dict[str, str], underlined: str
) -> None:
    with raises(hw.StatementError, **facts) as refused:
        bare.sql(f"CREATE MATERIALIZED VIEW v AS SELECT k, {listed} AS c FROM t GROUP BY k")
    *_, text, marks = (refused.value.detail or "").splitlines()
    assert text[marks.index("^") : marks.rindex("^") + 1] == underlined


def test_a_list_over_a_window_has_no_order_of_its_own(bare: hw.Workspace) -> None:
    with raises(hw.StatementError, reason="list-order-in-window"):
        bare.sql(
            "CREATE MATERIALIZED VIEW v AS SELECT array_agg(x ORDER BY y) OVER (PARTITION BY k) AS l FROM t"
        )


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("SELECT array_agg(x ORDER BY y)", "SELECT array_agg(x ) WITHIN GROUP (ORDER BY y)"),
        (
            "SELECT string_agg(f(x, 1), ',' ORDER BY (SELECT max(z) FROM u ORDER BY 1)) FROM t ORDER BY 1",
            "SELECT string_agg(f(x, 1), ',' ) WITHIN GROUP (ORDER BY (SELECT max(z) FROM u ORDER BY 1)) FROM t "
            "ORDER BY 1",
        ),
        ("SELECT array_agg(x) WITHIN GROUP (ORDER BY y)",) * 2,
        ("SELECT 'array_agg(x ORDER BY y)', rank() OVER (ORDER BY y)",) * 2,
    ],
)
def test_an_order_inside_a_call_is_moved_behind_it(written: str, read: str) -> None:
    made = spark_query(written)
    assert made.text == read
    assert [made.original(read.index(word)) for word in ("SELECT", "x")] == [0, written.index("x")]
    assert made.original(len(read)) == len(written)
