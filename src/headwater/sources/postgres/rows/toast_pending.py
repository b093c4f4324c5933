"""Pending changes: changes of rows that the log does not have, with TOAST values that the server did not send.

While a table is copied by an incremental snapshot, the stream may contain a change of a row that was not copied yet, without
its large values. Only the table has these values, and the table is ahead of the stream. So the change is skipped, its key is
remembered, and a chunk of just these keys reads the whole rows, at a mark like any other chunk. The remembered keys are part of
the position.

A chunk in progress may already contain such a row. Then the changes that its snapshot does not include are applied to it, in
order. The result is the row as of the mark, so that a row that changes all the time is captured, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.conform import adapt
from headwater.core.hashing import identities
from headwater.sources.postgres.decode.decode_rows import DecodedRows
from headwater.sources.postgres.decode.relations import CapturedTable
from headwater.sources.postgres.rows.toast_fill import KeySet, Mask
from headwater.sources.postgres.server.connection import identifier, literal

KEYS_MAX = 1_000
"""Maximum number of keys of a table that are remembered individually; beyond it, the whole table is copied."""
PENDING_ROWS_MAX = 20_000
PENDING_BYTES_MAX = 64 << 20

Key = tuple[str, ...]
_ENDS = {
    "9999-12-31 23:59:59.999999": "infinity",
    "9999-12-31": "infinity",
    "0001-01-01 00:00:00.000000": "-infinity",
    "0001-01-01": "-infinity",
}
"""Values that topics use for infinity: in a key, either may be meant."""


@dataclass(frozen=True)
class IncompleteRows:
    """Rows of one table that lack values. `unchanged` is as in `DecodedRows`; `moved` marks rows whose values belong to another
    key."""

    batch: pa.RecordBatch
    unchanged: Mapping[str, Mask]
    moved: Mask

    @classmethod
    def of(cls, changes: DecodedRows, batch: pa.RecordBatch, pending: Mask) -> IncompleteRows:
        """Return the rows that still lack a value after filling."""
        moved = changes.fill_from != np.arange(batch.num_rows)
        unchanged = {name: mask[pending] for name, mask in changes.unchanged.items()}
        return cls(batch.filter(pa.array(pending)), unchanged, moved[pending])

    def keys(self, table: CapturedTable, at_most: int) -> list[Key] | None:
        """Return the distinct keys of the rows; None if there are more than `at_most`."""
        each = _last_of_each(self.batch, table.key)
        return keys_of(each, table) if each.num_rows <= at_most else None

    def in_place(self) -> IncompleteRows:
        """Return the rows whose missing values belong to their own key."""
        stay = ~self.moved
        masks = {name: mask[stay] for name, mask in self.unchanged.items()}
        return IncompleteRows(self.batch.filter(pa.array(stay)), masks, self.moved[stay])


@dataclass
class PendingChanges:
    """Changes received while a chunk is in progress, which lack values that the chunk may contain."""

    rows: int = 0
    bytes: int = 0
    incomplete: list[IncompleteRows] = field(default_factory=list)
    again: set[Key] = field(default_factory=set)
    """Keys of rows that this chunk cannot complete with any content."""

    @property
    def is_full(self) -> bool:
        """Whether there are too many changes, so that the chunk must be selected again."""
        return self.rows > PENDING_ROWS_MAX or self.bytes > PENDING_BYTES_MAX

    def add(self, group: IncompleteRows, table: CapturedTable, changed: KeySet) -> None:
        """Add rows. Rows whose key has changed are added to `changed` and `again` instead: the chunk has an older version of
        them."""
        if self.is_full:
            return
        if group.moved.any():
            gone = group.batch.filter(pa.array(group.moved))
            changed.add([gone.column(name) for name in table.key], gone.num_rows)
            self.again.update(keys_of(gone, table))
            group = group.in_place()
        self.rows += group.batch.num_rows
        self.bytes += group.batch.nbytes
        self.incomplete.append(group)

    def clear(self) -> None:
        """Discard all changes, because the table was truncated."""
        self.rows, self.bytes, self.incomplete = 0, 0, []
        self.again.clear()

    def apply_to(
        self, batch: pa.RecordBatch, table: CapturedTable, sees: Callable[[int], bool]
    ) -> pa.RecordBatch:
        """Return the rows of a chunk, in the topic's columns, after applying the changes that the chunk's snapshot does not
        see."""
        key = list(table.key)
        mine = KeySet()
        mine.add([batch.column(name) for name in key], batch.num_rows)
        parts, masks = [batch], [{name: np.zeros(batch.num_rows, np.bool_) for name in batch.schema.names}]
        for group in self.incomplete:
            xids = group.batch.column("_transaction").to_pylist()
            new = np.array([not sees(xid) for xid in xids], dtype=np.bool_)
            new &= mine.has([group.batch.column(name) for name in key], group.batch.num_rows)
            if new.any():
                parts.append(adapt(group.batch.filter(pa.array(new)), batch.schema))
                none = np.zeros(len(xids), np.bool_)
                masks.append(
                    {name: group.unchanged.get(name, none)[new] for name in batch.schema.names},
                )
        if len(parts) == 1:
            return batch
        every = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        unchanged = {name: np.concatenate([mask[name] for mask in masks]) for name in batch.schema.names}
        return _with_marks_of(_last_of_each(every, key, unchanged), batch)


def keys_of(batch: pa.RecordBatch, table: CapturedTable) -> list[Key]:
    """Return the keys of rows in the text form of Postgres."""
    return list(zip(*(as_texts(batch.column(name)) for name in table.key), strict=True))


def keys_condition(table: CapturedTable, keys: Sequence[Key]) -> str | None:
    """Return an SQL condition for rows with the given keys; None for an empty sequence, which means all rows."""
    if not keys:
        return None
    every = dict.fromkeys(other for key in keys for other in _meant(key))
    tuples = ", ".join(f"({', '.join(map(literal, key))})" for key in every)
    return f"({', '.join(map(identifier, table.key))}) IN ({tuples})"


def as_texts(column: pa.Array) -> list[str]:
    """Return key values in the text form of Postgres."""
    if pa.types.is_binary(column.type):
        return [f"\\x{value.as_py().hex()}" for value in column]
    return [str(value) for value in pc.cast(column, pa.string()).to_pylist()]


def _meant(key: Key) -> Iterable[Key]:
    yield key
    other = tuple(_ENDS.get(value.removesuffix("Z"), value) for value in key)
    if other != key:
        yield other


def _last_of_each(
    batch: pa.RecordBatch, key: Sequence[str], unchanged: Mapping[str, Mask] | None = None
) -> pa.RecordBatch:
    """Return the last row of each key; its `unchanged` values come from the preceding row of the key that has them. Only these
    rows are completed, because a large value may be unchanged in many rows."""
    rows = batch.num_rows
    low, high = identities([batch.column(name) for name in key], rows, exact=False)
    order = np.lexsort((np.arange(rows), high, low))
    last = np.ones(rows, np.bool_)
    last[:-1] = (low[order[1:]] != low[order[:-1]]) | (high[order[1:]] != high[order[:-1]])
    places = np.flatnonzero(last)
    places = places[np.argsort(order[places], kind="stable")]
    columns = []
    for name in batch.schema.names:
        mask = (unchanged or {}).get(name)
        sources = places
        if mask is not None and mask.any():
            sources = np.maximum.accumulate(np.where(mask[order], 0, np.arange(rows)))[places]
        columns.append(batch.column(name).take(pa.array(order[sources])))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _with_marks_of(batch: pa.RecordBatch, chunk: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with the `_op` and the capture columns that all rows of a chunk share."""
    for name in chunk.schema.names[chunk.schema.get_field_index("_op") :]:
        place = chunk.schema.get_field_index(name)
        same = pa.repeat(chunk.column(place)[0], batch.num_rows)
        batch = batch.set_column(place, batch.schema.field(place), same)
    return batch
