"""Preconditions on the server: tables with keys, publications, and a suitable slot.

What is missing is created; what exists is used if it is suitable, otherwise an error names the problem and the statement that
fixes it. A table without a key is published in a separate publication for inserts only: in a publication with updates, Postgres
would reject the application's UPDATE and DELETE on the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from headwater.catalog.rules import NAME
from headwater.core.errors import (
    HeadwaterError,
    PublicationError,
    SlotError,
    SourceLockedError,
    SourceRefusedError,
    UsageError,
)
from headwater.sources.postgres.server.connection import Connection, identifier, lsn_of
from headwater.sources.postgres.server.options import PostgresOptions, TableName

OLDEST_VERSION = 14
_PUBLISHED = "insert, update, delete, truncate"
STORED_GENERATED_FROM = 18
"""First version of Postgres that publishes stored generated columns."""

_TABLES = """
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text, c.relreplident::text,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
       pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner)::text,
       ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, place)
             JOIN pg_attribute a ON a.attnum = k.attnum
             WHERE i.indrelid = c.oid AND a.attrelid = c.oid AND i.indisprimary AND i.indimmediate AND k.place <= i.indnkeyatts
             ORDER BY k.place),
       ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, place)
             JOIN pg_attribute a ON a.attnum = k.attnum
             WHERE i.indrelid = c.oid AND a.attrelid = c.oid AND i.indisreplident AND k.place <= i.indnkeyatts
             ORDER BY k.place),
       ARRAY(SELECT a.attname::text FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> '' ORDER BY a.attnum),
       c.relispartition
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
"""
_PARTITIONS = """
SELECT n.nspname::text, c.relname::text, c.relpersistence = 'p', c.relreplident::text,
       ARRAY(SELECT a.attname::text FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, place)
             JOIN pg_attribute a ON a.attnum = k.attnum
             WHERE i.indrelid = c.oid AND a.attrelid = c.oid AND k.place <= i.indnkeyatts
             AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate END
             ORDER BY k.place)
FROM pg_partition_tree(%s::int8::oid) t JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.isleaf AND c.relkind = 'r' ORDER BY 1, 2
"""
"""Query for the leaf partitions of a table, each with its replica identity and the columns of it."""
_CAPTURED_KINDS = ("r", "p")
_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "c": "a type",
}


@dataclass(frozen=True)
class TableState:
    """Current state of a table in the database."""

    oid: int
    schema: str
    table: str
    kind: str
    persistence: str
    identity: str
    """Replica identity: d(efault), n(othing), f(ull), i(ndex)."""
    readable: bool
    owned: bool
    owner: str
    primary_key: tuple[str, ...]
    identity_key: tuple[str, ...]
    generated: tuple[str, ...]
    partition: bool

    @property
    def key(self) -> tuple[str, ...]:
        """Columns that identify a row in every change that the server sends. With REPLICA IDENTITY USING INDEX, a delete has
        only the columns of that index."""
        if self.identity == "i":
            return self.identity_key
        return () if self.identity == "n" else self.primary_key

    @property
    def name(self) -> str:
        """Quoted qualified name for SQL."""
        return identifier(self.schema, self.table)

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True)
class Captured:
    """A captured table and its topic."""

    state: TableState
    topic: str
    is_outbox: bool = False
    """Whether the table is the outbox, whose rows are events for other topics."""

    @property
    def is_keyed(self) -> bool:
        """Whether updates and deletes of the table are captured, too."""
        return bool(self.state.key) and not self.is_outbox

    def __str__(self) -> str:
        return str(self.state)


@dataclass(frozen=True)
class SlotState:
    """Current state of a replication slot."""

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    restart: int
    confirmed: int
    wal_status: str | None
    invalid: str | None
    """Reason why the slot can no longer be read; None if it can."""
    failover: bool


def find_tables(
    connection: Connection,
    options: PostgresOptions,
    unfit: Callable[[str, HeadwaterError], None] | None = None,
) -> list[Captured]:
    """Return the tables that the options name, after checks that they can be captured. For a table that cannot be captured,
    `unfit` is called with its name and the error; without `unfit`, the error is raised: SourceRefusedError, or UsageError for
    its topic. Errors of the outbox's table are always raised."""
    found: list[Captured] = []
    for name in options.tables:
        if name.table == "*":
            states = tables_of(connection, name.schema)
            found += [Captured(state, state.table) for state in states if _is_captured(state)]
        else:
            try:
                found.append(Captured(_named(connection, name), name.topic))
            except SourceRefusedError as error:
                if unfit is None:
                    raise
                unfit(str(name), error)
    if options.outbox_table is not None:
        outbox = Captured(_named(connection, options.outbox_table), "", is_outbox=True)
        found = [outbox, *(table for table in found if table.state.oid != outbox.state.oid)]
    topics: dict[str, Captured] = {}
    left_out = set()
    for table in found:
        if table.is_outbox:
            continue
        try:
            _check_topic(table, topics)
            check_partitions(connection, table.state, table.state.key)
        except (UsageError, SourceRefusedError) as error:
            if unfit is None:
                raise
            unfit(str(table), error)
            left_out.add(table)
    return list({table.state.oid: table for table in reversed(found) if table not in left_out}.values())[::-1]


