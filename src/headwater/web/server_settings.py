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
    """Let everybody in while there is no token: also beyond the loopback, and though there have been tokens."""
    body_bytes_max: int = 64 << 20
    """A larger body is refused: large loads are better sent in pieces, each with its receipt."""
    body_rows_max: int = 1_000_000
    """A body of more rows is refused: rows may take no bytes at all on their way here, and each takes a hundred or so in memory."""
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
    """A query or another read that takes longer is broken off: who asks for more than that wants a view."""
    light_query_s: float = 1.0
    """A query that takes longer than this in the server goes to a process, and its thread to the next query."""
    query_processes: int = 2
    """Processes for queries that take long or cannot be interrupted; a query that does not end in time ends with its process."""
    query_memory_bytes: int = 4 << 30
    """What a query may take in such a process: the rows that it reads, its work and its answer."""
    scan_threads: int = 2
    """Threads for reads that go through all rows of a view or an index: they hold up no read by key."""
    stream_threads: int = 8
    """Threads that look for what streams say next: a tick wakes all streams, which hold up nobody else."""
    reads_waiting_max: int = 1_000
    """Reads that wait for a thread; more are told to come again."""
    write_s: float = 60.0
    """How long a post may take to be written; later it is written all the same, and the client does not know."""
    answer_bytes_max: int = 256 << 20
    """The rows of one answer to a query."""
    answers_bytes_max: int = 256 << 20
    """Large answers that clients have not taken in yet."""
    answer_s: float = 600.0
    """How long a client may take to take in an answer that is no stream."""
    stall_s: float = 60.0
    """A client that takes in nothing for so long is cut off, of a stream too."""
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
