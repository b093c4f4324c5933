r"""Decodes rows of a snapshot: the text format of COPY ... TO STDOUT becomes Arrow columns, a whole buffer at a time.

Lines end with a newline, values are separated by tabs; \N is NULL. A newline, tab or backslash within a value is escaped with a
backslash, so every literal tab or newline in the buffer is a separator.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.catalog.definitions import OP_TYPE
from headwater.core.errors import CorruptionError
from headwater.sources.postgres.decode.buffer_slices import Places, bounds_of, cut, with_nulls
from headwater.sources.postgres.decode.decode_rows import SNAPSHOT, unfit
from headwater.sources.postgres.decode.postgres_values import UNFIT
from headwater.sources.postgres.decode.relations import CapturedTable

_TAB, _NEWLINE, _BACKSLASH = b"\t\n\\"
_MEANT = np.arange(256, dtype=np.uint8)
for _letter, _byte in zip(b"bfnrtv", b"\b\f\n\r\t\v", strict=True):
    _MEANT[_letter] = _byte


def decode_copy(lines: Sequence[bytes], table: CapturedTable) -> pa.RecordBatch:
    """Decode complete lines of a COPY, split in any way, to rows in the table's columns with the `_op` of snapshots.

    The columns of the COPY are those of the table, in order. BadRowError for a value that its column's type cannot hold. The
    lines have at most 2 GiB.
    """
    joined = b"".join(lines)
    letters = np.frombuffer(joined, dtype=np.uint8)
    width = len(table.columns)
    borders = np.flatnonzero((letters == _TAB) | (letters == _NEWLINE))
    if len(borders) % width or (joined and joined[-1] != _NEWLINE):
        raise _misshapen(table)
    rows = len(borders) // width
    ends = borders.reshape(rows, width)
    if (letters[ends[:, -1]] != _NEWLINE).any() or (letters[ends[:, :-1]] != _TAB).any():
        raise _misshapen(table)
    begins = np.empty_like(ends)
    begins.reshape(-1)[1:] = borders[:-1] + 1
    begins[:1, :1] = 0
    data = pa.py_buffer(joined)
    escaped = _BACKSLASH in joined
    columns = []
    for place, column in enumerate(table.columns):
        text = _texts(data, letters, begins[:, place], ends[:, place], escaped)
        try:
            columns.append(column.type.convert(text))
        except UNFIT as error:
            raise unfit(column, text, table, error) from None
    columns.append(pa.repeat(pa.scalar(SNAPSHOT, OP_TYPE), rows))
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _texts(
    data: pa.Buffer, letters: npt.NDArray[np.uint8], starts: Places, ends: Places, escaped: bool
) -> pa.Array:
    """Return one column of text with escapes resolved."""
    if not escaped:
        return cut(data, starts, ends)
    # \N alone is NULL; before any other letter, a backslash is an escape. A literal backslash is written as two.
    null = (ends - starts == 2) & (letters[starts] == _BACKSLASH) & (letters[ends - 1] == ord("N"))
    return _unescaped(cut(data, starts, np.where(null, starts, ends)), ~null)


def _unescaped(text: pa.Array, valid: npt.NDArray[np.bool_]) -> pa.Array:
    """Return the text with each escape sequence replaced by the character that it denotes."""
    starts, ends, data = bounds_of(text)
    letters = np.frombuffer(data, dtype=np.uint8)
    slashes = np.flatnonzero(letters == _BACKSLASH)
    if not len(slashes):
        return with_nulls(text, valid)
    # In a run of backslashes, the first, the third, ... begin an escape.
    row_begins = np.empty(len(slashes), dtype=np.bool_)
    row_begins[0] = True
    np.not_equal(np.diff(slashes), 1, out=row_begins[1:])
    first = np.maximum.accumulate(np.where(row_begins, slashes, 0))
    begins = slashes[(slashes - first) % 2 == 0]
    meant = letters.copy()
    meant[begins + 1] = np.where(letters[begins + 1] == _BACKSLASH, _BACKSLASH, _MEANT[letters[begins + 1]])
    kept = np.ones(len(letters), dtype=np.bool_)
    kept[begins] = False
    offsets = np.concatenate([starts[:1], ends])
    shorter = offsets - np.searchsorted(begins, offsets, side="left")
    buffers = [None, pa.py_buffer(shorter.astype(np.int32)), pa.py_buffer(meant[kept])]
    return with_nulls(pa.Array.from_buffers(pa.string(), len(text), buffers), valid)


def _misshapen(table: CapturedTable) -> CorruptionError:
    return CorruptionError(
        f"a line of COPY of table {table.relation.table} does not have {len(table.columns)} columns",
        table=str(table.relation.table),
        columns=len(table.columns),
    )
