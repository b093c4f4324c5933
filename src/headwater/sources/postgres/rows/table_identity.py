"""The identity of captured tables: what must not have changed for a position in the server's log to be right for them.

A position says how far the stream was read. It says nothing of changes that the stream never has: those of a table that was dropped
and created again under the same name, that was out of the publication for a while, or that `ALTER TABLE` rewrote. The catalog shows each of
them: a table has an oid, a file of its own (`relfilenode`), and for every column, partition and entry of a publication one row
whose `xmin` is the transaction that wrote it last. These facts are stored beside the position and compared whenever the source
connects, and from time to time while it runs.

What a difference leads to is decided in `gaps`. Nothing here changes anything on the server.
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
"""What values of types that are not built in are written with: the labels of an enum, in the order in which they came, and the
attributes of a composite type."""


@dataclass(frozen=True)
class PartitionIdentity:
    """A partition: the transaction that attached it, and its file."""

    attached: int
    file: int
    toast: int = 0
    """The oid of its TOAST table; 0 if it has none."""
    defined: int = 0
    """The transaction that has defined it last; 0 if no index but its primary key may be its replica identity."""
    indexes: Mapping[int, int] = field(default_factory=dict)
    """By oid of an index that may be: the transaction that has defined that last."""
    place: tuple[str, str] = field(default=("", ""), compare=False)
    """Its schema and name."""

    def to_json(self, oid: int) -> list[Any]:
        """The facts as part of a position, without what is as it mostly is."""
        indexes = {str(one): xmin for one, xmin in self.indexes.items()}
        plain: list[Any] = [self.attached, self.file, self.toast, self.defined, indexes]
        while plain[-1] in (0, {}):
            plain.pop()
        return plain if plain[1:] != [oid] else plain[:1]

    @classmethod
    def from_json(cls, oid: int, plain: Sequence[Any]) -> PartitionIdentity:
        """What `to_json` wrote."""
        defaults: list[Any] = [0, oid, 0, 0, {}]
        attached, file, toast, defined, indexes = [*plain, *defaults[len(plain) :]]
        return cls(attached, file, toast, defined, {int(one): xmin for one, xmin in indexes.items()})

    def had_another_identity(self, now: PartitionIdentity) -> bool:
        """Whether its replica identity may have been an index for a while: that defines the index anew, and the partition."""
        if self.defined == now.defined:
            return False
        return any(now.indexes.get(one) != xmin for one, xmin in self.indexes.items())


@dataclass(frozen=True)
class TableIdentity:
    """The facts of one captured table."""

    oid: int
    file: int
    """Its relfilenode; 0 of a table with partitions."""
    columns: tuple[int, ...]
    """By number of the column: the transaction that defined it last; 0 of a dropped one."""
    published: frozenset[str]
    """Entries of publications that publish it, each with the publication and the transaction that changed that last."""
    parts: Mapping[int, PartitionIdentity] = field(default_factory=dict)
    """Its partitions by oid, those that have partitions themselves among them."""
    toast: int = 0
    """The oid of its TOAST table; 0 if it has none."""
    named: int | None = None
    """Stands for the names of its columns by their numbers; None if a position does not say."""
    typed: int | None = None
    """Stands for the types of its columns likewise."""
    worded: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By type: of how many words its values are written with, and what stands for those."""
    words: Mapping[int, tuple[str, ...]] = field(default_factory=dict, compare=False)
    names: tuple[str | None, ...] = field(default=(), compare=False)
    """By number of the column: its name; None of a dropped one."""
    types: tuple[str | None, ...] = field(default=(), compare=False)
    filled: frozenset[str] = field(default=frozenset(), compare=False)
    """Columns that were added with a value for the rows that were there, without rewriting them. Whatever rewrites them ends that, and
    defines the column anew."""
    name: str = field(default="", compare=False)
    logged: bool = field(default=True, compare=False)

    def to_json(self) -> dict[str, Any]:
        """The facts as part of a position: a file is left out where it has the number of its table, as it has when it is made."""
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
        """What `to_json` wrote."""
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
    """What has happened to a table that the stream does not say."""

    kind: Kind
    reason: str


