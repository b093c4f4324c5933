"""Counting of the log records that ticks read, each once, however many views read it.

Views at the same positions read a span of a topic together. A new view reads from the start of the topic, so its span
may overlap spans of other views: the overlap is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwater.core.errors import GapError
from headwater.log.protocol import Log


@dataclass(frozen=True)
class ReadSpan:
    """A span of a partition that was read, and its number of records. `incarnation` distinguishes topics of the same name."""

    topic: str
    incarnation: int
    partition: int
    begin: int
    end: int
    rows: int


class TakenIn:
    """The number of distinct records that were read so far."""

    def __init__(self, log: Log) -> None:
        self.rows = 0
        self._log = log
        self._spans: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
        """The spans that were read of each partition, in order; they neither overlap nor touch."""

    def add(self, reads: Iterable[ReadSpan]) -> None:
        """Count the records of spans that were not counted yet."""
        for read in reads:
            if read.begin >= read.end:
                continue
            known = self._spans.setdefault((read.topic, read.incarnation, read.partition), [])
            again = [(max(b, read.begin), min(e, read.end)) for b, e in known]
            again = [(begin, end) for begin, end in again if begin < end]
            if again != [(read.begin, read.end)]:
                self.rows += read.rows - sum(self._count(read, *span) for span in again)
            known[:] = _merged([*known, (read.begin, read.end)])

    def _count(self, read: ReadSpan, begin: int, end: int) -> int:
        """Return the number of records between two offsets; gaps left by compaction or punctuation are not counted."""
        if read.rows == read.end - read.begin:
            return end - begin
        try:
            batches = self._log.read(read.topic, read.partition, begin, end, ["_offset"])
            return sum(batch.num_rows for batch in batches)
        except GapError:  # removed in the meantime
            return min(read.rows, end - begin)


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found
