"""Keeping arrangements short: a new run is merged with its older neighbours while they are about its size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.hashing import Hashes
from headwater.core.parallel import LARGE_BYTES, side_by_side
from headwater.engine.dataflow.operator_interface import ArrangementSpec
from headwater.operators.table.table_versions import standing
from headwater.operators.zset.delta import take_rows
from headwater.operators.zset.ordered_runs import merge_ordered
from headwater.operators.zset.runs import (
    Run,
    evolved,
    joined,
    merge,
    merge_latest,
    merge_latest_stacked,
    merge_stacked,
    same_hashes,
    split,
)
from headwater.state.cache import CHECK_BYTES_MAX
from headwater.state.merge_policy import Merge, to_merge
from headwater.state.run_refs import RunRef
from headwater.state.store import StateStore
from headwater.state.writer import Writer

STACKED_ROWS_MAX = 16_384
"""A merge of more rows takes longer for them than for being one more."""
_STACK_ROWS_MAX = 1 << 17
"""Of all merges that are done as one: what they make shares a stream, which stays as long as any of it."""


@dataclass(frozen=True, eq=False)
class Due:
    """An arrangement with more runs than it should have, oldest first."""

    slot: ArrangementSpec
    refs: tuple[RunRef, ...]
    runs: list[Run]
    leave: int
    """So many of the oldest are left alone."""
    level: int | None
    """The watermark by which rows expire."""


@dataclass(frozen=True)
class Compacted:
    """An arrangement after the merges that were due."""

    refs: tuple[RunRef, ...]
    runs: list[Run]
    later: slice | None
    """Large runs whose merge was left to the background."""


class Compaction:
    """The merges of a tick."""

    def __init__(self, writer: Writer, store: StateStore, *, large: bool = True) -> None:
        """`large`: also those of large runs, which are left to the background if that is not asked for."""
        self._writer = writer
        self._store = store
        self._large = large
        self._hashes: dict[tuple[object, ...], Hashes] = {}

    def done(self, due: Due) -> Compacted:
        """Do the merges that are due, and write what they make."""
        slot, kept_refs, kept_runs = due.slot, list(due.refs), list(due.runs)
        wholes, merges = _merges(due)
        later: slice | None = None
        for each in reversed(merges):
            part = slice(wholes[each.start].start, wholes[each.stop - 1].stop)
            if not (each.now or self._large):
                later = part
                continue
            check_parts(self._store, kept_refs[part], self._writer)
            merged = _merged_by_all_cores(slot, kept_runs[part], bottom=part.start == 0)
            if part.start == 0:
                merged = unexpired(slot, merged, due.level)
            if slot.discipline == "latest":
                merged = same_hashes(merged, self._hashes)
            ref = self._writer.add(merged, ticks=_ticks(kept_refs[part]))
            self._store.remember(ref, merged)
            kept_refs[part] = [ref]
            kept_runs[part] = [merged]
        return Compacted(tuple(kept_refs), kept_runs, later)

    def all_done(self, dues: Sequence[Due]) -> list[Compacted]:
        """The same for several. Where arrangements of one kind have small merges due, these are done as one."""
        alike: dict[tuple[object, ...], list[tuple[int, slice]]] = {}
        for place, due in enumerate(dues):
            if (part := _small(due)) is not None:
                slot = due.slot
                kind = slot.discipline, slot.key, slot.layout, part.start == 0
                alike.setdefault(kind, []).append((place, part))
        done: dict[int, Compacted] = {}
        for some in alike.values():
            for stack in _stacks(dues, some):
                done |= self._stacked(dues, stack)
        return [done.get(place) or self.done(due) for place, due in enumerate(dues)]

    def _stacked(self, dues: Sequence[Due], stack: Sequence[tuple[int, slice]]) -> dict[int, Compacted]:
        """What comes of arrangements, by their places, each of which has one merge due."""
        slot, bottom = dues[stack[0][0]].slot, stack[0][1].start == 0
        streams = {(ref.file, ref.offset): ref for place, part in stack for ref in dues[place].refs[part]}
        check_parts(self._store, list(streams.values()), self._writer)
        runs = [dues[place].runs[part] for place, part in stack]
        if slot.discipline == "latest":
            merged = [same_hashes(run, self._hashes) for run in merge_latest_stacked(runs, slot.key, bottom)]
        else:
            merged = merge_stacked(runs, slot.key)
        ticks = [_ticks(dues[place].refs[part]) for place, part in stack]
        done: dict[int, Compacted] = {}
        for (place, part), run, ref in zip(stack, merged, self._written(merged, ticks), strict=True):
            self._store.remember(ref, run)
            refs, left = list(dues[place].refs), list(dues[place].runs)
            refs[part], left[part] = [ref], [run]
            done[place] = Compacted(tuple(refs), left, None)
        return done

    def _written(self, runs: Sequence[Run], ticks: Sequence[tuple[int, int]]) -> list[RunRef]:
        if all(map(len, runs)):
            return self._writer.add_together(runs, ticks=ticks)
        return [self._writer.add(run, ticks=own) for run, own in zip(runs, ticks, strict=True)]


def _merges(due: Due) -> tuple[list[slice], list[Merge]]:
    """The runs, with those taken together that are parts of one, and which of these are to be merged."""
    wholes = [slice(due.leave + w.start, due.leave + w.stop) for w in _wholes(due.refs[due.leave :])]
    return wholes, to_merge(_sizes(due.refs, wholes))


def _small(due: Due) -> slice | None:
    """The runs whose merge may be done together with those of others, if that is all that is due."""
    slot = due.slot
    wholes, merges = _merges(due)
    if slot.discipline == "ordered" or len(merges) != 1:
        return None
    if merges[0].rows > STACKED_ROWS_MAX or not merges[0].now:
        return None
    part = slice(wholes[merges[0].start].start, wholes[merges[0].stop - 1].stop)
    if not len(slot.schema) or (part.start == 0 and slot.expires is not None and due.level is not None):
        return None
    is_as_told = all(run.rows.schema.equals(slot.schema, check_metadata=True) for run in due.runs[part])
    return part if is_as_told else None


def _stacks(dues: Sequence[Due], some: Sequence[tuple[int, slice]]) -> Iterator[list[tuple[int, slice]]]:
    """As many together as are of some size; none is by itself."""
    stack: list[tuple[int, slice]] = []
    rows = 0
    for place, part in some:
        own = sum(ref.rows for ref in dues[place].refs[part])
        if rows + own > _STACK_ROWS_MAX and len(stack) > 1:
            yield stack
            stack, rows = [], 0
        stack.append((place, part))
        rows += own
    if len(stack) > 1:
        yield stack


def _ticks(refs: Sequence[RunRef]) -> tuple[int, int]:
    """The first and the last tick whose changes neighbouring runs have."""
    return refs[0].ticks[0], refs[-1].ticks[1]


def is_settled(refs: Sequence[RunRef], leave: int = 0) -> bool:
    """Whether no merge is due, so that `compacted` has nothing to do."""
    rest = refs[leave:]
    if len({ref.ticks for ref in rest}) == len(rest):  # none is a part of one
        return not to_merge([ref.rows for ref in rest])
    return not to_merge(_sizes(rest, _wholes(rest)))


def check_parts(store: StateStore, refs: Sequence[RunRef], writer: Writer) -> None:
    """Runs that are large are not checked when they are opened; damage must not pass into what takes their place."""
    for ref in refs:
        if ref.length >= CHECK_BYTES_MAX and ref.file not in writer.files:
            store.verify(ref)


def _sizes(refs: Sequence[RunRef], wholes: Sequence[slice]) -> list[int]:
    if len(wholes) == len(refs):
        return [ref.rows for ref in refs]
    return [sum(ref.rows for ref in refs[whole]) for whole in wholes]


def _wholes(refs: Sequence[RunRef]) -> list[slice]:
    """The runs, with those taken together that are parts of one: of the same ticks, in ranges of hashes that ascend."""
    starts = [
        i
        for i, ref in enumerate(refs)
        if i == 0 or refs[i - 1].ticks != ref.ticks or refs[i - 1].high > ref.low
    ]
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(refs)], strict=True)]


def merged_run(slot: ArrangementSpec, runs: Sequence[Run], *, bottom: bool) -> Run:
    """One run in the place of several."""
    if slot.discipline == "latest":
        return merge_latest([evolved(run, slot.schema) for run in runs], slot.key, bottom)
    if slot.discipline == "ordered":
        types = slot.schema.types
        same = [run if run.rows.schema.types == types else evolved(run, slot.schema) for run in runs]
        return merge_ordered(same, slot.key, slot.order)
    return merge(runs, slot.key)


def unexpired(slot: ArrangementSpec, run: Run, level: int | None) -> Run:
    """A run of everything in an arrangement, without the rows that no later row will meet.

    Not one of newer runs alone: without what they take back, older rows would be there again.
    """
    if slot.expires is None or level is None or not len(run):
        return run
    column = run.rows.column(slot.expires.column)
    if pa.types.is_struct(column.type):
        column = pc.struct_field(column, [1])
    times = column.view(pa.int64()).fill_null(2**62).to_numpy()
    old = times <= level - slot.expires.slack_us
    if slot.expires.op is not None:
        old &= ~standing(run, slot.key, old, slot.expires.op)
    kept = np.flatnonzero(~old)
    if len(kept) == len(run):
        return run
    return Run(run.hashes[kept], take_rows(run.rows, kept), run.weights[kept])


def _merged_by_all_cores(slot: ArrangementSpec, runs: Sequence[Run], *, bottom: bool) -> Run:
    """The same while nothing else goes on: each half of the hashes by a thread of its own."""
    size = sum(run.rows.nbytes for run in runs)
    if size < LARGE_BYTES:
        return merged_run(slot, runs, bottom=bottom)
    halves = side_by_side(
        lambda half: merged_run(slot, [split(run, *half) for run in runs], bottom=bottom),
        ((0, 2**63), (2**63, 2**64)),
        size=size,
    )
    return joined(halves)
