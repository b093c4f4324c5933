"""Connections to a Postgres server: ordinary sessions and replication sessions. No other module of the source uses psycopg.

Both kinds have the same settings, so that values have the same text form from either. Errors of the driver become errors of
`headwater.core.errors`; messages never contain a password.
"""

from __future__ import annotations

import re
import select
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import psycopg
from psycopg import conninfo, pq

from headwater.core.clock import SystemClock
from headwater.core.errors import SourceError, SourceLockedError, SourceRefusedError, SourceUnreachableError
from headwater.sources.postgres.decode import postgres_values as values

SETTINGS = {
    **values.SETTINGS,
    "search_path": "pg_catalog",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "synchronous_commit": "local",
}
"""Settings of every session. The search path determines how names of types and tables are printed; writes of marks need not
wait for a standby."""
CONNECT_TIMEOUT_S = 10
LOCK_WAIT_MS = 3_000
"""Longest wait of a statement for a lock. It exceeds deadlock_timeout, after which the server cancels a blocking autovacuum."""
LOCK_NOT_AVAILABLE = "55P03"
BLOCK_BYTES = 4 << 20
"""Approximate number of bytes of copied rows yielded at a time."""

_PASSES = ("starting up", "shutting down", "recovery mode", "too many clients", "remaining connection slots",
           "not yet accepting connections", "not accepting connections", "too many connections")  # fmt: skip
