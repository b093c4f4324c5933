"""What a server would send, asked for by SQL: the same bytes as by a replication connection, and as many as there are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa

from headwater.sources.postgres.decode.copy_format import decode_copy
from headwater.sources.postgres.decode.decode_rows import DecodedRows, decode
from headwater.sources.postgres.decode.pgoutput import (
    Begin,
    CommitMessage,
    Message,
    RelationMessage,
    StreamCommit,
)
from headwater.sources.postgres.decode.postgres_types import TYPES_SQL, read_types, unknown_types
from headwater.sources.postgres.decode.postgres_values import SETTINGS
from headwater.sources.postgres.decode.relations import (
    RELATIONS_SQL,
    CapturedTable,
    TableFacts,
    read_tables,
    table_of,
)
from headwater.sources.postgres.decode.row_buffer import CapturedTransaction, RowBuffer

ENVELOPE = b"w" + bytes(24)


class Replay:
    """A database whose every change is published, and what its slot has of them."""

    def __init__(self, session: psycopg.Connection[Any], *, two_phase: bool) -> None:
        self.session = session
        self.gathering = RowBuffer()
        for name, value in SETTINGS.items():
            self.run(f"SET {name} = '{value}'")
        self.run("CREATE PUBLICATION everything FOR ALL TABLES WITH (publish_via_partition_root = true)")
        self.run("SELECT pg_create_logical_replication_slot('replayed', 'pgoutput', false, %s)", two_phase)

    def run(self, sql: str, *values: Any) -> psycopg.Cursor[Any]:
        """A statement; each is a transaction of its own unless it says otherwise."""
        return self.session.execute(sql, values or None)

    def messages(self, *options: str) -> list[bytes]:
        """The messages since the last time, each in an envelope."""
        given = ["proto_version", "4", "publication_names", "everything", "messages", "true", *options]
        sql = f"SELECT data FROM pg_logical_slot_get_binary_changes('replayed', NULL, NULL, {', '.join(['%s'] * len(given))})"
        return [ENVELOPE + data for (data,) in self.run(sql, *given)]

    def feed(self, *options: str) -> list[Message]:
        """Take in what there is, each transaction sealed; what was told besides rows."""
        told, xid = [], 0
        for data in self.messages(*options):
            if message := self.gathering.feed(data):
                told.append(message)
            if isinstance(message, Begin):
                xid = message.xid
            elif isinstance(message, CommitMessage):
                self.gathering.seal(CapturedTransaction(xid, message.end, message.time_us))
            elif isinstance(message, StreamCommit):
                self.gathering.seal(CapturedTransaction(message.xid, message.end, message.time_us))
        return told

    def changes(self, *options: str) -> list[DecodedRows]:
        """What there is, decoded."""
        self.feed(*options)
        return [decode(run, self.table(run.relation)) for run in self.gathering.take()]

    def only_changes(self, *options: str) -> DecodedRows:
        """What there is of a single table, decoded."""
        (found,) = self.changes(*options)
        return found

    def facts(self, oid: int) -> TableFacts | None:
        """What the catalog says of a table."""
        return read_tables(self.run(RELATIONS_SQL, [oid])).get(oid)

    def table(
        self, relation: RelationMessage | str, declared: dict[str, pa.DataType] | None = None
    ) -> CapturedTable:
        """How to decode a table, as described or as the catalog has it now."""
        if isinstance(relation, str):
            ((oid,),) = self.run("SELECT %s::regclass::oid::bigint", relation)
            facts = self.facts(oid)
            assert facts is not None
            relation = facts.relation()
        types = read_types(self.run(TYPES_SQL, unknown_types((c.type_oid for c in relation.columns), {})))
        return table_of(relation, self.facts(relation.oid), types, declared)

    def copy(self, name: str, declared: dict[str, pa.DataType] | None = None) -> pa.RecordBatch:
        """A table's rows by COPY."""
        table = self.table(name, declared)
        columns = ", ".join(f'"{c.name}"' for c in table.columns)
        with self.session.cursor().copy(f"COPY (SELECT {columns} FROM {name}) TO STDOUT") as copy:
            return decode_copy([bytes(line) for line in copy], table)


@contextlib.contextmanager
def replay(url: str, *, two_phase: bool = False) -> Iterator[Replay]:
    """A session on an empty database."""
    with psycopg.connect(url, autocommit=True) as session:
        yield Replay(session, two_phase=two_phase)
