"""Ownership of a workspace: one engine at a time may commit ticks, identified by its epoch. Reading `owner` never blocks.

Each engine has its own file, `engine-<epoch>.lock`, with its process, its last heartbeat, and a lock that it holds
while it runs. The file is locked before it is linked to its name, which only one engine can do; the engine with the
highest epoch is the owner. So a frozen engine can be fenced off: nothing that it does when it resumes affects the files
of its successor.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import uuid
from dataclasses import dataclass

import orjson

from headwater.core.clock import Clock, Microseconds, from_us
from headwater.core.errors import (
    ClosedError,
    CorruptionError,
    EngineRunningError,
    FencedError,
    HeadwaterError,
    WorkspaceMissingError,
)
from headwater.core.storage import File, Storage
from headwater.state import state_files

STALE_AFTER_MS = 10_000.0
"""Time without a heartbeat after which an engine is considered frozen: it beats once a second, also during a tick."""
BEAT_EVERY_MS = 1_000.0


@dataclass(frozen=True)
class Owner:
    """The engine that owns the workspace, or owned it last. `heartbeat` is the time of its last heartbeat."""

    epoch: int
    pid: int
    host: str
    started_at: Microseconds
    heartbeat: Microseconds

    @property
    def is_here(self) -> bool:
        """Whether the engine belongs to this process."""
        return (self.pid, self.host) == (os.getpid(), platform.node())


class Ownership:
    """The right to commit, until `release`, the end of the process, or a takeover. Created by `claim`."""

    def __init__(self, storage: Storage, clock: Clock, epoch: int, lock: File, beat_at: int) -> None:
        self.epoch = epoch
        self._storage = storage
        self._clock = clock
        self._lock: File | None = lock
        self._beat_at = beat_at
        self._beaten_ms = clock.steady_ms()
        self._guard = threading.Lock()
        self._heart: threading.Thread | None = None
        self._done = threading.Event()

    def check(self) -> None:
        """Raise FencedError if another engine has taken over, ClosedError after `release`."""
        if self._lock is None:
            raise ClosedError("this engine has released the workspace", hint="claim it again")
        if (newest := current_epoch(self._storage)) != self.epoch or not self._lock.linked():
            raise fenced(self.epoch, newest)

    def beat(self) -> None:
        """Write a heartbeat at most once a second, so that frequent calls are cheap; runs `check` first."""
        with self._guard:
            now_ms = self._clock.steady_ms()
            if self._lock is None or now_ms - self._beaten_ms >= BEAT_EVERY_MS:
                self.check()
                assert self._lock is not None
                self._beaten_ms = now_ms
                self._lock.write_at(self._beat_at, _beat(self._clock))

    def beat_by_itself(self) -> None:
        """Write heartbeats in a background thread until `release`, so that a long tick or the start of Spark does not
        look frozen.

        The thread ends with the process, or when another engine has taken over; the next `check` then raises.
        """
        self._heart = threading.Thread(target=self._beat_on, name="headwater-heart", daemon=True)
        self._heart.start()

    def _beat_on(self) -> None:
        while not self._done.wait(BEAT_EVERY_MS / 1000):
            try:
                self.beat()
            except FencedError:  # another engine has taken over; the next `check` raises
                return
            except (HeadwaterError, OSError):  # the disk may have recovered by the next beat
                continue

    def release(self) -> None:
        """Release the workspace; further calls do nothing."""
        self._done.set()
        with self._guard:
            if self._lock is not None:
                self._lock.close()
                self._lock = None
        if self._heart is not None:
            self._heart.join()

    def __enter__(self) -> Ownership:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def claim(storage: Storage, clock: Clock, *, stale_after_ms: float = STALE_AFTER_MS) -> Ownership:
    """Become the owner of the workspace, with a new epoch.

    Raises EngineRunningError if another engine is alive. An engine that holds its lock but wrote no heartbeat for
    `stale_after_ms` is fenced off: once this function returns, it can commit nothing.
    """
    storage.make_dirs(state_files.FOLDER)
    while True:
        epoch = current_epoch(storage)
        if epoch and (alive := _alive(storage, clock, epoch, stale_after_ms)):
            raise _running(alive)
        ownership = _take(storage, clock, epoch + 1)
        if ownership is not None:
            _clear(storage, epoch + 1)
            return ownership


def owner(storage: Storage) -> Owner | None:
    """Return the engine that runs on the workspace, None if there is none. A frozen engine has an old heartbeat."""
    found = _read_owner(storage, current_epoch(storage))
    return found[0] if found else None


def alive(storage: Storage, clock: Clock, *, stale_after_ms: float = STALE_AFTER_MS) -> Owner | None:
    """Return the live engine of the workspace; None if no engine runs or the engine is frozen, and `claim` would succeed."""
    return _alive(storage, clock, current_epoch(storage), stale_after_ms)


def current_epoch(storage: Storage) -> int:
    """Return the epoch of the newest engine; 0 if there was none yet."""
    epochs = map(state_files.lock_epoch, storage.list(state_files.FOLDER))
    return max((epoch for epoch in epochs if epoch is not None), default=0)


def fenced(epoch: int, newer: int) -> FencedError:
    """Return the error for an engine that was fenced off."""
    if newer <= epoch:
        return FencedError(
            f"the state of the workspace was deleted while its engine ran (epoch {epoch})",
            detail="nothing of the tick under way was committed",
            hint="start the engine again: it rebuilds the views from the log",
            epoch=epoch,
            newest=newer,
            reason="state-deleted",
        )
    return FencedError(
        f"another engine has taken over: this one has epoch {epoch}, the newest is {newer}",
        detail="nothing of the tick under way was committed",
        hint="stop this engine; the other continues from the last committed tick",
        epoch=epoch,
        newest=newer,
        reason="newer-engine",
    )


def _take(storage: Storage, clock: Clock, epoch: int) -> Ownership | None:
    """Claim an epoch; None if another engine claimed it first."""
    about = {"epoch": epoch, "pid": os.getpid(), "host": platform.node(), "started_at": clock.now_us()}
    text = orjson.dumps(about) + b"\n"
    temporary = state_files.lock_temporary(epoch, uuid.uuid4().hex)
    lock = storage.open(temporary, exclusive=True)
    try:
        lock.write_at(0, text + _beat(clock))
        lock.sync()
        if not lock.try_lock():
            raise AssertionError("nobody else knows the name of this file")
        storage.link(temporary, state_files.lock_name(epoch))
        lock.name = state_files.lock_name(epoch)
        storage.remove(temporary)
        storage.sync_dir(state_files.FOLDER)
    except (
        FileExistsError,
        WorkspaceMissingError,
    ):  # claimed by another engine, which may have removed the temporary file
        lock.close()
        storage.remove(temporary)
        return None
    except HeadwaterError:
        lock.close()
        raise
    return Ownership(storage, clock, epoch, lock, len(text))


def _clear(storage: Storage, epoch: int) -> None:
    """Remove the files that older engines need to commit.

    A manifest is committed by linking its temporary file, so a manifest that was checked before this claim can no
    longer be linked after it.
    """
    for file in storage.list(state_files.MANIFESTS):
        origin = state_files.temporary_origin(file)
        # a folder of such a name is foreign
        if origin is not None and origin.epoch < epoch and file in storage.files(state_files.MANIFESTS):
            storage.remove(f"{state_files.MANIFESTS}/{file}")
    for file in storage.files(state_files.FOLDER):
        older = state_files.lock_epoch(file)
        if state_files.is_lock_temporary(file) or (older is not None and older < epoch):
            storage.remove(f"{state_files.FOLDER}/{file}")


def _alive(storage: Storage, clock: Clock, epoch: int, stale_after_ms: float) -> Owner | None:
    """Return the engine of an epoch, if it runs and is not frozen."""
    found = _read_owner(storage, epoch)
    if found is None:
        return None
    # The lock is held, so the machine has not restarted: the heartbeat is on the same steady clock.
    return found[0] if clock.steady_ms() - found[1] <= stale_after_ms else None


def _read_owner(storage: Storage, epoch: int) -> tuple[Owner, float] | None:
    """Return the engine of an epoch and its last heartbeat on the steady clock, if it holds its lock."""
    name = state_files.lock_name(epoch)
    try:
        lock = storage.open(name, read_only=True)
    except WorkspaceMissingError:
        return None
    with contextlib.closing(lock):
        if not lock.locked():
            return None
        lines = lock.read_at(0, lock.size()).splitlines()
    try:
        about, beaten = map(orjson.loads, lines)
        who = Owner(epoch, about["pid"], about["host"], about["started_at"], beaten["at"])
        return who, float(beaten["steady_ms"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise CorruptionError(
            f"{name} is damaged at byte 0",
            detail="the file names the engine that runs; views and the log are not affected",
            hint="stop that engine and start another",
            file=name,
            offset=0,
        ) from error


def _beat(clock: Clock) -> bytes:
    """Return a heartbeat line, of constant length so that a later heartbeat can overwrite the line in place."""
    text = orjson.dumps({"at": clock.now_us(), "steady_ms": round(clock.steady_ms(), 3)})
    return text.ljust(79) + b"\n"


def _running(who: Owner) -> EngineRunningError:
    since = from_us(who.started_at)
    return EngineRunningError(
        f"another engine is running on this workspace: process {who.pid} on {who.host}, "
        f"since {since:%Y-%m-%d %H:%M:%S} UTC",
        hint="this process can read and follow the engine's ticks; stop that engine to run another",
        pid=who.pid,
        host=who.host,
        since=since,
        epoch=who.epoch,
    )
