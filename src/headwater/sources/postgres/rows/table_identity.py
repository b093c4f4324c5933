"""The identity of a captured table: the facts that must be unchanged for a position in the WAL to be valid for the table.

A position states how far the stream was read. Some changes are never in the stream: changes of a table that was dropped and
created again under the same name, that was not in the publication for a while, or that `ALTER TABLE` rewrote. The catalog shows
each of these cases: a table has an oid, its own file (`relfilenode`), and for every column, partition and publication entry one
catalog row, whose `xmin` is the transaction that last wrote it. These facts are stored in the position, and compared whenever
the source connects and periodically while it runs.

`gaps` decides what follows from a difference. This module changes nothing on the server.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from headwater.sources.postgres.server.connection import Connection
from headwater.sources.postgres.server.publications import Captured

Kind = Literal["replaced", "unpublished", "reattached", "rewritten", "redefined"]

_TABLES = """
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relpersistence::text, c.relfilenode::int8, c.reltoastrelid::int8,
       ARRAY(SELECT CASE WHEN a.attisdropped THEN 0 ELSE a.xmin::text::int8 END FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 ORDER BY a.attnum),
       ARRAY(SELECT CASE WHEN NOT a.attisdropped THEN a.attname::text END FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 ORDER BY a.attnum),
       ARRAY(SELECT CASE WHEN NOT a.attisdropped THEN a.atttypid::text || '.' || a.atttypmod::text END FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 ORDER BY a.attnum),
       ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.atthasmissing AND NOT a.attisdropped
             AND (a.attrelid = c.oid OR c.relkind = 'p' AND a.attrelid IN (SELECT t.relid FROM pg_partition_tree(c.oid) t))),
       ARRAY(SELECT p.oid::text || '.' || p.xmin::text || '.' || e.entry
             FROM pg_publication p CROSS JOIN LATERAL (
               SELECT 'all' AS entry WHERE p.puballtables
               UNION ALL SELECT r.oid::text FROM pg_publication_rel r WHERE r.prpubid = p.oid
                 AND (r.prrelid = c.oid OR c.relispartition AND r.prrelid IN (SELECT a.relid FROM pg_partition_ancestors(c.oid) a))
               {in_schema}
             ) e WHERE p.pubname = ANY(%s) ORDER BY 1)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])
"""
_IN_SCHEMA = """
               UNION ALL SELECT 's' || s.oid::text FROM pg_publication_namespace s
                 WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace
"""
_PARTITIONS = """
SELECT r.oid::int8, c.oid::int8, n.nspname::text, c.relname::text, i.xmin::text::int8, c.relfilenode::int8, c.reltoastrelid::int8,
       c.xmin::text::int8,
       (SELECT json_object_agg(x.indexrelid::text, x.xmin::text::int8) FROM pg_index x
        WHERE x.indrelid = c.oid AND x.indisunique AND NOT x.indisprimary AND x.indimmediate AND x.indpred IS NULL)
FROM unnest(%s::oid[]) AS r (oid) CROSS JOIN LATERAL pg_partition_tree(r.oid) t
JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_inherits i ON i.inhrelid = t.relid AND i.inhparent = t.parentrelid
"""
_WORDS = """
WITH RECURSIVE used (relation, type) AS (
  SELECT a.attrelid, a.atttypid FROM pg_attribute a
  WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
  UNION SELECT u.relation, n.type FROM used u JOIN pg_type t ON t.oid = u.type CROSS JOIN LATERAL (
    SELECT t.typelem AS type WHERE t.typelem <> 0 UNION ALL SELECT t.typbasetype WHERE t.typbasetype <> 0
    UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid
    UNION ALL SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) n)
SELECT u.relation::int8, t.oid::int8, CASE t.typtype
         WHEN 'e' THEN ARRAY(SELECT e.oid || '.' || e.enumlabel FROM pg_enum e WHERE e.enumtypid = t.oid ORDER BY e.oid)
         ELSE ARRAY(SELECT string_agg(a.attnum || '.' || a.atttypid, ' ' ORDER BY a.attnum) FROM pg_attribute a
                    WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) END
