"""Columns as the server's catalog knows them: since when a value in the log is one of the column that has its name today.

A large value that a change leaves alone is not sent, and is looked for in the log by the name of its column. A column may have been
renamed since, or dropped and added again, or rewritten: then the log has the value of another column under that name, or an
old one. The stream names columns and does not number them, so the catalog is asked, which numbers them (attnum). Whatever
was in the server's log before a change of a column was noticed is not taken for a value of it.
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
"""The position is read after the rest: whatever of the server's log comes behind it has the columns as they are here, or later ones."""
_ALL = "*"
NOWHERE = 1 << 64
"""Behind every position: of a table that is gone."""


@dataclass(frozen=True)
class Attribute:
    """A column of a table, as it is in the catalog."""

    number: int
    name: str
    type_oid: int
    typmod: int
    varies: bool
    """Its values have no fixed size: a large one may be left out of a change."""
    changed_by: str
    """The transaction that has written what the catalog says of it; also a new default does that."""


@dataclass(frozen=True)
class ColumnSnapshot:
    """The columns of a table at one moment. `file` is another one once the table was rewritten."""

    attributes: tuple[Attribute, ...] = ()
    file: int = 0
    position: int = 0

    def up_to(self, number: int) -> list[Attribute]:
        """The columns whose values vary in size, up to a number."""
        return [one for one in self.attributes if one.varies and one.number <= number]


@dataclass
class KnownColumns:
    """What is remembered of the columns of a table, and since when values in the log are theirs."""

    last: int = 0
    """The highest number among them."""
    columns: str = ""
    """What stands for their numbers, names and types."""
    changes: str = ""
    """What stands for the transactions that have changed them."""
    file: int = 0
    since: dict[str, int] = field(default_factory=dict)
    """By column, or for all: the position behind which the log's values are of the column."""

    @classmethod
    def of(cls, seen: ColumnSnapshot, since: dict[str, int]) -> KnownColumns:
        """What is to be remembered of columns that were seen."""
        last = max((one.number for one in seen.attributes), default=0)
        return cls(last, *_digests(seen.up_to(last)), seen.file, since)

    def updated(self, seen: ColumnSnapshot) -> KnownColumns:
        """The same after another look at the table. New columns are known from now on; all are, where others have changed."""
        columns, changes = _digests(seen.up_to(self.last))
        # A new type with USING gives the columns other values: it rewrites the table, and so does VACUUM FULL, which changes no column.
        rewritten = changes != self.changes and (seen.file != self.file or not seen.file)
        if columns != self.columns or rewritten:
            return KnownColumns.of(seen, {_ALL: seen.position})
        new = {one.name: seen.position for one in seen.attributes if one.varies and one.number > self.last}
        return KnownColumns.of(seen, {**self.since, **new})

    def after(self, columns: Collection[str]) -> int:
        """The position behind which the log's values are of the columns that are asked for.

        A row that is left out because of one column makes what the log has of the row too old for all of them.
        """
        everything = self.since.get(_ALL, 0)
        after = max((self.since.get(name, 0) for name in columns), default=0)
        if after > everything:
            self.since = {_ALL: after}
        return max(after, everything)


class Attributes:
    """What is remembered of the columns of all captured tables; part of the position of a source."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, KnownColumns] = {}

    def begin(self, position: Mapping[str, Any] | None, tables: Sequence[Captured]) -> None:
        """Take up what a position remembers; the columns of other tables are remembered from now on."""
        plain = (position or {}).get("columns", {})
        names = {str(table): table.state.oid for table in tables if table.is_keyed}
        self._known = {name: KnownColumns(*plain[name]) for name in names if name in plain}
        new = {name: oid for name, oid in names.items() if name not in plain}
        seen = look(self._connection, new.values())
        self._known |= {name: KnownColumns.of(seen[oid], {}) for name, oid in new.items() if oid in seen}

    def remembered(self) -> dict[str, Any]:
        """What goes into the position of the commit that is being made."""
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
        """The position behind which values in the stream and in the log are of these columns of a table, as the stream describes it."""
        seen = look(self._connection, [relation.oid]).get(relation.oid, ColumnSnapshot())
        known = self._known.get(table)
        now = KnownColumns.of(seen, {_ALL: seen.position}) if known is None else known.updated(seen)
        described = [column.name for column in relation.columns]
        if [one.name for one in seen.attributes if one.name in described] != described:
            # The catalog has the table as it was earlier, or will be later: nothing is known of what the stream has of it so far.
            now.since = {_ALL: max(seen.position, now.since.get(_ALL, 0))}
        self._known[table] = now
        return now.after(columns) if seen.attributes else NOWHERE


def look(connection: Connection, oids: Iterable[int]) -> dict[int, ColumnSnapshot]:
    """The columns of tables as they are now, by oid."""
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
