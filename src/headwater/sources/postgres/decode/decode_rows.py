"""Decodes row messages to Arrow columns, a whole run of messages at a time.

A message has one or two tuples: the new row of an insert or update, preceded by the old key (K) or the old row (O) if Postgres
sends it; a delete has only the latter. A tuple has for each column a byte: n(ull), u(nchanged, a TOAST value that is not sent)
or t(ext) with a length and the bytes. Columns are located one after the other, in all rows at once; the cost is a few vector
operations per column. Few rows are decoded one by one, which is faster for them.

The result has one row per message, in the order of the messages. An update that changes the key becomes two rows: the delete of
the old key, and the insert of the new row. A delete has the values of its key and no others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.conform import DELETE, OPS
from headwater.catalog.definitions import CAPTURED, OP_TYPE
from headwater.core.errors import BadRowError, CorruptionError
from headwater.core.types import format_type
from headwater.sources.postgres.decode.buffer_slices import Mask, Places, cut, texts
from headwater.sources.postgres.decode.pgoutput import ENVELOPE_BYTES
from headwater.sources.postgres.decode.postgres_values import UNFIT
from headwater.sources.postgres.decode.relations import CapturedTable, TableColumn
from headwater.sources.postgres.decode.row_buffer import CapturedTransaction, RowRun

INSERT, UPDATE, SNAPSHOT = (OPS.index(op) for op in ("insert", "update", "snapshot"))
Codes = npt.NDArray[np.int8]

_FEW = 100
"""Number of rows up to which decoding one by one is faster; measured."""
_TEXT, _NULL, _UNCHANGED = b"tnu"
_NEW = ord("N")
_KINDS = {ord("I"): INSERT, ord("U"): UPDATE, ord("D"): DELETE}
_CODES = np.array([_KINDS.get(kind, -1) for kind in range(256)], dtype=np.int8)
_LENGTH = struct.Struct(">i")
_NOT_SENT: Any = object()
_STAMPS = list(CAPTURED)


@dataclass(frozen=True)
class DecodedRows:
    """Decoded rows of one table, in order. `batch` has the table's columns, `_op`, and, if all transactions of the rows are
    complete, the capture columns."""

    batch: pa.RecordBatch
    unchanged: dict[str, Mask]
    """By column: mask of the rows whose value was not sent because it is unchanged (TOAST); the value is null in `batch`."""
    fill_from: Places
    """By row: index of the row in `batch` whose key finds the unchanged values. This is the row itself, except for a row with a
    changed key: its values belong to the delete just before it."""
    subxids: npt.NDArray[np.int64] | None
    """By row of a streamed transaction: the subtransaction of the row, which may still be aborted; None otherwise."""

    def parts(self, rows: int) -> Iterator[DecodedRows]:
        """Yield the rows in parts of about `rows` rows, without separating the two rows of a changed key."""
        count = self.batch.num_rows
        whole = np.append(np.flatnonzero(self.fill_from == np.arange(count)), count)
        begins = whole[np.searchsorted(whole, np.arange(0, count, max(1, rows)))]
        for begin, end in pairwise(np.unique([*begins, count]).tolist()):
            unchanged = {name: mask[begin:end] for name, mask in self.unchanged.items()}
            unchanged = {name: mask for name, mask in unchanged.items() if mask.any()}
            subxids = None if self.subxids is None else self.subxids[begin:end]
            batch = self.batch.slice(begin, end - begin)
            yield DecodedRows(batch, unchanged, self.fill_from[begin:end] - begin, subxids)


class _Cells(NamedTuple):
    """One column of some tuples: the byte range and the kind of each value."""

    starts: Places
    ends: Places
    kinds: npt.NDArray[np.uint8]


def decode(run: RowRun, table: CapturedTable) -> DecodedRows:
    """Decode the rows of a run, which has at most 2 GiB and at least one message.

    BadRowError for a value that the column's type cannot hold.
    """
    at = ENVELOPE_BYTES + (9 if run.streamed else 5)
    few = len(run.messages) <= _FEW
    shape = _split_rows(run.messages, at, table) if few else _walk(run.messages, at, table)
    columns = [_convert(column, text, table) for column, text in zip(table.columns, shape.texts, strict=True)]
    columns.append(_numbers(shape.codes, OP_TYPE))
    schema = table.schema
    if run.transactions and run.transactions[-1][0] == len(run.messages):
        schema = table.stamped_schema
        columns += _stamps(run.transactions, shape.messages)
    subxids = None
    if run.streamed:
        xids = [message[ENVELOPE_BYTES + 1 : ENVELOPE_BYTES + 5] for message in run.messages]
        subxids = np.frombuffer(b"".join(xids), dtype=">u4").astype(np.int64)[shape.messages]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    _check_keys(batch, table)
    return DecodedRows(batch, shape.unchanged, shape.fill_from, subxids)


def stamped(batch: pa.RecordBatch, transaction: CapturedTransaction) -> pa.RecordBatch:
    """Return rows that were decoded before their transaction was committed, with the capture columns added."""
    origins = _stamps([(batch.num_rows, transaction)], np.arange(batch.num_rows))
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *origins], schema=pa.schema([*batch.schema, *CAPTURED])
    )


class _Shape(NamedTuple):
    """Split rows: texts by column, and for each row its `_op`, the index of its message, and `fill_from` as in
    `DecodedRows`."""

    texts: list[pa.Array]
    codes: Codes
    messages: Places
    fill_from: Places
    unchanged: dict[str, Mask]


def _walk(messages: Sequence[bytes], at: int, table: CapturedTable) -> _Shape:
    """Split many rows, column by column."""
    joined = b"".join(messages)
    letters = np.frombuffer(joined, dtype=np.uint8)
    lengths = np.fromiter(map(len, messages), dtype=np.int64, count=len(messages))
    begins = np.cumsum(lengths) - lengths
    tuples = begins + at
    codes = _CODES[letters[begins + ENVELOPE_BYTES]]
    has_old = letters[tuples] != _NEW
    data = pa.py_buffer(joined)
    width = len(table.columns)
    if not has_old.any():
        new, end = _cells(joined, letters, tuples, width)
        _check_end(end, begins + lengths, table)
        places = np.arange(len(messages))
        columns: list[pa.Array] = []
        unchanged: dict[str, Mask] = {}
        for column, cells in zip(table.columns, new, strict=True):
            columns.append(_cut(data, cells))
            _note_unchanged(unchanged, column, cells.kinds)
        return _Shape(columns, codes, places, places, unchanged)
    return _walk_pairs(joined, begins + lengths, tuples, codes, has_old, table)


def _walk_pairs(
    joined: bytes, ends: Places, tuples: Places, codes: Codes, has_old: Mask, table: CapturedTable
) -> _Shape:
    """Split rows of which some have an old tuple. Each row of the result is one tuple: all tuples are located, then the needed
    ones are chosen."""
    letters, data, width = np.frombuffer(joined, dtype=np.uint8), pa.py_buffer(joined), len(table.columns)
    old_rows = np.flatnonzero(has_old)
    old, behind_old = _cells(joined, letters, tuples[old_rows], width)
    new_at = tuples.copy()
    new_at[old_rows] = behind_old
    new_rows = np.flatnonzero(codes != DELETE)
    new, behind_new = _cells(joined, letters, new_at[new_rows], width)
    behind = new_at.copy()
    behind[new_rows] = behind_new
    _check_end(behind, ends, table)

    place_of_old = np.full(len(tuples), -1)
    place_of_old[old_rows] = np.arange(len(old_rows))
    olds = place_of_old[new_rows]  # index of the old tuple of each new tuple, or -1
    updated = np.flatnonzero(olds >= 0)
    new = [_filled(mine, theirs, updated, olds[updated]) for mine, theirs in zip(new, old, strict=True)]
    moved = np.zeros(len(tuples), dtype=np.bool_)
    for place in table.key_places:
        moved[new_rows[updated]] |= _differ(
            data, _choose(new[place], updated), _choose(old[place], olds[updated])
        )

    # A row with a changed key becomes two: a delete with its old tuple, and an insert with its new tuple.
    counts = 1 + moved.astype(np.int64)
    rows = np.repeat(np.arange(len(tuples)), counts)
    first = np.cumsum(counts) - counts
    codes = codes.copy()
    codes[moved] = INSERT
    result = codes[rows]
    result[first[moved]] = DELETE
    deletes = result == DELETE
    place_of_new = np.full(len(tuples), -1)
    place_of_new[new_rows] = np.arange(len(new_rows))
    chosen = np.where(deletes, place_of_old[rows] + len(new_rows), place_of_new[rows])
    fill_from = np.arange(len(rows))
    fill_from[first[moved] + 1] = first[moved]

    columns: list[pa.Array] = []
    unchanged: dict[str, Mask] = {}
    for place, column in enumerate(table.columns):
        cells = _choose(_joined(new[place], old[place]), chosen)
        if table.key and place not in table.key_places:
            kinds = np.where(deletes, np.uint8(_NULL), cells.kinds)
            cells = _Cells(cells.starts, np.where(deletes, cells.starts, cells.ends), kinds)
        columns.append(_cut(data, cells))
        _note_unchanged(unchanged, column, cells.kinds)
    return _Shape(columns, result, rows, fill_from, unchanged)


def _cells(
    joined: bytes, letters: npt.NDArray[np.uint8], tuples: Places, width: int
) -> tuple[list[_Cells], Places]:
    """Return the columns of the tuples that begin at the given offsets, and the offsets after the tuples."""
    if not len(tuples):
        none = np.zeros(0, dtype=np.int64)
        return [_Cells(none, none, none.astype(np.uint8))] * width, tuples
    if len(joined) < 4:
        raise CorruptionError("a row message of the replication stream is truncated", reason="truncated")
    # Every four consecutive bytes of the buffer as a number, at any alignment.
    numbers = np.ndarray((len(joined) - 3,), dtype=">i4", buffer=joined, strides=(1,))
    last = len(numbers) - 1
    at = tuples + 3
    columns = []
    for _ in range(width):
        kinds = letters[np.minimum(at, len(letters) - 1)]
        sent = kinds == _TEXT
        if sent.all():
            starts = at + 5
            ends = starts + numbers[np.minimum(at + 1, last)]
        else:
            starts = at + np.where(sent, 5, 1)
            ends = starts + np.where(sent, numbers[np.minimum(at + 1, last)], 0)
            if not (sent | (kinds == _NULL) | (kinds == _UNCHANGED)).all():
                raise CorruptionError(
                    "a row message of the replication stream has a value that is not in text format",
                    reason="not-text",
                )
        if (ends < starts).any():
            raise CorruptionError(
                "a row message of the replication stream has a value of negative length",
                reason="negative-length",
            )
        columns.append(_Cells(starts, ends, kinds))
        at = ends
    return columns, at


def _choose(cells: _Cells, places: Places) -> _Cells:
    return _Cells(cells.starts[places], cells.ends[places], cells.kinds[places])


def _joined(one: _Cells, other: _Cells) -> _Cells:
    return _Cells(
        np.concatenate([one.starts, other.starts]),
        np.concatenate([one.ends, other.ends]),
        np.concatenate([one.kinds, other.kinds]),
    )


def _cut(data: pa.Buffer, cells: _Cells) -> pa.Array:
    return cut(data, cells.starts, cells.ends, cells.kinds == _TEXT)


def _filled(new: _Cells, old: _Cells, at: Places, olds: Places) -> _Cells:
    """Take values that are unchanged in the new tuple from the old tuple of the same message, if they are there."""
    known = (new.kinds[at] == _UNCHANGED) & (old.kinds[olds] == _TEXT)
    if not known.any():
        return new
    places = np.arange(len(new.starts))
    places[at[known]] = len(places) + olds[known]
    return _choose(_joined(new, old), places)


def _differ(data: pa.Buffer, new: _Cells, old: _Cells) -> Mask:
    """Return the mask of the rows whose key column has changed. Values are compared as text: two texts of an equal value only
    cause an unnecessary delete and insert."""
    mine, theirs = _cut(data, new), _cut(data, old)
    same: Mask = np.asarray(pc.fill_null(pc.equal(mine, theirs), False))
    differ: Mask = ~same & (new.kinds != _UNCHANGED)
    return differ


def _note_unchanged(unchanged: dict[str, Mask], column: TableColumn, kinds: npt.NDArray[np.uint8]) -> None:
    mask = kinds == _UNCHANGED
    if mask.any():
        unchanged[column.name] = mask


def _check_end(found: Places, ends: Places, table: CapturedTable) -> None:
    if not np.array_equal(found, ends):
        raise _misshapen(table)


def _misshapen(table: CapturedTable) -> CorruptionError:
    return CorruptionError(
        f"a row message of table {table.relation.table} does not have {len(table.columns)} columns",
        table=str(table.relation.table),
        columns=len(table.columns),
    )


_Values = list[Any]
"""A tuple: each value is bytes, None for NULL, or _NOT_SENT."""


def _split_rows(messages: Sequence[bytes], at: int, table: CapturedTable) -> _Shape:
    """Split rows one at a time, which is faster for few rows."""
    rows: list[_Values] = []
    codes: list[int] = []
    origins: list[int] = []
    fill_from: list[int] = []
    keys = table.key_places
    for number, message in enumerate(messages):
        code = _KINDS[message[ENVELOPE_BYTES]]
        new = old = None
        place = at
        try:
            if message[place] != _NEW:
                old, place = _values(message, place, table)
            if code != DELETE:
                new, place = _values(message, place, table)
        except (IndexError, struct.error):
            raise _misshapen(table) from None
        if place != len(message):
            raise _misshapen(table)
        if new is None:
            assert old is not None
            rows.append(_tombstone(old, table))
        elif old is None:
            rows.append(new)
        else:
            new = [
                was if value is _NOT_SENT and was is not None else value
                for value, was in zip(new, old, strict=True)
            ]
            if any(new[key] != old[key] and new[key] is not _NOT_SENT for key in keys):
                fill_from.append(len(rows))
                rows.append(_tombstone(old, table))
                codes.append(DELETE)
                origins.append(number)
                code = INSERT
                fill_from.append(len(rows) - 1)
                rows.append(new)
                codes.append(code)
                origins.append(number)
                continue
            rows.append(new)
        codes.append(code)
        origins.append(number)
        fill_from.append(len(rows) - 1)
    columns, unchanged = [], {}
    for column, values in zip(table.columns, zip(*rows, strict=True), strict=True):
        if _NOT_SENT in values:
            unchanged[column.name] = np.array([value is _NOT_SENT for value in values])
            values = tuple(None if value is _NOT_SENT else value for value in values)
        columns.append(texts(values))
    return _Shape(
        columns, np.array(codes, np.int8), np.array(origins), np.array(fill_from, np.int64), unchanged
    )


def _values(message: bytes, at: int, table: CapturedTable) -> tuple[_Values, int]:
    """Return one tuple, and the offset after the tuple."""
    at += 3
    values: _Values = []
    for _ in table.columns:
        kind = message[at]
        if kind == _TEXT:
            end = at + 5 + _LENGTH.unpack_from(message, at + 1)[0]
            if end < at + 5:
                raise _misshapen(table)
            values.append(message[at + 5 : end])
            at = end
        elif kind in (_NULL, _UNCHANGED):
            values.append(None if kind == _NULL else _NOT_SENT)
            at += 1
        else:
            raise CorruptionError(
                "a row message of the replication stream has a value that is not in text format",
                reason="not-text",
            )
    return values, at


def _tombstone(old: _Values, table: CapturedTable) -> _Values:
    if not table.key:
        return old
    return [value if place in table.key_places else None for place, value in enumerate(old)]


def _stamps(transactions: Sequence[tuple[int, CapturedTransaction]], messages: Places) -> list[pa.Array]:
    """Return the capture columns of rows, from the index of the message of each row."""
    facts = np.array([(t.position, t.time_us, t.xid) for _, t in transactions], dtype=np.int64)
    if len(facts) == 1:
        which = np.zeros(len(messages), dtype=np.int64)
    else:
        which = np.searchsorted(np.array([end for end, _ in transactions]), messages, side="right")
    return [_numbers(facts[which, place], field.type) for place, field in enumerate(_STAMPS)]


def _numbers(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return numbers as an Arrow array that shares their memory, without validation."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _convert(column: TableColumn, text: pa.Array, table: CapturedTable) -> pa.Array:
    try:
        return column.type.convert(text)
    except UNFIT as error:
        raise unfit(column, text, table, error) from None


def _check_keys(batch: pa.RecordBatch, table: CapturedTable) -> None:
    """Raise BadRowError if a row lacks a key value: a partition with a replica identity other than the table's does not send
    it."""
    for name in table.key:
        if batch.column(name).null_count:
            raise BadRowError(
                f"a change of table {table.relation.table} does not contain the key column {name!r}",
                detail="the replica identity of the table, or of one of its partitions, was different when the row was changed",
                hint="run ALTER TABLE ... REPLICA IDENTITY DEFAULT on the table and on each of its partitions",
                topic=None,
                row=None,
                column=name,
                value=None,
                expected="a key",
            )


def unfit(column: TableColumn, text: pa.Array, table: CapturedTable, error: Exception) -> BadRowError:
    """Return the error for the first value that does not fit."""
    value = None
    for place in range(len(text)):
        one = text.slice(place, 1)
        try:
            column.type.convert(pa.concat_arrays([one]))
        except UNFIT as own:
            error, value = own, one.cast(pa.binary())[0].as_py()
            break
    shown = repr(value.decode("utf-8", "replace")[:60]) if value is not None else "a value"
    where = f"column {column.name!r} of table {table.relation.table}"
    expected = format_type(column.type.kind)
    return BadRowError(
        f"{where} has {shown}, which does not fit {expected}",
        detail=str(error),
        hint=f"capture the column as text, with types = '{table.relation.table}.{column.name} STRING'",
        topic=None,
        row=None,
        column=column.name,
        value=value,
        expected=expected,
    )
