"""How the server behaves: each setting with its unit, its default and the reason for it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import cached_property

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
PORT = 8321


@dataclass(frozen=True)
class ServerSettings:
    """What `headwater serve` was told, and what it was not."""

    host: str = "127.0.0.1"
    port: int = PORT
    """0 is any that is free."""
    allow_hosts: tuple[str, ...] = ()
    """Names beside the loopback's that requests may call the server by: a page elsewhere cannot make its own name mean us."""
    allow_origins: tuple[str, ...] = ()
    """Web pages of other origins that may call, such as 'https://shop.example'."""
    certificate: str | None = None
    key: str | None = None
    insecure: bool = False
    """Listen beyond the loopback without tokens."""
    body_bytes_max: int = 64 << 20
    """A larger body is refused: large loads are better sent in pieces, each with its receipt."""
    in_flight_bytes_max: int = 256 << 20
    """Bodies that are received and not yet written; more are told to come again."""
    posts_waiting_max: int = 10_000
    """The same by number."""
    head_s: float = 10.0
    """How long the head of a request may take to come, and a new connection to send one."""
    body_s: float = 60.0
    """How long a body may take to come: who sends it a byte at a time holds nothing for ever."""
    connections_max: int = 4_000
    """Connections at once, with those of streams; fewer where the system gives the process fewer files."""
    read_threads: int = 8
    write_threads: int = 4
    query_threads: int = 2
    """Queries have threads of their own: a long one holds up no read by key."""
    queries_waiting_max: int = 100
    query_s: float = 30.0
    """A query that takes longer is broken off: who asks for more than that wants a view."""
    reads_waiting_max: int = 1_000
    """Reads that wait for a thread; more are told to come again."""
    streams_max: int = 2_000
    """Streams that are open at once; an idle one costs a few kilobytes and no thread."""
    keep_alive_s: float = 15.0
    """How often an idle stream says that it is there: below the silence that proxies allow."""
    stop_s: float = 10.0
    """How long requests may take to end once the server is told to stop."""
    retry_after_s: int = 1

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host in LOOPBACK_NAMES:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @cached_property
    def names(self) -> frozenset[str]:
        """What a request may call the server, in lower case and without a port."""
        return LOOPBACK_NAMES | {self.host.lower()} | {name.lower() for name in self.allow_hosts}
