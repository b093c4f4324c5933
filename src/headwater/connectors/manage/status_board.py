"""The status board: the process that runs sources and sinks publishes their status in a small file, written every second.

The board is informative, not authoritative: the checkpoint of a sink is in its target, the position of a source in the log.
A torn or missing file is ignored.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import orjson

from headwater.core.clock import Clock, Microseconds
from headwater.core.errors import StorageError
from headwater.core.faults import Component, Faults
from headwater.core.storage import Storage

FILE = "outside.json"
EVERY_S = 1.0
STALE_AFTER_US: Microseconds = 10_000_000
"""Age from which on a status is ignored: its process has ended or is frozen."""


@dataclass(frozen=True)
class PublishedStatus:
    """The status of sources and sinks at a time."""

    at: Microseconds
    process: int = field(default_factory=os.getpid)
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sinks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class StatusBoard:
    """Writes and reads the file of the status board."""

    def __init__(
        self, storage: Storage, clock: Clock, file: str = FILE, faults: Faults | None = None
    ) -> None:
        self._file = file
        self._component = Component(faults or Faults(storage, clock), "background", f"writing of {file}")
        self._storage = storage
        self._clock = clock
        self._mine = uuid.uuid4().hex
        self._ended = threading.Event()
        self._publisher: threading.Thread | None = None

    def start_publishing(self, status: Callable[[], PublishedStatus]) -> None:
        """Publish the status every second, until `clear`, in a thread of its own, because a tick may take longer than
        `STALE_AFTER_US`."""
        if self._publisher is None:
            self._ended = threading.Event()
            self._publisher = threading.Thread(
                target=self._publish, args=(status, self._ended), name="headwater-status", daemon=True
            )
            self._publisher.start()

    def clear(self) -> None:
        """Stop publishing and remove the file: nothing runs here any more."""
        if self._publisher is not None:
            self._ended.set()
            self._publisher.join()
            self._publisher = None
            self._storage.remove(self._file)

    def _publish(self, status: Callable[[], PublishedStatus], ended: threading.Event) -> None:
        while not ended.is_set():
            try:
                self._write(status())
                self._component.works()
            except Exception as error:  # noqa: BLE001 - the next attempt publishes the status
                if not ended.is_set():
                    self._component.failed(
                        error, "other processes do not see the status of sources and sinks"
                    )
            ended.wait(EVERY_S)

    def _write(self, status: PublishedStatus) -> None:
        document = {
            "whose": self._mine,
            "at": status.at,
            "process": status.process,
            "sources": status.sources,
            "sinks": status.sinks,
        }
        temporary = f"{self._file}.{os.getpid()}.tmp"
        with closing(self._storage.open(temporary, create=True)) as file:
            file.truncate(0)
            file.write_at(0, orjson.dumps(document, default=str))
        self._storage.rename(temporary, self._file)

    def read(self) -> PublishedStatus | None:
        """Return the status that another process published within the last seconds; None if there is none, or it is our own."""
        try:
            if not self._storage.exists(self._file):
                return None
            document = orjson.loads(self._storage.read(self._file))
            found = PublishedStatus(
                document["at"], document["process"], document["sources"], document["sinks"]
            )
        except (StorageError, OSError, ValueError, KeyError, TypeError):
            return None
        stale = self._clock.now_us() - found.at > STALE_AFTER_US
        return None if stale or document.get("whose") == self._mine else found
