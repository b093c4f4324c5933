"""Lookup of keys in the runs of a map, for operators that read few columns of the rows found.

Like `runs.lookup`, but rows are not copied until a column is requested: numeric columns are then gathered as numpy
columns, run by run, without an intermediate batch. Keys are found by hash alone and compared once, all together; only
if two keys share a hash, which is very rare, `runs.lookup` resolves the collision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.hashing import Hashes, Indices, Mask, equal_rows
from headwater.operators.zset.interpolation_search import first_places
from headwater.operators.zset.numpy_columns import nulls
from headwater.operators.zset.runs import Key, Run, lookup

Lane = npt.NDArray[Any]
_INTEGER = pa.int64()
_NONE = np.zeros(0, dtype=np.int64)


class _Part(NamedTuple):
    """Rows found in one run: the row of probe `probes[j]` is at index `places[j]`."""

    run: Run
    probes: Indices
    places: Indices


@dataclass(frozen=True, eq=False)
class LookupResult:
    """The latest rows of `count` probe keys; keys that are absent or deleted have no row."""

    count: int
    schema: pa.Schema
    parts: Sequence[_Part]

    @cached_property
    def known(self) -> Mask:
        """Mask of the probe keys that have a row."""
        mask = np.zeros(self.count, dtype=np.bool_)
        if self.parts:
            mask[self._probes] = True
        return mask

    @cached_property
    def _probes(self) -> Indices:
        """Indices of the probe keys that have a row, in the order of the parts."""
        return np.concatenate([part.probes for part in self.parts])

    def lane(self, column: int, dtype: type[np.generic]) -> Lane:
        """Return a numeric column without NULLs, by probe; 0 where a key has no row."""
        made = np.zeros(self.count, dtype=dtype)
        if self.parts:
            made[self._probes] = np.concatenate([p.run.lane(column)[p.places] for p in self.parts])
        return made

    def column(self, column: int) -> pa.Array:
        """Return any column, by probe; NULL where a key has no row."""
        if not self.parts:
            return nulls(self.count, self.schema.field(column).type)
        values = [part.run.rows.column(column).take(pa.array(part.places)) for part in self.parts]
        places, missing = np.zeros(self.count, dtype=np.int64), ~self.known
        places[self._probes] = np.arange(sum(map(len, values)))
        return pa.concat_arrays(values).take(pa.array(places, mask=missing if missing.any() else None))


def find(
    runs: Sequence[Run], key: Key, keys: pa.RecordBatch, hashes: Hashes, schema: pa.Schema
) -> LookupResult:
    """Find the latest row of each probe key in runs with the columns of `schema`.

    `keys` has the key values in the column order of `key`, and `hashes` their hashes; lookup is fast if the hashes ascend.
    """
    met = _met([runs], [hashes], [0])
    parts = _there(met)
    if met and not _are_those(met, key, keys):
        found, rows = lookup(runs, key, keys, hashes, schema=schema)
        probes = np.flatnonzero(found >= 0)
        parts = [
            _Part(Run(hashes[probes], rows, np.ones(len(probes), dtype=np.int64)), probes, found[probes])
        ]
    return LookupResult(len(hashes), schema, [part for part in parts if len(part.probes)])


def find_stacked(
    states: Sequence[Sequence[Run]],
    key: Key,
    keys: pa.RecordBatch,
    hashes: Sequence[Hashes],
    firsts: Indices,
    schema: pa.Schema,
) -> LookupResult:
    """Find the latest rows for several consecutive lists of keys, each looked up in its own runs.

    `firsts` has the index at which each list begins, and as its last element the end of the last list.
    """
    starts: list[int] = firsts.tolist()
    met = _met(states, hashes, starts)
    parts = _there(met)
    if met and not _are_those(met, key, keys):
        spans = list(pairwise(starts))
        each = [
            find(runs, key, keys.slice(first, end - first), sought, schema)
            for runs, sought, (first, end) in zip(states, hashes, spans, strict=True)
        ]
        parts = [
            _Part(part.run, part.probes + first, part.places)
            for found, (first, _) in zip(each, spans, strict=True)
            for part in found.parts
        ]
    return LookupResult(starts[-1], schema, [part for part in parts if len(part.probes)])


def _met(states: Sequence[Sequence[Run]], hashes: Sequence[Hashes], starts: Sequence[int]) -> list[_Part]:
    """Find by hash alone the newest row of each probe, deleted or not; probes are offset by the start of their state's list.

    Lists with the same hashes, searched in runs with the same hashes, find rows at the same indices, so one search
    serves all of them. Equality is detected by identity: such lists and runs share one array of hashes.
    """
    met: list[_Part] = []
    searches: list[tuple[list[int], int, Indices | None, Hashes]] = []
    """States to search, run depth counted from the newest, probes still to find (None if all), and their hashes."""
    for places in _alike(dict(enumerate(hashes))):
        searches.append((places, 1, None, hashes[places[0]]))
    while searches:
        by, depth, left, sought = searches.pop()
        runs = {place: states[place][-depth] for place in by if depth <= len(states[place])}
        for places in _alike({place: run.hashes for place, run in runs.items()}):
            found, at, missed = _hits(runs[places[0]].hashes, sought)
            if not found.size:
                searches.append((places, depth + 1, left, sought))
                continue
            probes = found if left is None else left[found]
            for place in places:
                own = probes + starts[place] if starts[place] else probes
                met.append(_Part(runs[place], own, at))
            if missed.size:
                rest = missed if left is None else left[missed]
                searches.append((places, depth + 1, rest, sought[missed]))
    return met


def _alike(hashes: Mapping[int, Hashes]) -> list[list[int]]:
    """Group the indices whose hash arrays are the same object."""
    if len(hashes) == 1:
        return [list(hashes)]
    found: dict[int, list[int]] = {}
    for place, each in hashes.items():
        found.setdefault(id(each), []).append(place)
    return list(found.values())


def _hits(held: Hashes, sought: Hashes) -> tuple[Indices, Indices, Indices]:
    """Return the indices of the hashes found, the first index of each in `held`, and the indices of the hashes not found."""
    if not held.size:
        return _NONE, _NONE, _NONE
    at = first_places(held, sought)
    np.minimum(at, held.size - 1, out=at)
    hit = held[at] == sought
    found = hit.nonzero()[0]
    if not found.size or found.size == sought.size:
        return found, at, _NONE
    return found, at[found], (~hit).nonzero()[0]


def _there(met: Sequence[_Part]) -> list[_Part]:
    """Drop rows of weight 0, which mark deleted keys."""
    parts: list[_Part] = []
    for part in met:
        weights = part.run.weights[part.places]
        if np.count_nonzero(weights) == weights.size:
            parts.append(part)
        else:
            there = weights.nonzero()[0]
            parts.append(_Part(part.run, part.probes[there], part.places[there]))
    return parts


def _are_those(parts: Sequence[_Part], key: Key, keys: pa.RecordBatch) -> bool:
    """Whether the rows found by hash have the keys of their probes."""
    probes = np.concatenate([part.probes for part in parts])
    for place, column in enumerate(key):
        wanted = keys.column(place)
        numbers = [part.run.integers(column) for part in parts]
        if wanted.type == _INTEGER and not wanted.null_count and all(lane is not None for lane in numbers):
            held = [lane[part.places] for lane, part in zip(numbers, parts, strict=True) if lane is not None]
            if (np.concatenate(held) != wanted.to_numpy()[probes]).any():
                return False
            continue
        stored = [part.run.rows.column(column) for part in parts]
        taken = [lane.take(pa.array(part.places)) for lane, part in zip(stored, parts, strict=True)]
        if not equal_rows([pa.concat_arrays(taken)], [wanted.take(pa.array(probes))], len(probes)).all():
            return False
    return True
