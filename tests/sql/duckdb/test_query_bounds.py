"""Queries that are cut off, by rows or by time: what comes after them is not."""

from __future__ import annotations

import random
import threading

import pyarrow as pa
import pytest

from headwater.sql.duckdb.duckdb_engine import QueryBounds, TooLongError, run

HEAVY = "SELECT sum(a.range * b.range) AS s FROM range(1000000) a, range(1000000) b"


def test_only_the_first_rows_are_computed() -> None:
    endless = "SELECT a.range AS n FROM range(10000000) a, range(10000000) b"
    assert run(endless, {}, QueryBounds(rows_max=20_001)).num_rows == 20_001
    some = run("SELECT n FROM t ORDER BY n DESC", {"t": pa.table({"n": range(9)})}, QueryBounds(rows_max=3))
    assert some.column(0).to_pylist() == [8, 7, 6]
    assert run("SELECT n FROM t", {"t": pa.table({"n": [1]})}, QueryBounds(rows_max=3)).num_rows == 1
    none = run("SELECT n FROM t WHERE n > 1", {"t": pa.table({"n": [1]})}, QueryBounds(rows_max=3))
    assert (none.num_rows, none.column_names) == (0, ["n"])


def test_what_comes_after_a_query_that_was_broken_off_is_answered() -> None:
    chance = random.Random(7)
    broken = 0
    for number in range(60):
        sql = f"SELECT sum(a.range) AS s FROM range({chance.randint(1, 2_000)}) a, range(2000) b"
        try:
            run(sql, {}, QueryBounds.of(None, chance.uniform(0.000_01, 0.01)))
        except TooLongError:
            broken += 1
        table = {"t": pa.table({"n": [number]})}
        assert run("SELECT n + 1 AS m FROM t", table).column(0).to_pylist() == [number + 1]
    assert broken > 0


def test_many_are_broken_off_at_once_and_the_others_go_on() -> None:
    ended: list[str] = []

    def ask(seconds: float | None) -> None:
        try:
            run(HEAVY if seconds is not None else "SELECT 1 AS n", {}, QueryBounds.of(None, seconds))
            ended.append("answered")
        except TooLongError:
            ended.append("broken off")

    asking = [threading.Thread(target=ask, args=(limit,)) for limit in (0.3, 0.1, 0.2, None, 0.1)]
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    assert sorted(ended) == ["answered", *["broken off"] * 4]


def test_a_time_that_is_over_already_begins_nothing() -> None:
    with pytest.raises(TooLongError):
        run(HEAVY, {}, QueryBounds.of(None, -1.0))
