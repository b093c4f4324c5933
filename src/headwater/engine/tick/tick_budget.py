"""The memory budget of ticks: how many rows of the log the next tick may take in.

A tick up to `TICK_ROWS` rows is always allowed, so that views which keep up tick as often as rows come in. Beyond that, a
backlog is taken in with ticks as large as the memory allows, because every tick merges runs and finds keys once more: five
million rows cost two to three times the CPU in six ticks. The first estimate comes from the width of the records; then the
memory that large ticks have used replaces it. A tick that runs out of memory, or of the two gigabytes that a column of
texts can have, is run again with half as many rows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa

from headwater.core.errors import HeadwaterError, UsageError
from headwater.core.positions import Ends
from headwater.core.settings import parse_bytes
from headwater.engine.collections.collections import Collection
from headwater.log.protocol import Log
from headwater.state.manifest import Manifest

MEMORY = "HEADWATER_MEMORY"
"""Environment variable: the memory that a tick may use, such as `4 GB`."""
MEMORY_SHARE = 0.25
"""Default share of the machine's memory (or of the container's limit) that a tick may use."""
TICK_ROWS = 1_000_000
"""Number of rows that a tick may take in without an estimate of its memory."""
TICK_SECONDS_MAX = 10.0
"""Longest time that a tick of a running engine should take, as far as its earlier ticks show how long a row takes."""
GROWTH_MAX = 8
"""How many times as many rows as the largest tick so far, or as `TICK_ROWS`, a tick may have."""
COLUMN_BYTES_MAX = 1 << 30
"""Largest expected size of a column of texts, half of what Arrow's 32-bit offsets can address."""
SAMPLE_ROWS = 1_000
MEASURED_ROWS_MIN = 200_000
"""Number of rows from which on the memory of a tick says what a row takes."""
WATCH_EVERY_S = 0.02
TRUST = 4.0
"""How many times less memory than estimated a row is believed to take, after ticks that used memory of earlier ones again."""
KEPT = 0.7
"""Share of the largest memory per row so far below which the next figure does not fall at once."""
RELAXED_BY = 4
"""A limit after a lack of memory rises by this part with each tick that succeeds."""
ROW_BYTES = 64
"""Memory for the weight, the hashes and the indices of a row."""
COPIES, COPIES_PER_VIEW = 6, 2
"""How many times a tick holds its input: while it is read, sorted and divided, and for the output of each view."""


@dataclass(frozen=True)
class UnreadRows:
    """The rows of the log that the views have not read."""

    rows: int
    """The largest number of rows that one group of views has before it: the live views, or a view that is behind."""
    topics: Mapping[str, Mapping[int, int]]
    """Where records that have not been read begin, by topic and partition."""


@dataclass(frozen=True)
class TickBound:
    """The number of rows that a tick may take in."""

    rows_max: int
    is_large: bool = False
    """Whether there are so many rows that the memory of the tick is worth measuring."""


