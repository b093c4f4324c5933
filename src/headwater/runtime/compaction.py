"""Keeping arrangements short: a new run is merged with its older neighbours while they are about its size."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.operators.ordered import merge_ordered
from headwater.operators.runs import Run, merge, merge_latest
from headwater.runtime.pipeline import Slot
from headwater.state.merging import to_merge
from headwater.state.refs import RunRef
from headwater.state.store import StateStore
from headwater.state.writer import Writer


def compacted(
    slot: Slot, refs: Sequence[RunRef], runs: Sequence[Run], writer: Writer, store: StateStore
) -> tuple[tuple[RunRef, ...], list[Run]]:
    """The arrangement after the merges that are due, with the merged runs written."""
    kept_refs, kept_runs = list(refs), list(runs)
    for due in reversed(to_merge(kept_refs)):
        part = due.slice
        chosen = kept_runs[part]
        merged = merged_run(slot, chosen, bottom=due.start == 0)
        ticks = (kept_refs[part][0].ticks[0], kept_refs[part][-1].ticks[1])
        ref = writer.add(merged, ticks=ticks)
        store.remember(ref, merged)
        kept_refs[part] = [ref]
        kept_runs[part] = [merged]
    return tuple(kept_refs), kept_runs


def merged_run(slot: Slot, runs: Sequence[Run], *, bottom: bool) -> Run:
    """One run in the place of several."""
    if slot.discipline == "latest":
        return merge_latest(runs, slot.key, bottom)
    if slot.discipline == "ordered":
        return merge_ordered(runs, slot.key, slot.order)
    return merge(runs, slot.key)
