"""Values of any type, also nested ones, become what Arrow makes of them; or are refused where Arrow changes them."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core import values as values_module
from headwater.core.types import TIMESTAMP, format_type
from headwater.core.values import (
    EXPONENT_MAX,
    UNFIT,
    array_of,
    castable,
    convert,
    converted_bytes,
    count_values,
    decimal_in_range,
    decode_dictionary,
    decoded_bytes,
    has_required_part,
    null_bytes,
    with_times_as_numbers,
)

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


@pytest.mark.parametrize("number", ["0", "-12.50", f"1e{EXPONENT_MAX}", f"1e-{EXPONENT_MAX}", "0e-999"])
def test_a_decimal_within_the_range_of_arrow_keeps_its_value(number: str) -> None:
    assert decimal_in_range(Decimal(number)) == Decimal(number)


@pytest.mark.parametrize("number", [f"1e{EXPONENT_MAX + 1}", f"1e-{EXPONENT_MAX + 1}", "NaN", "Infinity"])
def test_a_decimal_beyond_the_range_of_arrow_is_refused(number: str) -> None:
    with pytest.raises(ValueError):
        decimal_in_range(Decimal(number))
    with pytest.raises(UNFIT):
        array_of([Decimal(number)], pa.decimal128(38, 2))


@pytest.mark.parametrize(
    ("kind", "values", "numbers"),
    [
        (pa.date32(), [1, None], [1, None]),
        (TIMESTAMP, [-(2**60)], [-(2**60)]),
        (pa.list_(pa.date32()), [[1, None], None], [[1, None], None]),
        (pa.struct([("at", TIMESTAMP), ("n", pa.int32())]), [{"at": 2**60, "n": 1}], [{"at": 2**60, "n": 1}]),
        (pa.map_(pa.date32(), TIMESTAMP), [[(1, 2**60)]], [[(1, 2**60)]]),
        (pa.string(), ["a"], ["a"]),
    ],
)
def test_times_of_any_year_are_numbers(kind: pa.DataType, values: list[Any], numbers: list[Any]) -> None:
    """Python has the years 1 to 9999; a TIMESTAMP and a DATE have more."""
    of_numbers = with_times_as_numbers(pa.nulls(0, kind)).type
    times = pa.array(values, of_numbers).cast(kind)
    assert with_times_as_numbers(times).to_pylist() == numbers


@pytest.mark.parametrize(
    ("column", "size"),
    [
        (pa.array([], pa.string()), 0),
        (pa.array([1, 2], pa.int64()), 16),
        (pa.array(["abc", "abc", None]).dictionary_encode(), 4 * 3 + 6),
        (pa.array([b"abcd"] * 3, pa.binary(4)).dictionary_encode(), 12),
        (pa.array([1, 1], pa.int64()).dictionary_encode(), 2 * 9),
        (pa.array([None], pa.dictionary(pa.int32(), pa.string())), 4),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), 16),
        (pa.array([[1, 2, 3], None], pa.list_(pa.int32())), 4 * 2 + 12),
        (pa.array([[1], [2, 3], [4]], pa.list_(pa.int32())).slice(1, 1), 4 + 8),
        (pa.array([[(1, 2)]], pa.map_(pa.int32(), pa.int64())), 4 + 4 + 8),
        (pa.StructArray.from_arrays([pa.array([1, 2], pa.int32())], ["a"]), 2 + 8),
    ],
)
def test_the_bytes_of_decoded_rows(column: pa.Array, size: int) -> None:
    assert decoded_bytes(column) == size


@pytest.mark.parametrize(
    ("column", "kind", "size"),
    [
        (pa.array([1, 2], pa.int64()), pa.int64(), 16),
        (pa.array([1, 2], pa.int8()), pa.int64(), 2 + 2 * 9),
        (pa.array(["abc", "abc"]).dictionary_encode(), pa.string(), 8 + 6),
        (pa.nulls(3), pa.int64(), 3 * 9),
        (pa.nulls(3), pa.string(), 3 * 5),
        (pa.array([[1, 2]], pa.list_(pa.int8())), pa.list_(pa.int64()), 4 + 2 + 2 * 9),
        (pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())), pa.map_(pa.int64(), pa.int8()), 1 + 9 + 1),
        (
            pa.StructArray.from_arrays([pa.array([1, 2], pa.int8())], ["a"]),
            pa.struct([("a", pa.int8()), ("added", pa.int64())]),
            2 + 2 * 9,
        ),
    ],
)
def test_the_bytes_of_converted_rows(column: pa.Array, kind: pa.DataType, size: int) -> None:
    assert converted_bytes(column, kind) == size


def test_the_bytes_of_nulls() -> None:
    kinds = [pa.bool_(), pa.int64(), pa.string(), pa.list_(pa.int64()), pa.struct([("a", pa.int32())])]
    assert [null_bytes(kind) for kind in kinds] == [1, 9, 5, 5, 6]


REQUIRED = pa.struct([pa.field("a", pa.int64(), nullable=False)])


@pytest.mark.parametrize("kind", [REQUIRED, pa.list_(REQUIRED), pa.map_(pa.int64(), pa.list_(REQUIRED))])
def test_a_required_part_is_found_at_any_depth(kind: pa.DataType) -> None:
    assert has_required_part(kind)


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.list_(pa.int64()), pa.struct([("a", pa.map_(pa.int64(), pa.int64()))])]
)
def test_where_every_part_may_be_null_none_is_required(kind: pa.DataType) -> None:
    assert not has_required_part(kind)


def test_nested_values_are_counted() -> None:
    assert count_values(pa.array([1, None])) == 2
    assert count_values(pa.array([[1, 2], None, []])) == 3 + 2
    assert count_values(pa.array([{"a": 1, "b": [2, 3]}])) == 1 + 1 + (1 + 2)
    assert count_values(pa.array([[(1, [2])]], pa.map_(pa.int64(), pa.list_(pa.int64())))) == 1 + 1 + (1 + 1)


def test_a_dictionary_is_decoded_unless_it_is_larger_than_a_column(monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array(["abc", None, "abc"]).dictionary_encode()
    assert decode_dictionary(column).to_pylist() == ["abc", None, "abc"]
    monkeypatch.setattr(values_module, "TEXT_BYTES_MAX", 10)
    with pytest.raises(pa.ArrowInvalid):
        decode_dictionary(column)


def test_a_dictionary_can_become_what_its_values_can() -> None:
    assert castable(pa.dictionary(pa.int32(), pa.string()), pa.string())
    assert not castable(pa.dictionary(pa.int32(), pa.string()), pa.int64())
