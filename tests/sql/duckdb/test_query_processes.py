"""Queries that cannot be interrupted run in processes that can be killed, with the same answers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.core.errors import UsageError
from headwater.sql.duckdb import serve as serving
from headwater.sql.duckdb.query_processes import QueryProcesses
from headwater.sql.duckdb.serve import HeavyError, TooLargeError, TooLongError, serve, serve_or_reason
from tests.raising import raises

SOON_S, LONG_S = 20.0, 60.0
MEMORY = 4 << 30


class Orders:
    """A relation in memory, which counts how often it is read."""

    schema = pa.schema([("id", pa.int64()), ("who", pa.string())])

    def __init__(self, rows: int = 100, who: str = "somebody") -> None:
        self.table = pa.table({"id": range(rows), "who": [who] * rows}, schema=self.schema)
        self.reads = 0

    def read(
        self, columns: Sequence[str] | None, equal: Mapping[str, Any] | None, first: int | None = None
    ) -> pa.Table:
        self.reads += 1
        return self.table if columns is None else self.table.select(list(columns))


class Broken(Orders):
    """One that cannot be read."""

    def read(self, *_: object) -> pa.Table:
        raise UsageError("there is no view 'v'", view="v")


def joined(count: int) -> str:
    """A query whose planning takes DuckDB minutes if there are many joins."""
    joins = " ".join(f"JOIN orders a{i} ON a{i}.id = a{i - 1}.id" for i in range(1, count))
    return f"SELECT count(*) AS n FROM orders a0 {joins}"


@pytest.fixture
def processes() -> Iterator[QueryProcesses]:
    with closing(QueryProcesses(2, MEMORY)) as made:
        yield made


def ask(
    processes: QueryProcesses,
    query: str,
    orders: Orders | None = None,
    seconds: float = LONG_S,
    rows: int = 1_000,
) -> pa.Table | str:
    until_s = time.monotonic() + seconds
    known = {"orders": orders or Orders()}
    return processes.run(query, known, rows_max=rows, bytes_max=64 << 20, until_s=until_s)


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return False


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, who FROM orders WHERE id = 7",
        "SELECT who, count(*) AS n, sum(id) AS s FROM orders GROUP BY who",
        "SELECT replace(who, 'some', 'any') AS w, id FROM orders WHERE id < 3 ORDER BY id DESC",
        joined(12),
    ],
)
def test_a_process_answers_what_this_one_would(processes: QueryProcesses, query: str) -> None:
    orders = Orders()
    answer = ask(processes, query, orders)
    assert orders.reads == 1, "a relation is read once, however often the query names it"
    assert answer == serve(query, {"orders": orders})


def test_what_is_declined_has_its_reason(processes: QueryProcesses) -> None:
    for query in (
        "SELECT reflect('a', 'b') AS r FROM orders",
        "SELECT 1 / (id - id) AS n FROM orders",
        "SELEC",
    ):
        assert ask(processes, query) == serve_or_reason(query, {"orders": Orders()})


def test_a_relation_that_cannot_be_read_says_why_and_the_process_goes_on(processes: QueryProcesses) -> None:
    with raises(UsageError, view="v"):
        ask(processes, "SELECT count(*) AS n FROM orders", Broken())
    before = processes.pids()
    assert ask(processes, "SELECT count(*) AS n FROM orders").to_pylist() == [{"n": 100}]
    assert processes.pids() == before


def test_planning_that_does_not_end_is_ended_by_killing_its_process(processes: QueryProcesses) -> None:
    ask(processes, "SELECT count(*) AS n FROM orders")  # it is up
    (pid,) = processes.pids()
    began = time.monotonic()
    with pytest.raises(TooLongError):
        ask(processes, joined(200), seconds=5.0)
    assert time.monotonic() - began < SOON_S
    assert not is_running(pid)
    assert processes.pids() == []
    assert ask(processes, "SELECT count(*) AS n FROM orders").to_pylist() == [{"n": 100}]


def test_a_pattern_that_wanders_is_ended_with_its_process(processes: QueryProcesses) -> None:
    ask(processes, "SELECT count(*) AS n FROM orders")
    began = time.monotonic()
    with pytest.raises(TooLongError):
        ask(
            processes,
            f"SELECT id FROM orders WHERE who LIKE '%{'a' * 5_000}_b%c%'",
            Orders(2_000, who="a" * 10_000),
            seconds=2.0,
        )
    assert time.monotonic() - began < SOON_S
    assert processes.pids() == []


def test_a_query_that_can_be_interrupted_leaves_its_process_alive(processes: QueryProcesses) -> None:
    ask(processes, "SELECT count(*) AS n FROM orders")
    before = processes.pids()
    crossed = "SELECT sum(a.id * b.id * c.id * d.id) AS s FROM orders a, orders b, orders c, orders d"
    with pytest.raises(TooLongError):
        ask(processes, crossed, Orders(2_000), seconds=0.5)
    assert processes.pids() == before


def test_who_waits_for_a_process_waits_no_longer_than_the_query_may_take() -> None:
    with closing(QueryProcesses(1, MEMORY)) as one:
        ask(one, "SELECT count(*) AS n FROM orders")
        late: list[float] = []

        def wait() -> None:
            began = time.monotonic()
            with pytest.raises(TooLongError):
                ask(one, joined(200), seconds=2.0)
            late.append(time.monotonic() - began)

        waiting = [threading.Thread(target=wait) for _ in range(4)]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()
        assert len(late) == 4
        assert max(late) < SOON_S


def test_texts_that_grow_without_end_end_the_process_and_not_this_one(processes: QueryProcesses) -> None:
    grown = "who"
    for _ in range(4):
        grown = f"replace({grown}, 'a', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')"
    orders = Orders(10_000, "a" * 1_000)
    try:
        answer = ask(processes, f"SELECT sum(length({grown})) AS n FROM orders", orders, seconds=10.0)
    except TooLongError:
        pass
    else:
        assert answer in (serving.FAILS, "it needs more memory than a query may have") or "memory" in str(
            answer
        )
    assert ask(processes, "SELECT count(*) AS n FROM orders").to_pylist() == [{"n": 100}]


def test_an_answer_that_is_too_large_is_refused(processes: QueryProcesses) -> None:
    orders = Orders(2_000, "x" * 50_000)
    with pytest.raises(TooLargeError):
        ask(processes, "SELECT who FROM orders ORDER BY id", orders, rows=1_000_000)


def test_closing_ends_every_process(processes: QueryProcesses) -> None:
    ask(processes, "SELECT count(*) AS n FROM orders")
    (pid,) = processes.pids()
    processes.close()
    assert not is_running(pid)


def test_a_process_ends_with_the_one_that_asks_also_if_that_is_killed() -> None:
    program = """
        import sys, threading, time
        from headwater.sql.duckdb.query_processes import QueryProcesses
        from tests.sql.duckdb.test_query_processes import Orders, ask, joined
        made = QueryProcesses(1, 4 << 30)
        ask(made, "SELECT count(*) AS n FROM orders")
        print(made.pids()[0], flush=True)
        ask(made, joined(200), seconds=600.0)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stdout is not None
        pid = int(asking.stdout.readline())
        asking.kill()
        asking.wait(LONG_S)
    until = time.monotonic() + LONG_S
    while is_running(pid):
        assert time.monotonic() < until


