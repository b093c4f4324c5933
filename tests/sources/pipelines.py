"""A stand-in for the log that tests of a Postgres source apply its events to, and a small load to follow."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from headwater.catalog.conform import DELETE, OPS
from headwater.catalog.definitions import TopicDefinition
from headwater.sources.base import Commit, Evolve, Position, Quiet, Rows
from headwater.sources.postgres.postgres_source import PostgresSource

Row = dict[str, Any]


@dataclass
class Follower:
    """Topics as dicts by key, moved by whole commits; what is not committed when reading stops is forgotten."""

    url: str
    folder: Path
    options: dict[str, Any]
    topics: dict[str, TopicDefinition] = field(default_factory=dict)
    contents: dict[str, dict[Any, Row]] = field(default_factory=dict)
    records: dict[str, list[Row]] = field(default_factory=dict)
    written: dict[tuple[str, Any], int] = field(default_factory=dict)
    placed: dict[tuple[str, Any], int] = field(default_factory=dict)
    position: Position | None = None
    sequence: int = -1
    generation: int = 0
    commits: int = 0
    pending: list[Rows] = field(default_factory=list)
    source: PostgresSource | None = None
    reading: Iterator[Any] | None = None

    # What the log knows.

    def definition(self, topic: str) -> TopicDefinition | None:
        return self.topics.get(topic)

    def live_keys(self, topic: str) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([self.topics[topic].schema.field(name) for name in self.topics[topic].key])
        rows = [{name: row[name] for name in schema.names} for row in self.contents.get(topic, {}).values()]
        for start in range(0, len(rows), 1000):
            yield pa.RecordBatch.from_pylist(rows[start : start + 1000], schema=schema)

    def moment(self) -> int:
        return self.commits

    def is_empty(self, topic: str) -> bool:
        return not self.records.get(topic)

    def last_values(
        self, topic: str, keys: pa.RecordBatch, columns: Sequence[str], since: int = 0, after: int = 0
    ) -> pa.RecordBatch:
        wanted = [tuple(key.values()) for key in keys.to_pylist()]
        new = [
            self.written.get((topic, key), 0) > since and self.placed.get((topic, key), 0) > after
            for key in wanted
        ]
        contents = self.contents.get(topic, {})
        found = [contents.get(key) if is_new else None for key, is_new in zip(wanted, new, strict=True)]
        schema = self.topics[topic].schema
        arrays = [
            pa.array([row and row.get(name) for row in found], schema.field(name).type) for name in columns
        ]
        there = pa.array([row is not None for row in found])
        return pa.RecordBatch.from_arrays([*arrays, there], names=[*columns, "_found"])

    def declare(self, definition: TopicDefinition) -> None:
        """Make a topic, or give it these columns."""
        self.topics[definition.name] = definition
        self.contents.setdefault(definition.name, {})
        self.records.setdefault(definition.name, [])

    # Reading.

    def open(self) -> PostgresSource:
        """A new process, as it were: nothing is known but what was committed."""
        self.close()
        self.source = PostgresSource(
            "shop", {"url": self.url, **self.options}, self, self.folder, self.generation
        )
        self.reading = self.source.read(self.position, self.sequence)
        return self.source

    def step(self) -> Any:
        """Take one event."""
        if self.source is None or self.reading is None:
            self.open()
        assert self.source is not None
        assert self.reading is not None
        event = next(self.reading)
        if isinstance(event, Rows):
            assert event.batch.schema.equals(self.topics[event.topic].row_schema), event.batch.schema
            self.pending.append(event)
        elif isinstance(event, Evolve):
            assert not self.pending
            self.declare(event.definition)
        elif isinstance(event, Commit):
            assert event.sequence > self.sequence
            self.commits += 1
            for rows in self.pending:
                self._apply(rows)
            self.pending = []
            self.sequence, self.position = event.sequence, _stored(event.position)
            self.source.durable(event.sequence, event.position)
        elif isinstance(event, Quiet) and event.sequence is not None and event.sequence > self.sequence:
            self.sequence, self.position = event.sequence, _stored(event.position) or self.position
            self.source.durable(event.sequence, event.position)
        return event

    def follow(self) -> None:
        """Up to everything that is committed by now."""
        if self.source is None:
            self.open()
        assert self.source is not None
        until = self.source.end()
        self.follow_until(until)

    def stream(self) -> None:
        """Up to where the stream is being read, and has nothing new."""
        while not isinstance(event := self.step(), Quiet) or event.sequence is None:
            pass

    def follow_until(self, until: int) -> None:
        """Up to a position of the server's log."""
        while True:
            event = self.step()
            if isinstance(event, (Quiet, Commit)) and (event.sequence or -1) >= until:
                return

    def forever(self) -> None:
        """Until something is raised."""
        while True:
            self.step()

    def settle(self, *, ordered: bool = False) -> None:
        """Up to the end of all snapshots beside the stream, too; of one that was just `ordered`, also."""
        self.follow()
        while ordered and not (self.position or {}).get("snapshots"):
            self.step()
        self.follow()
        while self.is_copying:
            self.step()
        self.follow()

    @property
    def is_copying(self) -> bool:
        """Whether rows are still to come beside the stream."""
        return any((self.position or {}).get(name) for name in ("snapshots", "lacking"))

    def restart(self) -> None:
        """ALTER SOURCE ... RESTART: what was made on the server is made anew, and everything is copied again."""
        source = self.open()
        source.drop()
        source.check()
        self.close()
        self.position, self.sequence = None, -1

    def close(self) -> None:
        """Stop reading, as a process that is killed does: what was not committed is lost."""
        if self.reading is not None:
            self.reading.close()  # type: ignore[attr-defined]
        if self.source is not None:
            self.source.close()
        self.reading = self.source = None
        self.pending = []

    def _apply(self, rows: Rows) -> None:
        topic = self.topics[rows.topic]
        contents = self.contents[rows.topic]
        for row in rows.batch.to_pylist():
            self.records[rows.topic].append(row)
            if not topic.keyed:
                continue
            key = tuple(row[name] for name in topic.key)
            self.written[rows.topic, key] = self.commits
            self.placed[rows.topic, key] = row["_source_position"]
            if row["_op"] == DELETE:
                contents.pop(key, None)
            else:
                contents[key] = {name: row[name] for name in topic.schema.names}

    def ops(self, topic: str) -> list[tuple[str, Any]]:
        """What was appended: the op and the key of each record."""
        key = self.topics[topic].key
        return [
            (OPS[row["_op"]], row[key[0]] if len(key) == 1 else tuple(row[k] for k in key))
            for row in self.records[topic]
        ]


