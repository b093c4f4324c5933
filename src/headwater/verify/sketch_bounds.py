"""Compares a view with its recomputed contents: exactly, or within error bounds where columns are answers of sketches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.operators.aggregate.frequent_items import FrequentItems
from headwater.operators.zset.collation import ColumnOrder, order_words
from headwater.operators.zset.delta import concat_rows, take_rows
from headwater.verify.frequent_values import counts_by_place, misstated
from headwater.verify.recompute_at import PastRelations
from headwater.verify.table_equality import difference, paired

_SHOWN = 3
_ASCENDING = ColumnOrder(0, descending=False, nulls_first=True)
Words = npt.NDArray[np.uint64]


def held_against(has: pa.Table, past: PastRelations, name: str) -> str | None:
    """Return a description of how a view's contents differ from the expected contents, or None."""
    known = past.approximate(name)
    if not known.columns:
        return difference(has, past.view(name))
    if known.repeatable and (problem := difference(has, past.view(name))) is not None:
        return problem
    bounds = past.bounds(name)
    if bounds is None:  # no exact answer can be computed from records that are gone
        want = past.view(name)
        others = [n for i, n in enumerate(want.schema.names) if i not in known.columns]
        return difference(has.select(others), want.select(others))
    return out_of_bounds(has, *bounds, known.columns, known.frequent)


def out_of_bounds(
    has: pa.Table,
    low: pa.Table,
    high: pa.Table,
    columns: Sequence[int],
    frequent: Mapping[int, FrequentItems] | None = None,
) -> str | None:
    """Return a description of the first values outside of their bounds, or None.

    The tables `low` and `high` have the rows of `has` except in `columns`, where they hold the least and the greatest
    allowed values. Rows correspond if they are equal in all other columns. For `frequent` columns, `low` and `high` hold
    all values of the group.
    """
    names = [n for i, n in enumerate(low.schema.names) if i not in columns]
    others = [table.select(names) for table in (has, low, high)]
    for bound in others[1:]:
        if (problem := difference(others[0], bound)) is not None:
            return problem
    rows = [
        concat_rows(t.cast(low.schema).combine_chunks().to_batches(), low.schema) for t in (has, low, high)
    ]
    ordered = []
    for batch in rows:
        order, ties = paired(batch.select(names))
        ordered.append((take_rows(batch, order), ties))
    for column in columns:
        values = [batch.column(column) for batch, _ in ordered]
        if frequent and column in frequent:
            name, ties = low.schema.names[column], ordered[0][1]
            if (odd := misstated(frequent[column], values[0], values[1], ties)) is not None:
                row = ordered[0][0].slice(odd, 1).to_pylist()[0]
                return f"values of {name} that are less frequent than reported, such as in {row}"
            values = counts_by_place(frequent[column], values[0], values[1])
        for parts in zip(*_elements(values), strict=True):
            cuts = np.cumsum([len(part) for part in parts])[:-1]
            every = order_words(_rounded(pa.concat_arrays(parts)), _ASCENDING)
            words = list(zip(*(np.split(word, cuts) for word in every), strict=True))
            # among rows that are equal in all other columns, values are paired in ascending order
            orders = [np.lexsort((*reversed(w), ties)) for w, (_, ties) in zip(words, ordered, strict=True)]
            have, least, most = ([word[o] for word in w] for w, o in zip(words, orders, strict=True))
            wrong = np.flatnonzero(_less(have, least) | _less(most, have))
            if len(wrong):
                shown = [
                    f"{ordered[0][0].slice(int(orders[0][i]), 1).to_pylist()[0]}, which must be between {parts[1][int(orders[1][i])].as_py()} and {parts[2][int(orders[2][i])].as_py()}"
                    for i in wrong[:_SHOWN]
                ]
                name = low.schema.names[column]
                return f"{len(wrong)} values of {name} outside of their bounds, such as {', '.join(shown)}"
    return None


def _elements(columns: Sequence[pa.Array]) -> list[list[pa.Array]]:
    """Split list columns into scalar columns: the number of elements per list, and the elements at each index, NULL where
    the list is shorter. Other columns are returned unchanged."""
    if not pa.types.is_list(columns[0].type):
        return [[column] for column in columns]
    sizes = [np.asarray(column.value_lengths().fill_null(-1), dtype=np.int64) for column in columns]
    longest = max((int(size.max()) for size in sizes if len(size)), default=0)
    made = []
    for column, size in zip(columns, sizes, strict=True):
        present = np.maximum(size, 0)
        starts, flat = np.cumsum(present) - present, column.flatten()
        made.append(
            [
                pa.array(size),
                *(flat.take(pa.array(starts + place, mask=size <= place)) for place in range(longest)),
            ]
        )
    return made


def _rounded(column: pa.Array) -> pa.Array:
    """Convert integers and decimals to doubles: Spark computes percentiles, and therefore the bounds, as doubles."""
    if pa.types.is_integer(column.type) or pa.types.is_decimal(column.type):
        return column.cast(pa.float64(), safe=False)
    return column


def _less(left: list[Words], right: list[Words]) -> npt.NDArray[np.bool_]:
    """Return a mask of the values in `left` that are less than those in `right`; the first word is the most significant."""
    less = np.zeros(len(left[0]), dtype=np.bool_)
    same = np.ones(len(left[0]), dtype=np.bool_)
    for a, b in zip(left, right, strict=True):
        less |= same & (a < b)
        same &= a == b
    return less
