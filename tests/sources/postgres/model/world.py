"""What steps act on: a database of a real server, the process that captures it, and the model of what happened to both."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psycopg

from headwater.core.errors import HeadwaterError
from tests.postgres import PostgresServer
from tests.sources.pipelines import Follower, Row
from tests.sources.postgres.model.model import TABLES, Model

_CODE = "code int NOT NULL DEFAULT nextval('codes')"
"""A column that tells rows apart as well as the key does, and is not the key."""
ORDERS = f"id int PRIMARY KEY, {_CODE}, n int, body text"
PARTS = f"id int PRIMARY KEY, {_CODE}, n int"
SETUP = (
    "CREATE SEQUENCE codes",
    f"CREATE TABLE orders ({ORDERS})",
    "CREATE UNIQUE INDEX orders_code ON orders (code)",
    "ALTER TABLE orders ALTER body SET STORAGE EXTERNAL",
    "INSERT INTO orders (id, n, body) SELECT i, i, 'row ' || i FROM generate_series(1, 12) i",
    f"CREATE TABLE parts ({PARTS}) PARTITION BY RANGE (id)",
    "CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (100) TO (200)",
    "CREATE UNIQUE INDEX parts_0_code ON parts_0 (code)",
    "CREATE UNIQUE INDEX parts_1_code ON parts_1 (code)",
    "INSERT INTO parts (id, n) SELECT i * 20, i FROM generate_series(1, 8) i",
)
SLOT = PUBLICATION = "headwater_shop"
_MINE = f"FROM pg_replication_slots WHERE slot_name = '{SLOT}'"


def publish(what: str) -> str:
    """The statement that makes the publication: of the tables, of all tables of their schema, or of all tables."""
    named = {"tables": f"TABLE {', '.join(TABLES)}", "schema": "TABLES IN SCHEMA public", "all": "ALL TABLES"}
    return f"CREATE PUBLICATION {PUBLICATION} FOR {named[what]} WITH (publish_via_partition_root = true)"


class World:
    """One database, the capturing process, and the model; made anew for each script."""

    def __init__(
        self, server: PostgresServer, folder: Path, options: dict[str, Any], streaming: str, published: str
    ) -> None:
        """`streaming`: which transactions the server sends before they end, `buffered` for large ones or `immediate` for all."""
        self.server = server
        self.folder = folder
        self.url = server.make_database()
        self.capture = Follower(self.url, folder, {"tables": ", ".join(TABLES), **options})
        self.model = Model(str(options.get("on_gap", "stop")))
        self.refused: str | None = None
        """Why the server refused the last step, if it did: the step has changed nothing."""
        self.stopped: HeadwaterError | None = None
        """Why the source has stopped, since it was last asked."""
        self.stops = 0
        """How often the source or a table had to be told to restart."""
        self._session: psycopg.Connection[Any] | None = None
        name = psycopg.conninfo.conninfo_to_dict(self.url)["dbname"]
        self.run(f"ALTER DATABASE \"{name}\" SET debug_logical_replication_streaming = '{streaming}'")
        self.run(*SETUP)
        if "publication" in options:
            self.run(publish(published))

    @property
    def session(self) -> psycopg.Connection[Any]:
        """The application's connection, made again after the server has ended it."""
        if self._session is None or self._session.closed or self._session.broken:
            self._session = psycopg.connect(self.url, autocommit=True, prepare_threshold=None)
            self._session.execute("SET lock_timeout = '100ms'")
        return self._session

    def run(self, *statements: str) -> bool:
        """Run statements as one transaction; False if the server refuses one, and then nothing is changed."""
        try:
            with self.session.transaction():
                for statement in statements:
                    self.session.execute(statement)  # type: ignore[call-overload]
        except psycopg.Error as error:
            self.refused = str(error).splitlines()[0]
            return False
        return True

    def run_alone(self, statement: str) -> bool:
        """Run a statement that cannot be part of a transaction, or ends one; False if the server refuses it."""
        try:
            self.session.execute(statement)  # type: ignore[call-overload]
        except psycopg.Error as error:
            self.refused = str(error).splitlines()[0]
            return False
        return True

    def rows(self, table: str) -> dict[Any, Row] | None:
        """A table as it is, by its key; None if there is no such table."""
        try:
            cursor = self.session.execute(f"SELECT * FROM {table}")  # type: ignore[call-overload]
        except psycopg.errors.UndefinedTable:
            return None
        names = [column.name for column in cursor.description or ()]
        found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return {tuple(row[name] for name in ("id",) if name in row) or repr(row): row for row in found}

    def topic(self, table: str) -> dict[Any, Row]:
        """The current state of a table's topic, by its key."""
        return self.capture.contents.get(table, {})

    def prepared(self) -> list[str]:
        """The transactions that are prepared and not ended."""
        found = self.session.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        return [gid for (gid,) in found]

    def free_slot(self, *, kills: bool = True) -> bool:
        """End whoever reads from the slot, with the capturing process or without it; False if there is no slot."""
        if kills:
            self.capture.close()
        ended = f"SELECT pg_terminate_backend(active_pid, 5000) {_MINE} AND active_pid IS NOT NULL"
        self.session.execute(ended)  # type: ignore[call-overload]
        return self.session.execute(f"SELECT 1 {_MINE}").fetchone() is not None  # type: ignore[call-overload]

    def take_event(self) -> bool:
        """Have the capturing process take one event; False if it has ended, with `stopped` as the reason if that is final."""
        try:
            self.capture.step()
        except HeadwaterError as error:
            source = self.capture.source
            self.capture.close()
            if not error.retryable and not (source is not None and source.restarts(error)):
                self.stopped = error
            return False
        return True

    # The server's data directory.

    @property
    def _copy(self) -> Path:
        return self.server.folder / "copy"

    def stop_server(self, *, crashes: bool = False) -> None:
        """Stop the server. In order it waits until what it has sent is confirmed, so the capturing process reads on meanwhile."""
        if self._session is not None:
            self._session.close()
        if crashes:
            self.server.stop(signal.SIGQUIT)
            return
        stopping = threading.Thread(target=self.server.stop, args=[signal.SIGINT])
        stopping.start()
        while stopping.is_alive() and self.capture.source is not None:
            self.take_event()
        stopping.join()

    def copy_data(self) -> None:
        """Keep a copy of the data directory, in place of an earlier one."""
        self.stop_server()
        shutil.rmtree(self._copy, ignore_errors=True)
        copy_tree(self.server.data, self._copy)
        self.server.start()

    def promote(self) -> None:
        """Have the server, which is not running, go on as a standby does that becomes the primary: on a new timeline."""
        signal_file = self.server.data / "recovery.signal"
        signal_file.touch()
        shutil.copymode(self.server.data / "PG_VERSION", signal_file)
        owner = (self.server.data / "PG_VERSION").stat()
        os.chown(signal_file, owner.st_uid, owner.st_gid)
        self.server.start()
        while self.session.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
            time.sleep(0.02)

    def restore_data(self, *, promotes: bool = False) -> bool:
        """Put the copy in place of the data directory; False if there is none."""
        if not self._copy.exists():
            return False
        self.stop_server(crashes=True)
        shutil.rmtree(self.server.data)
        copy_tree(self._copy, self.server.data)
        if promotes:
            self.promote()
        else:
            self.server.start()
        return True

    def close(self) -> None:
        """End the capturing process and remove the database."""
        self.capture.close()
        if self._session is not None:
            self._session.close()
        shutil.rmtree(self._copy, ignore_errors=True)
        self.server.drop_database(self.url)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder with the owners of its files."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
