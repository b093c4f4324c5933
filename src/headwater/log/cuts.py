"""Where the next tick ends: positions in several topics that split no commit, as far on as a bound on rows allows.

A cut at commit S holds every record of the commits up to S and none of a later one. Offsets that hold no record
(punctuations, what compaction took away) go with the next record of their partition: a cut reaches up to that record, or
to the end. So it holds everything up to S, and it may hold a later punctuation, which has no rows to split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.errors import UsageError
from headwater.log.protocol import Log

Integers = npt.NDArray[np.int64]
Positions = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class Cut:
    """Ends of several topics, all of one commit."""

    positions: Positions
    """topic -> partition -> the offset after the last that it holds."""
    sequence: int
    """The highest number up to which it holds every commit of these topics."""
    rows: int
    """New rows in it, at most: exact if records had to be counted to keep within a bound; otherwise offsets that hold
    no record count too."""


def next_cut(
    log: Log, topics: Sequence[str], start: Positions, rows_max: int | None, until: int | None = None
) -> Cut:
    """The furthest cut from `start` that splits no commit and holds at most `rows_max` new rows over all topics, and no
    commit after `until`.

    Whatever is new, it holds a commit of it: the first is taken whole even if it is larger. With nothing new it is where
    `start` is. A partition that `start` does not name starts at its first record. GapError if a start was removed.
    """
    if rows_max is not None and rows_max < 1:
        raise UsageError(
            f"a cut holds at least one row, not {rows_max}", hint="leave the bound out, or raise it"
        )
    sequence, ends = log.cut(topics)
    starts = {topic: _starts(log, topic, ends[topic], start.get(topic, {})) for topic in topics}
    spans = [ends[t][p] - first for t in topics for p, first in starts[t].items()]
    total = sum(max(0, span) for span in spans)
    is_last = until is None or until >= sequence
    if is_last and (rows_max is None or total <= rows_max):
        positions = {t: {p: max(ends[t][p], first) for p, first in starts[t].items()} for t in topics}
        return Cut(positions, sequence, total)
    rows_max = total if rows_max is None else rows_max
    tails = [
        _Tail(log, topic, partition, first, ends[topic][partition], rows_max + 1)
        for topic in topics
        for partition, first in starts[topic].items()
    ]
    last = _last_commit(tails, rows_max, sequence if until is None else min(sequence, until))
    found: dict[str, dict[int, int]] = {topic: {} for topic in topics}
    for tail in tails:
        found[tail.topic][tail.partition] = tail.position(last)
    return Cut(found, last, sum(tail.rows(last) for tail in tails))


def _starts(log: Log, topic: str, ends: Mapping[int, int], start: Mapping[int, int]) -> dict[int, int]:
    if all(partition in start for partition in ends):
        return {partition: start[partition] for partition in ends}
    bounds = log.partitions(topic)
    return {partition: start.get(partition, bounds[partition].first) for partition in ends}


def _last_commit(tails: Sequence[_Tail], rows_max: int, sequence: int) -> int:
    """The commit to cut at, `sequence` if everything up to there fits."""
    # A commit has many records, which lie together: it is commits that are sorted, not records.
    commits, counts = (
        np.concatenate(parts) for parts in zip(*(_counted(t.commits) for t in tails), strict=True)
    )
    order = np.argsort(commits, kind="stable")
    commits, upto = commits[order], np.cumsum(counts[order])
    if not len(upto) or upto[-1] <= rows_max or commits[0] > sequence:
        return sequence
    first, overflow = int(commits[0]), int(commits[np.searchsorted(upto, rows_max, side="right")])
    if overflow > first:
        return min(overflow - 1, sequence)
    for tail in tails:
        tail.read_past(first)
    return min([sequence, *(following - 1 for tail in tails if (following := tail.after(first)) is not None)])


class _Tail:
    """The offsets and commits of a partition's new records, as far as they were read: at first `rows`, or all."""

    def __init__(self, log: Log, topic: str, partition: int, start: int, end: int, rows: int) -> None:
        self.topic = topic
        self.partition = partition
        self._end = max(start, end)
        self._passed = 0
        self._batches = _batches(log, topic, partition, range(start, end), rows)
        pieces: list[pa.RecordBatch] = []
        while (
            sum(piece.num_rows for piece in pieces) < rows
            and (batch := next(self._batches, None)) is not None
        ):
            pieces.append(batch)
        self._offsets = _column(pieces, "_offset")
        self.commits = _column(pieces, "_sequence")

    def read_past(self, commit: int) -> None:
        """Read on until a record of a later commit, or all. What is passed is counted, not kept."""
        while self.after(commit) is None and (batch := next(self._batches, None)) is not None:
            self._passed += len(self.commits)
            self._offsets, self.commits = _column([batch], "_offset"), _column([batch], "_sequence")

    def rows(self, commit: int) -> int:
        """Records up to a commit."""
        return self._passed + self._place(commit)

    def after(self, commit: int) -> int | None:
        """The commit of the first record read that is later."""
        place = self._place(commit)
        return int(self.commits[place]) if place < len(self.commits) else None

    def position(self, commit: int) -> int:
        """The offset of the first record of a later commit; the end if there is none."""
        place = self._place(commit)
        return int(self._offsets[place]) if place < len(self._offsets) else self._end

    def _place(self, commit: int) -> int:
        return int(np.searchsorted(self.commits, commit, side="right"))


def _batches(log: Log, topic: str, partition: int, span: range, rows: int) -> Iterator[pa.RecordBatch]:
    """Offsets and commits of a span, so many offsets at first and twice as many each time after: no more is read than is
    asked for, and wide gaps are passed in few steps."""
    at = span.start
    while at < span.stop:
        stop = min(span.stop, at + rows)
        yield from log.read(topic, partition, at, stop, ["_offset", "_sequence"])
        at, rows = stop, 2 * rows


def _counted(ascending: Integers) -> tuple[Integers, Integers]:
    """The numbers that there are, and how often each is."""
    starts = np.flatnonzero(np.diff(ascending, prepend=-1))
    return ascending[starts], np.diff(starts, append=len(ascending))


def _column(batches: Sequence[pa.RecordBatch], name: str) -> Integers:
    return np.concatenate([np.empty(0, np.int64), *(batch.column(name).to_numpy() for batch in batches)])
