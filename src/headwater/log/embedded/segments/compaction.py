"""Selects the superseded records of a keyed partition. Pure selection; rewriting and committing are elsewhere.

The latest record of each key is kept; a tombstone that is the latest is kept until it is old enough. Keys are compared by two
independent 64-bit hashes. Memory is bounded: the keys are split into as many passes as their number requires.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.hashing import hash_rows

Mask = npt.NDArray[np.bool_]
Batches = Callable[[], Iterator[pa.RecordBatch]]
"""Reads one segment: key columns, then `_op`, `_offset`, `_appended_at`."""


def select_latest(
    segments: Sequence[Batches],
    sizes: Sequence[int],
    *,
    bound: int,
    before: int,
    tombstones_before: int,
    rows_max: int,
) -> list[Mask]:
    """Return, for each segment, a mask of the records to keep.

    Only records below offset `bound` that were appended before the time `before` are removed: those that a later one of them
    supersedes, and tombstones appended before `tombstones_before`.
    """
    keep = [np.ones(size, dtype=bool) for size in sizes]
    starts = np.cumsum([0, *sizes])
    passes = max(1, -(-int(starts[-1]) // rows_max))
    for number in range(passes):
        hashes, places, dead = _collect(
            segments, starts, bound, (before, tombstones_before), (number, passes)
        )
        if not len(places):
            continue
        order = np.lexsort((places, hashes[1], hashes[0]))
        one, two = hashes[0][order], hashes[1][order]
        latest = np.append((one[1:] != one[:-1]) | (two[1:] != two[:-1]), True)
        gone = places[order][~latest | dead[order]]
        for index, mask in enumerate(keep):
            mask[gone[(gone >= starts[index]) & (gone < starts[index + 1])] - starts[index]] = False
    return keep


def _collect(
    segments: Sequence[Batches],
    starts: npt.NDArray[np.int64],
    bound: int,
    times: tuple[int, int],
    part: tuple[int, int],
) -> tuple[tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]], npt.NDArray[np.int64], Mask]:
    """Return (both hashes, index over all segments, whether an old tombstone) of the records of one pass."""
    (before, tombstones_before), (number, passes) = times, part
    ones, twos, places, dead = [], [], [], []
    for index, read in enumerate(segments):
        at = int(starts[index])
        for batch in read():
            keys = [batch.column(i) for i in range(batch.num_columns - 3)]
            rows = batch.num_rows
            first = hash_rows(keys, rows)
            mine = np.asarray(batch.column("_offset").to_numpy()) < bound
            appended = batch.column("_appended_at").view(pa.int64()).to_numpy()
            mine &= appended < before
            if passes > 1:
                mine &= first % np.uint64(passes) == number
            deletes = np.asarray(batch.column("_op").to_numpy(zero_copy_only=False) == "delete")
            ones.append(first[mine])
            twos.append(hash_rows(keys, rows, seed=1)[mine])
            places.append((np.arange(rows) + at)[mine])
            dead.append((deletes & (appended < tombstones_before))[mine])
            at += rows
    if not places:
        return (np.empty(0, np.uint64), np.empty(0, np.uint64)), np.empty(0, np.int64), np.empty(0, bool)
    return (np.concatenate(ones), np.concatenate(twos)), np.concatenate(places), np.concatenate(dead)
