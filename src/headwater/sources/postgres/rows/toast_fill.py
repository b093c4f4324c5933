"""Values that Postgres does not send because they are as they were: found where they were last, and put in their place.

A large value that an update leaves alone is not in the stream. It is in an earlier row of what is being handed over, or in the log's
last row of that key. A row that is in neither was not copied yet. What the table has now may be of a later version, and the two
together would be a row that never was: such a change is left out, and the row comes as a whole, at a mark (`lacking`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.catalog.conform import DELETE
from headwater.core.hashing import Hashes, identities
from headwater.core.storage import translated
from headwater.sources.postgres.decode.decode_rows import DecodedRows
from headwater.sources.postgres.decode.relations import CapturedTable
from headwater.sources.row_sizes import check_bytes, taken

Places = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Find = Callable[[pa.RecordBatch, Sequence[str]], tuple[pa.RecordBatch, Mask]]
"""(keys, columns) -> the columns' last values, and which keys were found."""


class KeySet:
    """Keys that were seen, by what stands for them in 128 bits."""

    def __init__(self) -> None:
        self._parts: list[tuple[Hashes, Hashes]] = []

    def add(self, keys: Sequence[pa.Array], rows: int) -> None:
        """Put keys in."""
        if rows:
            self._parts.append(identities(keys, rows, exact=False))

    def update(self, other: KeySet) -> None:
        """Put the keys of another set in."""
        self._parts += other._parts

    def has(self, keys: Sequence[pa.Array], rows: int) -> Mask:
        """Which of these are in."""
        if not self._parts or not rows:
            return np.zeros(rows, dtype=np.bool_)
        low, high = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        order = np.argsort(low, kind="stable")
        low, high = low[order], high[order]
        self._parts = [(low, high)]
        mine, other = identities(keys, rows, exact=False)
        at = np.minimum(np.searchsorted(low, mine), len(low) - 1)
        return np.asarray((low[at] == mine) & (high[at] == other))


