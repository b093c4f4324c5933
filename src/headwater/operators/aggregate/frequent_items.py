"""The values that a group has most often, in little memory: the counters of Misra and Gries, merged as Agarwal and others do.

A group keeps up to `tracked` values, a counter for each, and an error. Counters of the same value are added up. Where there
are more than `tracked`, the greatest but `tracked` is subtracted from all of them, which adds to the error, and those that
are left with nothing go.

**The law**: of n values, a counter is at most how often its value is there, and less by the error at most (one that is not
kept is 0); and (tracked + 1) * error <= n - the sum of the counters. For what is subtracted is taken from at least
`tracked + 1` counters. So the error is at most n / (tracked + 1), every value that is there more often than that is kept,
and while a group has no more than `tracked` different values its counters are exact.

What a group keeps depends on how its values were cut into parts, its law does not.
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
    """Values of a type, NULL one of them, of which the `wanted` most frequent are asked for.

    A column that may be NULL comes wrapped: in a struct that never is.
    """

    kind: pa.DataType
    wanted: int
    tracked: int

    def __post_init__(self) -> None:
        if not 1 <= self.wanted <= self.tracked:
            raise ValueError(f"{self.wanted} of {self.tracked} values cannot be told")

    @property
    def repeatable(self) -> bool:
        return False

    @property
    def bound(self) -> str:
        return f"counts are never too large, and too small by 1/{self.tracked + 1} of the values at most"

    @property
    def state(self) -> tuple[pa.DataType, ...]:
        """Values ascending, how often each is there at least, and the error."""
        return pa.list_(self.kind), pa.list_(pa.int64()), pa.int64()

    @property
    def result(self) -> pa.DataType:
        return pa.list_(pa.field("element", pa.struct([("item", self.kind), ("count", pa.int64())])))

    def collect(self, values: pa.Array, weights: Ints, owners: Ints, count: int) -> list[pa.Array]:
        items = pc.struct_field(values, [0]) if pa.types.is_struct(values.type) else values
        return self._kept(items, weights, owners, np.zeros(count, dtype=np.int64), count)

    def merge(self, states: Sequence[pa.Array], owners: Ints, count: int) -> list[pa.Array]:
        counts, sizes = flattened(states[1])
        told = np.asarray(states[2].fill_null(0), dtype=np.int64)
        errors = np.zeros(count, dtype=np.int64)
        np.add.at(errors, owners, told)
        present = np.bincount(owners[np.asarray(states[2].is_valid())], minlength=count) > 0
        return self._kept(states[0].flatten(), counts, np.repeat(owners, sizes), errors, count, present)

    def finish(self, states: Sequence[pa.Array]) -> pa.Array:
        counts, sizes = flattened(states[1])
        owners = np.repeat(np.arange(len(sizes)), sizes)
        order = np.lexsort((np.arange(len(counts)), -counts, owners))  # of equal counts the least value
        order = order[_places(sizes) < self.wanted]
        return self._listed(
            states[0].flatten().take(pa.array(order)), counts[order], np.minimum(sizes, self.wanted)
        )

    def exactly(self, every: pa.Array) -> tuple[pa.Array, Ints]:
        """All values of groups and their true counts, given as (value, count) in any order, and the error that each group's
        answer may have."""
        sizes = np.asarray(every.value_lengths().fill_null(0), dtype=np.int64)
        pairs = every.flatten()
        counts = np.asarray(pc.struct_field(pairs, [1]), dtype=np.int64)
        owners = np.repeat(np.arange(len(sizes)), sizes)
        total = np.bincount(owners, counts, minlength=len(sizes)).astype(np.int64)
        items, owners, counts = _summed(pc.struct_field(pairs, [0]), counts, owners)
        sizes = np.bincount(owners, minlength=len(sizes))
        errors = np.where(sizes > self.tracked, total // (self.tracked + 1), 0)
        return self._listed(items, counts, sizes), errors

    def _kept(
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
    """0, 1, 2 ... for each of the groups of these sizes."""
    places: Ints = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places


def ranked(items: pa.Array) -> tuple[pa.Array, Ints]:
    """The different values, ascending and NULL last, and the place of each item among them."""
    coded = items.dictionary_encode(null_encoding="encode")
    order = np.asarray(pc.sort_indices(coded.dictionary), dtype=np.int64)
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return coded.dictionary.take(pa.array(order)), rank[np.asarray(coded.indices, dtype=np.int64)]


def _summed(items: pa.Array, counts: Ints, owners: Ints) -> tuple[pa.Array, Ints, Ints]:
    """Every value of a group once, ascending, with its owner and the sum of its counts."""
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
