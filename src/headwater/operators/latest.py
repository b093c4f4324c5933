"""Looking up keys in the runs of a map, for operators that read few columns of what they find.

The same as `runs.lookup`, but the rows stay where they are until a column is asked for: numbers are then gathered as
numpy lanes, run by run, with no batch made on the way. Keys are found by their hashes alone and compared once, all
together; if any two keys share a hash, which hardly ever happens, `runs.lookup` finds out which is which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.hashing import Hashes, Indices, Mask, equal_rows
from headwater.operators.lanes import nulls
from headwater.operators.runs import Key, Run, lookup

Lane = npt.NDArray[Any]
_INTEGER = pa.int64()


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows of one run that were found: that of probe `probes[j]` is at `places[j]`."""

    run: Run
    probes: Indices
    places: Indices


@dataclass(frozen=True, eq=False)
class Found:
    """The latest row of each of `count` probe keys, where there is one."""

    count: int
    schema: pa.Schema
    parts: Sequence[_Part]

    @cached_property
    def known(self) -> Mask:
        """Which keys have a row."""
        mask = np.zeros(self.count, dtype=np.bool_)
        for part in self.parts:
            mask[part.probes] = True
        return mask

    def lane(self, column: int, dtype: type[np.generic]) -> Lane:
        """A column of numbers without NULLs, by probe; 0 where a key has no row."""
        made = np.zeros(self.count, dtype=dtype)
        for part in self.parts:
            made[part.probes] = part.run.lane(column)[part.places]
        return made

    def column(self, column: int) -> pa.Array:
        """Any column, by probe; NULL where a key has no row."""
        if not self.parts:
            return nulls(self.count, self.schema.field(column).type)
        values = [part.run.rows.column(column).take(pa.array(part.places)) for part in self.parts]
        places, missing = np.zeros(self.count, dtype=np.int64), ~self.known
        places[np.concatenate([part.probes for part in self.parts])] = np.arange(sum(map(len, values)))
        return pa.concat_arrays(values).take(pa.array(places, mask=missing if missing.any() else None))


def find(runs: Sequence[Run], key: Key, keys: pa.RecordBatch, hashes: Hashes, schema: pa.Schema) -> Found:
    """The latest row of each probe key in runs with the columns of `schema`. `keys` has the values of the key, in the
    order of `key`, and `hashes` their hashes; fast if they ascend."""
    met: list[_Part] = []
    parts: list[_Part] = []
    left, sought = None, hashes
    for run in reversed(runs):
        if not len(run):
            continue
        starts = run.hashes.searchsorted(sought)
        np.minimum(starts, len(run) - 1, out=starts)
        hit = run.hashes[starts] == sought
        hits = np.flatnonzero(hit)
        if not len(hits):
            continue
        part = _Part(run, hits if left is None else left[hits], starts[hits])
        met.append(part)
        there = run.weights[part.places] != 0
        parts.append(part if there.all() else _Part(run, part.probes[there], part.places[there]))
        if len(hits) == len(sought):
            break
        missed = np.flatnonzero(~hit)
        left = missed if left is None else left[missed]
        sought = sought[missed]
    if met and not _are_those(met, key, keys):
        found, rows = lookup(runs, key, keys, hashes, schema=schema)
        probes = np.flatnonzero(found >= 0)
        parts = [
            _Part(Run(hashes[probes], rows, np.ones(len(probes), dtype=np.int64)), probes, found[probes])
        ]
    return Found(len(hashes), schema, [part for part in parts if len(part.probes)])


def _are_those(parts: Sequence[_Part], key: Key, keys: pa.RecordBatch) -> bool:
    """Whether the rows that were found by hash have the keys that were asked for."""
    probes = np.concatenate([part.probes for part in parts])
    for place, column in enumerate(key):
        wanted, stored = keys.column(place), [part.run.rows.column(column) for part in parts]
        if _is_plain(wanted) and all(map(_is_plain, stored)):
            held = [part.run.lane(column)[part.places] for part in parts]
            if (np.concatenate(held) != wanted.to_numpy()[probes]).any():
                return False
            continue
        taken = [lane.take(pa.array(part.places)) for lane, part in zip(stored, parts, strict=True)]
        if not equal_rows([pa.concat_arrays(taken)], [wanted.take(pa.array(probes))], len(probes)).all():
            return False
    return True


def _is_plain(column: pa.Array) -> bool:
    """Whether its values can be compared where they are, without a pass over the column."""
    return column.type == _INTEGER and not column.null_count
