"""Rows as JSON: few rows, which are written one by one, have the same text as many, which are written by columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.web.response_formats import FEW_ROWS, json_objects

KINDS = st.sampled_from([pa.int8(), pa.uint64(), pa.int64(), pa.string(), pa.bool_(), pa.float64()])


def values_of(kind: pa.DataType) -> st.SearchStrategy[object]:
    """Values of a type, NULL among them."""
    if pa.types.is_string(kind):
        return st.none() | st.text(max_size=6)
    if pa.types.is_boolean(kind):
        return st.none() | st.booleans()
    if pa.types.is_floating(kind):
        return st.none() | st.floats()
    least, most = (0, 2**64 - 1) if kind == pa.uint64() else (-(2 ** (kind.bit_width - 1)), 2**7 - 1)
    return st.none() | st.integers(least, most)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Tables of few rows; columns may share a name."""
    rows = draw(st.integers(1, FEW_ROWS))
    kinds = draw(st.lists(KINDS, min_size=1, max_size=4))
    columns = [pa.array([draw(values_of(kind)) for _ in range(rows)], kind) for kind in kinds]
    names = [draw(st.sampled_from(["n", "m", 'a"b', "é"])) for _ in kinds]
    return pa.table(columns, names=names)


@given(tables())
def test_few_rows_read_as_many_do(table: pa.Table) -> None:
    copies = FEW_ROWS + 1
    assert json_objects(table) * copies == json_objects(pa.concat_tables([table] * copies))


@pytest.mark.parametrize("text", ['a"b', "a\\b", "\x00\x1f", "\u2028é😀", ""])
def test_few_texts_are_escaped_as_many_are(text: str) -> None:
    one = pa.table({"text": [text]})
    assert json_objects(one) == json_objects(pa.concat_tables([one] * (FEW_ROWS + 1)))[:1]
