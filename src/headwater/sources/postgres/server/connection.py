"""Connections to a Postgres server: ordinary ones, and those that speak the replication protocol. Nothing else here knows psycopg.

Both have the same settings, so that text comes in one form whoever sends it. Errors of the driver become those of
`headwater.core.errors`; no message ever has a password in it.
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
"""What every session of ours has. The search path decides how names of types and tables are written out; marks need not wait
for a standby."""
CONNECT_TIMEOUT_S = 10
LOCK_WAIT_MS = 3_000
"""How long a statement waits for a lock. More than deadlock_timeout, after which the server ends an autovacuum that is in the way."""
LOCK_NOT_AVAILABLE = "55P03"
BLOCK_BYTES = 4 << 20
"""Copied rows are handed over in pieces of about this size."""

_PASSES = ("starting up", "shutting down", "recovery mode", "too many clients", "remaining connection slots",
           "not yet accepting connections", "not accepting connections", "too many connections")  # fmt: skip
_SECRET = re.compile(r"(://[^:/@\s]*:)[^@\s]*@|(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", re.IGNORECASE)
_TRANSIENT_CLASSES = ("08", "57P", "531", "532", "533", "40")
_EPOCH_2000_US = 946_684_800_000_000


def hidden(text: str, url: str = "") -> str:
    """The text without what is secret in it."""
    for secret in _secrets(url):
        text = text.replace(secret, "***")
    return _SECRET.sub(lambda m: f"{m[1]}***@" if m[1] else f"{m[2]}***", text)


def place(url: str) -> str:
    """Which server and database a URL means, without what is secret in it."""
    try:
        parts = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        return "the database"
    host = parts.get("host") or parts.get("hostaddr") or "the local server"
    port = f":{parts['port']}" if parts.get("port") and not str(host).startswith("/") else ""
    database = parts.get("dbname") or parts.get("user") or "postgres"
    return f"{database} on {host}{port}"


class Connection:
    """An ordinary session in which every statement is its own transaction, unless BEGIN says otherwise."""

    def __init__(self, url: str, source: str) -> None:
        self._url = url
        self._source = source
        self._psycopg = _connect(url, source, LOCK_WAIT_MS)
        self.version = self._psycopg.info.server_version // 10_000
        """The server's major version."""

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """The result of a statement. Parameters are `%s` in it; without any, `%` stands for itself."""
        with self._translated():
            cursor = self._psycopg.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *parameters: Any) -> Any:
        """The first column of the first row; None if there is no row."""
        found = self.rows(statement, *parameters)
        return found[0][0] if found else None

    def copied(self, statement: str) -> Iterator[list[bytes]]:
        """The lines of a COPY ... TO STDOUT, in pieces of bounded size. Closed before its end, it has the server stop, which ends the
        transaction that is under way."""
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
                with suppress(SourceError):  # a connection that is lost shows in the next statement
                    self._cancel_copy(pgconn)
            raise

    def _cancel_copy(self, pgconn: pq.abc.PGconn) -> None:
        """Have the server end the COPY that is under way, and leave out what it has sent."""
        with self._translated(), suppress(psycopg.errors.QueryCanceled):
            self._psycopg.cancel_safe()
            while not self._lines(pgconn)[1]:
                pass
            _finish(pgconn)

    def _lines(self, pgconn: pq.abc.PGconn) -> tuple[list[bytes], bool]:
        """Some lines of the COPY that is under way, and whether they are the last."""
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
        """Until more has come in. Other threads may run meanwhile."""
        pgconn = self._psycopg.pgconn
        select.select([pgconn.socket], [], [])
        pgconn.consume_input()

    def close(self) -> None:
        """End the session; a transaction that is under way is undone."""
        self._psycopg.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise_translated(error, self._url, self._source)


