"""StatsD source, created by `CREATE SOURCE ... FROM STATSD`: receives metrics over UDP.

Guarantee: at most once. The protocol has neither acknowledgements nor sequence numbers. What is sent while no process listens
is lost, and so is what was received but not yet appended when the process ends. Nothing is duplicated: a batch is one append.
Losses while the source listens are counted where they can be detected: malformed lines, and datagrams for which the kernel or
this process had no room.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.arguments import span_us, text, whole_number
from headwater.core.clock import Clock, Microseconds, SystemClock
from headwater.core.errors import SourceUnreachableError, UsageError
from headwater.core.settings import parse_bytes
from headwater.log.protocol import ProducerInfo
from headwater.sources.base import AWAY, Commit, Event, Position, Quiet, Rows
from headwater.sources.clock_positions import ClockPositions, captured, owned, rows_of
from headwater.sources.source_setup import SourceSetup
from headwater.sources.statsd.statsd_lines import COLUMNS, EXAMPLES_MAX, Parsed, parse, pieces
from headwater.sources.statsd.udp_listener import UdpListener, bound
from headwater.sql.parser import parse_columns

HOST = "127.0.0.1"
PORT_MAX = 65_535
EVERY = "1 second"
ROWS = 50_000
RECEIVE_BUFFER = "4 MB"
BUFFERED_BYTES_MAX = 64 << 20
"""Maximum number of bytes that wait to be appended; further datagrams are dropped and counted."""
LATENESS = "10 seconds"
MAX_AHEAD = "1 minute"
"""Bound for the explicit times of lines: a time further ahead does not raise the watermark."""
QUIET_S = 0.2
RETRY_S = 1.0
SAID_EVERY_MS = 2_000.0
_COUNTED = ("packets", "lines", "malformed", "dropped_by_kernel", "dropped_here")


@dataclass(frozen=True)
class StatsdOptions:
    """The checked options: a batch is appended after `every_us`, or when it has `rows` lines."""

    host: str
    port: int
    topic: str
    every_us: Microseconds
    rows: int
    receive_bytes: int
    lateness_us: Microseconds


@dataclass
class StatsdStatus:
    """Status of the source: its state in words, and counts since it was declared."""

    state: str = "not listening"
    counts: dict[str, int] = field(default_factory=dict)
    last_refused: deque[str] = field(default_factory=lambda: deque(maxlen=EXAMPLES_MAX))


def read_options(source: str, options: Mapping[str, Any]) -> StatsdOptions:
    """The checked options; UsageError names what is wrong."""
    port = whole_number(options.get("port"), "port", hint="port = 8125")
    if port > PORT_MAX:
        raise UsageError(
            f"port must be at most {PORT_MAX}, not {port}", hint="port = 8125", option="port", value=port
        )
    return StatsdOptions(
        host=text(options.get("host", HOST), "host"),
        port=port,
        topic=text(options.get("topic") or source, "topic"),
        every_us=span_us(options.get("every", EVERY), "every"),
        rows=whole_number(options.get("rows", ROWS), "rows", least=1),
        receive_bytes=parse_bytes(options.get("receive_buffer", RECEIVE_BUFFER)),
        lateness_us=span_us(options.get("lateness", LATENESS), "lateness"),
    )


class StatsdSource:
    """A `DeclaredSource` that listens while it is read; see `headwater.sources.base` for the contract of each method."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        definition: Callable[[str], TopicDefinition | None],
        producer: Callable[[], ProducerInfo | None],
        *,
        listening: socket.socket | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`definition` returns the current definition of a topic; `producer`, the producer state of this source in the log.
        `listening` is a socket that the caller keeps open: datagrams that arrive between two runs wait in it."""
        self.name = name
        self.options = read_options(name, options)
        self.status = StatsdStatus()
        self._definition = definition
        self._producer = producer
        self._clock: Clock = SystemClock()
        self._listening = listening
        self._sleep = sleep
        self._listener: UdpListener | None = None
        self._before: Mapping[str, int] = {}
        self._ending = False

    @classmethod
    def declared(cls, setup: SourceSetup) -> Self:
        """Create the source of a declaration."""
        return cls(setup.name, setup.options, setup.lookups.definition, setup.producer)

    @property
    def state(self) -> str:
        """Current activity of the source, or the reason why it is idle, in words."""
        return self.status.state

    @property
    def counts(self) -> Mapping[str, int]:
        """Counts since the source was declared, by name of the counter."""
        return self.status.counts

    @property
    def last_refused(self) -> Sequence[str]:
        """Malformed lines received most recently."""
        return self.status.last_refused

    # --- declaring -------------------------------------------------------------------------------------------------

    def check(self) -> list[TopicDefinition]:
        """Return the topic that the source fills. The address is not checked: another process may run the source."""
        made = parse_columns(COLUMNS)
        lateness, ahead = self.options.lateness_us, {"max_ahead": MAX_AHEAD}
        topic = define_topic(self.options.topic, made.schema, time="at", lateness=lateness, options=ahead)
        return [owned(self.name, topic)]

    def drop(self) -> None:
        """Do nothing: nothing was created in an external system."""

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, position: Position | None, sequence: int) -> Iterator[Event]:
        """Receive metrics from now on, and yield them in batches."""
        self._before = {what: int((position or {}).get(what, 0)) for what in _COUNTED}
        self.status.counts = dict(self._before)
        moments = ClockPositions(self._clock, sequence, SAID_EVERY_MS)
        listener = yield from self._begin()
        self._listener = listener
        try:
            while True:
                yield from self._batch(listener, moments)
        finally:
            self.close()

    def _begin(self) -> Generator[Event, None, UdpListener]:
        """Bind the socket. While the address is not available, report so in the state and retry."""
        while True:
            try:
                made = self._listening.dup() if self._listening is not None else self._bound()
            except SourceUnreachableError as error:
                self.status.state = f"{AWAY}: {error.message}"
                for _ in range(round(RETRY_S / QUIET_S)):
                    yield Quiet()
                    self._sleep(QUIET_S)
                continue
            listener = UdpListener(made, self._clock, BUFFERED_BYTES_MAX)
            self.status.state = f"listening at {listener.address}"
            return listener

    def _bound(self) -> socket.socket:
        return bound(self.options.host, self.options.port, self.options.receive_bytes)

    def _batch(self, listener: UdpListener, moments: ClockPositions) -> Iterator[Event]:
        """Yield the lines of one interval as one append."""
        moment = moments.now()
        began_ms = self._clock.steady_ms()
        if not listener.lines():
            self._count(listener)
            yield moments.quiet_event(moment)
            listener.wait(1, QUIET_S)
            return
        until_ms = began_ms + self.options.every_us / 1e3
        while (left_ms := until_ms - self._clock.steady_ms()) > 0 and not self._is_due(listener):
            listener.wait(self.options.rows, min(left_ms / 1e3, QUIET_S))
            yield Quiet()
        sequence = moments.up_to(moments.now())
        for piece in pieces(listener.take()):
            parsed = parse(piece)
            self._count(listener, parsed)
            if parsed.columns.num_rows:
                topic = self._topic()
                batch = conform(parsed.columns, rows_of(topic), captured=True)
                yield Rows(topic.name, captured(batch, topic, sequence, self._clock.now_us(), sequence))
        yield Commit(
            sequence, dict(self.status.counts)
        )  # also without rows: the counts must survive a restart

    def _is_due(self, listener: UdpListener) -> bool:
        return self._ending or listener.lines() >= self.options.rows

    @property
    def busy(self) -> bool:
        """Whether the source has received lines that it has not yielded yet."""
        return self._listener is not None and self._listener.lines() > 0

    def finish(self) -> bool:
        """Stop receiving. Returns whether all received lines were yielded."""
        self._ending = True
        if self._listener is not None:
            self._listener.end()
        return not self.busy

    def _count(self, listener: UdpListener, parsed: Parsed | None = None) -> None:
        """Update the counts; they continue from the counts of the previous process."""
        counts, before = self.status.counts, self._before
        if parsed is not None:
            counts["lines"] += parsed.lines
            counts["malformed"] += parsed.malformed
            self.status.last_refused.extend(parsed.examples)
        counts["packets"] = before["packets"] + listener.packets
        counts["dropped_here"] = before["dropped_here"] + listener.overflowed
        dropped = listener.dropped()
        if dropped is not None:
            counts["dropped_by_kernel"] = before["dropped_by_kernel"] + dropped

    def _topic(self) -> TopicDefinition:
        topic = self._definition(self.options.topic)
        if topic is None or topic.captured_by != self.name:
            raise UsageError(
                f"topic {self.options.topic!r} of source {self.name!r} was dropped, or belongs to another source",
                hint=f"CREATE OR REPLACE SOURCE {self.name} FROM STATSD ... creates the topic again",
                source=self.name,
                topic=self.options.topic,
            )
        return topic

    def durable(self, sequence: int, position: Position | None) -> None:
        """Do nothing: the protocol has no acknowledgements."""

    def end(self) -> int:
        """Return the current time: once the log has reached it, everything received so far is in the log."""
        known = self._producer()
        return max(self._clock.now_us(), -1 if known is None else known.sequence + 1)

    def close(self) -> None:
        """Close the socket."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
            self.status.state = "not listening"
