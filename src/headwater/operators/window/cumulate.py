"""What rows bring to groups that take in more from one to the next, as windows do that grow.

The input's first columns are a key, a last and a first number; the others are arguments. A row belongs to the groups of its
key at first, first + step and so on up to last. What rows bring is combined by where they begin, and added up from one
beginning to the next: a group has what begins at it or before. So the cost follows the rows and the groups that they
touch, and not the pairs of them.
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
    """What is aggregated: the last two columns of the key are the last and the first number, of 64 bits and not NULL.

    The aggregate must be combinable.
    """

    aggregate: AggregateSpec
    step: int

    @property
    def key(self) -> range:
        """The columns of the key itself."""
        return range(self.aggregate.width - 2)


@dataclass(frozen=True, eq=False)
class Brought:
    """What a delta brings: `keys` has the key of each group, `at` its number, and `kept` what is added to its state.

    A group may be there more than once.
    """

    keys: pa.RecordBatch
    at: Ints
    kept: list[pa.Array]


def cumulated(spec: CumulateSpec, delta: Delta) -> Brought | None:
    """What a delta, which is not empty, brings to each group; None if first and last are not a number of steps apart."""
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
    # each row has what is so up to the next one of its key
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
    """What each row has together with those before it in its segment, in which it is at one of the `places` from 0 on.

    By doubling: after n rounds a row has what the 2**n rows up to it have.
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