def check_partitions(connection: Connection, table: TableState, key: Sequence[str]) -> None:
    """Raise SourceRefusedError if a partition of a table is unlogged, or has a replica identity of its own without all columns
    of the key.

    Deletes in such a partition come without these columns, and a change of the key comes without the old key.
    """
    if table.kind != "p":
        return
    for schema, name, is_logged, identity, columns in connection.rows(_PARTITIONS, table.oid):
        if not is_logged:
            raise SourceRefusedError(
                f"partition {schema}.{name} of table {table} is unlogged: the WAL does not contain its changes",
                hint=f"ALTER TABLE {identifier(schema, name)} SET LOGGED",
                table=str(table),
                partition=f"{schema}.{name}",
                reason="unlogged",
            )
        if not key or identity == "f" or set(key) <= set(columns):
            continue
        has = {"n": "NOTHING", "i": f"USING INDEX, of ({', '.join(columns)})"}.get(identity, "DEFAULT")
        raise SourceRefusedError(
            f"partition {schema}.{name} of table {table} has REPLICA IDENTITY {has}, without the key ({', '.join(key)}) of the table",
            detail="the stream would not identify rows of the partition that are deleted or whose key changes",
            hint=f"ALTER TABLE {identifier(schema, name)} REPLICA IDENTITY {'DEFAULT' if identity != 'd' else 'FULL'}",
            table=str(table),
            partition=f"{schema}.{name}",
            reason="replica-identity",
            replica_identity=has,
            key=tuple(key),
        )


def tables_of(
    connection: Connection, schema: str | None = None, table: str | None = None
) -> list[TableState]:
    """Return the tables of a schema, or of all schemas except the system's; or just one relation, of any kind."""
    if table is not None:
        rows = connection.rows(_TABLES + "WHERE n.nspname = %s AND c.relname = %s", schema, table)
    else:
        chosen = (
            "n.nspname = %s"
            if schema
            else r"%s::text IS NULL AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'"
        )
        rows = connection.rows(f"{_TABLES} WHERE {chosen} AND c.relkind IN ('r', 'p') ORDER BY 2, 3", schema)
    plain = ([tuple(value) if isinstance(value, list) else value for value in row] for row in rows)
    return [TableState(*values) for values in cast("Iterable[Any]", plain)]


def partitions_of(
    connection: Connection, tables: Sequence[Captured]
) -> dict[str, dict[int, tuple[str, str]]]:
    """Return the leaf partitions of each partitioned table: by table and oid, the schema and name of the partition."""
    divided = {table.state.oid: str(table) for table in tables if table.state.kind == "p"}
    if not divided:
        return {}
    rows = connection.rows(
        "SELECT r.oid::int8, c.oid::int8, n.nspname::text, c.relname::text FROM unnest(%s::oid[]) AS r (oid) "
        "CROSS JOIN LATERAL pg_partition_tree(r.oid) t JOIN pg_class c ON c.oid = t.relid "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE t.isleaf AND c.relkind = 'r'",
        list(divided),
    )
    found: dict[str, dict[int, tuple[str, str]]] = {name: {} for name in divided.values()}
    for root, oid, schema, name in rows:
        found[divided[root]][oid] = (schema, name)
    return found


