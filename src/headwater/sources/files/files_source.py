"""Files source, created by `CREATE SOURCE ... FROM FILES`.

Guarantee: every complete line (for Parquet, every row of every complete file) is in the log exactly once, the lines of one file
in their order. The offset reached in each file is in the same commit as the rows, so neither a crash nor a rotation duplicates
or loses a line, as long as a renamed file stays in its folder, or still matches the path, until it was read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import pyarrow.parquet as pq

from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.clock import Clock, SystemClock
from headwater.core.errors import SourceError, UsageError
from headwater.core.types import normalize_schema
from headwater.log.protocol import ProducerInfo
from headwater.sources.base import Commit, Event, Position, Quiet
from headwater.sources.clock_positions import ClockPositions, owned
from headwater.sources.files.file_reader import FileReader
from headwater.sources.files.formats import check_readable
from headwater.sources.files.options import (
    FilesOptions,
    columns_topic,
    errors_topic,
    read_options,
    refuse_plain_lines,
)
from headwater.sources.files.scan_files import FileScan
from headwater.sources.files.tracking import Number, Tracker
from headwater.sources.source_setup import SourceSetup

SCAN_EVERY_S = 0.1
SCAN_SHARE = 10
"""Scans take at most this fraction (1/10) of the time: a folder of very many files is scanned less often."""
QUIET_S = 0.2
SAID_EVERY_MS = 10_000.0


class FilesSource:
    """A `DeclaredSource` of files; see `headwater.sources.base` for the contract of each method."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any] | FilesOptions,
        definition: Callable[[str], TopicDefinition | None],
        producer: Callable[[], ProducerInfo | None],
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`definition` returns the current definition of a topic; `producer`, the producer state of this source in the log."""
        self.name = name
        self.options = options if isinstance(options, FilesOptions) else read_options(name, options)
        self.state = "not reading"
        """Current activity of the source, or the reason why it is idle, in words."""
        self._definition = definition
        self._producer = producer
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._reader = FileReader(name, self.options, definition, self._clock)

    @classmethod
    def declared(cls, setup: SourceSetup) -> Self:
        """Create the source of a declaration."""
        return cls(setup.name, setup.options, setup.lookups.definition, setup.producer)

    # --- declaring -------------------------------------------------------------------------------------------------

    def check(self) -> list[TopicDefinition]:
        """Check that the files can be read, and return the topics that the source fills. An existing topic that the user
        created is not changed, and not returned."""
        folder = os.path.dirname(re.split(r"[*?\[]", self.options.path)[0]) or "."
        if not os.path.isdir(folder):
            raise UsageError(
                f"source {self.name!r} cannot read files in {os.path.abspath(folder)}: the folder does not exist",
                hint="create the folder, or correct path; a relative path is resolved against the working directory of the process",
                source=self.name,
                folder=os.path.abspath(folder),
            )
        existing = self._definition(self.options.topic)
        topics = [errors_topic(self.name)] if self.options.on_error == "divert" else []
        if existing is not None and existing.captured_by is None:
            if self.options.columns is not None or self.options.key:
                raise UsageError(
                    f"topic {existing.name!r} already exists with its own columns and key",
                    hint="omit columns and key, or name another topic",
                    source=self.name,
                    topic=existing.name,
                )
            check_readable(self.options, existing, self.name)
            if existing.private:
                refuse_plain_lines(self.name, self.options)
            return topics
        made = columns_topic(self.name, self.options)
        if made is None and existing is not None and existing.captured_by == self.name:
            made = existing
        if made is None:
            made = self._of_parquet()
        check_readable(self.options, made, self.name)
        return [made, *topics]

    def _of_parquet(self) -> TopicDefinition:
        """Return the topic with the columns of the first Parquet file."""
        is_parquet = self.options.format == "parquet"
        found = Tracker(self.options, None).scan(self._clock.now_us()) if is_parquet else []
        if not found:
            what = "no Parquet file exists yet from which to read them" if is_parquet else self.options.format
            raise UsageError(
                f"source {self.name!r} does not declare the columns of topic {self.options.topic!r}",
                detail=what
                if is_parquet
                else f"files of format {what!r} do not contain the types of their columns",
                hint="write columns = 'id BIGINT, name STRING, at TIMESTAMP', or create the topic first",
                source=self.name,
                topic=self.options.topic,
                option="columns",
            )
        schema = normalize_schema(pq.read_schema(found[0].path).remove_metadata())
        return owned(self.name, define_topic(self.options.topic, schema, key=self.options.key))

    def drop(self) -> None:
        """Do nothing: nothing was created in an external system."""

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, position: Position | None, sequence: int) -> Iterator[Event]:
        """Yield everything after the position, and then new content as it appears."""
        moments = ClockPositions(self._clock, sequence, SAID_EVERY_MS)
        tracker = Tracker(self.options, position)
        waited: tuple[int, dict[Number, int]] | None = None
        try:
            while True:
                began = self._clock.steady_ms()
                moment = moments.now()
                waiting: dict[Number, int] = {}
                scan = FileScan(self._reader, tracker, moments, moment, waiting)
                yield from scan.events()
                self.state = "reading" if scan.files else "waiting for more"
                reached = moment if not waiting else None
                if waited is not None and not _is_awaited(waited[1], waiting, tracker):
                    reached = max(reached or 0, waited[0])
                    waited = None
                    moments.report_next()
                if waiting and waited is None:
                    waited = (moment, waiting)
                if scan.has_taken:
                    sequence = moments.within() if reached is None else moments.up_to(reached)
                    yield Commit(sequence, tracker.position())
                elif reached is not None:
                    yield moments.quiet_event(reached)
                else:
                    yield Quiet()
                took_s = (self._clock.steady_ms() - began) / 1_000
                yield from self._wait(
                    SCAN_EVERY_S if scan.has_taken else max(SCAN_EVERY_S, took_s * SCAN_SHARE)
                )
        except OSError as error:
            raise SourceError(
                f"source {self.name!r} cannot read {error.filename or self.options.path}: {error.strerror}",
                hint="grant read access to the user that runs Headwater, or exclude the file from path",
                file=str(error.filename or self.options.path),
                source=self.name,
            ) from error
        finally:
            tracker.close()
            self.state = "not reading"

    def durable(self, sequence: int, position: Position | None) -> None:
        """Do nothing: files need no acknowledgement."""

    def end(self) -> int:
        """Return the current time if any file has content that the log does not have, else the last sequence in the log."""
        known = self._producer()
        now = self._clock.now_us()
        sequence = -1 if known is None else known.sequence
        tracker = Tracker(self.options, None if known is None or known.note is None else dict(known.note))
        try:
            files = tracker.scan(now)
            if tracker.unfit or any(self._reader.has_more(file) for file in files):
                return max(now, sequence + 1)
            return sequence
        finally:
            tracker.close()

    def close(self) -> None:
        """Do nothing: no resources are kept between runs of `read`."""

    def _wait(self, seconds: float) -> Iterator[Event]:
        while seconds > QUIET_S:
            self._sleep(QUIET_S)
            seconds -= QUIET_S
            yield Quiet()
        self._sleep(seconds)


def _is_awaited(waited: Mapping[Number, int], waiting: Mapping[Number, int], tracker: Tracker) -> bool:
    """Whether a line that was incomplete at an earlier scan is still incomplete."""
    return any(number in waiting and tracker.offset(number) < size for number, size in waited.items())
