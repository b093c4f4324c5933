"""A UDP socket drained continuously by a thread, so that the kernel does not discard datagrams while rows are written.

Losses are counted where they occur: by the kernel when the socket queue is full (Linux reports this in /proc/net/udp), and by
this process when more than the maximum waits to be appended.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from pathlib import Path

from headwater.core.clock import Clock
from headwater.core.errors import SourceUnreachableError
from headwater.sources.statsd.statsd_lines import Received

DATAGRAM_BYTES_MAX = 1 << 16
GATHERED_BYTES = 1 << 20
ROUNDS_MAX = 64
POLL_MS = 100
_LINE_END = ord("\n")
_TABLES = ("/proc/net/udp", "/proc/net/udp6")


class UdpListener:
    """Receives datagrams from its creation until it is closed. `take` must be called by one thread only."""

    def __init__(self, listening: socket.socket, clock: Clock, held_bytes_max: int) -> None:
        self._socket = listening
        self._socket.setblocking(False)
        self._inode = str(os.fstat(listening.fileno()).st_ino)
        self._clock = clock
        self._held_bytes_max = held_bytes_max
        self._room = bytearray(GATHERED_BYTES)
        self._received: list[Received] = []
        self._bytes = self._lines = 0
        self.packets = self.overflowed = 0
        self._error: Exception | None = None
        self._new_lines = threading.Condition()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._receive, name="headwater-statsd", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Address and port of the socket."""
        host, port = self._socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def wait(self, lines: int, timeout_s: float) -> None:
        """Wait until `lines` lines have arrived, at most `timeout_s` seconds."""
        with self._new_lines:
            self._new_lines.wait_for(lambda: self._lines >= lines or self._ended.is_set(), timeout_s)

    def lines(self) -> int:
        """Return the number of received lines, including those in the kernel's queue. Raises the error that ended the receiving
        thread."""
        with self._new_lines:
            if self._error is not None:
                raise self._error
            self._drain()
            return self._lines

    def take(self) -> list[Received]:
        """Return everything received so far. Raises the error that ended the receiving thread, if any."""
        with self._new_lines:
            if self._error is not None:
                raise self._error
            self._drain()
            found, self._received = self._received, []
            self._bytes = self._lines = 0
            return found

    def dropped(self) -> int | None:
        """Return the number of datagrams that the kernel dropped since the socket was created; None if the system does not
        report it."""
        for table in _TABLES:
            with contextlib.suppress(OSError):
                for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                    words = line.split()
                    if len(words) > 12 and words[9] == self._inode:
                        return int(words[12])
        return None

    def end(self) -> None:
        """Stop receiving; what has arrived so far can still be taken."""
        if not self._ended.is_set():
            with self._new_lines:
                self._drain()
                self._ended.set()
                self._new_lines.notify_all()

    def close(self) -> None:
        """Stop receiving, and close the socket."""
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def _receive(self) -> None:
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        while not self._ended.is_set():
            if waiting.poll(POLL_MS):
                with self._new_lines:
                    try:
                        self._drain()
                    except Exception as error:  # noqa: BLE001 - `take` raises it, so that the source stops with the reason
                        self._error = error
                        return
                    finally:
                        self._new_lines.notify_all()

    def _drain(self) -> None:
        """Receive what is in the kernel's queue, but no more than fits in it, so that the loop ends even during a flood."""
        for _ in range(0 if self._ended.is_set() else ROUNDS_MAX):
            if not self._gather():
                return

    def _gather(self) -> bool:
        """Receive as many datagrams as fit in the buffer; returns whether there may be more."""
        view, end, packets, more = memoryview(self._room), 0, 0, True
        receive = self._socket.recv_into
        try:
            while end + DATAGRAM_BYTES_MAX < GATHERED_BYTES:
                end += receive(view[end:])
                self._room[end] = _LINE_END
                end += 1
                packets += 1
        except OSError:  # no more for now, or an ICMP error from another host
            more = False
        if packets:
            self.packets += packets
            self._hold(bytes(view[: end - 1]), packets)
        return more

    def _hold(self, blob: bytes, packets: int) -> None:
        if self._bytes + len(blob) > self._held_bytes_max:
            self.overflowed += packets
            return
        self._received.append((self._clock.now_us(), blob))
        self._bytes += len(blob)
        self._lines += blob.count(b"\n") + 1


def bound(host: str, port: int, receive_bytes: int) -> socket.socket:
    """Return a socket bound to an address; SourceUnreachableError if the address is not available."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)  # the kernel may give less
        made.bind((host, port))
    except (OSError, OverflowError) as error:
        made.close()
        raise SourceUnreachableError(
            f"cannot bind UDP port {port} of {host}: {error}",
            hint="stop the other process that listens there, or set another port or host",
            host=host,
            port=port,
        ) from None
    return made
