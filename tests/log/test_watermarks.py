"""The watermark before each row, against the definition written out."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.log.watermarks import NONE, event_times, row_watermarks, watermark_array

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", tz="UTC"))])
times = st.one_of(st.just(NONE), st.integers(-(10**15), 10**16), st.integers(0, 100))


def topic(lateness: int = 0, max_ahead: str | None = None) -> TopicDefinition:
    return define_topic(
        "t", SCHEMA, key=("id",), time="at", lateness=lateness, options={"max_ahead": max_ahead}
    )


def by_definition(values: list[int], before: int, appended_at: int, definition: TopicDefinition) -> list[int]:
    """The watermark at each row and after the last, one row at a time."""
    found = [before]
    for value in values:
        limit = definition.max_ahead_us
        eligible = value != NONE and (limit is None or value <= appended_at + limit)
        found.append(max(found[-1], value - definition.lateness_us) if eligible else found[-1])
    return found


@given(
    st.lists(times),
    times,
    st.integers(0, 100),
    st.integers(0, 50),
    st.sampled_from([None, "10 microseconds"]),
)
def test_rows_get_the_watermark_of_the_definition(
    values: list[int], before: int, appended_at: int, lateness: int, max_ahead: str | None
) -> None:
    definition = topic(lateness, max_ahead)
    running, after, ahead = row_watermarks(np.array(values, dtype=np.int64), before, appended_at, definition)
    wanted = by_definition(values, before, appended_at, definition)
    assert [*running.tolist(), after] == wanted
    too_far = [v for v in values if max_ahead and v > appended_at + 10]
    assert ahead == len(too_far)


@given(st.lists(times, min_size=1), st.integers(0, 50), st.integers(1, 5))
def test_cutting_the_rows_into_appends_changes_nothing(values: list[int], lateness: int, pieces: int) -> None:
    definition = topic(lateness)
    whole, end, _ = row_watermarks(np.array(values, dtype=np.int64), NONE, 0, definition)
    parts, before = [], NONE
    for piece in np.array_split(np.array(values, dtype=np.int64), pieces):
        running, before, _ = row_watermarks(piece, before, 0, definition)
        parts += running.tolist()
    assert (parts, before) == (whole.tolist(), end)


def test_event_times_are_microseconds_and_none_where_a_tombstone_has_none() -> None:
    rows = [{"id": 1, "at": datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)}, {"id": 1, "_op": "delete"}]
    found = event_times(conform(rows, topic()), topic())
    assert found is not None
    assert found.tolist() == [1_000_005, NONE]


def test_topics_without_event_time_have_none() -> None:
    plain = define_topic("t", SCHEMA)
    assert event_times(conform([{"id": 1}], plain), plain) is None


def test_no_watermark_is_null() -> None:
    array = watermark_array(np.array([NONE, 0, 7], dtype=np.int64))
    assert array.type == pa.timestamp("us", tz="UTC")
    assert array.cast(pa.int64()).to_pylist() == [None, 0, 7]
