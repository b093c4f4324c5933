"""Tables held still while they are copied: nobody may empty or rewrite one, everybody may read and write.

A snapshot shows the rows of its moment, but not those of a table that was emptied or rewritten since: such a table looks empty to it,
and what a rewrite did is not in the stream either. So tables are locked in ACCESS SHARE MODE, as any SELECT does, which holds up
TRUNCATE and ALTER TABLE and nothing else. Whoever has a table to himself is waited for, a moment at a time and holding nothing
meanwhile, so that nobody waits for us who we wait for.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.core.errors import SourceLockedError, SourceRefusedError
from headwater.sources.postgres.server.connection import Connection, identifier
from headwater.sources.postgres.server.publications import Captured
from headwater.sources.postgres.session_state import SessionEndedError

LOCK_WAIT_MS = 200
"""Less than deadlock_timeout: where two wait for each other, it is we who give way."""
GONE = ("42P01", "42703", "3F000")
"""What the server says of a table, a column and a schema that are not there."""

_FILES = """
WITH RECURSIVE held(oid) AS (
  SELECT unnest(%s::oid[]) UNION SELECT i.inhrelid FROM held JOIN pg_inherits i ON i.inhparent = held.oid
)
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relfilenode::int8
FROM held JOIN pg_class c USING (oid) JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY c.oid
"""

_ATTACHED = """
SELECT t.relid::oid::int8, i.xmin::text::int8 FROM pg_partition_tree(%s::int8::oid) t
LEFT JOIN pg_inherits i ON i.inhrelid = t.relid AND i.inhparent = t.parentrelid WHERE t.level > 0
"""
"""The function shows partitions as they are now, the catalog as the snapshot of the transaction has it."""


def begin_holding(connection: Connection, names: Sequence[str], snapshot: str | None = None) -> bool:
    """Begin a transaction in which these tables, named as SQL needs it, are held; at a snapshot that another session gave out, or
    at one of its own that is taken once they are held. False if one of them was not to be had: then nothing is begun."""
    connection.rows("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        if snapshot is not None:
            connection.rows(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
        connection.rows(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}")
        if names:
            connection.rows(f"LOCK TABLE {', '.join(names)} IN ACCESS SHARE MODE")
        connection.rows("SET LOCAL lock_timeout = 0")
    except SourceLockedError:
        connection.rows("ROLLBACK")
        return False
    except SourceRefusedError:
        connection.rows("ROLLBACK")
        raise
    return True


def check_still(copier: Connection, now: Connection, tables: Sequence[Captured]) -> None:
    """SessionEndedError if a table that the copier holds is another by now than in its snapshot: emptied, rewritten, dropped, renamed,
    or with other partitions."""
    oids = [table.state.oid for table in tables]
    if copier.rows(_FILES, oids) != now.rows(_FILES, oids):
        raise SessionEndedError("a table was emptied or rewritten just before it was copied")


def name_of(connection: Connection, oid: int) -> str:
    """The name of a table now, as SQL needs it; SourceRefusedError if there is none with that oid."""
    rows = connection.rows(
        "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = %s::int8::oid",
        oid,
    )
    if not rows:
        raise SourceRefusedError(f"there is no table with oid {oid} any more", sqlstate=GONE[0])
    return identifier(*rows[0])


def has_name(connection: Connection, oid: int, name: str) -> bool:
    """Whether the table that has a name, as SQL needs it, is the one with an oid."""
    return bool(connection.value("SELECT to_regclass(%s)::oid::int8 IS NOT DISTINCT FROM %s", name, oid))


def attached_partitions(connection: Connection, oid: int) -> dict[int, int | None]:
    """The partitions of a table now, by oid: the transaction that attached each; None if the snapshot of the transaction does not see
    that."""
    return dict(connection.rows(_ATTACHED, oid))