FROM used u JOIN pg_type t ON t.oid = u.type WHERE t.typtype IN ('e', 'c') ORDER BY 1, 2
"""
"""The words that define how values of user-defined types are written: the labels of an enum, in the order in which they were
added, and the attributes of a composite type."""


@dataclass(frozen=True)
class PartitionIdentity:
    """The facts of one partition: the transaction that attached it, its file (`relfilenode`), and the fields below."""

    attached: int
    file: int
    toast: int = 0
    """Oid of the TOAST table; 0 if the partition has none."""
    defined: int = 0
    """Transaction that last wrote the partition's row in `pg_class`; 0 if only the primary key can be its replica identity."""
    indexes: Mapping[int, int] = field(default_factory=dict)
    """Indexes other than the primary key that can be the replica identity: by oid, the transaction that last defined each."""
    place: tuple[str, str] = field(default=("", ""), compare=False)
    """Schema and name of the partition."""

    def to_json(self, oid: int) -> list[Any]:
        """Return the facts as part of a position; values equal to the defaults of `from_json` are left out."""
        indexes = {str(one): xmin for one, xmin in self.indexes.items()}
        plain: list[Any] = [self.attached, self.file, self.toast, self.defined, indexes]
        while plain[-1] in (0, {}):
            plain.pop()
        return plain if plain[1:] != [oid] else plain[:1]

    @classmethod
    def from_json(cls, oid: int, plain: Sequence[Any]) -> PartitionIdentity:
        """Return the facts that `to_json` wrote."""
        defaults: list[Any] = [0, oid, 0, 0, {}]
        attached, file, toast, defined, indexes = [*plain, *defaults[len(plain) :]]
        return cls(attached, file, toast, defined, {int(one): xmin for one, xmin in indexes.items()})

    def had_another_identity(self, now: PartitionIdentity) -> bool:
        """Whether an index may have been the replica identity in between: making it that rewrites the catalog rows of the index
        and of the partition."""
        if self.defined == now.defined:
            return False
        return any(now.indexes.get(one) != xmin for one, xmin in self.indexes.items())


@dataclass(frozen=True)
class TableIdentity:
    """The facts of one captured table."""

    oid: int
    file: int
    """The table's `relfilenode`; 0 for a partitioned table."""
    columns: tuple[int, ...]
    """Transaction that last defined each column, in the order of column numbers; 0 for a dropped column."""
    published: frozenset[str]
    """Publication entries that publish the table, each with the publication and the transaction that last changed the
    publication."""
    parts: Mapping[int, PartitionIdentity] = field(default_factory=dict)
    """Partitions of all levels by oid, including partitions that are partitioned themselves."""
    toast: int = 0
    """Oid of the TOAST table; 0 if the table has none."""
    named: int | None = None
    """CRC-32 of the column names, in the order of column numbers; None if the position was stored without it."""
    typed: int | None = None
    """CRC-32 of the column types, in the order of column numbers; None if the position was stored without it."""
    worded: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By oid of an enum or composite type: the number of its words (see `words`), and their CRC-32."""
    words: Mapping[int, tuple[str, ...]] = field(default_factory=dict, compare=False)
    """By oid of a type: the labels of an enum, or the attributes of a composite type."""
    names: tuple[str | None, ...] = field(default=(), compare=False)
    """Column names, in the order of column numbers; None for a dropped column."""
    types: tuple[str | None, ...] = field(default=(), compare=False)
    filled: frozenset[str] = field(default=frozenset(), compare=False)
    """Columns that were added with a value for existing rows, without a rewrite of the table (`atthasmissing`). A rewrite of
    the table ends this, and redefines the column."""
    name: str = field(default="", compare=False)
    logged: bool = field(default=True, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Return the facts as part of a position. The file is left out if its number equals the oid, as after CREATE TABLE."""
        runs = [[xmin, len(list(group))] for xmin, group in groupby(self.columns)]
        plain: dict[str, Any] = {"oid": self.oid, "columns": runs, "published": sorted(self.published)}
        if self.file != self.oid:
            plain["file"] = self.file
        if self.toast:
            plain["toast"] = self.toast
        if self.named is not None:
            plain["named"] = self.named
        if self.typed is not None:
            plain["typed"] = self.typed
        if self.worded:
            plain["worded"] = {str(oid): list(words) for oid, words in self.worded.items()}
        if self.filled:
            plain["filled"] = sorted(self.filled)
        if self.parts:
            plain["parts"] = {str(oid): part.to_json(oid) for oid, part in self.parts.items()}
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> TableIdentity:
        """Return the facts that `to_json` wrote."""
        columns = tuple(xmin for xmin, count in plain["columns"] for _ in range(count))
        parts = {
            int(oid): PartitionIdentity.from_json(int(oid), said)
            for oid, said in plain.get("parts", {}).items()
        }
        file = plain.get("file", plain["oid"])
        published = frozenset(plain["published"])
        filled = frozenset(plain.get("filled", ()))
        toast, named, typed = plain.get("toast", 0), plain.get("named"), plain.get("typed")
        worded = {int(oid): (count, digest) for oid, (count, digest) in plain.get("worded", {}).items()}
        return cls(plain["oid"], file, columns, published, parts, toast, named, typed, worded, filled=filled)