def read_identities(
    connection: Connection, publications: Sequence[str], tables: Sequence[Captured]
) -> dict[int, TableIdentity]:
    """The facts of these tables now, by oid; a table that is gone is left out. Two or three queries, however many tables."""
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
    for oid, kind, told in connection.rows(_WORDS, oids):
        words.setdefault(oid, {})[kind] = tuple(told)
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
            _stands_for(names),
            _stands_for(types),
            {kind: (len(told), _stands_for(told)) for kind, told in words.get(oid, {}).items()},
            words.get(oid, {}),
            tuple(names),
            tuple(types),
            frozenset(filled),
            f"{schema}.{name}",
            persistence == "p",
        )
    return found


def difference(was: TableIdentity, now: TableIdentity) -> Difference | None:
    """What has happened to a table between two looks; None if nothing that the stream does not bring."""
    if was.oid != now.oid:
        reason = (
            f"it is not the table that was captured (oid {was.oid}, now {now.oid}): "
            "it was dropped and created again, or another one has its name"
        )
        return Difference("replaced", reason)
    if not was.published & now.published:
        left = _publications(was) - _publications(now)
        reason = (
            "a publication that published it was dropped"
            if left
            else "it was taken out of its publication, or the publication was altered"
        )
        return Difference("unpublished", f"{reason}: changes of it may not have been sent meanwhile")
    for oid, part in was.parts.items():
        if (other := now.parts.get(oid)) is not None and other.attached != part.attached:
            return Difference(
                "reattached", f"its partition {'.'.join(other.place)} was detached and attached again"
            )
    if _identified_otherwise(was, now):
        return Difference("redefined", "a partition had another replica identity for a while")
    if _reworded(was, now):
        return Difference("redefined", "values of a type of its columns are written in another way")
    if _renamed(was, now) or _filled(was, now) or _unseen(was, now):
        return Difference(
            "redefined", "a column was renamed, or added with a value for the rows that are there"
        )
    if (altered := _altered(was, now)) and _moved(was, now):
        if altered <= was.filled - now.filled or _retyped(was, now):
            return Difference(
                "redefined", "a column has another type, or was added with a value and then rewritten"
            )
        return Difference("rewritten", "ALTER TABLE has rewritten its rows, which the server does not send")
    if _maybe_unlogged(was, now):
        return Difference("redefined", "its rows were rewritten, and may have been unlogged for a while")
    return None


def may_differ(described: Sequence[str], now: Sequence[str]) -> bool:
    """Whether a name that the stream describes a table with may be that of another column now. Columns were only added behind those
    that there were, or only dropped, else: which of both came first, or whether one was renamed, is not in the stream."""
    rest = iter(described)
    return list(now[: len(described)]) != list(described) and not all(name in rest for name in now)


