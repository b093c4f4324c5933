"""The most frequent values of a group, approximately: Misra-Gries counters, merged as by Agarwal et al.

A group stores up to `tracked` values with a counter each, and an error. Counters of the same value are added up. If
there are more than `tracked` counters, the (tracked + 1)-th greatest counter is subtracted from all of them and added
to the error, and values whose counter is no longer positive are dropped.

**Invariant**: of n values, a counter is at most the true frequency of its value, and too small by at most the error
(the counter of a dropped value is 0); and (tracked + 1) * error <= n - the sum of the counters, because each
subtraction reduces at least `tracked + 1` counters. So the error is at most n / (tracked + 1), every value that is more
frequent than that is stored, and the counters are exact while a group has at most `tracked` distinct values.

The state of a group depends on how its values were partitioned; the invariant does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.operators.aggregate.sketches import flattened
from headwater.operators.zset.exact_sums import Bools, Ints


@dataclass(frozen=True)
class FrequentItems:
    """Counters of the values of a type, NULL being one of them, for the `wanted` most frequent values.

    A nullable column is passed wrapped in a struct that is never NULL.
    """

    kind: pa.DataType
    wanted: int
    tracked: int

    def __post_init__(self) -> None:
        if not 1 <= self.wanted <= self.tracked:
            raise ValueError(
                f"{self.wanted} frequent values need at least as many tracked values, not {self.tracked}"
            )

    @property
    def repeatable(self) -> bool:
        return False

    @property
    def bound(self) -> str:
        return f"counts are never too large, and too small by 1/{self.tracked + 1} of the values at most"

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """Types of the values, ascending, of their counters (lower bounds of the frequencies), and of the error."""
        return pa.list_(self.kind), pa.list_(pa.int64()), pa.int64()

    @property
    def result(self) -> pa.DataType:
        return pa.list_(pa.field("element", pa.struct([("item", self.kind), ("count", pa.int64())])))

    def collect(self, values: pa.Array, weights: Ints, owners: Ints, count: int) -> list[pa.Array]:
        items = pc.struct_field(values, [0]) if pa.types.is_struct(values.type) else values
        return self._packed_state(items, weights, owners, np.zeros(count, dtype=np.int64), count)

    def merge(self, states: Sequence[pa.Array], owners: Ints, count: int) -> list[pa.Array]:
        counts, sizes = flattened(states[1])
        bounds = np.asarray(states[2].fill_null(0), dtype=np.int64)
        errors = np.zeros(count, dtype=np.int64)
        np.add.at(errors, owners, bounds)
        present = np.bincount(owners[np.asarray(states[2].is_valid())], minlength=count) > 0
        return self._packed_state(
            states[0].flatten(), counts, np.repeat(owners, sizes), errors, count, present
        )

    def finish(self, states: Sequence[pa.Array]) -> pa.Array:
        counts, sizes = flattened(states[1])
        owners = np.repeat(np.arange(len(sizes)), sizes)
        order = np.lexsort((np.arange(len(counts)), -counts, owners))  # least value first
        order = order[_places(sizes) < self.wanted]
        return self._listed(
            states[0].flatten().take(pa.array(order)), counts[order], np.minimum(sizes, self.wanted)
        )

    def exactly(self, every: pa.Array) -> tuple[pa.Array, Ints]:
        """Return all values of each group with their exact counts, and the error allowed to each group's approximate result.

        `every` has a list of (value, count) pairs in any order for each group.
        """
        sizes = np.asarray(every.value_lengths().fill_null(0), dtype=np.int64)
        pairs = every.flatten()
        counts = np.asarray(pc.struct_field(pairs, [1]), dtype=np.int64)
        owners = np.repeat(np.arange(len(sizes)), sizes)
        total = np.bincount(owners, counts, minlength=len(sizes)).astype(np.int64)
        items, owners, counts = _summed(pc.struct_field(pairs, [0]), counts, owners)
        sizes = np.bincount(owners, minlength=len(sizes))
        errors = np.where(sizes > self.tracked, total // (self.tracked + 1), 0)
        return self._listed(items, counts, sizes), errors

    def _packed_state(
        self,
        items: pa.Array,
        counts: Ints,
        owners: Ints,
        errors: Ints,
        count: int,
        present: Bools | None = None,
    ) -> list[pa.Array]:
        items, owners, counts = _summed(items, counts, owners)
        sizes = np.bincount(owners, minlength=count)
        present = sizes > 0 if present is None else present
        if (long := sizes > self.tracked).any():
            inside = np.flatnonzero(long[owners])
            order = inside[np.lexsort((-counts[inside], owners[inside]))]
            first_out = order[_places(sizes[long]) == self.tracked]
            less = np.zeros(count, dtype=np.int64)
            less[owners[first_out]] = counts[first_out]
            errors = errors + less
            counts = counts - less[owners]
            stays = np.flatnonzero(counts > 0)
            items, owners, counts = items.take(pa.array(stays)), owners[stays], counts[stays]
            sizes = np.bincount(owners, minlength=count)
        offsets = pa.array(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))
        mask = None if present.all() else pa.array(~present)
        return [
            pa.ListArray.from_arrays(offsets, items, mask=mask),
            pa.ListArray.from_arrays(offsets, pa.array(counts), mask=mask),
            pa.array(errors, mask=~present),
        ]

    def _listed(self, items: pa.Array, counts: Ints, sizes: Ints) -> pa.Array:
        pairs = pa.StructArray.from_arrays(
            [items.cast(self.kind), pa.array(counts)], fields=list(self.result.value_type)
        )
        offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=self.result)


def _places(sizes: Ints) -> Ints:
    """Return 0, 1, 2, ... within each of the groups of these sizes."""
    places: Ints = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


def ranked(items: pa.Array) -> tuple[pa.Array, Ints]:
    """Return the distinct values, ascending with NULL last, and the rank of each item among them."""
    coded = items.dictionary_encode(null_encoding="encode")
    order = np.asarray(pc.sort_indices(coded.dictionary), dtype=np.int64)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return coded.dictionary.take(pa.array(order)), rank[np.asarray(coded.indices, dtype=np.int64)]


def _summed(items: pa.Array, counts: Ints, owners: Ints) -> tuple[pa.Array, Ints, Ints]:
    """Return each value of a group once, ascending, with its owner and the sum of its counts."""
    values, places = ranked(items)
    keys = owners * max(1, len(values)) + places
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(
        np.concatenate((np.ones(min(1, len(keys)), dtype=np.bool_), keys[1:] != keys[:-1]))
    )
    summed = np.add.reduceat(counts[order], starts) if len(starts) else np.zeros(0, dtype=np.int64)
    firsts = order[starts]
    return values.take(pa.array(places[firsts])), owners[firsts], summed