class TickBudget:
    """The number of rows that a tick may take in, by the memory that ticks use. Belongs to one engine."""

    def __init__(self, memory_bytes: int | None = None, seconds_max: float | None = None) -> None:
        """`seconds_max` limits the duration of ticks, as far as it is known from earlier ones."""
        self._memory = memory_limit() if memory_bytes is None else memory_bytes
        self._seconds_max = seconds_max
        self._row_bytes: float | None = None
        """Memory per row as measured; None before the first large tick."""
        self._row_seconds = 0.0
        self._largest = TICK_ROWS
        self._rows_max: int | None = None
        """Limit that follows from a tick that has run out of memory."""
        self._has_failed = False
        """Whether the tick under way has run out of memory."""

    def bound(self, log: Log, units: Sequence[Collection], before: Manifest | None) -> TickBound:
        """Return how many rows the next tick may take in."""
        least = TICK_ROWS if self._rows_max is None else min(TICK_ROWS, self._rows_max)
        backlog = unread_rows(log, units, before)
        is_large = backlog.rows >= MEASURED_ROWS_MIN
        if backlog.rows <= least:
            return TickBound(least, is_large)
        width, widest = sampled_width(log, backlog)
        readers = max((sum(t in unit.topics for unit in units) for t in backlog.topics), default=1)
        estimate = width * (COPIES + COPIES_PER_VIEW * readers) + ROW_BYTES
        row_bytes = estimate if self._row_bytes is None else max(self._row_bytes, estimate / TRUST)
        rows = min(self._memory / row_bytes, COLUMN_BYTES_MAX / max(widest, 1.0), GROWTH_MAX * self._largest)
        if self._seconds_max is not None and self._row_seconds:
            rows = min(rows, self._seconds_max / self._row_seconds)
        rows = max(rows, least)  # only a tick that has run out of memory makes others smaller than usual
        if self._rows_max is not None:
            rows = min(rows, self._rows_max)
        return TickBound(max(1, int(rows)), is_large)

    def halve(self, rows: int) -> int:
        """Limit ticks to half of the rows of a tick that has run out of memory, and return the limit."""
        self._rows_max, self._has_failed = max(1, rows // 2), True
        return self._rows_max

    def forget_limit(self) -> None:
        """Remove the limit of `halve`: fewer rows would not help."""
        self._rows_max = None

    def relax(self) -> None:
        """Raise the limit of `halve` after a tick that has succeeded at once."""
        if self._has_failed:
            self._has_failed = False
        elif self._rows_max is not None:
            self._rows_max += self._rows_max // RELAXED_BY + 1
            if self._rows_max > GROWTH_MAX * self._largest:
                self._rows_max = None

    @contextmanager
    def watching(self, bound: TickBound) -> Iterator[MemoryWatch | None]:
        """Watch the memory of the process while a tick runs, if the tick is large; the caller passes the watch to `record`."""
        if not bound.is_large:
            yield None
            return
        watch = MemoryWatch()
        watch.start()
        try:
            yield watch
        finally:
            watch.stop()

    def record(self, rows: int, watch: MemoryWatch, seconds: float) -> None:
        """Record the rows of a tick that succeeded at once, the memory that it used, and its duration."""
        if self._has_failed:
            return
        self._largest = max(self._largest, rows)
        if rows < MEASURED_ROWS_MIN:
            return
        self._row_seconds = seconds / rows
        if watch.peak <= watch.base:  # not measured on this system, or memory of earlier ticks was used again
            return
        used = max((watch.peak - watch.base) / rows, float(ROW_BYTES))
        before = used if self._row_bytes is None else self._row_bytes
        self._row_bytes = max(used, before * KEPT)


class MemoryWatch(threading.Thread):
    """The peak of the process's memory during a tick."""

    def __init__(self) -> None:
        super().__init__(name="headwater-memory", daemon=True)
        self._ended = threading.Event()
        self.base = anonymous_bytes()
        """The number of bytes at the beginning, without mapped files."""
        self.peak = 0
        """The largest number of bytes seen so far, without mapped files."""

    def run(self) -> None:
        """Watch until `stop`."""
        while not self._ended.wait(WATCH_EVERY_S):
            self.peak = max(self.peak, anonymous_bytes())

    def stop(self) -> None:
        """Stop watching."""
        self._ended.set()
        self.join()
        self.peak = max(self.peak, anonymous_bytes())


def unread_rows(log: Log, units: Sequence[Collection], before: Manifest | None) -> UnreadRows:
    """Return what the collections of a workload have before them."""
    live: dict[str, Mapping[int, int]] = {}
    behind: list[tuple[Collection, Ends]] = []
    for unit in units:
        state = before.views.get(unit.name) if before is not None else None
        if state is not None and state.status == "live" and before is not None:
            live |= {topic: before.positions.get(topic, {}) for topic in unit.topics}
        elif state is None or state.status != "stopped":
            behind.append((unit, {} if state is None or state.positions is None else state.positions))
    groups = [live, *({t: starts.get(t, {}) for t in unit.topics} for unit, starts in behind)]
    _, ends = log.cut(sorted({topic for group in groups for topic in group}))
    most, topics = 0, dict[str, Mapping[int, int]]()
    for group in groups:
        rows = 0
        for topic, starts in group.items():
            begins = {partition: start for partition, start in starts.items() if partition in ends[topic]}
            if any(partition not in begins for partition in ends[topic]):
                bounds = log.partitions(topic)
                begins = {p: begins.get(p, bounds[p].first) for p in ends[topic]}
            span = sum(max(0, end - begins[p]) for p, end in ends[topic].items())
            rows += span
            if span:
                topics.setdefault(topic, begins)
        most = max(most, rows)
    return UnreadRows(most, topics)


def sampled_width(log: Log, backlog: UnreadRows) -> tuple[float, float]:
    """Return the mean bytes of a record, and of its widest column of texts, over the topics of a backlog: each the largest of
    any topic, from its first records that have not been read."""
    width, widest = 0.0, 0.0
    for topic, begins in backlog.topics.items():
        try:
            ends = log.ends([topic])[topic]
            batches = [
                batch
                for partition, begin in begins.items()
                if partition in ends
                for batch in log.read(topic, partition, begin, min(begin + SAMPLE_ROWS, ends[partition]))
            ]
        except HeadwaterError:  # the view that reads these records reports the error
            continue
        for table in (pa.table(batch) for batch in batches if batch.num_rows):
            width = max(width, table.nbytes / table.num_rows)
            texts = (column.nbytes for column in table.columns if _has_offsets(column.type))
            widest = max(widest, max(texts, default=0) / table.num_rows)
    return width, widest


def memory_limit() -> int:
    """Return the memory that a tick may use, in bytes: that of `HEADWATER_MEMORY`, or a share of the machine's."""
    if (text := os.environ.get(MEMORY)) is not None:
        try:
            return parse_bytes(text)
        except UsageError as error:
            raise UsageError(
                f"{MEMORY} is {text!r}, which is not a size", hint=error.hint, setting=MEMORY
            ) from None
    return int(_machine_memory() * MEMORY_SHARE)


@cache
def _machine_memory() -> int:
    """Return the memory of the machine or the container, in bytes. Read once, because every run creates a budget."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            machine = min(machine, int(Path(file).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such control group, or no limit
            continue
    return machine


def anonymous_bytes() -> int:
    """Return the memory of this process without mapped files, which are runs of the state; 0 where Linux's `/proc` is
    missing."""
    try:
        resident, shared = Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3]
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def is_too_large(error: BaseException) -> bool:
    """Whether an error says that the rows of a tick are too many for memory, or for a column's 32-bit offsets."""
    if isinstance(error, MemoryError | pa.ArrowMemoryError | pa.ArrowCapacityError):
        return True
    return isinstance(error, pa.ArrowInvalid) and "overflow" in str(error)


def _has_offsets(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_nested(kind))