@dataclass(frozen=True)
class Difference:
    """A change of a table that the stream does not report."""

    kind: Kind
    reason: str


def read_identities(
    connection: Connection, publications: Sequence[str], tables: Sequence[Captured]
) -> dict[int, TableIdentity]:
    """Return the current facts of the tables, by oid; a table that is gone is left out. Takes two or three queries for any
    number of tables."""
    oids = [table.state.oid for table in tables]
    if not oids:
        return {}
    statement = _TABLES.replace("{in_schema}", _IN_SCHEMA if connection.version >= 15 else "")
    parts: dict[int, dict[int, PartitionIdentity]] = {}
    divided = [table.state.oid for table in tables if table.state.kind == "p"]
    for root, oid, schema, name, attached, file, toast, defined, indexes in (
        connection.rows(_PARTITIONS, divided) if divided else ()
    ):
        by_oid = {int(one): xmin for one, xmin in (indexes or {}).items()}
        part = PartitionIdentity(attached, file, toast, defined if by_oid else 0, by_oid, (schema, name))
        parts.setdefault(root, {})[oid] = part
    words: dict[int, dict[int, tuple[str, ...]]] = {}
    for oid, kind, labels in connection.rows(_WORDS, oids):
        words.setdefault(oid, {})[kind] = tuple(labels)
    found = {}
    for (
        oid,
        schema,
        name,
        persistence,
        file,
        toast,
        columns,
        names,
        types,
        filled,
        published,
    ) in connection.rows(statement, list(publications), oids):
        found[oid] = TableIdentity(
            oid,
            file,
            tuple(columns),
            frozenset(published),
            parts.get(oid, {}),
            toast,
            _digest(names),
            _digest(types),
            {kind: (len(labels), _digest(labels)) for kind, labels in words.get(oid, {}).items()},
            words.get(oid, {}),
            tuple(names),
            tuple(types),
            frozenset(filled),
            f"{schema}.{name}",
            persistence == "p",
        )
    return found


def difference(was: TableIdentity, now: TableIdentity) -> Difference | None:
    """Return the change of a table between two states that the stream does not report; None if there is none."""
    if was.oid != now.oid:
        reason = (
            f"it is not the table that was captured (oid {was.oid}, now {now.oid}): "
            "it was dropped and created again, or another table has its name now"
        )
        return Difference("replaced", reason)
    if not was.published & now.published:
        left = _publications(was) - _publications(now)
        reason = (
            "a publication that published it was dropped"
            if left
            else "it was removed from its publication, or the publication was altered"
        )
        return Difference("unpublished", f"{reason}: changes made in the meantime may not be in the stream")
    for oid, part in was.parts.items():
        if (other := now.parts.get(oid)) is not None and other.attached != part.attached:
            return Difference(
                "reattached", f"its partition {'.'.join(other.place)} was detached and attached again"
            )
    if _identified_otherwise(was, now):
        return Difference("redefined", "a partition had another replica identity for some time")
    if _reworded(was, now):
        return Difference("redefined", "values of a type of its columns have another text form now")
    if _renamed(was, now) or _filled(was, now) or _unseen(was, now):
        return Difference(
            "redefined", "a column was renamed, or added with a default value for existing rows"
        )
    if (altered := _altered(was, now)) and _moved(was, now):
        if altered <= was.filled - now.filled or _retyped(was, now):
            return Difference(
                "redefined",
                "a column has another type, or was added with a default value before a rewrite of the table",
            )
        return Difference(
            "rewritten", "ALTER TABLE rewrote its rows, which the replication stream does not contain"
        )
    if _maybe_unlogged(was, now):
        return Difference("redefined", "its rows were rewritten, and may have been unlogged for some time")
    return None


def may_differ(described: Sequence[str], now: Sequence[str]) -> bool:
    """Whether a column name in the stream's description of a table may belong to another column now. False if columns were only
    added at the end, or only dropped. In all other cases the stream does not show in which order columns were dropped and
    added, nor whether one was renamed."""
    rest = iter(described)
    return list(now[: len(described)]) != list(described) and not all(name in rest for name in now)


