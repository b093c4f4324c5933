"""A Postgres source keeps the contract of every source: transactions whole, each once, whoever dies and when."""

from __future__ import annotations

import random
from collections.abc import Iterator

import psycopg
import pytest

from headwater.log.protocol import Log
from headwater.sources.registry import DeclaredSource
from headwater.testing.source_contract import Row, SourceContract, declared


class TestPostgres(SourceContract):
    rounds = 6

    @pytest.fixture(autouse=True)
    def shop(self, postgres_url: str) -> Iterator[None]:
        self.url = postgres_url
        self.done: list[list[tuple[str, Row]]] = []
        with psycopg.connect(postgres_url, autocommit=True) as self.session:
            self.session.execute("CREATE TABLE orders (id int PRIMARY KEY, n int)")
            self.session.execute("CREATE TABLE items (id int PRIMARY KEY, n int)")
            yield

    def make_source(self, log: Log) -> DeclaredSource:
        return declared(log, self.folder, "postgres", url=self.url, tables="orders, items")

    def grow(self, chance: random.Random) -> None:
        number = 10 * len(self.done)
        rows = [
            (chance.choice(["orders", "items"]), {"id": number + at, "n": chance.randrange(100)})
            for at in range(chance.randrange(1, 5))
        ]
        with self.session.transaction():
            for table, row in rows:
                self.session.execute(f"INSERT INTO {table} VALUES (%s, %s)", [row["id"], row["n"]])
        self.done.append(rows)

    def expected(self) -> dict[str, list[list[Row]]]:
        """Those of the first snapshot come in any order: each is a run of its own."""
        return {
            table: [[row] for rows in self.done for other, row in rows if other == table]
            for table in ("orders", "items")
        }

    def transactions(self) -> list[list[tuple[str, Row]]]:
        return self.done
