"""Fills in TOAST values that Postgres does not send because they are unchanged, from the last record that has them.

The stream does not contain a large value that an update leaves unchanged. The value is in an earlier row of the current
transactions, or in the log's last record of the key. If it is in neither, the row was not copied yet. The table's current value
may be newer, and a row combined of both would never have existed: such a change is skipped, and the whole row comes with a
later chunk, at a mark (`toast_pending`).
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
"""Function of keys and columns that returns the last values of the columns, and the mask of the keys that were found."""


class KeySet:
    """Set of keys, stored as 128-bit hashes."""

    def __init__(self) -> None:
        self._parts: list[tuple[Hashes, Hashes]] = []

    def add(self, keys: Sequence[pa.Array], rows: int) -> None:
        """Add keys to the set."""
        if rows:
            self._parts.append(identities(keys, rows, exact=False))

    def update(self, other: KeySet) -> None:
        """Add the keys of another set."""
        self._parts += other._parts

    def has(self, keys: Sequence[pa.Array], rows: int) -> Mask:
        """Return the mask of the keys in the set."""
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
    """Filled rows of one topic in a temporary file, in the order of their arrival, with lookup by key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._keys: list[tuple[Hashes, Hashes, Places]] = []
        self._batches: list[tuple[int, int, pa.Schema]] = []
        self._deletes: list[Mask] = []

    def add(self, batch: pa.RecordBatch, key: Sequence[str]) -> None:
        """Append rows."""
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
        self._deletes.append(np.asarray(batch.column("_op")) == DELETE)
        data = batch.serialize()
        self._batches.append((self._file.seek(0, 2), data.size, batch.schema))
        self._file.write(data)
        self._file.flush()

    def last(self, keys: Sequence[pa.Array], rows: int) -> tuple[Places, Places]:
        """Return the last row of each key: the number of its batch, and its index in the batch; both -1 for keys not found."""
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

    def deletes(self, numbers: Places, places: Places) -> Mask:
        """Return the mask of the rows found by `last` that are deletes. If a later row of such a key needs a value, the row
        after the delete was skipped because it lacked that value, too: neither the delete nor the log has it."""
        found = np.zeros(len(numbers), dtype=np.bool_)
        for number in np.unique(numbers[numbers >= 0]):
            here = np.flatnonzero(numbers == number)
            found[here] = self._deletes[number][places[here]]
        return found

    def batch(self, number: int) -> pa.RecordBatch:
        """Read a batch from the file."""
        assert self._file is not None
        offset, size, schema = self._batches[number]
        self._file.seek(offset)
        return pa.ipc.read_record_batch(pa.py_buffer(self._file.read(size)), schema)

    def close(self) -> None:
        """Close and delete the temporary file."""
        if self._file is not None:
            self._file.close()


def fill(changes: DecodedRows, table: CapturedTable, finds: Iterable[Find]) -> tuple[pa.RecordBatch, Mask]:
    """Return the rows with the values that were found, and the mask of the rows that still lack a value. Values that are not in
    the rows themselves are looked up with `finds`, in order. RowsTooLargeError if the values have too many bytes to be
    combined."""
    batch = changes.batch
    pending = np.zeros(batch.num_rows, dtype=np.bool_)
    if not changes.unchanged or not table.key:
        return batch, pending
    sources = _sources(changes, table)
    for name, mask in changes.unchanged.items():
        batch, left = _fill_column(batch, name, mask, sources, table, finds)
        pending[left] = True
    return batch, pending


def _sources(changes: DecodedRows, table: CapturedTable) -> Places:
    """Return for each row the index of the preceding row that can supply its unchanged values, -1 if there is none: the
    previous row of the key, or the delete of the key that the row had before."""
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
    # The delete of a changed key has no values; the row before the delete supplies them.
    through = mask.copy()
    moved = np.flatnonzero(mask & (sources >= 0))
    codes = np.asarray(batch.column("_op"))
    through[sources[moved][codes[sources[moved]] == DELETE]] = True
    origin = np.where(through, sources, np.arange(rows))  # -1: not in this batch
    root = np.where(through & (sources < 0), np.arange(rows), -1)
    while True:
        ahead = np.where(origin >= 0, origin, 0)
        further = (origin >= 0) & through[ahead]
        if not further.any():
            break
        root = np.where(further & (origin[ahead] < 0), root[ahead], root)
        origin = np.where(further, origin[ahead], origin)
    column = batch.column(name)
    filled = taken(column, np.where(mask & (origin >= 0), origin, np.arange(rows)))
    pending = np.flatnonzero(mask & (origin < 0))
    if len(pending):
        keys = batch.select(list(table.key))
        filled, pending = _look_up(keys, filled, name, pending, root[pending], finds)
    place = batch.schema.get_field_index(name)
    return batch.set_column(place, batch.schema.field(place), filled), pending


def _look_up(
    keys: pa.RecordBatch,
    column: pa.Array,
    name: str,
    pending: Places,
    roots: Places,
    finds: Iterable[Find],
) -> tuple[pa.Array, Places]:
    """Return a column with the values found by the keys of the rows, and the indices of the rows that still lack one."""
    rows = keys.num_rows
    for find in finds:
        distinct, which = np.unique(roots, return_inverse=True)
        values, there = find(keys.take(pa.array(distinct)), [name])
        known = there[which]
        if known.any():
            found = values.column(0).cast(column.type)
            places = np.arange(rows)
            places[pending[known]] = rows + which[known]
            check_bytes(column.nbytes + found.nbytes, rows)
            column = taken(pa.concat_arrays([column, found]), places)
            pending, roots = pending[~known], roots[~known]
        if not len(pending):
            break
    return column, pending


def find_earlier(earlier: Earlier) -> Find:
    """Return a lookup in the rows emitted before, for keys whose last row among them is not a delete."""

    def find(keys: pa.RecordBatch, columns: Sequence[str]) -> tuple[pa.RecordBatch, Mask]:
        numbers, places = earlier.last(keys.columns, keys.num_rows)
        known = (numbers >= 0) & ~earlier.deletes(numbers, places)
        numbers = np.where(known, numbers, -1)
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
