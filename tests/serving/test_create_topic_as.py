"""CREATE TOPIC ... AS SELECT: a new topic with the rows of a query, all of them or no topic that looks whole."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.execution import COPY, execute
from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Log
from headwater.serving import create_topic_as
from headwater.serving.create_topic_as import QueryRows
from headwater.sql import statements as s
from headwater.sql.parser import parse
from headwater.testing import Crash, FaultyStorage, inspect_workspace
from tests.raising import raises

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    """A plain topic of two partitions, a table of two, and a view."""
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql("""
            CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP) WITH (partitions = 2);
            CREATE TOPIC customers (id BIGINT, name STRING, PRIMARY KEY (id)) WITH (partitions = 2);
            CREATE MATERIALIZED VIEW per_user AS SELECT user, count(*) AS n FROM clicks GROUP BY user;
        """)
        for n in range(6):
            rows = [{"user": m % 3, "url": f"/{n}{m}", "at": NOON + timedelta(minutes=n)} for m in range(4)]
            ws.topic("clicks").append(rows)
        ws.topic("customers").append([{"id": n, "name": f"c{n}"} for n in range(5)])
        ws.topic("customers").append([{"id": 1, "name": "new"}])
        ws.topic("customers").delete([{"id": 2}])
        ws.run()
        ws.topic("clicks").append([{"user": 9, "url": "/new", "at": NOON + timedelta(hours=1)}])
        yield ws


def rows(ws: hw.Workspace, topic: str) -> list[dict[str, Any]]:
    columns = ws.topic(topic).schema.names
    return [row for batch in ws.topic(topic).read(columns=columns) for row in batch.to_pylist()]


def appends(ws: hw.Workspace, topic: str) -> int:
    """How many commits the records of a topic came in."""
    return len({n for b in ws.topic(topic).read(columns=["_sequence"]) for n in b["_sequence"].to_pylist()})


def key(row: dict[str, Any]) -> str:
    return repr(sorted(row.items(), key=str))


@pytest.mark.slow
def test_a_topic_is_copied_to_another_number_of_partitions(shop: hw.Workspace) -> None:
    shop.sql("""
        CREATE TOPIC wider (WATERMARK FOR at AS at - INTERVAL '1 minute')
        WITH (partitions = 5, partition_by = 'user') AS SELECT * FROM clicks
    """)
    assert sorted(rows(shop, "wider"), key=key) == sorted(rows(shop, "clicks"), key=key)
    made = shop.topic("wider").definition
    assert (made.partitions, made.partition_by, made.time) == (5, ("user",), "at")
    assert made.schema == shop.topic("clicks").schema
    assert appends(shop, "wider") == 1
    assert not shop.log.entries(COPY)


@pytest.mark.slow
def test_rows_are_computed_and_keep_their_order(shop: hw.Workspace) -> None:
    shop.sql("""
        CREATE TOPIC some AS
          SELECT user + 1 AS user, upper(url) AS url, explode(array(1, 2)) AS n FROM clicks WHERE user > 0
    """)
    wanted = [
        {"user": row["user"] + 1, "url": row["url"].upper(), "n": n}
        for row in rows(shop, "clicks")
        if row["user"] > 0
        for n in (1, 2)
    ]
    found = rows(shop, "some")
    assert sorted(found, key=key) == sorted(wanted, key=key)
    mine = [row["url"] for row in found if row["user"] == 2 and row["n"] == 1]
    assert mine == sorted(mine)  # urls rise with the commits


@pytest.mark.slow
def test_a_table_is_copied_as_its_current_rows(shop: hw.Workspace) -> None:
    shop.sql("CREATE TOPIC people (PRIMARY KEY (id)) WITH (partitions = 3) AS SELECT * FROM customers")
    assert sorted(rows(shop, "people"), key=key) == [
        {"id": n, "name": "new" if n == 1 else f"c{n}"} for n in (0, 1, 3, 4)
    ]
    assert shop.topic("people").definition.key == ("id",)
    shop.topic("people").append([{"id": 0, "name": "x"}])
    shop.sql("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, max(name) AS m FROM people")
    shop.run()
    assert shop.query("SELECT * FROM v").to_pylist() == [{"n": 4, "m": "x"}]
    assert shop.verify().ok


@pytest.mark.slow
def test_any_query_will_do_also_one_that_no_view_could_be(shop: hw.Workspace) -> None:
    shop.sql("""
        CREATE TOPIC totals (PRIMARY KEY (user)) AS SELECT user, n FROM per_user WHERE user IS NOT NULL;
        CREATE TOPIC joined AS SELECT c.name, k.url FROM customers c JOIN clicks k ON k.user = c.id;
        CREATE TOPIC stamped AS SELECT id, current_date() AS day FROM customers LIMIT 2;
        CREATE TOPIC nothing AS SELECT id FROM customers WHERE id < 0;
        CREATE TOPIC constants AS VALUES (1, 'a'), (2, 'b') AS t(n, s);
    """)
    assert sorted(rows(shop, "totals"), key=key) == [{"user": n, "n": 6 if n else 12} for n in range(3)]
    assert len(rows(shop, "joined")) == 12 + 6
    assert len(rows(shop, "stamped")) == 2
    assert rows(shop, "nothing") == []
    assert shop.topic("nothing").schema == pa.schema([("id", pa.int64())])
    assert rows(shop, "constants") == [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]


@pytest.mark.slow
def test_a_long_topic_goes_by_in_chunks(shop: hw.Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(create_topic_as, "CHUNK_ROWS", 5)
    query = s.QueryText("SELECT url, user FROM clicks")
    assert max(batch.num_rows for batch in inspect_workspace(shop).views.reads.rows(query).batches) <= 5
    shop.sql("CREATE TOPIC again AS SELECT url, user FROM clicks")
    assert len(rows(shop, "again")) == 25
    assert appends(shop, "again") == 1


@pytest.mark.slow
def test_a_statement_that_fails_leaves_nothing_behind(shop: hw.Workspace) -> None:
    before = set(shop.log.topics())
    refused: list[tuple[str, type[hw.HeadwaterError], dict[str, str]]] = [
        (
            "CREATE TOPIC t (PRIMARY KEY (user)) AS SELECT nullif(user, 1) AS user FROM clicks",
            hw.BadRowError,
            {"topic": "t", "column": "user"},
        ),
        ("CREATE TOPIC t AS SELECT 1 DIV user AS x FROM clicks", hw.EvaluationError, {}),
        (
            "CREATE TOPIC t (PRIMARY KEY (nowhere)) AS SELECT user FROM clicks",
            hw.SchemaError,
            {"topic": "t", "column": "nowhere"},
        ),
        (
            "CREATE TOPIC t AS SELECT user, user FROM clicks",
            hw.SchemaError,
            {"topic": "t", "column": "user", "reason": "duplicate-column"},
        ),
        (
            "CREATE TOPIC t AS SELECT nothing FROM clicks",
            hw.StatementError,
            {"condition": "UNRESOLVED_COLUMN.WITH_SUGGESTION"},
        ),
        ("CREATE TOPIC per_user AS SELECT user FROM clicks", hw.TopicExistsError, {"topic": "per_user"}),
    ]
    for statement, kind, facts in refused:
        with raises(kind, **facts):
            shop.sql(statement)
        assert set(shop.log.topics()) == before
        assert not shop.log.entries(COPY)


@pytest.mark.slow
def test_what_is_there_already_is_treated_as_by_any_create(shop: hw.Workspace) -> None:
    shop.sql("CREATE TOPIC copy AS SELECT user FROM clicks; CREATE TOPIC empty (a INT)")
    shop.sql("CREATE TOPIC IF NOT EXISTS copy AS SELECT user FROM clicks")
    with pytest.raises(hw.TopicExistsError) as same:
        shop.sql("CREATE TOPIC copy AS SELECT user FROM clicks")
    assert same.value.difference == []
    with pytest.raises(hw.TopicExistsError) as other:
        shop.sql("CREATE TOPIC copy AS SELECT url FROM clicks")
    assert other.value.difference == ["- user BIGINT", "+ url STRING"]
    with raises(hw.TopicExistsError, topic="copy", difference=["- user BIGINT", "+ url STRING"]):
        shop.sql("CREATE OR REPLACE TOPIC copy AS SELECT url FROM clicks")
    assert len(rows(shop, "copy")) == 25
    shop.sql("CREATE OR REPLACE TOPIC empty AS SELECT id FROM customers")
    assert len(rows(shop, "empty")) == 4


# --- interrupted, without Spark: the rows come from here -------------------------------------------------------------

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
STATEMENT = "CREATE TOPIC copy (PRIMARY KEY (n)) WITH (partitions = 2) AS SELECT n, s FROM somewhere"
WHOLE = [{"n": n, "s": f"{n}" * 50} for n in range(60)]
SETTINGS = LogSettings(staging_bytes_max=2_000)


def nothing() -> NoReturn:
    """Stands in for what is outside: nobody asks for it."""
    raise AssertionError("nothing outside is asked for")


class Given:
    """Stands in for `Views` and its reads: the query gives these rows, in pieces."""

    @property
    def reads(self) -> Given:
        return self

    def rows(self, query: object) -> QueryRows:
        del query
        return QueryRows(
            SCHEMA,
            iter(pa.RecordBatch.from_pylist(WHOLE[i : i + 10], schema=SCHEMA) for i in range(0, 60, 10)),
        )


def run(log: Log, statement: str = STATEMENT) -> None:
    (parsed,) = parse(statement)
    execute(log, parsed, ManualClock(), lambda: Given(), nothing)  # type: ignore[arg-type,return-value]


def contents(log: Log) -> list[dict[str, Any]]:
    found = [
        row
        for partition, info in log.partitions("copy").items()
        for batch in log.read("copy", partition, info.first, info.end, ["n", "s"])
        for row in batch.to_pylist()
    ]
    return sorted(found, key=lambda row: row["n"])


@pytest.mark.slow
def test_wherever_it_is_killed_the_same_statement_makes_it_whole(tmp_path: Path) -> None:
    call, seen = 0, set()
    while True:
        storage = FaultyStorage(tmp_path / f"w{call}")
        log = EmbeddedLog.open(storage.root, settings=SETTINGS, clock=ManualClock(), storage=storage)
        storage.crash_at(len(storage.calls) + 1 + call)
        try:
            run(log)
        except Crash:
            pass
        else:
            break
        again = EmbeddedLog.open(
            storage.root, settings=SETTINGS, clock=ManualClock(), storage=storage.restart()
        )
        there, unfinished = "copy" in again.topics(), "copy" in again.entries(COPY)
        found = contents(again) if there else None
        assert found in (None, [], WHOLE)
        assert unfinished or found != []  # what is empty does not look whole
        seen.add((there, unfinished, bool(found)))
        if there and not unfinished:
            with pytest.raises(hw.TopicExistsError):
                run(again)
        else:
            run(again)
        assert contents(again) == WHOLE
        assert not again.entries(COPY)
        again.close()
        call += 1
    assert {(False, False, False), (False, True, False), (True, True, False), (True, True, True)} <= seen


def test_an_unfinished_topic_says_so_and_can_be_dropped(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path / "w", clock=ManualClock())
    log.put_entry(COPY, "copy", {}, expect=None)
    (parsed,) = parse("CREATE TOPIC copy (n BIGINT)")
    execute(log, parsed, ManualClock(), lambda: Given(), nothing)  # type: ignore[arg-type,return-value]
    (parsed,) = parse("EXPLAIN copy")
    told = execute(log, parsed, ManualClock(), lambda: Given(), nothing)  # type: ignore[arg-type,return-value]
    assert told is not None
    assert {r["property"]: r["value"] for r in told.to_pylist()}["unfinished"].startswith(
        "CREATE TOPIC ... AS"
    )
    run(log, "DROP TOPIC copy")
    assert not log.entries(COPY)
    run(log)
    assert contents(log) == WHOLE
    log.close()


def test_a_statement_that_is_run_twice_at_once_writes_its_rows_once(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path / "w", settings=SETTINGS, clock=ManualClock())

    class Twice(Given):
        """While the rows are read, another process runs the same statement."""

        def rows(self, query: object) -> QueryRows:
            made = super().rows(query)

            def batches() -> Iterator[pa.RecordBatch]:
                yield from list(made.batches)
                run(log)

            return QueryRows(made.schema, batches())

    (parsed,) = parse(STATEMENT)
    execute(log, parsed, ManualClock(), lambda: Twice(), nothing)  # type: ignore[arg-type,return-value]
    assert contents(log) == WHOLE
    assert not log.entries(COPY)
    log.close()


def test_a_log_in_memory_takes_it_too(ws: hw.Workspace) -> None:
    run(ws.log)
    assert contents(ws.log) == WHOLE
    with pytest.raises(hw.TopicExistsError) as there:
        run(ws.log)
    assert there.value.difference == []
    run(ws.log, STATEMENT.replace("CREATE TOPIC", "CREATE TOPIC IF NOT EXISTS"))
    assert contents(ws.log) == WHOLE