def prepare_publications(
    connection: Connection, options: PostgresOptions, tables: Sequence[Captured]
) -> list[str]:
    """Return the names of the publications that publish what is to be captured of the tables; missing publications are created.

    Publications named by Headwater are created before anything is read, both of them: for the stream, a publication created
    later did not exist before that point.
    """
    published = _published(connection, options.publication)
    keyed = [table for table in tables if table.is_keyed]
    apart = [table for table in tables if not table.is_keyed and str(table) not in published]
    names = []
    if keyed or not apart or not options.publication_given:
        names.append(options.publication)
        _prepare(connection, options.publication, keyed, _PUBLISHED)
    if apart or not options.publication_given:
        names.append(publication_names(options)[1])
        _prepare(connection, names[-1], apart, "insert")
    return names


def publication_names(options: PostgresOptions) -> tuple[str, str]:
    """Return the names of the publications: the one for all changes, and the one for inserts only."""
    return options.publication, f"{options.publication[:55]}_inserts"


def check_published(
    connection: Connection, names: Sequence[str], tables: Sequence[Captured]
) -> list[Captured]:
    """Return the tables that are no longer published; PublicationError if a publication is missing."""
    there = {row[0] for row in connection.rows("SELECT pubname::text FROM pg_publication")}
    for name in names:
        if name not in there:
            raise PublicationError(
                f"publication {name!r} does not exist",
                detail="changes made without the publication are not in the replication stream",
                hint="ALTER SOURCE ... RESTART creates the publication and takes a new snapshot; or create the source again",
                publication=name,
            )
    published = set().union(*(_published(connection, name) for name in names)) if names else set()
    return [table for table in tables if str(table) not in published]


