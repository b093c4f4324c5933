"""Layout of tables: what a width leaves room for, and that no value is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.tables import Column, fact_lines, table_lines, wrapped

NAMES = Column("view", ["clicks_per_minute", "revenue"])
COUNTS = Column("rows behind", ["1,234", "0"], right=True)
NOTES = Column("reason", ["a row failed: the value 'x' is not a number", "-"])
SIZES = Column("size", ["1.2 MB", "3 B"], optional=1)
TIMES = Column("watermark", ["2026-01-31T12:00:00Z", "-"], optional=2)


def lines(*columns: Column, room: int) -> list[str]:
    header, rows = table_lines(columns, room)
    return [*header, *rows]


def test_a_table_that_fits_has_a_line_for_each_row() -> None:
    assert lines(NAMES, COUNTS, room=80) == [
        "view               rows behind",
        "clicks_per_minute        1,234",
        "revenue                      0",
    ]


def test_headers_are_wrapped_before_anything_is_left_out() -> None:
    assert lines(NAMES, COUNTS, SIZES, room=34) == [
        "view                 rows  size",
        "                   behind",
        "clicks_per_minute   1,234  1.2 MB",
        "revenue                 0  3 B",
    ]


def test_the_least_important_column_is_left_out_first() -> None:
    assert lines(NAMES, SIZES, TIMES, room=40)[0].split() == ["view", "size"]
    assert lines(NAMES, SIZES, TIMES, room=20)[0].split() == ["view"]


def test_a_long_text_is_wrapped_between_words() -> None:
    assert lines(NAMES, NOTES, room=44) == [
        "view               reason",
        "clicks_per_minute  a row failed: the value",
        "                   'x' is not a number",
        "revenue            -",
    ]


def test_where_nothing_helps_each_row_is_a_block() -> None:
    assert lines(NAMES, NOTES, room=26) == [
        "view    clicks_per_minute",
        "reason  a row failed: the",
        "        value 'x' is not a",
        "        number",
        "",
        "view    revenue",
        "reason  -",
    ]


def test_a_long_fact_goes_on_below_its_value() -> None:
    assert fact_lines([("reason", "a b c d e f g h i j k l"), ("hint", "x")], 26) == [
        "reason  a b c d e f g h i",
        "        j k l",
        "hint    x",
    ]


@given(st.lists(st.text("ab -/", min_size=1, max_size=60), min_size=1, max_size=5), st.integers(20, 80))
def test_no_line_is_wider_than_the_room_and_no_character_is_lost(texts: list[str], room: int) -> None:
    columns = [Column(f"c{at}", [text]) for at, text in enumerate(texts)]
    header, rows = table_lines(columns, room)
    assert all(len(line) <= room for line in (*header, *rows))
    for text in texts:
        letters = [character for line in wrapped(text, room) for character in line if character != " "]
        assert letters == [character for character in text if character != " "]


@pytest.mark.parametrize("text", ["", "one", "two\nlines"])
def test_a_text_that_fits_is_left_as_it_is(text: str) -> None:
    assert "\n".join(wrapped(text, 10)) == text
