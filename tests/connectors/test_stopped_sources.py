"""A source, or a table of one, that has stopped says so in every process, until it is read again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from click.testing import CliRunner, Result

import headwater as hw
from headwater.cli.program import cli
from headwater.testing import inspect_workspace
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CUSTOMERS = "source shop, table public.customers"


@pytest.fixture
def shop(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE customers (id bigint PRIMARY KEY, country text)")
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint)")
        connection.execute("INSERT INTO customers VALUES (1, 'ch')")
        yield connection


def invoke(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["-w", str(folder), *arguments])


def state(ws: hw.Workspace) -> str:
    (shown,) = ws.sql("SHOW SOURCES").to_pylist()  # type: ignore[union-attr]
    return str(shown["state"])


def until(ws: hw.Workspace, count: int) -> None:
    """Wait until the workspace has so many faults."""
    deadline = ws.log.clock.steady_ms() + 20_000  # type: ignore[attr-defined]
    while len(ws.log.faults.current()) != count:
        assert ws.log.clock.steady_ms() < deadline, ws.log.faults.current()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_table_that_refuses_a_change_stays_visibly_stopped_across_restarts(
    tmp_path: Path, spark: SparkSession, postgres_url: str, shop: psycopg.Connection
) -> None:
    folder = tmp_path / "ws"
    with hw.open(folder, durability="os", spark=spark) as ws:
        ws.sql(
            f"""
            CREATE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'customers, orders');
            ALTER TOPIC customers SET (schema_changes = 'refuse');
            """
        )
        ws.run()
        assert ws.verify().ok
        shop.execute("ALTER TABLE customers ADD COLUMN vip boolean")
        shop.execute("INSERT INTO customers VALUES (2, 'at', true)")
        ws.run()

    for _ in range(2):  # the second after one more process has read the source
        with hw.open(folder) as ws:
            assert state(ws) == "not running; stopped tables: public.customers"
            (reason,) = inspect_workspace(ws).sources.stopped_tables("shop").values()
            assert "added column vip BOOLEAN" in reason
            assert "ALTER SOURCE shop RESTART public.customers" in reason
            (fault,) = ws.log.faults.current()
            assert (fault.kind, fault.name) == ("source", "shop/public.customers")
            (finding,) = ws.verify().differences
            assert finding.file == CUSTOMERS
        once = invoke(folder, "run", "--once")
        assert once.exit_code == 1
        assert f"{CUSTOMERS} is stopped: table public.customers of source 'shop' has stopped" in once.stderr
        verified = invoke(folder, "verify")
        assert verified.exit_code == 1
        assert "no differences" not in verified.stdout
        assert f"{CUSTOMERS}: stopped: " in verified.stdout

    with hw.open(folder, durability="os", spark=spark) as ws:
        with ws.start():  # an engine meets the same table, and tells of it
            until(ws, 1)
            assert "stopped tables: public.customers" in state(ws)
            ws.sql("ALTER TOPIC customers SET (schema_changes = 'follow')")
            ws.sql("ALTER SOURCE shop RESTART customers")
            until(ws, 0)
        assert inspect_workspace(ws).sources.stopped() == {}
        assert state(ws) == "not running"
        assert ws.verify().ok
        assert ws.topic("customers").schema.names == ["id", "country", "vip"]
    assert invoke(folder, "run", "--once").exit_code == 0


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    made = tmp_path / "lines"
    made.mkdir()
    (made / "a.jsonl").write_text('{"n": 1}\n{"n": "many"}\n')
    return made


def mend(lines: Path) -> None:
    with (lines / "a.jsonl").open("r+") as file:
        file.write('{"n": 1}\n{"n": 2     }\n')


def declare(ws: hw.Workspace, lines: Path) -> None:
    ws.sql(
        f"CREATE SOURCE numbers FROM FILES WITH (path = '{lines}/*.jsonl', format = 'json', columns = 'n BIGINT')"
    )


def test_a_source_of_files_that_stops_says_so_until_it_reads_on(
    tmp_path: Path, spark: SparkSession, lines: Path
) -> None:
    with hw.open(tmp_path / "ws", spark=spark) as ws:
        declare(ws, lines)
        with raises(hw.SourceError, source="numbers", byte=9):
            ws.run()
    with hw.open(tmp_path / "ws", spark=spark) as ws:
        assert state(ws).startswith("stopped: ")
        assert "many" in state(ws)
        assert not ws.verify().ok
        mend(lines)
        ws.run()
        assert state(ws) == "not running"
        assert ws.log.faults.current() == []
        assert ws.verify().ok


def test_a_source_that_stops_beside_an_engine_says_so_when_the_engine_has_ended(
    tmp_path: Path, spark: SparkSession, lines: Path
) -> None:
    with hw.open(tmp_path / "ws", spark=spark) as ws:
        declare(ws, lines)
        with ws.start():
            until(ws, 1)
        assert state(ws).startswith("stopped: ")
    with hw.open(tmp_path / "ws", spark=spark) as ws:
        assert state(ws).startswith("stopped: ")
        mend(lines)
        with ws.start():
            until(ws, 0)
        assert state(ws) == "not running"


@pytest.mark.parametrize("statement", ["DROP SOURCE numbers", "ALTER SOURCE numbers SET (extra = 'ignore')"])
def test_dropping_and_altering_a_source_clears_its_fault(tmp_path: Path, lines: Path, statement: str) -> None:
    with hw.open(tmp_path / "ws") as ws:
        declare(ws, lines)
        with pytest.raises(hw.HeadwaterError):
            ws.run()
        assert len(ws.log.faults.current()) == 1
        ws.sql(statement)
        assert ws.log.faults.current() == []
