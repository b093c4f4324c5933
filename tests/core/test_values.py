"""Values of any type, also nested ones, become what Arrow makes of them; or are refused where Arrow changes them."""

from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.types import TIMESTAMP, format_type
from headwater.core.values import UNFIT, array_of, convert

LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.date32(): st.dates(),
    TIMESTAMP: st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)),
}
KINDS = st.recursive(
    st.sampled_from(list(LEAVES)),
    lambda inner: (
        inner.map(pa.list_)
        | st.tuples(st.sampled_from([pa.string(), pa.int32()]), inner).map(lambda kv: pa.map_(*kv))
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: pa.struct([(f"f{i}", part) for i, part in enumerate(parts)])
        )
    ),
    max_leaves=4,
)


def of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values that fit a type, NULL among them."""
    if pa.types.is_list(kind):
        some: st.SearchStrategy[Any] = st.lists(of(kind.value_type), max_size=3)
    elif pa.types.is_map(kind):
        some = st.dictionaries(LEAVES[kind.key_type], of(kind.item_type), max_size=3)
    elif pa.types.is_struct(kind):
        parts = [kind.field(i) for i in range(kind.num_fields)]
        some = st.fixed_dictionaries({}, optional={part.name: of(part.type) for part in parts})
    else:
        some = LEAVES[kind]
    return st.none() | some


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    kind = draw(KINDS)
    return kind, draw(st.lists(of(kind), max_size=4))


@given(columns())
def test_values_that_fit_are_what_arrow_makes_of_them(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    array = array_of(values, kind)
    array.validate(full=True)
    assert array.type == kind, format_type(kind)
    assert array.to_pylist() == pa.array(values, kind).to_pylist()
    assert convert(array, kind) is array


@pytest.mark.parametrize(
    "part", [pa.int32(), pa.string(), pa.list_(pa.int8()), pa.struct([("y", pa.int8())])]
)
def test_below_a_missing_struct_nothing_required_is_null(part: pa.DataType) -> None:
    kind = pa.struct([pa.field("x", part, nullable=False)])
    value = array_of([None, {"x": None}], kind)
    assert value.null_count == 1
    assert value.field(0).is_null().to_pylist() == [
        False,
        True,
    ]  # sealing takes the first, conform refuses the second


def wrap(value: Any, depth: str) -> Any:
    for layer in depth:
        value = {"l": [value], "m": {"k": value}, "s": {"x": value}}[layer]
    return value


def wrap_type(kind: pa.DataType, depth: str) -> pa.DataType:
    for layer in depth:
        kind = {"l": pa.list_(kind), "m": pa.map_(pa.string(), kind), "s": pa.struct([("x", kind)])}[layer]
    return kind


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int32(), 1.9),
        (pa.int32(), True),
        (pa.float32(), 1e300),
        (pa.float64(), True),
        (pa.date32(), 5),
        (pa.date32(), datetime(2026, 3, 1, 12)),
        (TIMESTAMP, 5),
        (TIMESTAMP, 3.7),
        (TIMESTAMP, date(2026, 3, 1)),
        (pa.string(), b"a"),
        (pa.binary(), "a"),
    ],
)
@given(depth=st.text("lms", max_size=4))
def test_what_does_not_fit_is_refused_at_any_depth(kind: pa.DataType, value: Any, depth: str) -> None:
    with pytest.raises(UNFIT):
        array_of([wrap(value, depth)], wrap_type(kind, depth))


@given(depth=st.text("lms", max_size=4))
def test_an_overflow_is_seen_at_any_depth(depth: str) -> None:
    wide, narrow = wrap_type(pa.float64(), depth), wrap_type(pa.float32(), depth)
    column = pa.array([wrap(1.5, depth), wrap(1e300, depth), wrap(2.5, depth)], wide)
    assert convert(column.slice(0, 1), narrow).to_pylist() == [wrap_back(1.5, depth)]
    assert convert(column.slice(2, 1), narrow).to_pylist() == [wrap_back(2.5, depth)]
    for sliced in (column, column.slice(1, 1), column.slice(1)):
        with pytest.raises(UNFIT):
            convert(sliced, narrow)


def wrap_back(value: Any, depth: str) -> Any:
    for layer in depth:
        value = {"l": [value], "m": [("k", value)], "s": {"x": value}}[layer]
    return value
