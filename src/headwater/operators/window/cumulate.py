"""Cumulating windows: the contribution of rows to a series of groups, each of which includes the previous one.

The first columns of the input are a key, a last and a first number; the others are arguments. A row belongs to the
groups of its key at first, first + step and so on up to last. Rows are combined by their first number, and the results
added up from one first number to the next: a group includes all rows that begin at or before it. So the cost is
proportional to the rows and to the groups that they touch, not to the pairs of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.core.parallel import side_by_side
from headwater.operators.aggregate import aggregate
from headwater.operators.aggregate.aggregate import PIECE_ROWS, AggregateSpec
from headwater.operators.zset.delta import Delta, concat_rows, take_rows
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.grouping import group


@dataclass(frozen=True)
class CumulateSpec:
    """The definition of a cumulation: the last two columns of the aggregate's key are the last and the first number.

    Both are 64-bit integers and never NULL. The aggregate must be combinable.
    """

    aggregate: AggregateSpec
    step: int

    @property
    def key(self) -> range:
        """The key columns without the last and the first number."""
        return range(self.aggregate.width - 2)


@dataclass(frozen=True, eq=False)
class Brought:
    """The contribution of a delta: `keys` has the key of each group, `at` its number, and `kept` the state to add to it.

    A group may occur more than once.
    """

    keys: pa.RecordBatch
    at: Ints
    kept: list[pa.Array]


def cumulated(spec: CumulateSpec, delta: Delta) -> Brought | None:
    """Return a non-empty delta's contribution to each group; None if a first and last are not a multiple of `step` apart."""
    last, first = (delta.rows.column(spec.aggregate.width - i).to_numpy() for i in (2, 1))
    span = last - first
    if (first > last).any() or (span < 0).any() or (span % spec.step).any():
        return None
    pieces = [delta.slice(start, PIECE_ROWS) for start in range(0, len(delta), PIECE_ROWS)]
    rows = concat_rows(
        side_by_side(lambda piece: aggregate.combine(spec.aggregate, piece), pieces, size=delta.rows.nbytes),
        spec.aggregate.state,
    )
    width = spec.aggregate.width
    groups = group(rows, rows.num_rows, range(width - 1))
    labels = np.repeat(np.arange(len(groups)), groups.sizes)
    firsts = rows.column(width - 1).to_numpy()
    order = np.arange(rows.num_rows) if groups.order is None else groups.order
    order = order[np.lexsort((firsts[order], labels))]
    firsts, lasts = firsts[order], rows.column(width - 2).to_numpy()[order]
    places = np.arange(len(order)) - np.repeat(groups.starts, groups.sizes)
    kept = _added_up(spec.aggregate, [c.take(pa.array(order)) for c in rows.columns[width:]], places)
    # Each row's sum is valid until the next row of its key.
    ends = lasts + spec.step
    followed = np.flatnonzero(places[1:])
    ends[followed] = firsts[followed + 1]
    counts = (ends - firsts) // spec.step
    owners = np.repeat(np.arange(len(order)), counts)
    since = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    taken = pa.array(owners)
    keys = take_rows(rows.select(list(spec.key)), order[owners])
    return Brought(keys, firsts[owners] + spec.step * since, [column.take(taken) for column in kept])


def _added_up(spec: AggregateSpec, kept: Sequence[pa.Array], places: Ints) -> list[pa.Array]:
    """Return the prefix sums of states within each segment; `places` has each row's index in its segment, from 0.

    By doubling: after n rounds a row has the sum of the 2**n rows up to it.
    """
    distance, longest = 1, int(places.max()) + 1
    while distance < longest:
        later = np.flatnonzero(places >= distance)
        sizes = np.full(len(later), 2)
        pairs = np.stack((later - distance, later), axis=1).ravel()
        both = aggregate.merged(spec, kept, pairs, np.arange(0, len(pairs), 2), sizes)
        chosen = np.arange(len(places))
        chosen[later] = len(places) + np.arange(len(later))
        taken = pa.array(chosen)
        kept = [pa.concat_arrays(parts).take(taken) for parts in zip(kept, both, strict=True)]
        distance *= 2
    return list(kept)