def has_lost_rows(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether rows may be gone although the stream reports no deletion: rows of a partition (also of a new one) that was
    detached, dropped or truncated individually; rows whose old key an update did not report; and rows whose key is now written
    differently."""
    is_gone = not was.parts.keys() <= now.parts.keys() or _parts_moved(was, now)
    # the file of a new partition has the number of its oid, unless it was truncated or rewritten after CREATE TABLE
    is_gone |= any(now.parts[oid].file not in (0, oid) for oid in new_parts(was, now))
    return is_gone or _identified_otherwise(was, now) or _reworded(was, now) or _maybe_unlogged(was, now)


def moved_parts(was: TableIdentity, now: TableIdentity) -> list[int]:
    """Return the oids of partitions without a TOAST table whose file has changed: they were truncated individually, or unlogged
    for a while. Without a TOAST table the two cannot be distinguished."""
    return [
        oid
        for oid, part in now.parts.items()
        if oid in was.parts and was.parts[oid].file != part.file and not part.toast
    ]


def new_parts(was: TableIdentity, now: TableIdentity) -> set[int]:
    """Return the oids of new partitions: rows that a table had before it was attached as a partition were not in the stream."""
    return set(now.parts.keys() - was.parts.keys())


def known_parts(position: Mapping[str, Any], table: str, parts: Collection[int]) -> set[int]:
    """Return the oids of a table's partitions that a position lists; all of `parts` if the position does not list
    partitions."""
    facts, older = position.get("facts", {}).get(table), position.get("partitions", {}).get(table)
    known = set(parts) if facts is None else set(map(int, facts.get("parts", {})))
    return known if older is None else known & set(older)


def added_columns(was: TableIdentity, now: TableIdentity) -> list[str]:
    """Return the names of new columns, including names that another column had before."""
    return [name for name in now.names[len(was.columns) :] if name is not None]


def _publications(identity: TableIdentity) -> set[str]:
    return {entry.split(".")[0] for entry in identity.published}


def _altered(was: TableIdentity, now: TableIdentity) -> set[str | None]:
    """Return the columns that exist in both states and were redefined in between."""
    both = zip(was.columns, now.columns, now.names, strict=False)
    return {name for before, after, name in both if before and after and before != after}


def _moved(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether the rows are in other files, as after a rewrite by ALTER TABLE. TRUNCATE, VACUUM FULL and CLUSTER also change the
    file, but they redefine no column, and keep the TOAST table, which ALTER TABLE replaces."""
    if was.file != now.file:
        return not was.toast or was.toast != now.toast
    return _parts_moved(was, now)


def _parts_moved(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether rows of a partition are in another file."""
    return any(oid in now.parts and now.parts[oid].file != part.file for oid, part in was.parts.items())


def _renamed(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether a column that exists in both states may have another name. True if another column was dropped: the digest of the
    earlier names cannot be compared then."""
    both = list(zip(was.columns, now.columns, strict=False))
    if was.named is None or not any(before != after for before, after in both if after):
        return False
    was_dropped = any(before and not after for before, after in both)
    return was_dropped or was.named != _digest(now.names[: len(was.columns)])


def _maybe_unlogged(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether a table or a partition may have been unlogged (not written to the WAL) for a while. Postgres refuses this for a
    table that a publication names, but not for a table that is published with its schema or with all tables. The only traces
    are another file and another TOAST table."""
    is_named = all(entry.rpartition(".")[2].isdigit() for entry in now.published)
    if not is_named and was.file != now.file and (was.toast != now.toast or not now.toast):
        return True
    both = [(part, now.parts[oid]) for oid, part in was.parts.items() if oid in now.parts]
    return any(part.file != other.file and 0 != part.toast != other.toast for part, other in both)


def _identified_otherwise(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether a partition may have had another replica identity in between. The stream does not show this, because it describes
    the table and not its partitions."""
    return any(part.had_another_identity(now.parts.get(oid, part)) for oid, part in was.parts.items())


def _reworded(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether a label of an enum was replaced, or a composite type has other attributes. Labels that were added come last, and
    do not count."""
    return any(
        kind in now.words and _digest(now.words[kind][:count]) != digest
        for kind, (count, digest) in was.worded.items()
    )


def _retyped(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether a column that exists in both states has another type; False if a column was dropped, because the digests cannot
    be compared then."""
    was_dropped = any(before and not after for before, after in zip(was.columns, now.columns, strict=False))
    return was.typed is not None and not was_dropped and was.typed != _digest(now.types[: len(was.columns)])


def _filled(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether a new column may have values in existing rows: a constant that the catalog stores until the table is rewritten
    (also by VACUUM FULL), or values that a rewrite computed."""
    added = added_columns(was, now)
    return not now.filled.isdisjoint(added) or (
        bool(added) and (was.file != now.file or _parts_moved(was, now))
    )


def _unseen(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether, since the earlier state, one column was added and dropped and another was added: the stream may contain values
    of the dropped column under the name of the other."""
    added = now.names[len(was.columns) :]
    return None in added and bool(added_columns(was, now))


def _digest(names: Sequence[str | None]) -> int:
    return zlib.crc32("\0".join(name or "" for name in names).encode())