_SECRET = re.compile(r"(://[^:/@\s]*:)[^@\s]*@|(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)
_TRANSIENT_CLASSES = ("08", "57P", "531", "532", "533", "40")
_EPOCH_2000_US = 946_684_800_000_000


def hidden(text: str, url: str = "") -> str:
    """Return the text with secrets masked."""
    for secret in _secrets(url):
        text = text.replace(secret, "***")
    return _SECRET.sub(lambda m: f"{m[1]}***@" if m[1] else f"{m[2]}***", text)


def place(url: str) -> str:
    """Return the database and server of a URL for messages, without secrets."""
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        return "the database"
    host = parts.get("host") or parts.get("hostaddr") or "the local server"
    port = f":{parts['port']}" if parts.get("port") and not str(host).startswith("/") else ""
    database = parts.get("dbname") or parts.get("user") or "postgres"
    return f"{database} on {host}{port}"


class Connection:
    """An ordinary session in autocommit mode: every statement is its own transaction, unless BEGIN starts one."""

    def __init__(self, url: str, source: str) -> None:
        self._url = url
        self._source = source
        self._psycopg = _connect(url, source, LOCK_WAIT_MS)
        self.version = self._psycopg.info.server_version // 10_000
        """The server's major version."""

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the result of a statement. Parameters are written `%s`; without parameters, `%` is literal."""
        with self._translated():
            cursor = self._psycopg.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *parameters: Any) -> Any:
        """Return the first column of the first row; None if there is no row."""
        found = self.rows(statement, *parameters)
        return found[0][0] if found else None

    def copied(self, statement: str) -> Iterator[list[bytes]]:
        """Yield the lines of a COPY ... TO STDOUT, in parts of bounded size. Closing the iterator early cancels the COPY, which
        aborts the current transaction."""
        pgconn = self._psycopg.pgconn
        with self._translated():
            pgconn.send_query(statement.encode())
            while pgconn.is_busy():
                self._wait()
            result = pgconn.get_result()
            assert result is not None
            if result.status != pq.ExecStatus.COPY_OUT:
                _finish(pgconn)
                raise psycopg.errors.error_from_result(result)
        ended = False
        try:
            while not ended:
                with self._translated():
                    lines, ended = self._lines(pgconn)
                    if ended:
                        _finish(pgconn)
                if lines:
                    yield lines
        except GeneratorExit:
            if not (ended or self._psycopg.closed):
                with suppress(SourceError):  # a lost connection shows in the next statement
                    self._cancel_copy(pgconn)
            raise

    def _cancel_copy(self, pgconn: pq.abc.PGconn) -> None:
        """Cancel the current COPY, and discard the lines received."""
        with self._translated(), suppress(psycopg.errors.QueryCanceled):
            self._psycopg.cancel_safe()
            while not self._lines(pgconn)[1]:
                pass
            _finish(pgconn)

    def _lines(self, pgconn: pq.abc.PGconn) -> tuple[list[bytes], bool]:
        """Return some lines of the current COPY, and whether it has ended."""
        lines: list[bytes] = []
        size, get = 0, pgconn.get_copy_data
        while size < BLOCK_BYTES:
            length, line = get(1)
            if length > 0:
                lines.append(bytes(line))
                size += length
            elif length == 0:
                self._wait()
            else:
                return lines, True
        return lines, False

    def _wait(self) -> None:
        """Wait until more data has arrived. Other threads may run meanwhile."""
        pgconn = self._psycopg.pgconn
        select.select([pgconn.socket], [], [])
        pgconn.consume_input()

    def close(self) -> None:
        """Close the session; a transaction in progress is rolled back."""
        self._psycopg.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise_translated(error, self._url, self._source)


class Replication:
    """A session with the replication protocol. One thread reads; another one may send status updates."""

    def __init__(self, url: str, source: str) -> None:
        self._url = url
        self._source = source
        self._psycopg = _connect(url, source, replication="database")
        self._pg = self._psycopg.pgconn
        self._turn = threading.Lock()
        self._ended = False
        self.version = self._psycopg.info.server_version // 10_000

    def command(self, text: str) -> list[list[str | None]]:
        """Run a command and return its rows."""
        with self._translated():
            self._pg.send_query(text.encode())
            return self._answer()

    def begin(self, text: str) -> None:
        """Send a command that may take long; `answer` returns its result."""
        with self._translated():
            self._pg.send_query(text.encode())

    def answer(self, seconds: float) -> list[list[str | None]] | None:
        """Return the rows of the command sent by `begin`; None if they have not arrived within `seconds`."""
        with self._translated():
            if self._pg.is_busy():
                self.wait(seconds)
                self._pg.consume_input()
            return None if self._pg.is_busy() else self._answer()

    def start(self, slot: str, at: int, options: dict[str, str]) -> None:
        """Start streaming from a slot, at `at` or the slot's confirmed position, whichever is later."""
        said = ", ".join(f"{name} {literal(value)}" for name, value in options.items())
        with self._translated():
            result = self._pg.exec_(
                f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {lsn_text(at)} ({said})".encode()
            )
            _expect(result, pq.ExecStatus.COPY_BOTH)

    def drain(self, messages_max: int, bytes_max: int) -> list[bytes]:
        """Return the messages received so far, without waiting. Each is one CopyData with its envelope, and may be as large as
        a gigabyte."""
        messages: list[bytes] = []
        get, add = self._pg.get_copy_data, messages.append
        with self._turn, self._translated():
            tried, size = False, 0
            while len(messages) < messages_max and size < bytes_max:
                length, data = get(1)
                if length > 0:
                    add(bytes(data))
                    size += length
                    tried = False
                elif length < 0:
                    self._ended = True
                    _finish(self._pg)
                    raise SourceUnreachableError(
                        f"the server ended the stream of source {self._source!r}", source=self._source
                    )
                elif tried:
                    break
                else:
                    self._pg.consume_input()
                    tried = True
        return messages

    def wait(self, seconds: float) -> bool:
        """Wait until data can be read; returns False if none arrived within `seconds`."""
        try:
            return bool(select.select([self._pg.socket], [], [], max(seconds, 0.0))[0])
        except (psycopg.Error, OSError, ValueError):
            raise SourceUnreachableError(
                f"the connection of source {self._source!r} was lost", source=self._source
            ) from None

    def confirm(self, written: int, durable: int) -> None:
        """Send a status update with the written and the durable position, which is also the keepalive. Thread-safe."""
        now_us = SystemClock().now_us() - _EPOCH_2000_US
        words = b"".join(n.to_bytes(8, "big") for n in (written, durable, durable, now_us))
        with self._turn, self._translated():
            self._pg.put_copy_data(b"r" + words + b"\0")
            self._pg.flush()

    def close(self) -> None:
        """Close the session, in good order if possible."""
        with self._turn:
            self._psycopg.close()

    def _answer(self) -> list[list[str | None]]:
        rows: list[list[str | None]] = []
        while (result := self._pg.get_result()) is not None:
            if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                raise psycopg.errors.error_from_result(result)
            for row in range(result.ntuples):
                values = [result.get_value(row, column) for column in range(result.nfields)]
                rows.append([None if value is None else value.decode() for value in values])
        return rows

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise_translated(error, self._url, self._source)


def identifier(*names: str) -> str:
    """Return a quoted SQL identifier; several names form a qualified one."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """Return a text as an SQL string literal."""
    quoted = "'" + text.replace("'", "''") + "'"
    return f" E{quoted.replace(chr(92), chr(92) * 2)}" if "\\" in text else quoted


def lsn_text(lsn: int) -> str:
    """Return an LSN in the text form of Postgres."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """Return the LSN of a text such as 16/B374D848."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def raise_translated(error: psycopg.Error, url: str, source: str) -> NoReturn:
    """Raise an error of the driver as an error of Headwater, retryable if waiting may help."""
    if isinstance(error, SourceError):
        raise error
    state = error.sqlstate
    said = hidden(str(error).strip() or type(error).__name__, url)
    first, _, rest = said.partition("\n")
    facts = {"source": source, "sqlstate": state}
    if state == LOCK_NOT_AVAILABLE:
        raise SourceLockedError(
            f"source {source!r} waits for a lock that another transaction on {place(url)} holds",
            detail=said,
            hint="the source continues when that transaction ends: see pg_stat_activity for running transactions and "
            "pg_prepared_xacts for prepared ones",
            **facts,
        ) from None
    if state is None or state.startswith(_TRANSIENT_CLASSES):
        raise SourceUnreachableError(
            f"the connection of source {source!r} to {place(url)} was lost", detail=said, **facts
        ) from None
    hint = _HINTS.get(state)
    raise SourceRefusedError(
        f"{place(url)} refused source {source!r}: {first}", detail=rest.strip() or None, hint=hint, **facts
    ) from None


def _connect(
    url: str, source: str, lock_wait_ms: int = 0, **more: str
) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a session with `SETTINGS`. Errors before the session exists have no SQLSTATE, only a text."""
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        raise SourceRefusedError(
            f"the url of source {source!r} is not a valid Postgres connection string",
            detail=hidden(url),
            hint="write it as postgresql://user:password@host:5432/database",
            source=source,
            option="url",
        ) from None
    settings = {**SETTINGS, "lock_timeout": str(lock_wait_ms)}
    ours = " ".join(f"-c {name}={value.replace(' ', '')}" for name, value in settings.items())
    options = f"{given.get('options') or ''} {ours}".strip()
    named = {"application_name": f"headwater {source}"[:63], **more}
    waits = {"connect_timeout": given.get("connect_timeout") or CONNECT_TIMEOUT_S}
    try:
        return psycopg.connect(url, autocommit=True, options=options, **named, **waits)  # type: ignore[arg-type]
    except psycopg.Error as error:
        said = hidden(str(error).strip(), url)
        refused = "FATAL:" in said and not any(passing in said for passing in _PASSES)
        if not refused:
            raise SourceUnreachableError(
                f"source {source!r} cannot reach {place(url)}",
                detail=said,
                hint="the source retries; check that the server runs and that host and port are right",
                source=source,
            ) from None
        raise SourceRefusedError(
            f"{place(url)} refused source {source!r}",
            detail=said,
            hint="check user, password and database of the url; the role needs LOGIN and REPLICATION, "
            "and an entry in pg_hba.conf",
            source=source,
        ) from None


def _secrets(url: str) -> Sequence[str]:
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        return ()
    return [str(given[name]) for name in ("password", "sslpassword") if given.get(name)]


def _expect(result: pq.abc.PGresult, status: pq.ExecStatus) -> None:
    if result.status != status:
        raise psycopg.errors.error_from_result(result)


def _finish(pgconn: pq.abc.PGconn) -> None:
    """Read the remaining results of a COPY; raises its error once the connection has no results left."""
    failed: pq.abc.PGresult | None = None
    while (result := pgconn.get_result()) is not None:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            failed = failed or result
        elif result.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_BOTH):
            break
    if failed is not None:
        raise psycopg.errors.error_from_result(failed)


_HINTS = {
    "42501": "`headwater doctor URL` lists missing privileges, with the statements that grant them",
    "55000": "`headwater doctor URL` lists missing settings, with the statements that change them",
    "53400": "raise max_replication_slots or max_wal_senders on the server, or drop an unused slot",
}
