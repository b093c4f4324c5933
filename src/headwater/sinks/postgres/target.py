"""A Postgres table as a target: rows are upserted and deleted by key, in one transaction with the checkpoint.

Guarantee: exactly once. A change and its row in `headwater_positions` (in the schema of the table), which has the
checkpoint, are one transaction. It first locks that row and checks that it is unchanged: a crash, a repeated tick or a
second process that runs the same sink leaves either all of a change or nothing, and never applies one twice. Readers of the
table see whole ticks. Rows that the server rejects (a constraint, a value out of range) are found by bisection.

Columns of the table that the view does not have are left alone: new rows get their defaults. This is the only module of the
sinks that imports psycopg.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import errors as pg
from psycopg.pq import ExecStatus

from headwater.core.clock import from_us, to_us
from headwater.operators.zset.delta import take_rows
from headwater.sinks.base.blue_green import Version
from headwater.sinks.base.sink_setup import SinkSetup
from headwater.sinks.base.target import (
    CheckpointConflictError,
    RefusedRow,
    RowsRefusedError,
    Since,
    SinkCheckpoint,
    SinkError,
    TargetChange,
    TargetDownError,
    TargetPast,
    TargetShape,
)
from headwater.sinks.base.text_values import texts
from headwater.sinks.postgres.positions import POSITIONS, PositionTable
from headwater.sinks.postgres.tables import (
    TargetTable,
    arrays,
    copied,
    null_patterns,
    quote,
    read,
    split_table,
    sql_type,
    takes,
)
from headwater.sinks.postgres.versions import PostgresVersions, create_like, suffixed

FEW_ROWS = 100
"""Maximum number of rows that are sent as parameters of the statement; more are copied into a temporary table first."""
_MANY_ROWS = 10_000
"""Number of rows from which on the temporary table is analyzed, and an empty target table is copied into directly."""
_REFUSED_MAX = 100
"""Maximum number of rejected rows that are searched for at a time."""
_BLOCK_BYTES = 8 << 20
_ROWS, _KEYS = "pg_temp.headwater_rows", "pg_temp.headwater_keys"
_DATA_ERRORS = ("22", "23", "P0", "44")
"""SQLSTATE classes of errors about rows: data exceptions, constraints, errors raised by triggers, check options."""
_PASSING = ("08", "40", "53", "55", "57", "58")
"""SQLSTATE classes of transient errors: connections, deadlocks, resources, locks, operator intervention, the system."""
_READ_ONLY = "25006"

_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Connection options by which a server that vanished silently is detected within a minute, unless the url sets others."""
_SESSION = (
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET extra_float_digits = 1; SET client_encoding = 'UTF8'; "
    "SET statement_timeout = 0; SET lock_timeout = '30s'"
)
"""Session settings. A lock that is held for longer than the timeout is reported as the reason of the wait; a statement has
no timeout, because the first reconciliation may take long."""

_DEAD = """
SELECT CASE WHEN greatest(last_vacuum, last_autovacuum) > %(at)s THEN greatest(last_vacuum, last_autovacuum) END,
  CASE WHEN n_dead_tup = 0 AND now() > %(at)s + interval '1 minute'
    AND coalesce((SELECT stats_reset FROM pg_stat_database WHERE datname = current_database()), '-infinity') < %(at)s
  THEN %(at)s::timestamptz END
FROM pg_stat_user_tables WHERE relid = %(table)s::regclass
"""
"""Query for the time since which the table has no dead tuples. Sessions report their statistics within seconds; after a
crash the server has counted nothing."""

Act = Callable[[psycopg.Connection[Any], pa.RecordBatch], None]


