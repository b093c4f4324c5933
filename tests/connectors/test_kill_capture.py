"""The capturing process is killed (SIGKILL) at any moment while a bank is busy: in the end the topics are the tables.

What is unique in the log: a transaction of Postgres, told by `_source_position`, is in exactly one commit of the log, in all
topics, and these commits have the order of the positions. Within it a topic has as many records as the transaction changed rows
of the table, a change of key counting twice. So no (`_source_position`, key) is there more often than the application itself
wrote to that key.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
import pytest

from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Log
from headwater.sources.source_runner import producer_of
from tests.connectors.capture_worker import BUSY, SOURCE, TABLES, capture_of, worker

KILLS = 30 if os.environ.get("HEADWATER_LONG") == "1" else 4
"""In each of two tests."""
PATIENCE_S = 60.0
ACCOUNTS, OPENING = 40, 1_000
TOTAL = ACCOUNTS * OPENING
LARGE = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 90))"
BANK = f"""
CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL, terms text NOT NULL);
CREATE TABLE transfers (id bigint PRIMARY KEY, payer bigint NOT NULL, payee bigint NOT NULL, amount bigint NOT NULL);
CREATE TABLE items (id bigint PRIMARY KEY, n bigint NOT NULL, body text);
CREATE TABLE journal (entry bigint NOT NULL, said text);
ALTER TABLE accounts ALTER terms SET STORAGE EXTERNAL;
ALTER TABLE items ALTER body SET STORAGE EXTERNAL;
INSERT INTO accounts SELECT i, {OPENING}, {LARGE} || i FROM generate_series(1, {ACCOUNTS}) i;
INSERT INTO items SELECT i, 0, {LARGE} || i FROM generate_series(1, 300) i;
INSERT INTO journal SELECT -i, 'before' FROM generate_series(1, 50) i;
"""
Row = dict[str, Any]


def changes_of_items(chance: random.Random) -> list[tuple[str, int]]:
    """Statements, and how many records each row that they change becomes."""
    key, value = chance.randint(1, 400), chance.randint(0, 999)
    free = f"NOT EXISTS (SELECT FROM items WHERE id = {key + 1000})"
    choice = [
        (f"INSERT INTO items VALUES ({key}, {value}, {LARGE}) ON CONFLICT (id) DO NOTHING", 1),
        (
            f"INSERT INTO items VALUES ({key}, {value}, {LARGE}) ON CONFLICT (id) DO UPDATE SET n = {value}",
            1,
        ),
        (f"UPDATE items SET n = {value} WHERE id = {key}", 1),  # leaves the large value alone
        (f"UPDATE items SET n = n + 1 WHERE id % 40 = {key % 40}", 1),
        (f"UPDATE items SET body = {LARGE} WHERE id = {key}", 1),
        (f"UPDATE items SET body = NULL WHERE id = {key}", 1),
        (f"DELETE FROM items WHERE id BETWEEN {key} AND {key + 3}", 1),
        (f"UPDATE items SET id = {key + 1000} WHERE id = {key} AND {free}", 2),
        (f"UPDATE items SET id = {key}, n = {value} WHERE id = {key + 1000}", 2),
    ]
    return [chance.choice(choice) for _ in range(chance.randint(1, 5))]


@dataclass
class Load:
    """Two clients of the bank. `written`: by transaction, how many records each topic is to have of it."""

    url: str
    seed: int
    written: dict[int, Counter[str]] = field(default_factory=dict)
    failed: list[BaseException] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._work, args=[number]) for number in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.ended.set()
            for thread in threads:
                thread.join()
        assert not self.failed, self.failed

    def _work(self, client: int) -> None:
        chance = random.Random(f"{self.seed} {client}")
        try:
            with closing(psycopg.connect(self.url, autocommit=True)) as session:
                session.execute("SET lock_timeout = '200ms'")
                number = client
                while not self.ended.wait(0.004):
                    number += 2
                    self._transaction(session, chance, number)
        except BaseException as error:  # noqa: BLE001 - the test asks for it
            self.failed.append(error)

    def _transaction(self, session: psycopg.Connection[Any], chance: random.Random, number: int) -> None:
        """One transaction; a tenth of them are undone, and so are some parts."""
        counts: Counter[str] = Counter()
        undo = chance.random() < 0.1
        try:
            with session.transaction(force_rollback=undo):
                (xid,) = session.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
                kind = chance.choices(["transfer", "items", "both", "truncate", "large"], [6, 5, 3, 0.1, 0.1])
                if kind[0] in ("transfer", "both"):
                    counts += self._transfer(session, chance, number)
                if kind[0] in ("items", "both"):
                    counts += self._items(session, chance, number)
                if kind[0] == "truncate":
                    session.execute("LOCK TABLE items IN ACCESS EXCLUSIVE MODE")
                    (rows,) = session.execute("SELECT count(*) FROM items").fetchone() or (0,)
                    session.execute("TRUNCATE items")
                    counts += Counter(items=rows, truncated=1)
                if kind[0] == "large":  # more than the server keeps in memory: it is streamed
                    done = session.execute(
                        f"INSERT INTO items SELECT i, {number}, {LARGE} || i FROM generate_series(1, 400) i"
                        " ON CONFLICT (id) DO UPDATE SET n = excluded.n"
                    )
                    counts["items"] += done.rowcount
        except (psycopg.errors.UniqueViolation, psycopg.errors.LockNotAvailable):
            return
        except psycopg.errors.DeadlockDetected:
            return
        if not undo:
            self.written[xid] = counts

    @staticmethod
    def _transfer(session: psycopg.Connection[Any], chance: random.Random, number: int) -> Counter[str]:
        payer, payee = chance.sample(range(1, ACCOUNTS + 1), 2)
        amount = chance.randint(1, 50)
        move = "UPDATE accounts SET balance = balance + %s WHERE id = %s"
        session.execute(move, [-amount, payer])
        session.execute("INSERT INTO transfers VALUES (%s, %s, %s, %s)", [number, payer, payee, amount])
        session.execute(move, [amount, payee])
        return Counter(accounts=2, transfers=1)

    @staticmethod
    def _items(session: psycopg.Connection[Any], chance: random.Random, number: int) -> Counter[str]:
        counts: Counter[str] = Counter()
        for statement, records in changes_of_items(chance):
            undo = chance.random() < 0.1
            with session.transaction(force_rollback=undo):
                done = session.execute(cast(LiteralString, statement))
            counts["items"] += 0 if undo else done.rowcount * records
        session.execute("INSERT INTO journal VALUES (%s, 'items changed')", [number])
        return counts


@dataclass
class Reader:
    """Somebody who reads the log as it grows, and looks at it after every commit of it."""

    log: Log
    checks: bool
    """Whether every commit has to leave the bank whole."""
    positions: dict[tuple[str, int], int] = field(default_factory=dict)
    records: dict[str, list[Row]] = field(default_factory=lambda: {table: [] for table in TABLES})
    tables: dict[str, dict[int, Row]] = field(default_factory=lambda: defaultdict(dict))
    owed: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(1, ACCOUNTS + 1), OPENING))
    commits: int = 0
    wrong: list[str] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        ended = threading.Event()

        def read() -> None:
            try:
                while not ended.is_set():
                    sequence = self.log.sequence()
                    self.look()
                    self.log.wait_commit(sequence, 100)
            except Exception as error:  # noqa: BLE001 - the test asks for it
                self.wrong.append(repr(error))

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def look(self) -> None:
        """Take in everything up to one cut, commit by commit."""
        known = [table for table in TABLES if table in self.log.topics()]
        _, ends = self.log.cut(known)
        commits: dict[int, list[tuple[str, Row]]] = defaultdict(list)
        for topic, partitions in ends.items():
            for partition, end in partitions.items():
                begin = self.positions.get((topic, partition), 0)
                for batch in self.log.read(topic, partition, begin, end) if begin < end else ():
                    for row in batch.to_pylist():
                        commits[row["_sequence"]].append((topic, row))
                self.positions[topic, partition] = end
        for sequence in sorted(commits):
            self._take(sequence, commits[sequence])

    def _take(self, sequence: int, rows: list[tuple[str, Row]]) -> None:
        for topic, row in rows:
            self.records[topic].append({name: row[name] for name in row if name not in ("terms", "body")})
            if topic == "journal":
                continue
            if row["_op"] == "delete":
                self.tables[topic].pop(row["id"], None)
            else:
                self.tables[topic][row["id"]] = row
            if topic == "transfers":
                self.owed[row["payer"]] -= row["amount"]
                self.owed[row["payee"]] += row["amount"]
        self.commits += 1
        if self.checks:
            balances = {key: row["balance"] for key, row in self.tables["accounts"].items()}
            if sum(balances.values()) != TOTAL:
                self.wrong.append(f"after commit {sequence} there is {sum(balances.values())} in all")
            if balances != self.owed:
                self.wrong.append(f"after commit {sequence} balances are not what was transferred")


def once(reader: Reader, written: dict[int, Counter[str]], *, copied: bool) -> None:
    """Every transaction is in one commit of the log, in the order of positions, with the records that it wrote.

    `copied`: rows came in chunks meanwhile. A change of one that had not, without its large value, comes with the row.
    """
    commit_of: dict[int, int] = {}
    xid_of: dict[int, int] = {}
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    for topic, rows in reader.records.items():
        if topic == "journal":
            continue  # without a key, rows of chunks look like any others; how often each is there is compared in the end
        for row in rows:
            if row["_transaction"] is None or row.get("_op") == "snapshot":
                continue
            position, xid = row["_source_position"], row["_transaction"]
            assert commit_of.setdefault(position, row["_sequence"]) == row["_sequence"], (topic, row)
            assert xid_of.setdefault(position, xid) == xid, (topic, row)
            counts[xid][topic] += 1
    assert len(set(xid_of.values())) == len(xid_of), "a transaction has two positions"
    in_order = [commit_of[position] for position in sorted(commit_of)]
    assert in_order == sorted(in_order), "commits are not in the order of positions"
    for xid, found in counts.items():
        if written[xid]["truncated"]:  # as many as there were, but for those that no snapshot has brought yet
            assert found <= written[xid], f"transaction {xid}"
        elif copied:
            assert found <= written[xid], f"transaction {xid}"
            assert found["transfers"] == written[xid]["transfers"], f"transaction {xid}"
        else:
            assert found == written[xid], f"transaction {xid}"
    for table in ("transfers", "accounts"):  # no transaction writes to one of these rows twice
        pairs = Counter((row["_source_position"], row["id"]) for row in reader.records[table])
        assert max(pairs.values()) == 1


class Snapshotted(threading.Event):
    """Set once no table is being read beside the stream any more."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def is_set(self) -> bool:
        known = self._log.producer(producer_of(SOURCE))
        return known is not None and not (known.note or {}).get("snapshots")


