"""Checks what a server lacks for capture, and gives the statement that fixes each problem. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headwater.core.errors import SourceError, SourceRefusedError
from headwater.core.settings import format_bytes
from headwater.sources.postgres.server.connection import Connection, Replication, identifier, place
from headwater.sources.postgres.server.options import TableName, read_tables_option
from headwater.sources.postgres.server.publications import (
    OLDEST_VERSION,
    STORED_GENERATED_FROM,
    TableState,
    check_partitions,
    tables_of,
)

_WHO = "doctor"
_IDENTITIES = {"n": "NOTHING", "f": "FULL", "i": "USING INDEX", "d": "DEFAULT"}


@dataclass(frozen=True)
class ServerFinding:
    """Result of one check: whether capture is possible, a sentence, and the statement that fixes a problem."""

    status: Literal["ok", "problem"]
    sentence: str
    statement: str | None = None


def doctor(url: str, tables: str | Sequence[TableName] = ()) -> list[ServerFinding]:
    """Check a server, and the given tables or all its tables. Problems of the server are returned, never raised."""
    try:
        connection = Connection(url, _WHO)
    except SourceError as error:
        return [ServerFinding("problem", f"{error.message}: {error.detail}", error.hint)]
    try:
        named = read_tables_option(tables) if isinstance(tables, str) else tables
        findings = [ServerFinding("ok", f"connected to {place(url)}, Postgres {connection.version}")]
        findings += [found for check in _CHECKS for found in check(connection)]
        findings += _streaming(url)
        for state, name in _chosen(connection, named):
            findings += [_missing(name)] if state is None else list(_table(connection, state))
        return findings
    except SourceError as error:
        return [ServerFinding("problem", f"{error.message}: {error.detail}", error.hint)]
    finally:
        connection.close()


def _version(connection: Connection) -> Iterator[ServerFinding]:
    if connection.version < OLDEST_VERSION:
        yield ServerFinding(
            "problem", f"Postgres {connection.version} is too old: {OLDEST_VERSION} or later is needed"
        )


def _wal_level(connection: Connection) -> Iterator[ServerFinding]:
    level = connection.value("SHOW wal_level")
    if level == "logical":
        yield ServerFinding("ok", "wal_level is logical")
    else:
        yield ServerFinding(
            "problem",
            f"wal_level is {level}: the WAL does not contain changes of rows; changing wal_level requires a restart",
            "ALTER SYSTEM SET wal_level = logical",
        )


def _room(connection: Connection) -> Iterator[ServerFinding]:
    for setting, used, what in (
        ("max_replication_slots", "SELECT count(*) FROM pg_replication_slots", "replication slots"),
        ("max_wal_senders", "SELECT count(*) FROM pg_stat_replication", "WAL senders"),
    ):
        allowed, taken = int(connection.value(f"SHOW {setting}")), connection.value(used)
        if taken < allowed:
            yield ServerFinding("ok", f"{taken} of {allowed} {what} are in use")
        else:
            yield ServerFinding(
                "problem",
                f"all {allowed} {what} are in use; changing {setting} requires a restart",
                f"ALTER SYSTEM SET {setting} = {allowed + 10}",
            )


def _role(connection: Connection) -> Iterator[ServerFinding]:
    role, replicates, is_super, creates, database = connection.rows(
        "SELECT rolname::text, rolreplication, rolsuper, has_database_privilege(current_database(), 'CREATE'), "
        "current_database()::text FROM pg_roles WHERE rolname = current_user"
    )[0]
    lent = connection.value(
        "SELECT bool_or(pg_has_role(oid, 'MEMBER')) FROM pg_roles WHERE rolname IN ('rds_replication', 'cloudsqlsuperuser')"
    )
    if replicates or is_super or lent:
        yield ServerFinding("ok", f"role {role} may replicate")
    else:
        yield ServerFinding(
            "problem", f"role {role} may not replicate", f"ALTER ROLE {identifier(role)} REPLICATION"
        )
    if creates:
        yield ServerFinding("ok", f"role {role} may create a publication in {database}")
    else:
        yield ServerFinding(
            "problem",
            f"role {role} may not create a publication in {database}; a publication that the owner created can be named instead",
            f"GRANT CREATE ON DATABASE {identifier(database)} TO {identifier(role)}",
        )


def _standby(connection: Connection) -> Iterator[ServerFinding]:
    if connection.value("SELECT pg_is_in_recovery()"):
        yield ServerFinding(
            "problem",
            "this is a standby: publications and snapshot marks can be written on the primary only",
        )


def _slots(connection: Connection) -> Iterator[ServerFinding]:
    """Report inactive slots, which make the server retain WAL."""
    if connection.value("SELECT pg_is_in_recovery()"):
        return
    rows: list[tuple[Any, ...]] = connection.rows(
        "SELECT slot_name::text, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8, wal_status "
        "FROM pg_replication_slots WHERE NOT active AND slot_type = 'logical' AND database = current_database()"
    )
    for name, retained, status in rows:
        drop = f"SELECT pg_drop_replication_slot('{name}')"
        if status == "lost":
            yield ServerFinding("problem", f"slot {name} has lost its WAL and is no longer usable", drop)
        elif retained and retained > 1 << 30:
            size = format_bytes(retained >> 20 << 20)
            yield ServerFinding("problem", f"slot {name} is inactive and retains {size} of WAL", drop)


_CHECKS = (_version, _wal_level, _room, _role, _standby, _slots)


def _streaming(url: str) -> list[ServerFinding]:
    """Check that a replication connection is possible: pg_hba.conf may allow a role to connect and yet not to replicate."""
    try:
        Replication(url, _WHO).close()
    except SourceError as error:
        return [
            ServerFinding(
                "problem", f"no replication connection: {error.detail or error.message}", error.hint
            )
        ]
    return [ServerFinding("ok", "replication connections are allowed")]


def _chosen(
    connection: Connection, named: Sequence[TableName]
) -> Iterator[tuple[TableState | None, TableName | None]]:
    if not named:
        for state in tables_of(connection):
            if not state.partition:
                yield state, None
    for name in named:
        if name.table == "*":
            yield from ((state, name) for state in tables_of(connection, name.schema) if not state.partition)
        else:
            yield next(iter(tables_of(connection, name.schema, name.table)), None), name


def _missing(name: TableName | None) -> ServerFinding:
    return ServerFinding("problem", f"table {name} does not exist")


def _table(connection: Connection, state: TableState) -> Iterator[ServerFinding]:
    role = identifier(connection.value("SELECT current_user::text"))
    problems = list(_kind(state)) or [
        *_rights(state, role),
        *_identity(state),
        *_partitions(connection, state),
    ]
    if state.generated and connection.version < STORED_GENERATED_FROM:
        problems.append(
            ServerFinding(
                "ok",
                f"table {state}: generated columns ({', '.join(state.generated)}) are not sent before Postgres {STORED_GENERATED_FROM} "
                "and are left out",
            )
        )
    yield from problems
    if not any(found.status == "problem" for found in problems):
        key = f"by its key ({', '.join(state.key)})" if state.key else "as an append-only topic"
        yield ServerFinding("ok", f"table {state} can be captured {key}")


def _kind(state: TableState) -> Iterator[ServerFinding]:
    if state.kind not in ("r", "p"):
        yield ServerFinding("problem", f"{state} is not a table; only tables can be captured")
    elif state.persistence == "u":
        yield ServerFinding(
            "problem",
            f"table {state} is unlogged: the WAL does not contain its changes",
            f"ALTER TABLE {state.name} SET LOGGED",
        )


def _rights(state: TableState, role: str) -> Iterator[ServerFinding]:
    if not state.readable:
        yield ServerFinding(
            "problem",
            f"role {role} may not read table {state}",
            f"GRANT USAGE ON SCHEMA {identifier(state.schema)} TO {role}; GRANT SELECT ON {state.name} TO {role}",
        )
    if not state.owned:
        yield ServerFinding(
            "problem",
            f"table {state} belongs to {state.owner}, and only its owner can add it to a publication",
            f"GRANT {identifier(state.owner)} TO {role}",
        )


def _identity(state: TableState) -> Iterator[ServerFinding]:
    if state.key:
        return
    if state.primary_key and state.identity == "n":
        yield ServerFinding(
            "problem",
            f"table {state} has REPLICA IDENTITY NOTHING: its updates and deletes cannot be sent, only inserts",
            f"ALTER TABLE {state.name} REPLICA IDENTITY DEFAULT",
        )
    elif not state.primary_key:
        said = _IDENTITIES.get(state.identity, "DEFAULT")
        yield ServerFinding(
            "problem",
            f"table {state} has no primary key (replica identity {said}): only its inserts can be captured, "
            "as an append-only topic",
            f"ALTER TABLE {state.name} ADD PRIMARY KEY (...)",
        )


def _partitions(connection: Connection, state: TableState) -> Iterator[ServerFinding]:
    try:
        check_partitions(connection, state, state.key)
    except SourceRefusedError as error:
        yield ServerFinding("problem", error.message, error.hint)
