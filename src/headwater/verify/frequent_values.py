"""Checks the frequent values that a view shows against all values of its groups.

Rows that differ only in their frequent values are checked against all of their groups together, because it is unknown which
row belongs to which group.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.operators.aggregate.frequent_items import FrequentItems, ranked
from headwater.operators.zset.exact_sums import Ints


def counts_by_place(sketch: FrequentItems, has: pa.Array, every: pa.Array) -> list[pa.Array]:
    """Return the shown counts, and the least and greatest possible counts: lists in descending order, padded with 0."""
    true, errors = sketch.exactly(every)
    width = min(sketch.wanted, max(1, *(int(_sizes(lists).max(initial=0)) for lists in (has, true))))
    shown, most = _counts(has, width), _counts(true, width)
    least = np.maximum(most - errors[:, None], 0)
    offsets = pa.array(np.arange(len(has) + 1, dtype=np.int32) * width)
    return [pa.ListArray.from_arrays(offsets, pa.array(c.ravel())) for c in (shown, least, most)]


def misstated(sketch: FrequentItems, has: pa.Array, every: pa.Array, ties: Ints) -> int | None:
    """Return the index of a row that shows too many values, a value twice, a count outside its bounds, or ascending counts;
    None if all rows are valid."""
    if len(long := np.flatnonzero((_sizes(has) > sketch.wanted) | np.asarray(has.is_null()))):
        return int(long[0])
    true, errors = sketch.exactly(every)
    classes = int(ties.max(initial=-1)) + 1
    members = np.bincount(ties, minlength=classes)
    worst = np.zeros(classes, dtype=np.int64)
    np.maximum.at(worst, ties, errors)
    shown_of, true_of = _owners(has), _owners(true)
    shown_count, true_count = _count(has), _count(true)
    values, places = ranked(pa.concat_arrays([_items(has), _items(true).cast(_items(has).type)]))
    width = max(1, len(values))
    shown_places, true_places = np.split(places, [len(shown_of)])
    keys = ties[true_of] * width + true_places
    known, inverse = np.unique(keys, return_inverse=True)
    most = np.zeros(len(known), dtype=np.int64)
    np.maximum.at(most, inverse, true_count)
    least = np.full(len(known), np.iinfo(np.int64).max)
    np.minimum.at(least, inverse, true_count)
    # a value that is absent from one of the groups may have the count 0 there
    least[np.bincount(inverse, minlength=len(known)) < members[known // width]] = 0
    asked = ties[shown_of] * width + shown_places
    found = np.minimum(np.searchsorted(known, asked), max(0, len(known) - 1))
    wrong = np.ones(len(asked), dtype=np.bool_)
    if len(known):
        wrong = known[found] != asked
        wrong |= (shown_count > most[found]) | (shown_count < least[found] - worst[ties[shown_of]])
    once, first = np.unique(shown_of * width + shown_places, return_index=True)
    if len(once) < len(asked):
        wrong[np.setdiff1d(np.arange(len(asked)), first)] = True
    wrong[1:] |= (shown_of[1:] == shown_of[:-1]) & (shown_count[1:] > shown_count[:-1])
    places_wrong = np.flatnonzero(wrong)
    return int(shown_of[places_wrong[0]]) if len(places_wrong) else None


def _sizes(lists: pa.Array) -> Ints:
    return np.asarray(lists.value_lengths().fill_null(0), dtype=np.int64)


def _owners(lists: pa.Array) -> Ints:
    sizes = _sizes(lists)
    return np.repeat(np.arange(len(sizes)), sizes)


def _items(lists: pa.Array) -> pa.Array:
    return pc.struct_field(lists.flatten(), [0])


def _count(lists: pa.Array) -> Ints:
    return np.asarray(pc.struct_field(lists.flatten(), [1]), dtype=np.int64)


def _counts(lists: pa.Array, wanted: int) -> Ints:
    """Return the greatest counts of each list in descending order, one array row per list, padded with 0."""
    owners, counts, sizes = _owners(lists), _count(lists), _sizes(lists)
    order = np.lexsort((-counts, owners))
    places = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    taken = places < wanted
    made = np.zeros((len(sizes), wanted), dtype=np.int64)
    made[owners[order][taken], places[taken]] = counts[order][taken]
    return made
