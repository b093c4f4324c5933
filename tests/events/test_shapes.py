"""Values of every type that an event may have come back from a row, and from JSON, as they were."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater as hw
from headwater.core.values import array_of
from headwater.events.event_schema import DataclassColumns
from headwater.events.field_types import json_default, shape_of
from tests.raising import raises


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Point:
    x: int
    label: str | None = None


@dataclass(frozen=True)
class Everything:
    whole: int
    text: str
    truth: bool
    number: float
    raw: bytes
    moment: datetime
    day: date
    money: Annotated[Decimal, "DECIMAL(12,2)"]
    key: uuid.UUID
    color: Color
    size: Literal["s", "m"]
    point: Point
    maybe: int | None = None
    points: tuple[Point, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()


WHOLE = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=10)
POINTS = st.builds(Point, WHOLE, st.none() | TEXT)
EVERYTHING = st.builds(
    Everything,
    WHOLE,
    TEXT,
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.binary(max_size=10),
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
    st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    st.decimals(-(10**9), 10**9, places=2),
    st.uuids(),
    st.sampled_from(Color),
    st.sampled_from(["s", "m"]),
    POINTS,
    st.none() | WHOLE,
    st.lists(POINTS, max_size=3).map(tuple),
    st.dictionaries(TEXT, WHOLE, max_size=3),
    st.frozensets(TEXT, max_size=3),
)


@given(EVERYTHING)
def test_an_event_comes_back_from_its_row(event: Everything) -> None:
    columns = DataclassColumns(Everything)
    row = columns.to_row(event)
    read = {one.name: array_of([row[one.name]], one.type).to_pylist()[0] for one in columns.fields_of_topic}
    assert columns.from_row(read) == event
    assert columns.canonical(event) == event


@given(EVERYTHING)
def test_a_state_comes_back_from_json(state: Everything) -> None:
    shape = shape_of(Everything)
    assert shape.from_json is not None
    plain = orjson.loads(orjson.dumps(state, default=json_default, option=orjson.OPT_NON_STR_KEYS))
    assert shape.from_json(plain) == state


@pytest.mark.parametrize(
    ("hint", "column"),
    [
        (list[int], pa.list_(pa.int64())),
        (int | None, pa.int64()),
        (dict[str, list[Color]], pa.map_(pa.string(), pa.list_(pa.string()))),
        (Point, pa.struct([("x", pa.int64()), ("label", pa.string())])),
        (Decimal, pa.decimal128(38, 9)),
    ],
)
def test_a_type_is_a_column(hint: Any, column: pa.DataType) -> None:
    assert shape_of(hint).column == column


@pytest.mark.parametrize("hint", [object, Any, int | str, list, complex, Literal[1, "a"]])
def test_a_type_that_cannot_be_a_column_is_refused(hint: Any) -> None:
    with raises(hw.SchemaError, type=hint.__name__ if isinstance(hint, type) else str(hint)):
        shape_of(hint)


def test_a_tuple_of_different_types_is_part_of_a_state_alone() -> None:
    shape = shape_of(tuple[int, Color])
    assert shape.column is None
    assert shape.from_json is not None
    assert shape.from_json([1, "red"]) == (1, Color.RED)


def test_times_without_a_zone_are_utc() -> None:
    @dataclass(frozen=True)
    class Met:
        at: datetime

    Met.__annotations__["at"] = datetime
    assert DataclassColumns(Met).canonical(Met(datetime(2026, 1, 2))) == Met(datetime(2026, 1, 2, tzinfo=UTC))
