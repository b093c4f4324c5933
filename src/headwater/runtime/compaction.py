"""Keeping arrangements short: a new run is merged with its older neighbours while they are about its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.operators.delta import take_rows
from headwater.operators.ordered import merge_ordered
from headwater.operators.runs import Run, evolved, joined, merge, merge_latest, split
from headwater.operators.versions import standing
from headwater.parallel import LARGE_BYTES, side_by_side
from headwater.runtime.pipeline import Slot
from headwater.state.cache import CHECK_BYTES_MAX
from headwater.state.merging import to_merge
from headwater.state.refs import RunRef
from headwater.state.store import StateStore
from headwater.state.writer import Writer


@dataclass(frozen=True)
class Compacted:
    """An arrangement after the merges that were due."""

    refs: tuple[RunRef, ...]
    runs: list[Run]
    later: slice | None
    """Large runs whose merge was left to the background."""


def compacted(
    slot: Slot,
    refs: Sequence[RunRef],
    runs: Sequence[Run],
    writer: Writer,
    store: StateStore,
    *,
    leave: int = 0,
    large: bool = True,
    level: int | None = None,
) -> Compacted:
    """Do the merges that are due, and write what they make. The oldest `leave` runs are left alone; so are the `large`
    ones, if that is not asked for. `level` is the watermark by which rows expire."""
    kept_refs, kept_runs = list(refs), list(runs)
    wholes = [slice(leave + w.start, leave + w.stop) for w in _wholes(kept_refs[leave:])]
    later: slice | None = None
    for due in reversed(to_merge(_sizes(refs, wholes))):
        part = slice(wholes[due.start].start, wholes[due.stop - 1].stop)
        if not (due.now or large):
            later = part
            continue
        check_parts(store, kept_refs[part], writer)
        chosen = kept_runs[part]
        merged = _merged_by_all_cores(slot, chosen, bottom=part.start == 0)
        if part.start == 0:
            merged = unexpired(slot, merged, level)
        ticks = (kept_refs[part][0].ticks[0], kept_refs[part][-1].ticks[1])
        ref = writer.add(merged, ticks=ticks)
        store.remember(ref, merged)
        kept_refs[part] = [ref]
        kept_runs[part] = [merged]
    return Compacted(tuple(kept_refs), kept_runs, later)


def is_settled(refs: Sequence[RunRef], leave: int = 0) -> bool:
    """Whether no merge is due, so that `compacted` has nothing to do."""
    rest = refs[leave:]
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


def merged_run(slot: Slot, runs: Sequence[Run], *, bottom: bool) -> Run:
    """One run in the place of several."""
    if slot.discipline == "latest":
        return merge_latest([evolved(run, slot.schema) for run in runs], slot.key, bottom)
    if slot.discipline == "ordered":
        types = slot.schema.types
        same = [run if run.rows.schema.types == types else evolved(run, slot.schema) for run in runs]
        return merge_ordered(same, slot.key, slot.order)
    return merge(runs, slot.key)


def unexpired(slot: Slot, run: Run, level: int | None) -> Run:
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


def _merged_by_all_cores(slot: Slot, runs: Sequence[Run], *, bottom: bool) -> Run:
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
