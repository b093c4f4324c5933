"""Settings of the server, with units, defaults and reasons."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import cached_property

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
PORT = 8321


@dataclass(frozen=True)
class ServerSettings:
    """Settings of `headwater serve`, with defaults for those not given."""

    host: str = "127.0.0.1"
    """Address to listen at."""
    port: int = PORT
    """0 is any free port."""
    allow_hosts: tuple[str, ...] = ()
    """Names other than the loopback's by which requests may call the server: other names are rejected, against DNS
    rebinding."""
    allow_origins: tuple[str, ...] = ()
    """Web pages of other origins that may call the server, such as 'https://shop.example'."""
    certificate: str | None = None
    """File with the certificate for TLS."""
    key: str | None = None
    """File with the private key of the certificate."""
    insecure: bool = False
    """Accept all requests while there is no token: also from other machines, and even if there were tokens before."""
    body_bytes_max: int = 64 << 20
    """Largest body, in bytes; larger loads are better sent in pieces, each with its receipt."""
    body_rows_max: int = 1_000_000
    """Maximum number of rows in a body: rows may take no bytes at all in a body, but each takes about a hundred in memory."""
    in_flight_bytes_max: int = 256 << 20
    """Bytes of bodies that are received and not yet written; further posts are rejected with 429."""
    posts_waiting_max: int = 10_000
    """Number of posts that are received and not yet written; further posts are rejected with 429."""
    head_s: float = 10.0
    """Seconds in which the head of a request must arrive, and a new connection must send one."""
    body_s: float = 60.0
    """Seconds in which a body must arrive: a client that sends a byte at a time occupies nothing forever."""
    connections_max: int = 4_000
    """Maximum number of connections, including streams; fewer if the system allows the process fewer open files."""
    read_threads: int = 8
    """Threads of reads by key and of other short reads."""
    write_threads: int = 4
    """Threads that write posts."""
    query_threads: int = 2
    """Threads of queries, which are separate: a long query delays no read by key."""
    queries_waiting_max: int = 100
    """Number of queries that wait for a thread; further queries are rejected with 429."""
    query_s: float = 30.0
    """Seconds after which a query or another read is stopped: a longer query should be a view."""
    light_query_s: float = 1.0
    """Seconds after which a query is moved from the server to a process, so that its thread can run the next one."""
    query_processes: int = 2
    """Processes for queries that take long or cannot be interrupted; a query that exceeds its time is killed with its
    process."""
    query_memory_bytes: int = 4 << 30
    """Memory of a query in such a process, in bytes: the rows that it reads, its working memory and its result."""
    scan_threads: int = 2
    """Threads for reads of all rows of a view or an index: they delay no read by key."""
    stream_threads: int = 8
    """Threads that compute the next pieces of streams: a tick wakes all streams, which delay no other request."""
    reads_waiting_max: int = 1_000
    """Number of reads that wait for a thread; further reads are rejected with 429."""
    write_s: float = 60.0
    """Seconds that a post waits to be written; later the post is written all the same, but its client gets an error."""
    answer_bytes_max: int = 256 << 20
    """Largest result of one query, in bytes."""
    answers_bytes_max: int = 256 << 20
    """Bytes of large responses that clients have not read yet."""
    answer_s: float = 600.0
    """Seconds that a client may take to read a response that is not a stream."""
    stall_s: float = 60.0
    """Seconds after which a client that reads nothing is disconnected, also from a stream."""
    streams_max: int = 2_000
    """Maximum number of open streams; an idle one takes a few kilobytes and no thread."""
    keep_alive_s: float = 15.0
    """Seconds between keep-alives of an idle stream: less than the idle time that proxies allow."""
    stop_s: float = 10.0
    """Seconds that requests may take to end once the server is stopping."""
    retry_after_s: int = 1
    """Seconds after which a rejected client may retry, as `Retry-After` says."""

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host in LOOPBACK_NAMES:
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @cached_property
    def names(self) -> frozenset[str]:
        """Names by which requests may call the server, in lower case and without a port."""
        return LOOPBACK_NAMES | {self.host.lower()} | {name.lower() for name in self.allow_hosts}
