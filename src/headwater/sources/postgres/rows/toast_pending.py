"""Changes that cannot be told as they are: of rows that the log does not have, with values that the server did not send.

While a table is copied beside the stream, a change may come of a row that was not copied yet, without its large values. The only
place that has them is the table, and the table is ahead of the stream. So the change is left out, its key is remembered, and a chunk
of just such keys brings the rows: whole, at a mark, as any other chunk does. What is remembered is part of the position.

A chunk that is under way may have such a row already. Then the changes since are put on top of it: those that its snapshot does not
see, one after the other. What comes out is the row as it is at the mark, so that a row that changes all the time comes too.
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
"""Keys of a table that are remembered one by one; where there are more, the table is copied as a whole."""
HELD_ROWS_MAX = 20_000
HELD_BYTES_MAX = 64 << 20

Key = tuple[str, ...]
_ENDS = {
    "9999-12-31 23:59:59.999999": "infinity",
    "9999-12-31": "infinity",
    "0001-01-01 00:00:00.000000": "-infinity",
    "0001-01-01": "-infinity",
}
"""What stands for moments that a topic has no counterpart of: in a key either may be meant."""


@dataclass(frozen=True)
class Lack:
    """Rows of one table that lack values. `unchanged` as in `DecodedRows`; `moved`: the values are those of another key."""

    batch: pa.RecordBatch
    unchanged: Mapping[str, Mask]
    moved: Mask

    @classmethod
    def of(cls, changes: DecodedRows, batch: pa.RecordBatch, lacking: Mask) -> Lack:
        """Some of the rows of what was filled as far as it could be."""
        moved = changes.fill_from != np.arange(batch.num_rows)
        unchanged = {name: mask[lacking] for name, mask in changes.unchanged.items()}
        return cls(batch.filter(pa.array(lacking)), unchanged, moved[lacking])

    def keys(self, table: CapturedTable, at_most: int) -> list[Key] | None:
        """Their keys, each once; None if there are more."""
        each = _last_of_each(self.batch, table.key)
        return keys_of(each, table) if each.num_rows <= at_most else None

    def in_place(self) -> Lack:
        """Those whose values are of their own key."""
        stay = ~self.moved
        masks = {name: mask[stay] for name, mask in self.unchanged.items()}
        return Lack(self.batch.filter(pa.array(stay)), masks, self.moved[stay])


@dataclass
class PendingChanges:
    """Changes that came in while a chunk is on its way, and that lack what it may have."""

    rows: int = 0
    bytes: int = 0
    lacks: list[Lack] = field(default_factory=list)
    again: set[Key] = field(default_factory=set)
    """Keys of rows that cannot be had from this chunk, whatever it has."""

    @property
    def is_full(self) -> bool:
        """There are too many: the chunk is to be selected again."""
        return self.rows > HELD_ROWS_MAX or self.bytes > HELD_BYTES_MAX

    def add(self, lack: Lack, table: CapturedTable, changed: KeySet) -> None:
        """Keep rows. Those that come from another key are noted as changed: what the chunk has of them is from before."""
        if self.is_full:
            return
        if lack.moved.any():
            gone = lack.batch.filter(pa.array(lack.moved))
            changed.add([gone.column(name) for name in table.key], gone.num_rows)
            self.again.update(keys_of(gone, table))
            lack = lack.in_place()
        self.rows += lack.batch.num_rows
        self.bytes += lack.batch.nbytes
        self.lacks.append(lack)

    def clear(self) -> None:
        """The table is empty from here on."""
        self.rows, self.bytes, self.lacks = 0, 0, []
        self.again.clear()

    def put_into(
        self, batch: pa.RecordBatch, table: CapturedTable, sees: Callable[[int], bool]
    ) -> pa.RecordBatch:
        """Rows of a chunk, in the topic's columns, as they are after the changes that the chunk does not see."""
        key = list(table.key)
        mine = KeySet()
        mine.add([batch.column(name) for name in key], batch.num_rows)
        parts, masks = [batch], [{name: np.zeros(batch.num_rows, np.bool_) for name in batch.schema.names}]
        for lack in self.lacks:
            xids = lack.batch.column("_transaction").to_pylist()
            new = np.array([not sees(xid) for xid in xids], dtype=np.bool_)
            new &= mine.has([lack.batch.column(name) for name in key], lack.batch.num_rows)
            if new.any():
                parts.append(adapt(lack.batch.filter(pa.array(new)), batch.schema))
                none = np.zeros(len(xids), np.bool_)
                masks.append(
                    {name: lack.unchanged.get(name, none)[new] for name in batch.schema.names},
                )
        if len(parts) == 1:
            return batch
        every = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
        unchanged = {name: np.concatenate([mask[name] for mask in masks]) for name in batch.schema.names}
        return _with_marks_of(_last_of_each(every, key, unchanged), batch)


def keys_of(batch: pa.RecordBatch, table: CapturedTable) -> list[Key]:
    """The keys of rows, as Postgres reads them."""
    return list(zip(*(as_texts(batch.column(name)) for name in table.key), strict=True))


def keys_condition(table: CapturedTable, keys: Sequence[Key]) -> str | None:
    """The condition for rows of these keys; None if all are meant."""
    if not keys:
        return None
    every = dict.fromkeys(other for key in keys for other in _meant(key))
    tuples = ", ".join(f"({', '.join(map(literal, key))})" for key in every)
    return f"({', '.join(map(identifier, table.key))}) IN ({tuples})"


def as_texts(column: pa.Array) -> list[str]:
    """Key values as Postgres reads them."""
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
    """The last row of each key, with the values that are `unchanged` in it from the row before it that has them: no other row is made
    whole, for a large value may be unchanged in many."""
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
    """Rows with the `_op` and the stamps that all rows of a chunk have."""
    for name in chunk.schema.names[chunk.schema.get_field_index("_op") :]:
        place = chunk.schema.get_field_index(name)
        same = pa.repeat(chunk.column(place)[0], batch.num_rows)
        batch = batch.set_column(place, batch.schema.field(place), same)
    return batch
