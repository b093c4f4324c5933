"""Waits for commits of other processes without polling: the kernel reports a write to a topic's wake file.

inotify on Linux, kqueue on macOS; elsewhere a check every few milliseconds. One thread per process serves all waiters.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from typing import Protocol

POLL_MS = 5.0


class _Watcher(Protocol):
    def add(self, path: str) -> int: ...
    def drain(self) -> list[int]: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class _Inotify:
    """Watches files on Linux, with one inotify instance and one watch per file."""

    def __init__(self) -> None:
        import inotify_simple

        self._inotify = inotify_simple.INotify()
        flags = inotify_simple.flags
        self._mask = flags.MODIFY | flags.CREATE | flags.DELETE_SELF  # CREATE: for watched folders
        self._stop_read, self._stop_write = os.pipe()
        # not select(), which fails for file descriptors from 1,024 on
        self._ready = select.poll()
        for fd in (self._inotify.fileno(), self._stop_read):
            self._ready.register(fd, select.POLLIN)

    def add(self, path: str) -> int:
        return int(self._inotify.add_watch(path, self._mask))

    def drain(self) -> list[int]:
        if any(fd == self._stop_read for fd, _ in self._ready.poll()):
            return []
        return [event.wd for event in self._inotify.read(timeout=0)]

    def stop(self) -> None:
        os.write(self._stop_write, b"x")

    def close(self) -> None:
        self._inotify.close()
        os.close(self._stop_read)
        os.close(self._stop_write)


class _Kqueue:
    """Watches files on macOS and BSD, with one kqueue and a vnode filter per file."""

    def __init__(self) -> None:
        self._queue = select.kqueue()  # type: ignore[attr-defined,unused-ignore]
        self._stop_read, self._stop_write = os.pipe()
        self._watched: list[int] = []
        self._control(self._stop_read, select.KQ_FILTER_READ, 0)  # type: ignore[attr-defined,unused-ignore]

    def _control(self, fd: int, kind: int, notes: int) -> None:
        flags = select.KQ_EV_ADD | select.KQ_EV_CLEAR  # type: ignore[attr-defined,unused-ignore]
        event = select.kevent(fd, kind, flags, notes)  # type: ignore[attr-defined,unused-ignore]
        self._queue.control([event], 0)

    def add(self, path: str) -> int:
        fd = os.open(path, os.O_RDONLY)
        notes = select.KQ_NOTE_WRITE | select.KQ_NOTE_DELETE  # type: ignore[attr-defined,unused-ignore]
        self._control(fd, select.KQ_FILTER_VNODE, notes)  # type: ignore[attr-defined,unused-ignore]
        self._watched.append(fd)
        return fd

    def drain(self) -> list[int]:
        events = self._queue.control(None, 64, None)
        if any(e.ident == self._stop_read for e in events):
            return []
        return [e.ident for e in events]

    def stop(self) -> None:
        os.write(self._stop_write, b"x")

    def close(self) -> None:
        self._queue.close()
        for fd in (*self._watched, self._stop_read, self._stop_write):
            os.close(fd)


def mechanism(platform: str = sys.platform) -> str:
    """Return the notification mechanism of a platform: 'inotify', 'kqueue' or 'polling'."""
    if platform.startswith("linux"):
        return "inotify"
    return "kqueue" if hasattr(select, "kqueue") else "polling"


class Notifier:
    """Counts the writes to files, and the files created in folders; `wait` blocks until a count has changed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._counts: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        self._watcher: _Watcher | None = None
        self._polling = False
        self._closed = False
        self._pid = os.getpid()

    def count(self, path: str) -> int:
        """Return the number of writes to `path` since the first call for it, which starts the watch."""
        with self._changed:
            if self._pid != os.getpid():  # a fork does not copy the thread
                self.__init__()  # type: ignore[misc]
            if path not in self._counts:
                self._counts[path] = 0
                self._watch(path)
            return self._counts[path]

    def wait(self, path: str, count: int, timeout_ms: float) -> None:
        """Return when the count of `path` is no longer `count`, or at the timeout; sooner where files are polled."""
        with self._changed:
            polled = self._polling
            if polled:
                timeout_ms = min(timeout_ms, POLL_MS)
            self._changed.wait_for(
                # the watcher may fail during the wait
                lambda: self._closed or self._polling != polled or self._counts.get(path) != count,
                timeout_ms / 1e3,
            )

    def close(self) -> None:
        """Wake every waiting thread and end the watching thread, which closes its files."""
        with self._changed:
            if not self._closed and self._watcher is not None and self._pid == os.getpid():
                self._watcher.stop()
            self._closed = True
            self._changed.notify_all()

    def _watch(self, path: str) -> None:
        if self._watcher is None and not self._polling:
            try:
                self._watcher = _Inotify() if mechanism() == "inotify" else _Kqueue()
                threading.Thread(target=self._serve, name="headwater-wake", daemon=True).start()
            except (OSError, ImportError, AttributeError):
                self._polling = True  # out of inotify instances, or an unknown platform
        if self._watcher is not None:
            try:
                self._paths[self._watcher.add(path)] = path
            except OSError:
                self._polling = True

    def _serve(self) -> None:
        try:
            self._count_events()
        except Exception:  # noqa: BLE001 - the waiters poll from now on
            with self._changed:
                self._polling = True
                self._changed.notify_all()

    def _count_events(self) -> None:
        watcher = self._watcher
        while watcher is not None and not self._closed:
            with contextlib.suppress(InterruptedError):
                events = watcher.drain()
                with self._changed:
                    for number in events:
                        if path := self._paths.get(number):
                            self._counts[path] += 1
                    self._changed.notify_all()
        if watcher is not None:
            watcher.close()
