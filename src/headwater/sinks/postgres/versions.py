"""Versions of a Postgres table: `<table>__new` is filled, and takes the name of the table in one transaction.

The staging table is created like the active one: columns, defaults, checks, indexes, comments and grants. Objects that are
bound to a table and not to its name (views over it, foreign keys, triggers, rules, policies, publications, partitions) would
stay with the previous table, and so would data that other programs wrote to columns of their own. If there are any, nothing
is started, and the error names them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from headwater.sinks.base.blue_green import Version, refuse_moved
from headwater.sinks.base.target import SinkCheckpoint, SinkError, Target, TargetShape
from headwater.sinks.postgres.tables import quote

LOCK_TIMEOUT = "2s"
"""Time for which a switch waits for readers of the table, blocking readers that come after it; then it is retried."""
NAME_BYTES_MAX = 63

_BOUND = """
SELECT DISTINCT CASE c.relkind WHEN 'm' THEN 'materialized view ' ELSE 'view ' END || c.oid::regclass
  FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid JOIN pg_class c ON c.oid = r.ev_class
  WHERE d.classid = 'pg_rewrite'::regclass AND d.refobjid = %(table)s::regclass AND c.oid <> d.refobjid
UNION ALL SELECT 'rule ' || rulename FROM pg_rewrite WHERE ev_class = %(table)s::regclass
UNION ALL SELECT 'foreign key ' || conname FROM pg_constraint
  WHERE contype = 'f' AND (conrelid = %(table)s::regclass OR confrelid = %(table)s::regclass)
UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = %(table)s::regclass AND NOT tgisinternal
UNION ALL SELECT 'policy ' || polname FROM pg_policy WHERE polrelid = %(table)s::regclass
UNION ALL SELECT 'publication ' || pubname FROM pg_publication_rel JOIN pg_publication p ON p.oid = prpubid
  WHERE prrelid = %(table)s::regclass
UNION ALL SELECT 'partition or child ' || inhrelid::regclass FROM pg_inherits
  WHERE inhrelid = %(table)s::regclass OR inhparent = %(table)s::regclass
UNION ALL SELECT 'sequence ' || objid::regclass FROM pg_depend
  WHERE classid = 'pg_class'::regclass AND refobjid = %(table)s::regclass AND deptype = 'a'
    AND (SELECT relkind FROM pg_class WHERE oid = objid) = 'S'
UNION ALL SELECT 'row level security' FROM pg_class WHERE oid = %(table)s::regclass AND relrowsecurity
UNION ALL SELECT 'data in column ' || quote_ident(attname) FROM pg_attribute
  WHERE attrelid = %(table)s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
    AND attname <> ALL (%(columns)s::name[])
"""
"""Query for the objects that are bound to a table itself, and not to its name."""
_GRANTS = """
SELECT privilege_type, is_grantable, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END, NULL
  FROM pg_class, aclexplode(relacl) WHERE oid = %(table)s::regclass AND grantee <> relowner
UNION ALL
SELECT privilege_type, is_grantable, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END,
  quote_ident(attname)
  FROM pg_attribute, aclexplode(attacl) WHERE attrelid = %(table)s::regclass AND attnum > 0 AND NOT attisdropped