@pytest.mark.parametrize(
    "query",
    [
        joined(30),
        "SELECT replace(who, 'a', 'b') AS w FROM orders",
        "SELECT id FROM orders WHERE " + " OR ".join(f"id = {i} + 1" for i in range(1_000)),
        " UNION ALL ".join("SELECT id FROM orders" for _ in range(60)),
        "SELECT who || who || who || who || who || who AS w FROM orders",
        "SELECT id FROM orders WHERE who LIKE '%a_%a'",
        "SELECT id FROM orders WHERE who NOT LIKE '_%a%'",
    ],
)
def test_what_cannot_be_interrupted_is_known_before_it_runs(query: str) -> None:
    orders = Orders()
    with pytest.raises(HeavyError):
        serve_or_reason(query, {"orders": orders}, rows_max=10, seconds=LONG_S, light=True)
    assert orders.reads == 0


@pytest.mark.parametrize(
    "query",
    [
        joined(5),
        "SELECT who || '!' AS w FROM orders",
        "SELECT * FROM orders",
        "SELECT id FROM orders WHERE who LIKE '%a%b%' OR who LIKE '_a%'",
    ],
)
def test_what_is_planned_at_once_stays_in_this_process(query: str) -> None:
    answer = serve_or_reason(query, {"orders": Orders()}, rows_max=10, seconds=LONG_S, light=True)
    assert isinstance(answer, pa.Table)