class Replication:
    """A session that speaks the replication protocol. One thread reads; another may say that we are alive."""

    def __init__(self, url: str, source: str) -> None:
        self._url = url
        self._source = source
        self._psycopg = _connect(url, source, replication="database")
        self._pg = self._psycopg.pgconn
        self._turn = threading.Lock()
        self._ended = False
        self.version = self._psycopg.info.server_version // 10_000

    def command(self, text: str) -> list[list[str | None]]:
        """The rows that answer a command."""
        with self._translated():
            self._pg.send_query(text.encode())
            return self._answer()

    def begin(self, text: str) -> None:
        """Send a command whose answer may take long; `answer` has it."""
        with self._translated():
            self._pg.send_query(text.encode())

    def answer(self, seconds: float) -> list[list[str | None]] | None:
        """The rows that answer what was begun; None if they are not here within that time."""
        with self._translated():
            if self._pg.is_busy():
                self.wait(seconds)
                self._pg.consume_input()
            return None if self._pg.is_busy() else self._answer()

    def start(self, slot: str, at: int, options: dict[str, str]) -> None:
        """Begin to stream from a slot, from the later of this position and the one that was confirmed last."""
        said = ", ".join(f"{name} {literal(value)}" for name, value in options.items())
        with self._translated():
            result = self._pg.exec_(
                f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {lsn_text(at)} ({said})".encode()
            )
            _expect(result, pq.ExecStatus.COPY_BOTH)

    def drain(self, messages_max: int, bytes_max: int) -> list[bytes]:
        """The messages that are here now, without waiting; each is one CopyData with its envelope, and may be as large as a gigabyte."""
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
        """Until something can be read; False if nothing can within that time."""
        try:
            return bool(select.select([self._pg.socket], [], [], max(seconds, 0.0))[0])
        except (psycopg.Error, OSError, ValueError):
            raise SourceUnreachableError(
                f"the connection of source {self._source!r} was lost", source=self._source
            ) from None

    def confirm(self, written: int, durable: int) -> None:
        """Tell the server what we have, and that we are alive. Any thread may."""
        now_us = SystemClock().now_us() - _EPOCH_2000_US
        words = b"".join(n.to_bytes(8, "big") for n in (written, durable, durable, now_us))
        with self._turn, self._translated():
            self._pg.put_copy_data(b"r" + words + b"\0")
            self._pg.flush()

    def close(self) -> None:
        """Leave, in good order if that is possible."""
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
    """A name as SQL needs it, quoted; several are one that is qualified."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """A text as SQL needs it."""
    quoted = "'" + text.replace("'", "''") + "'"
    return f" E{quoted.replace(chr(92), chr(92) * 2)}" if "\\" in text else quoted


def lsn_text(lsn: int) -> str:
    """A position in the write-ahead log as Postgres writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """The position that a text such as 16/B374D848 means."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def raise_translated(error: psycopg.Error, url: str, source: str) -> NoReturn:
    """What the driver says, as an error of ours: retryable where waiting may help."""
    if isinstance(error, SourceError):
        raise error
    state = error.sqlstate
    said = hidden(str(error).strip() or type(error).__name__, url)
    first, _, rest = said.partition("\n")
    facts = {"source": source, "sqlstate": state}
    if state == LOCK_NOT_AVAILABLE:
        raise SourceLockedError(
            f"source {source!r} waits for a lock that one of the other transactions on {place(url)} holds",
            detail=said,
            hint="it goes on by itself once that transaction has ended: pg_stat_activity shows transactions under way, "
            "pg_prepared_xacts those that are prepared",
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
    """A session with our settings. What the server answers before there is a session has no code, only a text."""
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        raise SourceRefusedError(
            f"the url of source {source!r} cannot be read",
            detail=hidden(url),
            hint="write it as postgresql://user:password@host:5432/database",
            source=source,
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
                hint="it tries again by itself; is the server running, and are host and port right?",
                source=source,
            ) from None
        raise SourceRefusedError(
            f"{place(url)} refused source {source!r}",
            detail=said,
            hint="check user, password and database of its url; the role needs LOGIN and REPLICATION, "
            "and pg_hba.conf a line that lets it in",
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
    """Take what ends a copy; raises what went wrong in it, once nothing of it is left on the connection."""
    failed: pq.abc.PGresult | None = None
    while (result := pgconn.get_result()) is not None:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            failed = failed or result
        elif result.status in (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_BOTH):
            break
    if failed is not None:
        raise psycopg.errors.error_from_result(failed)


_HINTS = {
    "42501": "`headwater doctor URL` says which rights are missing, with the statement that grants each",
    "55000": "`headwater doctor URL` says what the server lacks, with the statement that mends it",
    "53400": "raise max_replication_slots or max_wal_senders on the server, or drop a slot that nobody reads",
}