"""


def suffixed(table: str, version: Version | None) -> str:
    """Return the name of a version of a table."""
    return table if version is None else f"{table}__{version}"


def create_like(connection: Any, shape: TargetShape, table: str, made: str, positions: str) -> None:
    """Create a table like another, with its grants, unless it exists; names are quoted and qualified. A checkpoint left by a
    staging table that was dropped outside of Headwater is removed. SinkError if objects are bound to the active table that
    would not move with its name."""
    if connection.execute("SELECT to_regclass(%s)", [made]).fetchone()[0] is not None:
        return
    refuse_bound(connection, shape, table)
    with connection.transaction():
        connection.execute(f"DELETE FROM {positions} WHERE sink = %s", [_position(shape.sink, "new")])
        connection.execute(f"CREATE TABLE {made} (LIKE {table} INCLUDING ALL)")
        for right, further, who, column in connection.execute(_GRANTS, {"table": table}).fetchall():
            columns = f" ({column})" if column is not None else ""
            option = " WITH GRANT OPTION" if further else ""
            connection.execute(f"GRANT {right}{columns} ON {made} TO {who}{option}")


def refuse_bound(connection: Any, shape: TargetShape, table: str) -> None:
    """Raise SinkError if objects are bound to a table itself."""
    known = {"table": table, "columns": list(shape.schema.names)}
    bound = [what for (what,) in connection.execute(_BOUND, known)]
    if bound:
        raise SinkError(
            f"the table of sink {shape.sink!r} cannot be replaced: {', '.join(bound)} would stay with the previous table",
            hint="drop the dependent objects before the rebuild and create them again afterwards (keep your own columns in another "
            "table); or create a sink with another table, and drop this one",
            sink=shape.sink,
            dependents=tuple(bound),
        )


@dataclass(frozen=True)
class PostgresVersions:
    """The versions of one table. `schema` and `table` are names; `make` creates the target of a version, `stored` reads a
    checkpoint by its name."""

    shape: TargetShape
    schema: str
    table: str
    positions: str
    talking: Callable[[], AbstractContextManager[Any]]
    make: Callable[[Version], Target]
    stored: Callable[[Any, str, str], SinkCheckpoint | None]

    def existing(self) -> Collection[Version]:
        """Return the versions that have a table."""
        found: list[Version] = []
        with self.talking() as connection:
            for version in ("new", "old"):
                place = self._place(version)
                if connection.execute("SELECT to_regclass(%s)", [place]).fetchone()[0] is not None:
                    found.append(version)
        return found

    def target(self, version: Version) -> Target:
        """See `TargetVersions`."""
        if len(suffixed(self.table, version).encode()) > NAME_BYTES_MAX:
            raise SinkError(
                f"the table name {self.table!r} is too long for the name of a second version",
                hint="rename the table: names have up to 63 bytes in Postgres, and a version adds five bytes",
                sink=self.shape.sink,
            )
        return self.make(version)

    def switch(self, version: Version, checkpoint: SinkCheckpoint) -> None:
        """Rename the tables in one transaction, which locks the checkpoint first, as every change does, then both tables."""
        sink = self.shape.sink
        with self.talking() as connection, connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            active = self.stored(connection, sink, " FOR UPDATE")
            found = self.stored(connection, f"{sink}~{version}", " FOR UPDATE")
            refuse_moved(sink, checkpoint, found, active)
            refuse_bound(connection, self.shape, self._place(None))
            steps: list[tuple[Any, Any]] = [(None, "old"), (version, None)]
            if version == "old":
                steps = [(None, "swap"), ("old", None), ("swap", "old")]
            else:  # a checkpoint of a previous table that was dropped outside of Headwater
                connection.execute(f"DELETE FROM {self.positions} WHERE sink = %s", [_position(sink, "old")])
            for old, new in steps:
                made = quote(suffixed(self.table, new))
                connection.execute(f"ALTER TABLE {self._place(old)} RENAME TO {made}")
                connection.execute(
                    f"UPDATE {self.positions} SET sink = %s WHERE sink = %s",
                    [_position(sink, new), _position(sink, old)],
                )

    def drop(self, version: Version) -> None:
        """Remove the table and its checkpoint."""
        with self.talking() as connection, connection.transaction():
            connection.execute(
                f"DELETE FROM {self.positions} WHERE sink = %s", [_position(self.shape.sink, version)]
            )
            connection.execute(f"DROP TABLE IF EXISTS {self._place(version)}")

    def named(self, version: Version) -> str:
        """See `TargetVersions`."""
        return f"table {self.schema}.{suffixed(self.table, version)}"

    def _place(self, version: Version | None) -> str:
        return f"{quote(self.schema)}.{quote(suffixed(self.table, version))}"


def _position(sink: str, version: str | None) -> str:
    return sink if version is None else f"{sink}~{version}"