def _stored(position: Position | None) -> Position | None:
    """A position as the log gives it back."""
    return None if position is None else json.loads(json.dumps(position))


def rows_in(session: psycopg.Connection[Any], table: str, key: Sequence[str] = ("id",)) -> dict[Any, Row]:
    """A table as it is, by key."""
    cursor = session.execute(f"SELECT * FROM {table}")  # type: ignore[call-overload]
    names = [column.name for column in cursor.description or ()]
    found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {tuple(row[name] for name in key): row for row in found}


def drop_slot(session: psycopg.Connection[Any]) -> None:
    """Drop the slot of the source, whoever reads from it."""
    mine = "FROM pg_replication_slots WHERE slot_name = 'headwater_shop'"
    session.execute(f"SELECT pg_terminate_backend(active_pid, 5000) {mine} AND active_pid IS NOT NULL")  # type: ignore[call-overload]
    session.execute("SELECT pg_drop_replication_slot('headwater_shop')")


def change_at_random(session: psycopg.Connection[Any], chance: random.Random, table: str = "orders") -> None:
    """One transaction of a few changes, some of which are undone."""
    large = "(SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 100))"
    with session.transaction():
        for _ in range(chance.randint(1, 6)):
            key, value = chance.randint(1, 40), chance.randint(0, 999)
            statement = chance.choice(
                [
                    f"INSERT INTO {table} VALUES ({key}, {value}, {large}) ON CONFLICT (id) DO UPDATE SET n = {value}",
                    f"INSERT INTO {table} VALUES ({key}, {value}, {large}) ON CONFLICT (id) DO NOTHING",
                    f"UPDATE {table} SET n = {value} WHERE id = {key}",
                    f"UPDATE {table} SET n = n + 1 WHERE id % 7 = {key % 7}",
                    f"UPDATE {table} SET body = {large} WHERE id = {key}",
                    f"DELETE FROM {table} WHERE id = {key}",
                    f"UPDATE {table} SET id = id + 100 WHERE id = {key} AND NOT EXISTS (SELECT FROM {table} WHERE id = {key + 100})",
                    f"UPDATE {table} SET id = id - 100 WHERE id = {key + 100} AND NOT EXISTS (SELECT FROM {table} WHERE id = {key})",
                    f"TRUNCATE {table}" if chance.random() < 0.2 else f"DELETE FROM {table} WHERE id > {key}",
                ]
            )
            try:
                with session.transaction(force_rollback=chance.random() < 0.1):
                    session.execute(statement)  # type: ignore[call-overload]
            except (psycopg.errors.UniqueViolation, psycopg.errors.LockNotAvailable):
                continue  # a TRUNCATE waits for whoever reads the table, as the first snapshot may do just now