def row_filters(connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """Return the row filters of the publications by table: a snapshot must apply them, too."""
    if connection.version < 15:
        return {}
    rows = connection.rows(
        "SELECT format('%%s.%%s', schemaname, tablename), rowfilter FROM pg_publication_tables "
        "WHERE pubname = ANY(%s) AND rowfilter IS NOT NULL",
        list(names),
    )
    return dict(rows)


def published_columns(connection: Connection, names: Sequence[str], table: TableState) -> list[str]:
    """Return the published columns of a table, in their order."""
    if connection.version >= 15:
        rows = connection.rows(
            "SELECT attnames::text[] FROM pg_publication_tables WHERE pubname = ANY(%s) AND schemaname = %s AND tablename = %s",
            list(names),
            table.schema,
            table.table,
        )
        if rows:
            return list(rows[0][0] or ())  # NULL for a table without columns
    rows = connection.rows(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::int8::oid AND attnum > 0 AND NOT attisdropped "
        "AND attgenerated = '' ORDER BY attnum",
        table.oid,
    )
    return [row[0] for row in rows]


def find_slot(connection: Connection, name: str) -> SlotState | None:
    """Return the replication slot of this name, or None."""
    since_16 = (
        "CASE WHEN conflicting THEN 'conflict with recovery' END" if connection.version >= 16 else "NULL"
    )
    invalid = "invalidation_reason" if connection.version >= 17 else since_16
    failover = "failover" if connection.version >= 17 else "false"
    rows = connection.rows(
        f"SELECT plugin::text, database::text, active_pid, coalesce(restart_lsn, '0/0')::text, "
        f"coalesce(confirmed_flush_lsn, '0/0')::text, wal_status, {invalid}, {failover} "
        "FROM pg_replication_slots WHERE slot_name = %s",
        name,
    )
    if not rows:
        return None
    plugin, database, pid, restart, confirmed, status, reason, kept = rows[0]
    lost: str | None = reason or ("its WAL was removed" if status == "lost" else None)
    return SlotState(name, plugin, database, pid, lsn_of(restart), lsn_of(confirmed), status, lost, kept)


def check_slot(connection: Connection, slot: SlotState | None, name: str, source: str) -> SlotState:
    """Return the slot if changes can be read from it; otherwise SlotError with the reason and the remedy."""
    again = f"ALTER SOURCE {source} RESTART creates a new slot and takes a new snapshot of the tables"
    if slot is None:
        raise SlotError(
            f"replication slot {name!r} of source {source!r} does not exist",
            detail="the slot was dropped; changes committed after the last read are lost",
            hint=again,
            slot=name,
            reason="gone",
            source=source,
        )
    database = connection.value("SELECT current_database()::text")
    if slot.plugin != "pgoutput" or slot.database != database:
        is_what = (
            f"for plugin {slot.plugin} in database {slot.database}" if slot.plugin else "a physical slot"
        )
        raise SlotError(
            f"replication slot {name!r} is {is_what}, not for plugin pgoutput in database {database}",
            hint="choose another name with slot = '...'",
            slot=name,
            reason="unfit",
            source=source,
        )
    if slot.invalid:
        raise SlotError(
            f"replication slot {name!r} of source {source!r} can no longer be read from: {slot.invalid}",
            detail="the slot exceeded max_slot_wal_keep_size or idle_replication_slot_timeout of the server",
            hint=f"SELECT pg_drop_replication_slot('{name}'); then {again}",
            slot=name,
            reason="lost",
            source=source,
        )
    return slot


def slot_in_use(connection: Connection, name: str, source: str) -> SlotError | SourceLockedError:
    """Return the error for a slot that another process reads from, naming the process. A slot that is being created yields a
    retryable error: Postgres continues to create it after the client has died, until all transactions in progress have
    ended."""
    rows = connection.rows(
        "SELECT a.pid, a.application_name, coalesce(a.client_addr::text, 'the server itself'), a.usename::text, "
        "coalesce(a.query, '') LIKE %s "
        "FROM pg_replication_slots s JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s",
        "CREATE_REPLICATION_SLOT%",
        name,
    )
    who = "by process {} ({!r} from {}, role {})".format(*rows[0]) if rows else "by another process"
    if rows and rows[0][4]:
        return SourceLockedError(
            f"replication slot {name!r} of source {source!r} is being created {who}, which waits for running transactions",
            hint="the source continues when they end: see pg_stat_activity for running transactions and pg_prepared_xacts "
            "for prepared ones",
            source=source,
            slot=name,
        )
    pid = rows[0][0] if rows else None
    hint = "a slot has one reader: stop the other reader, or give this source another slot with slot = '...'"
    if pid is not None:
        hint += f"; SELECT pg_terminate_backend({pid}) ends a reader that does not respond"
    return SlotError(
        f"replication slot {name!r} of source {source!r} is in use {who}",
        hint=hint,
        slot=name,
        reason="in use",
        source=source,
        pid=pid,
    )


def create_slot_command(version: int, name: str, *, failover: bool) -> str:
    """Return the replication command that creates a slot and exports its initial snapshot."""
    if version < 15:
        return f"CREATE_REPLICATION_SLOT {identifier(name)} LOGICAL pgoutput EXPORT_SNAPSHOT"
    more = ", FAILOVER true" if failover and version >= 17 else ""
    return f"CREATE_REPLICATION_SLOT {identifier(name)} LOGICAL pgoutput (SNAPSHOT 'export'{more})"


def check_server(connection: Connection, source: str) -> None:
    """Raise SourceRefusedError unless the server supports capture at all."""
    if connection.version < OLDEST_VERSION:
        raise SourceRefusedError(
            f"source {source!r} requires Postgres {OLDEST_VERSION} or later, and the server is version {connection.version}",
            hint="upgrade the server",
            source=source,
            reason="version",
        )
    level = connection.value("SHOW wal_level")
    if level != "logical":
        raise SourceRefusedError(
            f"source {source!r} requires wal_level = logical, and the server has wal_level = {level}",
            hint="ALTER SYSTEM SET wal_level = logical; then restart the server",
            source=source,
            reason="wal-level",
        )


def _named(connection: Connection, name: TableName) -> TableState:
    state = next(iter(tables_of(connection, name.schema, name.table)), None)
    if state is None:
        raise SourceRefusedError(
            f"table {name} does not exist",
            hint="names are folded to lower case unless they are in double quotes",
            table=str(name),
            reason="no-table",
        )
    _check_table(state)
    return state


def _check_table(state: TableState) -> None:
    if state.kind not in _CAPTURED_KINDS:
        raise SourceRefusedError(
            f"{state} is {_KINDS.get(state.kind, 'not a table')}: only tables can be captured",
            hint="name the tables that it reads from",
            table=str(state),
            reason="not-a-table",
        )
    if state.persistence != "p":
        what = "unlogged" if state.persistence == "u" else "temporary"
        raise SourceRefusedError(
            f"table {state} is {what}: the WAL does not contain its changes",
            hint=f"ALTER TABLE {state.name} SET LOGGED",
            table=str(state),
            reason=what,
        )
    if not state.readable:
        raise SourceRefusedError(
            f"the role may not read table {state}",
            hint=f"GRANT USAGE ON SCHEMA {identifier(state.schema)}, and GRANT SELECT ON {state.name}, to the role",
            table=str(state),
            reason="no-select-privilege",
        )


def _is_captured(state: TableState) -> bool:
    """Whether a table is captured by the pattern `schema.*`: every table that can be read, and of a partitioned table only the
    root."""
    return (
        state.kind in _CAPTURED_KINDS and state.persistence == "p" and not state.partition and state.readable
    )


def _check_topic(table: Captured, topics: dict[str, Captured]) -> None:
    """Raise UsageError if the topic of a table has an invalid name, or the name of another topic in `topics`."""
    if not NAME.match(table.topic):
        plain = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in table.topic)
        raise UsageError(
            f"{table.topic!r} is not a valid name of a topic",
            hint=f"choose another topic for table {table}: tables = '{table.state.name} AS {plain}'",
            table=str(table),
            topic=table.topic,
        )
    other = topics.setdefault(table.topic.lower(), table)
    if other.state.oid != table.state.oid:
        raise UsageError(
            f"tables {other} and {table} have the same topic {table.topic!r}",
            hint=f"name each table, and choose another topic for one of them: {table} AS {table.state.schema}_{table.topic}",
            topic=table.topic,
        )


