"""Copies a source into the log: each transaction becomes one atomic append, with the source's position in the same commit."""

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
"""Minimum interval between commits that record progress without rows."""
WAIT_S = 0.005
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 5.0
"""Pauses after a retryable error: the first, and the longest."""

Define = Callable[[TopicDefinition], None]
"""Creates a topic, or changes the columns of an existing one, together with everything that depends on it."""


def producer_of(source: str, generation: int = 0) -> str:
    """Return the producer name of a source. Each generation has its own, because its sequences start again."""
    return f"source:{source}:{generation}" if generation else f"source:{source}"


@dataclass
class Progress:
    """Progress of a source since it was started in this process."""

    sequence: int = -1
    """Sequence up to which the log has everything."""
    rows: int = 0
    commits: int = 0
    committed_at: Microseconds | None = None
    """Time of the last commit."""
    is_reading: bool = False
    """Whether the source has answered: something was committed, or the source has nothing new."""


class Capture:
    """Runs one source in this process. A `Capture` that starts later takes over: the log fences the earlier one."""

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
            # Append the current sequence again: this writes nothing, and fences older epochs. An older epoch may have committed
            # just before.
            log.append(Append({}, Producer(self._producer, known.sequence, self._epoch, exact=False)))
            known = log.producer(self._producer)
        self._known = known or ProducerInfo(-1, 0, None)
        self.progress.sequence = self._known.sequence
        self._faults = SourceFaults(log.faults, name)

    def run(self, *, until: int | None = None, stop: threading.Event | None = None) -> None:
        """Copy events into the log until the sequence `until` is reached and the source has no requests left, or until `stop`
        is set. Stops only between transactions. After `stop`, a source that holds data which exists nowhere else may `finish`
        first."""
        events = self._read()
        try:
            for event in events:
                self._take(event)
                self._faults.update(event, self.source)
                if self._stage is None and self._is_enough(until, stop):
                    return
        finally:
            self._give_up()
            events.close()

    def end(self) -> int:
        """Return the current end of the source as a sequence."""
        return self.source.end()

    def close(self) -> None:
        """Close the source."""
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
        """Handle progress without rows: it is committed at intervals, for waiters in other processes. Progress that is not
        committed yet is not acknowledged to the source: `durable` is called only with sequences that are in the log."""
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
        self._log.sync()  # the source discards what is reported durable
        self.source.durable(sequence, position)

    def _give_up(self) -> None:
        if self._stage is not None:
            self._stage.abort()
            self._stage = None


class Capturing:
    """Runs a source in a thread, and retries after retryable errors."""

    def __init__(
        self,
        name: str,
        open_source: Callable[[], Capture],
        clock: Clock,
        report: Callable[[HeadwaterError], None] = lambda error: None,
    ) -> None:
        """`report` is called with the error that stops the source."""
        self.name = name
        self._report = report
        self.error: HeadwaterError | None = None
        """Error that stopped the source; None while the source runs."""
        self._passing: HeadwaterError | None = None
        self._open = open_source
        self._clock = clock
        self._stop = threading.Event()
        self.capture: Capture | None = None
        self._thread = threading.Thread(target=self._loop, name=f"headwater-source-{name}", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the thread of the source is alive."""
        return self._thread.is_alive()

    @property
    def progress(self) -> Progress:
        """Progress of the current run of the source."""
        return Progress() if self.capture is None else self.capture.progress

    @property
    def retries(self) -> HeadwaterError | None:
        """The retryable error after which the source is being retried; None while the source is read."""
        return None if self.progress.is_reading else self._passing

    def wait(self, sequence: int, timeout_s: float) -> None:
        """Wait until the log has everything up to a sequence. Raises the error that stopped the source; LogTimeoutError after
        `timeout_s`."""
        deadline = self._clock.steady_ms() + timeout_s * 1_000
        while self.progress.sequence < sequence:
            if self.error is not None:
                raise self.error
            if self._clock.steady_ms() > deadline or self._stop.is_set():
                raise too_slow(self.name, timeout_s)
            self._stop.wait(WAIT_S)

    def reaches(self, sequence: int, within_s: float) -> bool:
        """Whether the log has everything up to a sequence, waiting at most `within_s` seconds."""
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
            except Exception as error:  # noqa: BLE001 - any failure is reported in the status of the source
                failed = HeadwaterError(f"source {self.name!r} failed: {type(error).__name__}: {error}")
                failed.__cause__ = error
                self._fail(failed)
                return
            self._stop.wait(pause_s)
            pause_s = min(pause_s * 2, LAST_RETRY_S)

    def _fail(self, error: HeadwaterError) -> None:
        self._report(error)  # first: a reader that sees the error must find the fault, too
        self.error = error

    def _run(self) -> None:
        """Read from the position in the log, until the source is stopped or an error occurs."""
        self.capture = self._open()
        try:
            self.capture.run(stop=self._stop)
        finally:
            self.capture.close()


def too_slow(source: str, timeout_s: float) -> LogTimeoutError:
    """Return the error for a source that did not reach a sequence in time."""
    return LogTimeoutError(
        f"source {source!r} did not catch up within {timeout_s:g} s",
        hint="`headwater status` shows how far it is behind",
        source=source,
    )
