"""Sizes of rows, checked before they are combined: an Arrow string column has at most 2 GiB, and memory is bounded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BYTES_MAX = 128 << 20
"""Maximum number of bytes of rows combined at a time, unless a single row is larger."""
ROWS_MIN = 2
"""Number of rows that are combined whatever their size: a change of a key is two rows, and only one of them has values."""


class RowsTooLargeError(Exception):
    """The rows have more than `BYTES_MAX` bytes. About `rows` of them would fit."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = max(1, rows)


def check_bytes(size: int, rows: int) -> None:
    """Raise RowsTooLargeError if the rows combined so far have too many bytes."""
    if size > BYTES_MAX and rows > ROWS_MIN:
        raise RowsTooLargeError(rows * BYTES_MAX // size)


def taken(column: pa.Array, places: npt.NDArray[np.int64]) -> pa.Array:
    """Return the values at the given indices, which may repeat; RowsTooLargeError if they have too many bytes."""
    check_bytes(int(row_bytes(column)[places].sum()), len(places))
    return column.take(pa.array(places))


def row_bytes(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the approximate number of bytes of each value of a column."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return np.diff(_offsets(column))
    if pa.types.is_list(kind):
        sums = np.concatenate([[0], np.cumsum(row_bytes(column.values))])
        return np.diff(sums[_offsets(column)])
    return np.full(len(column), -(-column.nbytes // max(1, len(column))), dtype=np.int64)


def _offsets(column: pa.Array) -> npt.NDArray[np.int64]:
    if not len(column):
        return np.zeros(1, dtype=np.int64)
    stored = np.frombuffer(column.buffers()[1], dtype=np.int32, count=len(column) + column.offset + 1)
    return stored[column.offset :].astype(np.int64)
