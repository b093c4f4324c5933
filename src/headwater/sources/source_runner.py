"""From a source into the log: transactions become atomic appends, with the source's position in the same commit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Clock, Microseconds
from headwater.core.errors import HeadwaterError, LogTimeoutError
from headwater.log.protocol import Append, Log, Producer, ProducerInfo, Stage
from headwater.sources.base import Busy, Commit, Event, Evolve, Finishing, Position, Quiet, Rows, RowSource
from headwater.sources.source_faults import SourceFaults

NOTE_EVERY_MS = 500.0
"""A source that moves on without rows is noted in the log at most so often."""
WAIT_S = 0.005
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
"""How long it is waited after what may pass by itself, at first and at most."""

Define = Callable[[TopicDefinition], None]
"""Makes a topic, or gives one that is there these columns, with all that hangs on it."""


def producer_of(source: str, generation: int = 0) -> str:
    """The name that a source appends by; one that begins anew has another, because its sequences do too."""
    return f"source:{source}:{generation}" if generation else f"source:{source}"


@dataclass
class Progress:
    """What a source has brought since it was started here."""

    sequence: int = -1
    """Up to where the log has everything."""
    rows: int = 0
    commits: int = 0
    committed_at: Microseconds | None = None
    """When the last of them was in the log."""
    is_reading: bool = False
    """Whether the source has answered: something was committed, or the source has nothing new."""


class Capture:
    """One source at work in this process. Whoever begins later takes over: the other is fenced off by the log."""

    def __init__(
        self, log: Log, name: str, source: RowSource, define: Define, clock: Clock, generation: int = 0
    ) -> None:
        self.name = name
        self._producer = producer_of(name, generation)
        self.progress = Progress()
        self._log = log
        self.source = source
        self._define = define
        self._clock = clock
        self._noted_ms = clock.steady_ms()
        self._stage: Stage | None = None
        log.settle()
        known = log.producer(self._producer)
        self._epoch = 0 if known is None else known.epoch + 1
        if known is not None:
            # The sequence that is there, once more: it writes nothing, and fences older epochs. One of them may have come first.
            log.append(Append({}, Producer(self._producer, known.sequence, self._epoch, exact=False)))
            known = log.producer(self._producer)
        self._known = known or ProducerInfo(-1, 0, None)
        self.progress.sequence = self._known.sequence
        self._faults = SourceFaults(log.faults, name)

    def run(self, *, until: int | None = None, stop: threading.Event | None = None) -> None:
        """Take in what comes: up to a sequence and until nothing is left that the source was asked for, or until told to
        stop; between transactions, never within one. A source that holds what nobody else has may `finish` first."""
        events = self._read()
        try:
            for event in events:
                self._take(event)
                self._faults.look(event, self.source)
                if self._stage is None and self._is_enough(until, stop):
                    return
        finally:
            self._give_up()
            events.close()

    def end(self) -> int:
        """The sequence up to which there is something in the source now."""
        return self.source.end()

    def close(self) -> None:
        """Let the source go."""
        self.source.close()

    def _read(self) -> Generator[Event]:
        note = self._known.note
        yield from self.source.read(None if note is None else dict(note), self.progress.sequence)

    def _is_enough(self, until: int | None, stop: threading.Event | None) -> bool:
        if stop is not None and stop.is_set():
            return self.source.finish() if isinstance(self.source, Finishing) else True
        if until is None or self.progress.sequence < until:
            return False
        return not (isinstance(self.source, Busy) and self.source.busy)

    def _take(self, event: Event) -> None:
        match event:
            case Rows(topic, batch):
                if self._stage is None:
                    self._stage = self._log.stage()
                self._stage.add(topic, batch)
                self.progress.rows += batch.num_rows
            case Commit(sequence, position):
                self._commit(sequence, position)
            case Evolve(definition):
                self._define(definition)
            case Quiet(sequence, position):
                self.progress.is_reading = True
                if sequence is not None and sequence > self.progress.sequence:
                    self._pass(sequence, position)
                elif self.progress.sequence > self._known.sequence and self._is_time_to_note():
                    self._commit(self.progress.sequence, position)

    def _pass(self, sequence: int, position: Position | None) -> None:
        """The source has moved on without rows: that is noted now and then, for those who wait in other processes. Until then the
        source is not told: what it hears of is in the log."""
        if self._is_time_to_note():
            self._commit(sequence, position)
        else:
            self.progress.sequence = sequence

    def _is_time_to_note(self) -> bool:
        return self._clock.steady_ms() - self._noted_ms >= NOTE_EVERY_MS

    def _commit(self, sequence: int, position: Position | None) -> None:
        stage, self._stage = self._stage or self._log.stage(), None
        try:
            stage.commit(producer=Producer(self._producer, sequence, self._epoch, position, exact=False))
        except BaseException:
            stage.abort()
            raise
        self._known = ProducerInfo(sequence, self._epoch, position or self._known.note)
        self._noted_ms = self._clock.steady_ms()
        self.progress.sequence = sequence
        self.progress.commits += 1
        self.progress.is_reading = True
        self.progress.committed_at = self._clock.now_us()
        self._log.sync()  # the source forgets what it is told to be durable
        self.source.durable(sequence, position)

    def _give_up(self) -> None:
        if self._stage is not None:
            self._stage.abort()
            self._stage = None


class Capturing:
    """A source that is kept going in a thread of its own."""

    def __init__(
        self,
        name: str,
        open_source: Callable[[], Capture],
        clock: Clock,
        report: Callable[[HeadwaterError], None] = lambda error: None,
    ) -> None:
        """`report` is told the error that stops the source."""
        self.name = name
        self._report = report
        self.error: HeadwaterError | None = None
        """Why it has stopped, if it has."""
        self._passing: HeadwaterError | None = None
        self._open = open_source
        self._clock = clock
        self._stop = threading.Event()
        self.capture: Capture | None = None
        self._thread = threading.Thread(target=self._loop, name=f"headwater-source-{name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it still goes on."""
        return self._thread.is_alive()

    @property
    def progress(self) -> Progress:
        """What it has brought so far."""
        return Progress() if self.capture is None else self.capture.progress

    @property
    def retries(self) -> HeadwaterError | None:
        """The error after which the source is tried again, until it is read again; None while it is read."""
        return None if self.progress.is_reading else self._passing

    def wait(self, sequence: int, timeout_s: float) -> None:
        """Until the log has everything up to a sequence. Raises what has stopped it."""
        deadline = self._clock.steady_ms() + timeout_s * 1_000
        while self.progress.sequence < sequence:
            if self.error is not None:
                raise self.error
            if self._clock.steady_ms() > deadline or self._stop.is_set():
                raise too_slow(self.name, timeout_s)
            self._stop.wait(WAIT_S)

    def reaches(self, sequence: int, within_s: float) -> bool:
        """Whether the log has everything up to a sequence, now or within a moment."""
        deadline = self._clock.steady_ms() + within_s * 1_000
        while self.progress.sequence < sequence:
            if self._clock.steady_ms() > deadline or self._stop.wait(WAIT_S):
                return False
        return True

    def stop(self) -> None:
        """Stop after the transaction under way."""
        self._stop.set()
        self._thread.join()

    def _loop(self) -> None:
        pause_s = FIRST_RETRY_S
        while not self._stop.is_set():
            try:
                self._run()
                return
            except HeadwaterError as error:
                if not error.retryable:
                    self._fail(error)
                    return
                self._passing = error
                self.progress.is_reading = False
            except Exception as error:  # noqa: BLE001 - whatever it is, it is told where the source is asked after
                failed = HeadwaterError(f"source {self.name!r} failed: {type(error).__name__}: {error}")
                failed.__cause__ = error
                self._fail(failed)
                return
            self._stop.wait(pause_s)
            pause_s = min(pause_s * 2, LAST_RETRY_S)

    def _fail(self, error: HeadwaterError) -> None:
        self._report(error)  # first: who sees the error finds the fault as well
        self.error = error

    def _run(self) -> None:
        """From where the log has it, until it is stopped or something breaks."""
        self.capture = self._open()
        try:
            self.capture.run(stop=self._stop)
        finally:
            self.capture.close()


def too_slow(source: str, timeout_s: float) -> LogTimeoutError:
    """The error for a source that did not get there in time."""
    return LogTimeoutError(
        f"source {source!r} has not got there within {timeout_s:g} s",
        hint="`headwater status` says how far it is behind",
    )
