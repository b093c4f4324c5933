"""Equality of two tables as verification defines it: rows in any order, floats equal to 1e-9 relative, all other values
exactly equal."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.operators.zset.delta import Delta, concat, concat_rows, consolidate, row_hashes, take_rows

TOLERANCE = 1e-9
_SHOWN = 3


def difference(have: pa.Table, want: pa.Table) -> str | None:
    """Return a description of how two tables of the same schema differ, or None if they are equal."""
    schema = want.schema
    left = concat([_delta(have, 1, schema), _delta(want, -1, schema)], schema)
    rest = consolidate(left)
    if not len(rest):
        return None
    extra = _expanded(rest.filter(rest.weights > 0))
    missing = _expanded(rest.negated().filter(rest.weights < 0))
    if extra.num_rows == missing.num_rows and _close(extra, missing):
        return None
    parts = []
    if extra.num_rows:
        parts.append(f"{extra.num_rows} rows too many, such as {_some(extra)}")
    if missing.num_rows:
        parts.append(f"{missing.num_rows} rows missing, such as {_some(missing)}")
    return "; ".join(parts)


def _delta(table: pa.Table, weight: int, schema: pa.Schema) -> Delta:
    rows = concat_rows(table.cast(schema).combine_chunks().to_batches(), schema)
    return Delta(rows, np.full(table.num_rows, weight, dtype=np.int64))


def _expanded(delta: Delta) -> pa.RecordBatch:
    return take_rows(delta.rows, np.repeat(np.arange(len(delta)), delta.weights))


def _close(a: pa.RecordBatch, b: pa.RecordBatch) -> bool:
    """Whether the rows can be paired so that the pairs differ by rounding alone. Rows are paired by all values that are not
    floats, and rows equal in these by the order of their floats."""
    exact_a, floats_a = _split(a)
    exact_b, floats_b = _split(b)
    if not floats_a:
        return False
    order_a, key_a = _order(exact_a, floats_a, a.num_rows)
    order_b, key_b = _order(exact_b, floats_b, b.num_rows)
    if exact_a and not (np.array_equal(key_a[0], key_b[0]) and np.array_equal(key_a[1], key_b[1])):
        return False
    return all(
        _all_close(x[order_a], y[order_b])
        for x, y in zip(floats_a, floats_b, strict=True)
        if x.shape == y.shape
    )


def paired(rows: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return an order that makes rows of two tables comparable by position if they differ only by rounding, and, in that
    order, an ascending number per row that is equal for indistinguishable rows."""
    exact, floats = _split(rows)
    order, (high, low) = _order(exact, floats, rows.num_rows)
    same = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    for lane in floats:
        ordered = lane[order]
        same &= np.isclose(ordered[1:], ordered[:-1], rtol=TOLERANCE, atol=0.0, equal_nan=True)
    return order, np.concatenate((np.zeros(min(1, len(order)), np.int64), np.cumsum(~same)))


def _split(rows: pa.RecordBatch) -> tuple[list[pa.Array], list[npt.NDArray[np.float64]]]:
    """Return the columns that must be equal, and the float columns that may differ by rounding; structs are split into
    their fields."""
    exact: list[pa.Array] = []
    floats: list[npt.NDArray[np.float64]] = []

    def add(column: pa.Array) -> None:
        if pa.types.is_floating(column.type):
            exact.append(column.is_null())
            floats.append(np.asarray(column.cast(pa.float64()).fill_null(0.0)))
        elif pa.types.is_struct(column.type):
            exact.append(column.is_null())
            for child in column.flatten():
                add(child)
        else:
            exact.append(column)

    for column in rows.columns:
        add(column)
    return exact, floats


def _order(
    exact: list[pa.Array], floats: list[npt.NDArray[np.float64]], count: int
) -> tuple[npt.NDArray[np.int64], tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]]:
    batch = pa.RecordBatch.from_arrays(exact, names=[str(i) for i in range(len(exact))])
    high, low = row_hashes(batch) if exact else (np.zeros(count, np.uint64), np.zeros(count, np.uint64))
    order = np.lexsort((*reversed(floats), low, high))
    return order, (high[order], low[order])


def _all_close(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> bool:
    return bool(np.allclose(x, y, rtol=TOLERANCE, atol=0.0, equal_nan=True))


def _some(rows: pa.RecordBatch) -> str:
    return ", ".join(str(row) for row in rows.slice(0, _SHOWN).to_pylist())