def _prepare(connection: Connection, name: str, tables: Sequence[Captured], publish: str) -> None:
    rows = connection.rows(
        "SELECT puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot FROM pg_publication WHERE pubname = %s",
        name,
    )
    if not rows:
        _create(connection, name, tables, publish)
        return
    everything, *published, via_root = rows[0]
    wanted = publish.split(", ")
    unpublished = [
        what
        for what, is_there in zip(_PUBLISHED.split(", "), published, strict=True)
        if what in wanted and not is_there
    ]
    if unpublished:
        raise PublicationError(
            f"publication {name!r} does not publish {', '.join(unpublished)}",
            hint=f"ALTER PUBLICATION {identifier(name)} SET (publish = '{publish}')",
            publication=name,
            operations=tuple(unpublished),
        )
    if not via_root and any(table.state.kind == "p" for table in tables):
        raise PublicationError(
            f"publication {name!r} publishes partitions instead of their partitioned tables",
            hint=f"ALTER PUBLICATION {identifier(name)} SET (publish_via_partition_root = true)",
            publication=name,
            reason="partitions",
        )
    missing = [table for table in tables if str(table) not in _published(connection, name)]
    if missing and not everything:
        statement = f"ALTER PUBLICATION {identifier(name)} ADD TABLE {', '.join(table.state.name for table in missing)}"
        _execute(connection, statement, name)


def _create(connection: Connection, name: str, tables: Sequence[Captured], publish: str) -> None:
    which = f" FOR TABLE {', '.join(table.state.name for table in tables)}" if tables else ""
    generated = ", publish_generated_columns = stored" if connection.version >= STORED_GENERATED_FROM else ""
    options = f"publish = '{publish}', publish_via_partition_root = true{generated}"
    _execute(connection, f"CREATE PUBLICATION {identifier(name)}{which} WITH ({options})", name)


def _execute(connection: Connection, statement: str, publication: str) -> None:
    try:
        connection.rows(statement)
    except SourceRefusedError as error:
        raise PublicationError(
            f"publication {publication!r} cannot be created or altered for the tables: {error.message}",
            detail="CREATE on the database and ownership of the tables are required",
            hint=f"run as their owner: {statement}",
            publication=publication,
        ) from None


def _published(connection: Connection, name: str) -> set[str]:
    rows: list[tuple[Any, ...]] = connection.rows(
        "SELECT format('%%s.%%s', schemaname, tablename) FROM pg_publication_tables WHERE pubname = %s", name
    )
    return {row[0] for row in rows}