def has_lost_rows(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether rows may be gone without a word in the stream: of a partition that was detached, dropped, or emptied by itself, also of one
    that is new, and those
    whose key has changed where that was not said, or is written in another way."""
    is_gone = not was.parts.keys() <= now.parts.keys() or _parts_moved(was, now)
    # one that is new has a file with its own number, unless it was emptied or rewritten since it was made
    is_gone |= any(now.parts[oid].file not in (0, oid) for oid in new_parts(was, now))
    return is_gone or _identified_otherwise(was, now) or _reworded(was, now) or _maybe_unlogged(was, now)


def moved_parts(was: TableIdentity, now: TableIdentity) -> list[int]:
    """Partitions, by oid, that were emptied by themselves, or unlogged for a while: without a TOAST table that looks alike."""
    return [
        oid
        for oid, part in now.parts.items()
        if oid in was.parts and was.parts[oid].file != part.file and not part.toast
    ]


def new_parts(was: TableIdentity, now: TableIdentity) -> set[int]:
    """Partitions that were not there, by oid: what was in one before it became one was not in the stream."""
    return set(now.parts.keys() - was.parts.keys())


def known_parts(position: Mapping[str, Any], table: str, parts: Collection[int]) -> set[int]:
    """The partitions of a table, by oid, that a position knows; all of them if it does not say."""
    facts, older = position.get("facts", {}).get(table), position.get("partitions", {}).get(table)
    known = set(parts) if facts is None else set(map(int, facts.get("parts", {})))
    return known if older is None else known & set(older)


def added_columns(was: TableIdentity, now: TableIdentity) -> list[str]:
    """The names of columns that are new, also where another column had the name before."""
    return [name for name in now.names[len(was.columns) :] if name is not None]


def _publications(identity: TableIdentity) -> set[str]:
    return {entry.split(".")[0] for entry in identity.published}


def _altered(was: TableIdentity, now: TableIdentity) -> set[str | None]:
    """The columns that were there, and are, and were defined anew."""
    both = zip(was.columns, now.columns, now.names, strict=False)
    return {name for before, after, name in both if before and after and before != after}


def _moved(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether the rows are in other files. TRUNCATE, VACUUM FULL and CLUSTER do that too, but redefine no column, and leave a table
    its TOAST table, where ALTER TABLE makes another."""
    if was.file != now.file:
        return not was.toast or was.toast != now.toast
    return _parts_moved(was, now)


def _parts_moved(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether rows of a partition are in another file."""
    return any(oid in now.parts and now.parts[oid].file != part.file for oid, part in was.parts.items())


def _renamed(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether a column that was there, and is, may have another name. Where another one was dropped, what the names were is not known."""
    both = list(zip(was.columns, now.columns, strict=False))
    if was.named is None or not any(before != after for before, after in both if after):
        return False
    was_dropped = any(before and not after for before, after in both)
    return was_dropped or was.named != _stands_for(now.names[: len(was.columns)])


def _maybe_unlogged(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether a table, or a partition, may have written nothing to the server's log for a while. Postgres refuses that of a table that
    a publication names, not of one that is published with all others. It leaves no trace but another file, and another TOAST table."""
    is_named = all(entry.rpartition(".")[2].isdigit() for entry in now.published)
    if not is_named and was.file != now.file and (was.toast != now.toast or not now.toast):
        return True
    both = [(part, now.parts[oid]) for oid, part in was.parts.items() if oid in now.parts]
    return any(part.file != other.file and 0 != part.toast != other.toast for part, other in both)


def _identified_otherwise(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether a partition may have had another replica identity: the stream describes the table, and not its partitions."""
    return any(part.had_another_identity(now.parts.get(oid, part)) for oid, part in was.parts.items())


def _reworded(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether an enum has another label in the place of one, or a composite type other attributes. New labels come last."""
    return any(
        kind in now.words and _stands_for(now.words[kind][:count]) != digest
        for kind, (count, digest) in was.worded.items()
    )


def _retyped(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether a column that was there, and is, has another type."""
    was_dropped = any(before and not after for before, after in zip(was.columns, now.columns, strict=False))
    return (
        was.typed is not None and not was_dropped and was.typed != _stands_for(now.types[: len(was.columns)])
    )


def _filled(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether a new column may have values in rows that are there: a constant that the catalog keeps until the table is rewritten, by
    VACUUM FULL too, or what a rewrite has computed."""
    added = added_columns(was, now)
    return not now.filled.isdisjoint(added) or (
        bool(added) and (was.file != now.file or _parts_moved(was, now))
    )


def _unseen(was: TableIdentity, now: TableIdentity) -> bool:
    """Whether a column was added and dropped since, and another one added: the stream may have had values of it under the same name."""
    added = now.names[len(was.columns) :]
    return None in added and bool(added_columns(was, now))


def _stands_for(names: Sequence[str | None]) -> int:
    return zlib.crc32("\0".join(name or "" for name in names).encode())
