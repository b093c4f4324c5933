"""Receives the stream in a thread, and sends status updates to the server in time.

The thread reads ahead up to a memory limit: while the log syncs one append, the rows of the next are received. It also confirms
to the server what the log has durably, whatever the reader is doing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from headwater.core.errors import SourceError
from headwater.sources.postgres.server.connection import Replication

EVERY_S = 10.0
"""Longest interval between status updates to the server."""
AHEAD_BYTES_MAX = 16 << 20
DRAIN_MESSAGES, DRAIN_BYTES = 2_000, 4 << 20
"""Limits of one read. Together with the read-ahead and one larger message, the bytes stay below the limit of an Arrow
column."""
_PAUSE_S = 0.1


class Receiver:
    """Buffers the messages of the stream in the order of their arrival."""

    def __init__(self, replication: Replication, durable: Callable[[], int], timeout_ms: int) -> None:
        self._replication = replication
        self._durable = durable
        self._every_s = min(EVERY_S, timeout_ms / 3_000) if timeout_ms else EVERY_S
        self._reported, self._reported_at = -1, time.monotonic()
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._error: SourceError | None = None
        self._changed = threading.Condition()
        self._stop = False
        self._thread = threading.Thread(target=self._loop, name="headwater-receiver", daemon=True)
        self._thread.start()

    @property
    def has_more(self) -> bool:
        """Whether the buffer has messages."""
        return bool(self._messages)

    def take(self, messages_max: int, wait_s: float) -> list[bytes]:
        """Return buffered messages, the oldest first; waits up to `wait_s` if there are none. Raises the error that ended the
        stream."""
        with self._changed:
            if not self._messages and self._error is None and wait_s > 0:
                self._changed.wait(wait_s)
            if not self._messages and self._error is not None:
                raise self._error
            if len(self._messages) <= messages_max:
                taken = list(self._messages)
                self._messages.clear()
                self._bytes = 0
            else:
                taken = [self._messages.popleft() for _ in range(messages_max)]
                self._bytes -= sum(map(len, taken))
            self._changed.notify()
        return taken

    def send_status(self, *, always: bool = False) -> None:
        """Confirm the durable position to the server if it has advanced, or `always`."""
        durable = max(self._durable(), 0)
        if always or durable > self._reported:
            self._replication.confirm(durable, durable)
            self._reported, self._reported_at = durable, time.monotonic()

    def close(self) -> None:
        """Stop receiving."""
        with self._changed:
            self._stop = True
            self._changed.notify()
        self._thread.join()

    def _loop(self) -> None:
        try:
            while not self._stop:
                if self._bytes < AHEAD_BYTES_MAX:
                    self._read()
                else:
                    with self._changed:
                        self._changed.wait(min(_PAUSE_S, self._every_s))
                if time.monotonic() - self._reported_at >= self._every_s:
                    self.send_status(always=True)
        except SourceError as error:
            with self._changed:
                self._error = error
                self._changed.notify()

    def _read(self) -> None:
        messages = self._replication.drain(DRAIN_MESSAGES, DRAIN_BYTES)
        if not messages:
            self._replication.wait(min(_PAUSE_S, self._every_s))
            return
        with self._changed:
            self._messages.extend(messages)
            self._bytes += sum(map(len, messages))
            self._changed.notify()
