"""Computes where the next tick ends: positions in several topics that split no commit, as far ahead as a row limit allows.

A cut at commit S contains every record of the commits up to S and no record of a later commit. Offsets without a record
(punctuations, records removed by compaction) belong to the next record of their partition: a cut reaches up to that record, or
to the end. A cut therefore contains everything up to S, and may contain a later punctuation, which has no rows to split.
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
    """End positions of several topics, all as of one commit."""

    positions: Positions
    """topic -> partition -> the offset after the last one in the cut."""
    sequence: int
    """The highest commit number for which the cut contains every earlier or equal commit of these topics."""
    rows: int
    """Upper bound on the new rows in the cut: exact if records were counted to stay within the row limit; otherwise offsets
    without a record count too."""


def next_cut(
    log: Log, topics: Sequence[str], start: Positions, rows_max: int | None, until: int | None = None
) -> Cut:
    """Return the furthest cut from `start` that splits no commit, has at most `rows_max` new rows over all topics, and no
    commit after `until`.

    If there are new commits, the cut contains at least the first of them, even if that commit alone has more than `rows_max`
    rows. Without new commits the cut is at `start`. A partition that `start` does not name starts at its first record. GapError
    if a start was removed.
    """
    if rows_max is not None and rows_max < 1:
        raise UsageError(
            f"a cut must have at least one row, not {rows_max}",
            hint="leave the limit out, or raise it",
            argument="rows_max",
            value=rows_max,
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
    """Return the commit to cut at; `sequence` if everything up to it is within the row limit."""
    # The many records of one commit are adjacent, so commits are sorted instead of records.
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
    """Offsets and commits of a partition's new records, as far as they have been read: at first `rows` of them, or all."""

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
        """Read until a record of a later commit, or the end. Records passed over are counted, not kept."""
        while self.after(commit) is None and (batch := next(self._batches, None)) is not None:
            self._passed += len(self.commits)
            self._offsets, self.commits = _column([batch], "_offset"), _column([batch], "_sequence")

    def rows(self, commit: int) -> int:
        """Return the number of records up to and including a commit."""
        return self._passed + self._place(commit)

    def after(self, commit: int) -> int | None:
        """Return the commit of the first record read that belongs to a later commit; None if no such record was read."""
        place = self._place(commit)
        return int(self.commits[place]) if place < len(self.commits) else None

    def position(self, commit: int) -> int:
        """Return the offset of the first record of a later commit; the end if there is none."""
        place = self._place(commit)
        return int(self._offsets[place]) if place < len(self._offsets) else self._end

    def _place(self, commit: int) -> int:
        return int(np.searchsorted(self.commits, commit, side="right"))


def _batches(log: Log, topic: str, partition: int, span: range, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the offsets and commits of a span, `rows` offsets at first and twice as many in each further step: this reads
    little more than is used, and crosses wide gaps in few steps."""
    at = span.start
    while at < span.stop:
        stop = min(span.stop, at + rows)
        yield from log.read(topic, partition, at, stop, ["_offset", "_sequence"])
        at, rows = stop, 2 * rows


def _counted(ascending: Integers) -> tuple[Integers, Integers]:
    """Return the distinct numbers of an ascending array, and how often each occurs."""
    starts = np.flatnonzero(np.diff(ascending, prepend=-1))
    return ascending[starts], np.diff(starts, append=len(ascending))


def _column(batches: Sequence[pa.RecordBatch], name: str) -> Integers:
    return np.concatenate([np.empty(0, np.int64), *(batch.column(name).to_numpy() for batch in batches)])
