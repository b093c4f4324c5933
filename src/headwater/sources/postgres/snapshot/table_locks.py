"""Locks on tables during a copy: TRUNCATE and rewrites wait, reads and writes do not.

A snapshot does not show the earlier rows of a table that was truncated or rewritten after the snapshot was taken: the table
looks empty in it, and the result of a rewrite is not in the stream either. So tables are locked in ACCESS SHARE mode, as by any
SELECT, which blocks TRUNCATE and ALTER TABLE and nothing else. While another transaction has an exclusive lock, the lock is
requested again and again with a short timeout, and no lock is kept between the attempts, so that there is no deadlock with that
transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.core.errors import SourceLockedError, SourceRefusedError
from headwater.sources.postgres.server.connection import Connection, identifier
from headwater.sources.postgres.server.publications import Captured
from headwater.sources.postgres.session_state import SessionEndedError

LOCK_WAIT_MS = 200
"""Timeout of one attempt to lock. Less than Postgres's deadlock_timeout: in a deadlock, this connection gives up, and the other
transaction continues."""
GONE = ("42P01", "42703", "3F000")
"""SQLSTATEs for a table, a column and a schema that do not exist."""

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
"""`pg_partition_tree` shows the current partitions; `pg_inherits` shows the state in the transaction's snapshot."""


def begin_holding(connection: Connection, names: Sequence[str], snapshot: str | None = None) -> bool:
    """Begin a transaction that locks these tables, whose names are quoted for SQL. It uses the snapshot that another session
    exported, or its own, taken once the tables are locked. Returns False, without a transaction, if a table could not be locked
    in time."""
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
    """Raise SessionEndedError if a table that the copier has locked differs from its state in the copier's snapshot: truncated,
    rewritten, dropped, renamed, or with other partitions."""
    oids = [table.state.oid for table in tables]
    if copier.rows(_FILES, oids) != now.rows(_FILES, oids):
        raise SessionEndedError("a table was truncated or rewritten just before it was copied")


def name_of(connection: Connection, oid: int) -> str:
    """Return the current name of a table, quoted for SQL; SourceRefusedError if there is no table with that oid."""
    rows = connection.rows(
        "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = %s::int8::oid",
        oid,
    )
    if not rows:
        raise SourceRefusedError(f"the table with oid {oid} was dropped", sqlstate=GONE[0], oid=oid)
    return identifier(*rows[0])


def has_name(connection: Connection, oid: int, name: str) -> bool:
    """Whether a name, quoted for SQL, is that of the table with this oid."""
    return bool(connection.value("SELECT to_regclass(%s)::oid::int8 IS NOT DISTINCT FROM %s", name, oid))


def attached_partitions(connection: Connection, oid: int) -> dict[int, int | None]:
    """Return the current partitions of a table: by oid, the transaction that attached each; None if the attachment is not
    visible in the snapshot of the connection's transaction."""
    return dict(connection.rows(_ATTACHED, oid))