class Earlier:
    """Filled rows of one topic, kept in a temporary file in the order in which they came, found by key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._keys: list[tuple[Hashes, Hashes, Places]] = []
        self._batches: list[tuple[int, int, pa.Schema]] = []

    def add(self, batch: pa.RecordBatch, key: Sequence[str]) -> None:
        """Put rows in behind the others."""
        if not batch.num_rows:
            return
        with translated(str(self._folder)):
            self._add(batch, key)

    def _add(self, batch: pa.RecordBatch, key: Sequence[str]) -> None:
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.TemporaryFile(dir=self._folder, prefix="earlier-")  # noqa: SIM115
        low, high = identities([batch.column(name) for name in key], batch.num_rows, exact=False)
        order = np.argsort(low, kind="stable")
        self._keys.append((low[order], high[order], order))
        data = batch.serialize()
        self._batches.append((self._file.seek(0, 2), data.size, batch.schema))
        self._file.write(data)
        self._file.flush()

    def last(self, keys: Sequence[pa.Array], rows: int) -> tuple[Places, Places]:
        """Of each key its last row: the number of the batch and the place in it, -1 where it was not seen."""
        numbers, places = np.full(rows, -1), np.full(rows, -1)
        low, high = identities(keys, rows, exact=False)
        missing = np.arange(rows)
        for number in range(len(self._keys) - 1, -1, -1):
            mine, other, order = self._keys[number]
            at = np.searchsorted(mine, low[missing], "right") - 1
            found = (at >= 0) & (mine[at] == low[missing]) & (other[at] == high[missing])
            numbers[missing[found]], places[missing[found]] = number, order[at[found]]
            missing = missing[~found]
            if not len(missing):
                break
        return numbers, places

    def batch(self, number: int) -> pa.RecordBatch:
        """A batch again."""
        assert self._file is not None
        offset, size, schema = self._batches[number]
        self._file.seek(offset)
        return pa.ipc.read_record_batch(pa.py_buffer(self._file.read(size)), schema)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


def fill(changes: DecodedRows, table: CapturedTable, finds: Iterable[Find]) -> tuple[pa.RecordBatch, Mask]:
    """The rows with every value that is found, and which of them still lack one. `finds` are asked one after the other for
    what is not in the rows themselves. TooLargeError if there is too much of it."""
    batch = changes.batch
    lacking = np.zeros(batch.num_rows, dtype=np.bool_)
    if not changes.unchanged or not table.key:
        return batch, lacking
    sources = _sources(changes, table)
    for name, mask in changes.unchanged.items():
        batch, left = _fill_column(batch, name, mask, sources, table, finds)
        lacking[left] = True
    return batch, lacking


def _sources(changes: DecodedRows, table: CapturedTable) -> Places:
    """Of each row, the one before it that has what it has not: of the same key, or the delete of the key that it had."""
    batch, rows = changes.batch, changes.batch.num_rows
    low, high = identities([batch.column(name) for name in table.key], rows, exact=False)
    order = np.lexsort((np.arange(rows), high, low))
    same = np.zeros(rows, dtype=np.bool_)
    same[1:] = (low[order[1:]] == low[order[:-1]]) & (high[order[1:]] == high[order[:-1]])
    before = np.full(rows, -1)
    before[order[1:]] = np.where(same[1:], order[:-1], -1)
    moved = changes.fill_from != np.arange(rows)
    return np.where(moved, changes.fill_from, before)


def _fill_column(
    batch: pa.RecordBatch, name: str, mask: Mask, sources: Places, table: CapturedTable, finds: Iterable[Find]
) -> tuple[pa.RecordBatch, Places]:
    rows = batch.num_rows
    # The delete that comes with a change of key has no values, but those before it are what is wanted.
    through = mask.copy()
    moved = np.flatnonzero(mask & (sources >= 0))
    codes = np.asarray(batch.column("_op"))
    through[sources[moved][codes[sources[moved]] == DELETE]] = True
    held = np.where(through, sources, np.arange(rows))  # -1: not among these rows
    root = np.where(through & (sources < 0), np.arange(rows), -1)
    while True:
        ahead = np.where(held >= 0, held, 0)
        further = (held >= 0) & through[ahead]
        if not further.any():
            break
        root = np.where(further & (held[ahead] < 0), root[ahead], root)
        held = np.where(further, held[ahead], held)
    column = batch.column(name)
    filled = taken(column, np.where(mask & (held >= 0), held, np.arange(rows)))
    lacking = np.flatnonzero(mask & (held < 0))
    if len(lacking):
        keys = batch.select(list(table.key))
        filled, lacking = _found(keys, filled, name, lacking, root[lacking], finds)
    place = batch.schema.get_field_index(name)
    return batch.set_column(place, batch.schema.field(place), filled), lacking


def _found(
    keys: pa.RecordBatch,
    column: pa.Array,
    name: str,
    lacking: Places,
    roots: Places,
    finds: Iterable[Find],
) -> tuple[pa.Array, Places]:
    """A column with the values that are found elsewhere by the keys of the rows, and which rows lack one still."""
    rows = keys.num_rows
    for find in finds:
        distinct, which = np.unique(roots, return_inverse=True)
        values, there = find(keys.take(pa.array(distinct)), [name])
        known = there[which]
        if known.any():
            found = values.column(0).cast(column.type)
            places = np.arange(rows)
            places[lacking[known]] = rows + which[known]
            check_bytes(column.nbytes + found.nbytes, rows)
            column = taken(pa.concat_arrays([column, found]), places)
            lacking, roots = lacking[~known], roots[~known]
        if not len(lacking):
            break
    return column, lacking


def find_earlier(earlier: Earlier) -> Find:
    """Look among rows that were handed over before."""

    def find(keys: pa.RecordBatch, columns: Sequence[str]) -> tuple[pa.RecordBatch, Mask]:
        numbers, places = earlier.last(keys.columns, keys.num_rows)
        known = numbers >= 0
        parts, order = [], []
        schema: pa.Schema | None = None
        size = 0
        for number in np.unique(numbers[known]):
            here = np.flatnonzero(numbers == number)
            part = earlier.batch(int(number)).take(pa.array(places[here])).select(list(columns))
            parts.append(part)
            order.append(here)
            size += part.nbytes
            check_bytes(size, keys.num_rows)
            schema = part.schema
        if schema is None:
            return pa.RecordBatch.from_pylist([]), known
        table = pa.Table.from_batches([part.cast(schema) for part in parts]).combine_chunks()
        back = np.full(keys.num_rows, -1)
        back[np.concatenate(order)] = np.arange(table.num_rows)
        indices = pa.array(back, mask=back < 0)
        arrays = [column.combine_chunks().take(indices) for column in table.columns]
        arrays = [a.combine_chunks() if isinstance(a, pa.ChunkedArray) else a for a in arrays]
        return pa.RecordBatch.from_arrays(arrays, schema=schema), known

    return find
