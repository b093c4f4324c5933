"""Compaction of arrangements: a new run is merged with its older neighbours while they are of similar size."""

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
"""Maximum number of rows of a merge that is stacked with others: beyond it, the rows cost more than the additional merge."""
_STACK_ROWS_MAX = 1 << 17
"""Maximum number of rows of a stack: its results share a stream, which is kept as long as any of them."""


@dataclass(frozen=True, eq=False)
class Due:
    """An arrangement with more runs than it should have, oldest first."""

    slot: ArrangementSpec
    refs: tuple[RunRef, ...]
    runs: list[Run]
    leave: int
    """Number of the oldest runs that must not be merged."""
    level: int | None
    """Watermark by which rows expire; None if no rows expire."""


@dataclass(frozen=True)
class Compacted:
    """An arrangement after its due merges."""

    refs: tuple[RunRef, ...]
    runs: list[Run]
    later: slice | None
    """Large runs whose merge was left to the background."""


class Compaction:
    """The merges of a tick."""

    def __init__(self, writer: Writer, store: StateStore, *, large: bool = True) -> None:
        """`large`: whether to merge large runs too; otherwise these merges are left to the background."""
        self._writer = writer
        self._store = store
        self._large = large
        self._hashes: dict[tuple[object, ...], Hashes] = {}

    def done(self, due: Due) -> Compacted:
        """Merge the runs that are due in an arrangement, and write the results."""
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
        """Merge the runs that are due in several arrangements; small merges in arrangements of the same kind are
        executed as one."""
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
        """Execute the single due merges of several arrangements as one, and return the results by index."""
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
            return self._writer.add_shared(runs, ticks=ticks)
        return [self._writer.add(run, ticks=own) for run, own in zip(runs, ticks, strict=True)]


def _merges(due: Due) -> tuple[list[slice], list[Merge]]:
    """Return the slices of runs that form whole runs, and the merges that are due among them."""
    wholes = [slice(due.leave + w.start, due.leave + w.stop) for w in _wholes(due.refs[due.leave :])]
    return wholes, to_merge(_sizes(due.refs, wholes))


def _small(due: Due) -> slice | None:
    """Return the runs to merge if an arrangement has one due merge, which may be stacked with others; None otherwise."""
    slot = due.slot
    wholes, merges = _merges(due)
    if slot.discipline == "ordered" or len(merges) != 1:
        return None
    if merges[0].rows > STACKED_ROWS_MAX or not merges[0].now:
        return None
    part = slice(wholes[merges[0].start].start, wholes[merges[0].stop - 1].stop)
    if not len(slot.schema) or (part.start == 0 and slot.expires is not None and due.level is not None):
        return None
    is_as_declared = all(run.rows.schema.equals(slot.schema, check_metadata=True) for run in due.runs[part])
    return part if is_as_declared else None


def _stacks(dues: Sequence[Due], some: Sequence[tuple[int, slice]]) -> Iterator[list[tuple[int, slice]]]:
    """Divide merges into stacks of limited size; merges that would be alone in a stack are omitted."""
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
    """Return the first and the last tick whose changes adjacent runs contain."""
    return refs[0].ticks[0], refs[-1].ticks[1]


def is_settled(refs: Sequence[RunRef], leave: int = 0) -> bool:
    """Whether no merge is due, so that `Compaction.done` would have no effect."""
    rest = refs[leave:]
    if len({ref.ticks for ref in rest}) == len(rest):  # no run is a part of a larger one
        return not to_merge([ref.rows for ref in rest])
    return not to_merge(_sizes(rest, _wholes(rest)))


def check_parts(store: StateStore, refs: Sequence[RunRef], writer: Writer) -> None:
    """Verify large runs before they are merged: they are not checked when opened, and damage must not pass into the
    merged run."""
    for ref in refs:
        if ref.length >= CHECK_BYTES_MAX and ref.file not in writer.files:
            store.verify(ref)


def _sizes(refs: Sequence[RunRef], wholes: Sequence[slice]) -> list[int]:
    if len(wholes) == len(refs):
        return [ref.rows for ref in refs]
    return [sum(ref.rows for ref in refs[whole]) for whole in wholes]


def _wholes(refs: Sequence[RunRef]) -> list[slice]:
    """Return slices of the runs that are parts of one run: of the same ticks, with ascending hash ranges."""
    starts = [
        i
        for i, ref in enumerate(refs)
        if i == 0 or refs[i - 1].ticks != ref.ticks or refs[i - 1].high > ref.low
    ]
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(refs)], strict=True)]


def merged_run(slot: ArrangementSpec, runs: Sequence[Run], *, bottom: bool) -> Run:
    """Merge runs of an arrangement into a single run; `bottom`: whether the oldest run is included."""
    if slot.discipline == "latest":
        return merge_latest([evolved(run, slot.schema) for run in runs], slot.key, bottom)
    if slot.discipline == "ordered":
        types = slot.schema.types
        same = [run if run.rows.schema.types == types else evolved(run, slot.schema) for run in runs]
        return merge_ordered(same, slot.key, slot.order)
    return merge(runs, slot.key)


def unexpired(slot: ArrangementSpec, run: Run, level: int | None) -> Run:
    """Return a run of the entire arrangement without the rows that no later row can match.

    Must not be applied to newer runs only: without the retractions in these, older rows would reappear.
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
    """Merge runs with one thread per half of the hashes, if they are large; no other work runs at that time."""
    size = sum(run.rows.nbytes for run in runs)
    if size < LARGE_BYTES:
        return merged_run(slot, runs, bottom=bottom)
    halves = side_by_side(
        lambda half: merged_run(slot, [split(run, *half) for run in runs], bottom=bottom),
        ((0, 2**63), (2**63, 2**64)),
        size=size,
    )
    return joined(halves)