@pytest.fixture
def bank(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    session = psycopg.connect(postgres_url, autocommit=True)
    session.execute(BANK)
    name = session.info.dbname
    session.execute(cast(LiteralString, f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'"))
    with session:
        yield session


@pytest.mark.slow
@pytest.mark.parametrize("snapshot", ["initial", "incremental"])
def test_capture_that_is_killed_again_and_again_loses_and_repeats_nothing(
    bank: psycopg.Connection[Any], postgres_url: str, tmp_path: Path, snapshot: str
) -> None:
    folder, chance = tmp_path / "log", random.Random(f"{snapshot} {KILLS}")
    log = EmbeddedLog.open(folder, settings=BUSY)
    load, reader = Load(postgres_url, seed=7), Reader(log, checks=snapshot == "initial")
    with closing(log):
        with reader.running(), load.running():
            for life in range(KILLS):
                had, brings = reader.commits, chance.randint(1, 8)
                with worker("capture", str(folder), postgres_url, snapshot) as capturing:
                    capturing.line()
                    if life % 2:  # it comes to work; the others are killed anywhere on the way there
                        deadline = time.monotonic() + PATIENCE_S
                        while reader.commits < had + brings:
                            capturing.check()
                            assert time.monotonic() < deadline, "nothing is captured"
                            log.wait_commit(log.sequence(), 100)
                    time.sleep(chance.uniform(0, 0.7))
                    capturing.kill()
        rest = capture_of(log, folder, postgres_url, snapshot)
        with closing(rest):
            rest.run(stop=Snapshotted(log))
            rest.run(until=rest.end())
        reader.look()
        assert reader.wrong == []
        assert reader.commits > KILLS
        once(reader, load.written, copied=snapshot == "incremental")
        for table in ("accounts", "transfers", "items"):
            cursor = bank.execute(cast(LiteralString, f"SELECT * FROM {table} ORDER BY id"))
            names = [column.name for column in cursor.description or ()]
            stored = [dict(zip(names, row, strict=True)) for row in cursor]
            found = [{name: row[name] for name in names} for _, row in sorted(reader.tables[table].items())]
            assert found == stored, table
        entries = Counter(entry for (entry,) in bank.execute("SELECT entry FROM journal"))
        assert Counter(row["entry"] for row in reader.records["journal"]) == entries
