"""Columns as numbered in the server's catalog: from which position on a value in the log belongs to the column that has its
name today.

A large value that an update leaves unchanged is not sent, and is looked up in the log by the name of its column. Since that
value was written, the column may have been renamed, dropped and added again, or rewritten: then the log has, under that name,
the value of another column, or an old one. The stream has only the names of columns, so their numbers (attnum) are read from
the catalog. Values that precede a detected change of a column in the WAL are not used as values of the column.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headwater.sources.postgres.decode.pgoutput import RelationMessage
from headwater.sources.postgres.server.connection import Connection
from headwater.sources.postgres.server.publications import Captured

_ATTRIBUTES = """
SELECT c.oid::int8, a.attnum::int, a.attname::text, a.atttypid::int8, a.atttypmod, a.attlen = -1, a.xmin::text,
       CASE c.relkind WHEN 'p' THEN 0 ELSE c.relfilenode END::int8,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::int8
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.oid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY c.oid, a.attnum
"""
"""Query for the columns of tables. Its WAL position is read last: everything after it in the WAL has these columns or later
ones."""
_ALL = "*"
NOWHERE = 1 << 64
"""A position after any other, for a table that was dropped."""


@dataclass(frozen=True)
class Attribute:
    """A column of a table in the catalog."""

    number: int
    name: str
    type_oid: int
    typmod: int
    varies: bool
    """Whether values of the column vary in size: a large one may be missing in a change."""
    changed_by: str
    """Transaction that last wrote the column's row in the catalog; setting a new default does so, too."""


@dataclass(frozen=True)
class ColumnSnapshot:
    """Columns of a table at one point in time. `file` changes when the table is rewritten."""

    attributes: tuple[Attribute, ...] = ()
    file: int = 0
    position: int = 0

    def up_to(self, number: int) -> list[Attribute]:
        """Return the columns of variable size, up to an attribute number."""
        return [one for one in self.attributes if one.varies and one.number <= number]


@dataclass
class KnownColumns:
    """Stored state of the columns of a table, and the positions from which values in the log belong to them."""

    last: int = 0
    """Highest attribute number of the columns."""
    columns: str = ""
    """Digest of the numbers, names and types of the columns."""
    changes: str = ""
    """Digest of the transactions that last changed the columns."""
    file: int = 0
    since: dict[str, int] = field(default_factory=dict)
    """By column, or `*` for all: the position after which values in the log belong to the column."""

    @classmethod
    def of(cls, seen: ColumnSnapshot, since: dict[str, int]) -> KnownColumns:
        """Return the stored state for columns read from the catalog."""
        last = max((one.number for one in seen.attributes), default=0)
        return cls(last, *_digests(seen.up_to(last)), seen.file, since)

    def updated(self, seen: ColumnSnapshot) -> KnownColumns:
        """Return the state after another look at the catalog. New columns are valid from the current position on; if an earlier
        column has changed, all columns are."""
        columns, changes = _digests(seen.up_to(self.last))
        # Detects ALTER TYPE with USING, which changes values and rewrites the table. VACUUM FULL rewrites it, too, but changes
        # no column.
        rewritten = changes != self.changes and (seen.file != self.file or not seen.file)
        if columns != self.columns or rewritten:
            return KnownColumns.of(seen, {_ALL: seen.position})
        new = {one.name: seen.position for one in seen.attributes if one.varies and one.number > self.last}
        return KnownColumns.of(seen, {**self.since, **new})

    def after(self, columns: Collection[str]) -> int:
        """Return the position after which values in the log belong to the given columns.

        A row that is skipped because of one column makes the row in the log outdated for all columns.
        """
        everything = self.since.get(_ALL, 0)
        after = max((self.since.get(name, 0) for name in columns), default=0)
        if after > everything:
            self.since = {_ALL: after}
        return max(after, everything)


class Attributes:
    """Stored state of the columns of all captured tables; part of the position of a source."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, KnownColumns] = {}

    def begin(self, position: Mapping[str, Any] | None, tables: Sequence[Captured]) -> None:
        """Load the state in a position; the columns of all other tables are recorded from now on."""
        plain = (position or {}).get("columns", {})
        names = {str(table): table.state.oid for table in tables if table.is_keyed}
        self._known = {name: KnownColumns(*plain[name]) for name in names if name in plain}
        new = {name: oid for name, oid in names.items() if name not in plain}
        seen = read_columns(self._connection, new.values())
        self._known |= {name: KnownColumns.of(seen[oid], {}) for name, oid in new.items() if oid in seen}

    def remembered(self) -> dict[str, Any]:
        """Return the state for the position of the current commit."""
        return {
            name: [
                known.last,
                known.columns,
                known.changes,
                known.file,
                *([known.since] if known.since else []),
            ]
            for name, known in self._known.items()
        }

    def after(self, table: str, relation: RelationMessage, columns: Collection[str]) -> int:
        """Return the position after which values in the stream and in the log belong to the given columns of a table, as the
        stream describes it."""
        seen = read_columns(self._connection, [relation.oid]).get(relation.oid, ColumnSnapshot())
        known = self._known.get(table)
        now = KnownColumns.of(seen, {_ALL: seen.position}) if known is None else known.updated(seen)
        described = [column.name for column in relation.columns]
        if [one.name for one in seen.attributes if one.name in described] != described:
            # The catalog is older or newer than the stream's description: no value so far is certain to belong to these
            # columns.
            now.since = {_ALL: max(seen.position, now.since.get(_ALL, 0))}
        self._known[table] = now
        return now.after(columns) if seen.attributes else NOWHERE


def read_columns(connection: Connection, oids: Iterable[int]) -> dict[int, ColumnSnapshot]:
    """Return the current columns of tables, by oid."""
    wanted, found = list(oids), dict[int, list[tuple[Any, ...]]]()
    for oid, *rest in connection.rows(_ATTRIBUTES, wanted) if wanted else ():
        found.setdefault(oid, []).append(tuple(rest))
    return {
        oid: ColumnSnapshot(tuple(Attribute(*row[:6]) for row in rows), rows[0][6], rows[0][7])
        for oid, rows in found.items()
    }


def _digests(attributes: Sequence[Attribute]) -> tuple[str, str]:
    columns = [(one.number, one.name, one.type_oid, one.typmod) for one in attributes]
    return _digest(columns), _digest([one.changed_by for one in attributes])


def _digest(plain: object) -> str:
    return hashlib.blake2b(repr(plain).encode(), digest_size=6).hexdigest()