class PostgresTarget:
    """A table, created if missing. `url` is a connection string of libpq, `table` a name with or without a schema."""

    guarantee: ClassVar[str] = (
        "exactly once: rows and checkpoint are committed in one transaction of the target"
    )

    def __init__(self, url: str, table: str, *, version: Version | None = None) -> None:
        self._url = url
        self._given = table
        self._version = version
        self._schema_name, self._active_name = split_table(table)
        self._table_name = suffixed(self._active_name, version)
        self._in_schema = ""
        self.place = f"table {table}"  # one place for all versions, since they swap names
        self._connection: psycopg.Connection[Any] | None = None
        self._shape: TargetShape | None = None
        self._table: TargetTable | None = None
        self._nulls_distinct = False

    @classmethod
    def declared(cls, setup: SinkSetup) -> Self:
        """Return the target that a declaration asks for."""
        return cls(setup.options["url"], setup.options.get("table") or setup.sink)

    @property
    def key(self) -> tuple[str, ...]:
        """The key of the shape."""
        return self._prepared_table.key

    # --- preparing -------------------------------------------------------------------------------------------------

    def prepare(self, shape: TargetShape) -> None:
        """Create the table and the table of checkpoints if they are missing; SinkError if the table does not fit the rows."""
        self._shape = shape
        with self._talking() as connection:
            schema = self._schema_name or connection.execute("SELECT current_schema()").fetchone()[0]  # type: ignore[index]
            if (
                schema is None
                or not connection.execute(
                    "SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]
                ).fetchone()
            ):
                raise self._unfit(
                    f"schema {schema!r} does not exist", f"CREATE SCHEMA {quote(schema or 'public')};"
                )
            self._in_schema = schema
            place = f"{quote(schema)}.{quote(self._table_name)}"
            self._positions = PositionTable(schema)
            stored = pa.schema([pa.field(f.name, _stored_type(f.type)) for f in shape.schema])
            self._table = TargetTable(place, stored, shape.key if shape.mode == "upsert" else ())
            self._positions.create(connection)
            modern = connection.info.server_version >= 150_000
            if shape.mode != "upsert":
                raise self._unfit(
                    "a sink into POSTGRES needs a key", "declare a key, as in WITH (key = '...')"
                )
            if self._version == "new":
                active = f"{quote(schema)}.{quote(self._active_name)}"
                create_like(connection, shape, active, place, self._positions.name)
            else:
                connection.execute(self._table.create(shape.schema, nulls_not_distinct=modern))
            self._check(connection, modern)

    def _check(self, connection: psycopg.Connection[Any], modern: bool) -> None:
        table, shape = self._prepared_table, self._declared
        found = {
            name: (kind, must and not given, must)
            for name, kind, must, given in connection.execute(
                "SELECT attname, format_type(atttypid, atttypmod), attnotnull, "
                "atthasdef OR attidentity <> '' OR attgenerated <> '' "
                "FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
                [table.place],
            )
        }
        for field in shape.schema:
            alter = f"ALTER TABLE {table.place}"
            if field.name not in found:
                raise self._unfit(
                    f"it has no column {field.name!r}",
                    f"{alter} ADD COLUMN {quote(field.name)} {sql_type(field.type)};",
                    column=field.name,
                )
            kind = found[field.name][0]
            if not takes(kind, field.type):
                raise self._unfit(
                    f"its column {field.name!r} is {kind}, which cannot store values of {sql_type(field.type)}",
                    f"{alter} ALTER COLUMN {quote(field.name)} TYPE {sql_type(field.type)};",
                    column=field.name,
                    type=kind,
                )
        for name, (_, needed, _) in found.items():
            if needed and name not in shape.schema.names:
                raise self._unfit(
                    f"its column {name!r} is NOT NULL without a default, and view {shape.view!r} does not have that column",
                    f"ALTER TABLE {table.place} ALTER COLUMN {quote(name)} SET DEFAULT ...;",
                    column=name,
                )
        self._nulls_distinct = self._check_key(
            connection, modern, {name for name in found if not found[name][2]}
        )

    def _check_key(self, connection: psycopg.Connection[Any], modern: bool, nullable: set[str]) -> bool:
        """Return whether the unique index of the key treats NULLs as distinct while a key column is nullable; SinkError if
        no index makes the key unique."""
        table = self._prepared_table
        distinct = "NOT indnullsnotdistinct" if modern else "true"
        indexes = connection.execute(
            f"SELECT {distinct}, array(SELECT attname::text FROM pg_attribute WHERE attrelid = indrelid "
            "AND attnum = ANY(indkey[0:indnkeyatts - 1])) FROM pg_index WHERE indrelid = %s::regclass AND indisunique "
            "AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL",
            [table.place],
        ).fetchall()
        fitting = [apart for apart, names in indexes if set(names) == set(table.key)]
        if not fitting:
            constraint = table.unique(self._declared.schema, nulls_not_distinct=modern)
            raise self._unfit(
                f"it has no unique constraint on {', '.join(table.key)}",
                f"ALTER TABLE {table.place} ADD {constraint};",
                key=tuple(table.key),
            )
        return all(fitting) and bool(nullable & set(table.key))

    def _unfit(self, what: str, statement: str, **facts: Any) -> SinkError:
        shape = self._declared
        return SinkError(
            f"table {self._table_name!r} cannot be the target of sink {shape.sink!r}: {what}",
            hint=statement,
            sink=shape.sink,
            table=self._table_name,
            **facts,
        )

    # --- interface -------------------------------------------------------------------------------------------------

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the values of the view unchanged, nested values as JSON."""
        columns = [texts(column) if pa.types.is_nested(column.type) else column for column in rows.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._prepared_table.schema)

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the checkpoint of this sink from the table of checkpoints."""
        with self._talking() as connection:
            return self._positions.read(connection, self._position)

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """Apply the change in one transaction; see `Target`."""
        unkeyed = self._without_key(change.upserts)
        if unkeyed:
            raise self._refused(unkeyed)
        with self._talking() as connection:
            try:
                with connection.transaction():
                    self._begin(connection, before)
                    # A data exception for a key means that no row of the table can have it, so there is
                    # nothing to delete.
                    for _, error in self._halved(
                        connection, change.deletes, self._delete, change.deletes.num_rows
                    ):
                        if error.sqlstate is not None and not error.sqlstate.startswith("22"):
                            raise error
                    refused = self._halved(connection, change.upserts, self._upsert, _REFUSED_MAX)
                    if refused:
                        raise self._refused([RefusedRow(at, _error_text(error)) for at, error in refused])
                    self._positions.write(connection, self._position, before, after)
            except pg.UniqueViolation as error:
                if error.diag.table_name != POSITIONS:
                    raise
                raise _moved(self._declared, None) from error

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Yield the contents of the table as one statement sees them."""
        table, kinds = self._prepared_table, self._declared.schema
        with self._talking() as connection:
            block: list[bytes] = []
            size = 0
            for line in _copied_out(connection, f"COPY ({table.select(kinds)}) TO STDOUT (FORMAT csv)"):
                block.append(line)
                size += len(line)
                if size >= _BLOCK_BYTES:
                    yield read(b"".join(block), table.schema, kinds)
                    block, size = [], 0
            if block:
                yield read(b"".join(block), table.schema, kinds)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Read in one REPEATABLE READ transaction, which does not block writers."""
        with self._talking() as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                yield
            except BaseException:
                self.close()
                raise
            connection.execute("COMMIT")

    def versions(self) -> PostgresVersions:
        """See `headwater.sinks.base.blue_green`."""
        return PostgresVersions(
            self._declared,
            self._in_schema,
            self._active_name,
            self._positions.name,
            self._talking,
            lambda version: PostgresTarget(self._url, self._given, version=version),
            self._positions.read,
        )

    def past(self, since: Since) -> TargetPast:
        """Return the dead tuples of the table: they are gone once the table was vacuumed after the reconciliation, or if the
        server has counted none since."""
        place = self._prepared_table.place
        with self._talking() as connection:
            row = connection.execute(_DEAD, {"table": place, "at": from_us(since.level_at)}).fetchone()
        vacuumed, counted = (None, None) if row is None else row
        if (at := vacuumed or counted) is None:
            return TargetPast(None, f"dead tuples of table {place}: until it is vacuumed, `VACUUM {place};`")
        return TargetPast(to_us(at), f"{'vacuumed' if vacuumed else 'no dead tuples'}: table {place}")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    # --- one transaction -------------------------------------------------------------------------------------------

    def _begin(self, connection: psycopg.Connection[Any], before: SinkCheckpoint | None) -> None:
        connection.execute(
            "SET CONSTRAINTS ALL IMMEDIATE"
            # a row is rejected by the statement that writes it, not at the end of the transaction
        )
        found = self._positions.read(connection, self._position, " FOR UPDATE")
        if found != before:
            raise _moved(self._declared, found)

    def _delete(self, connection: psycopg.Connection[Any], keys: pa.RecordBatch) -> None:
        if not keys.num_rows:
            return
        table, kinds = self._prepared_table, self._declared.schema
        names = table.key
        if keys.num_rows > FEW_ROWS:
            connection.execute(table.staging("headwater_keys", names, kinds))
            _copy_in(connection, _KEYS, names, keys)
            for null, _ in null_patterns(keys):
                connection.execute(table.delete(f"{_KEYS} d", null))
            return
        for null, places in null_patterns(keys):
            connection.execute(
                table.delete(table.unnested("d", names, kinds), null), arrays(take_rows(keys, places))
            )

    def _upsert(self, connection: psycopg.Connection[Any], rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        table, kinds = self._prepared_table, self._declared.schema
        names = table.schema.names
        if rows.num_rows <= FEW_ROWS:
            connection.execute(table.upsert(table.unnested("s", names, kinds)), arrays(rows))
            return
        if (
            rows.num_rows >= _MANY_ROWS
            and not connection.execute(f"SELECT 1 FROM {table.place} LIMIT 1").fetchone()
        ):
            _copy_in(connection, table.place, names, rows)
            return
        connection.execute(table.staging("headwater_rows", names, kinds))
        connection.execute(f"TRUNCATE {_ROWS}")
        _copy_in(connection, _ROWS, names, rows)
        connection.execute(table.upsert(_ROWS))

    # --- rejected rows ---------------------------------------------------------------------------------------------

    def _halved(
        self, connection: psycopg.Connection[Any], rows: pa.RecordBatch, act: Act, at_most: int
    ) -> list[tuple[int, psycopg.Error]]:
        """Run `act` on all rows. If the server rejects some, run it on halves, recursively, so that all other rows are
        written. Return the indices of the rejected rows with their errors, up to `at_most`."""
        found: list[tuple[int, psycopg.Error]] = []
        left = [(0, rows.num_rows)] if rows.num_rows else []
        while left and len(found) < at_most:
            start, count = left.pop()
            try:
                with connection.transaction():
                    act(connection, rows.slice(start, count))
            except psycopg.Error as error:
                if not _about_rows(error):
                    raise
                if count == 1:
                    found.append((start, error))
                else:
                    half = count // 2
                    left += [(start + half, count - half), (start, half)]
        return found

    def _without_key(self, rows: pa.RecordBatch) -> list[RefusedRow]:
        if not self._nulls_distinct or not rows.num_rows:
            return []
        null = np.zeros(rows.num_rows, dtype=np.bool_)
        for name in self._prepared_table.key:
            null |= rows.column(name).is_null().to_numpy(zero_copy_only=False)
        reason = "its key has a NULL, and the unique index of the table treats NULLs as distinct"
        return [RefusedRow(int(at), reason) for at in np.flatnonzero(null)]

    def _refused(self, refused: list[RefusedRow]) -> RowsRefusedError:
        return RowsRefusedError(
            f"table {self._table_name!r} rejects {len(refused)} rows: {refused[0].reason}",
            refused=sorted(refused, key=lambda one: one.index),
            sink=self._declared.sink,
        )

    # --- connection ------------------------------------------------------------------------------------------------

    @property
    def _declared(self) -> TargetShape:
        if self._shape is None:
            raise ValueError("prepare was not called")
        return self._shape

    @property
    def _position(self) -> str:
        sink = self._declared.sink
        return sink if self._version is None else f"{sink}~{self._version}"

    @property
    def _prepared_table(self) -> TargetTable:
        if self._table is None:
            raise ValueError("prepare was not called")
        return self._table

    @contextlib.contextmanager
    def _talking(self) -> Iterator[psycopg.Connection[Any]]:
        """Yield the connection, opened if needed, with the driver's errors converted to those of `Target`."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = _connect(self._url, self._declared.sink)
            yield self._connection
        except psycopg.Error as error:
            self.close()
            _raise(error, self._declared)
        except GeneratorExit:
            self.close()  # the rest of the COPY is not read, so the connection cannot be used again
            raise


def _connect(url: str, sink: str) -> psycopg.Connection[Any]:
    given = psycopg.conninfo.conninfo_to_dict(url)
    options = {name: value for name, value in _PATIENCE.items() if name not in given}
    where = psycopg.conninfo.make_conninfo(url, application_name=f"headwater sink {sink}", **options)
    made: psycopg.Connection[Any] = psycopg.connect(where, autocommit=True)
    made.execute(_SESSION)
    return made


def _copy_in(
    connection: psycopg.Connection[Any], place: str, names: Sequence[str], rows: pa.RecordBatch
) -> None:
    """Copy rows into a table; a large temporary table is analyzed for the statement that reads it."""
    columns = ", ".join(map(quote, names))
    with connection.cursor() as cursor:
        with cursor.copy(f"COPY {place} ({columns}) FROM STDIN (FORMAT csv)") as copy:
            for start in range(0, rows.num_rows, 100_000):
                copy.write(memoryview(copied(rows.slice(start, 100_000))))
    if rows.num_rows >= _MANY_ROWS and place.startswith("pg_temp"):
        connection.execute(f"ANALYZE {place}")


def _copied_out(connection: psycopg.Connection[Any], statement: str) -> Iterator[bytes]:
    """Yield the lines of COPY through libpq directly: there is one per row, and psycopg would wait for each of them."""
    pgconn = connection.pgconn
    result = pgconn.exec_(statement.encode())
    if result.status != ExecStatus.COPY_OUT:
        raise pg.error_from_result(result)
    readable = select.poll()
    readable.register(pgconn.socket, select.POLLIN)
    while True:
        size, data = pgconn.get_copy_data(1)
        if size > 0:
            yield bytes(data)
        elif size == 0:
            readable.poll()
            pgconn.consume_input()
        else:
            break
    while (after := pgconn.get_result()) is not None:
        if after.status == ExecStatus.FATAL_ERROR:
            raise pg.error_from_result(after)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_nested(kind) else kind


def _about_rows(error: psycopg.Error) -> bool:
    """Whether the error is about values: rejected by the server, or by the driver before sending."""
    return isinstance(error, psycopg.DataError) or (error.sqlstate or "")[:2] in _DATA_ERRORS


def _error_text(error: psycopg.Error) -> str:
    """Return the server's message with its detail."""
    primary = error.diag.message_primary or str(error)
    return f"{primary}: {error.diag.message_detail}" if error.diag.message_detail else primary


def _moved(shape: TargetShape, found: SinkCheckpoint | None) -> CheckpointConflictError:
    return CheckpointConflictError(
        f"the checkpoint of sink {shape.sink!r} in Postgres has changed: another process wrote to the target, or a backup was restored",
        hint="no action is needed: the sink resumes from the checkpoint of the target",
        sink=shape.sink,
        found=found,
    )


def _raise(error: psycopg.Error, shape: TargetShape) -> NoReturn:
    state = error.sqlstate or ""
    if (
        isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        or state[:2] in _PASSING
        or state == _READ_ONLY
    ):
        raise TargetDownError(
            f"the Postgres server of sink {shape.sink!r} is unavailable: {_error_text(error)}",
            hint="the sink retries; check that the server runs and that the url is right",
            sink=shape.sink,
        ) from error
    raise SinkError(
        f"the Postgres server of sink {shape.sink!r} reports an error: {_error_text(error)}",
        detail=f"SQLSTATE {state}" if state else None,
        hint=error.diag.message_hint or "check that the role may create, read and write the table",
        sqlstate=state,
        sink=shape.sink,
    ) from error
