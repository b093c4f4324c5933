"""A table as text: columns aligned, long cells cut, and what does not fit mentioned."""

from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa

from headwater.core.table_text import CELL_MAX, ROWS_MAX, WIDTH_MAX, listed


def test_numbers_are_aligned_right_and_all_else_left() -> None:
    table = pa.table(
        {
            "country": ["de", "austria"],
            "n": [7, 110],
            "share": [0.5, 12.25],
            "price": [Decimal("1.50"), Decimal("10.00")],
            "paid": [True, False],
        }
    )
    assert listed(table).split("\n") == [
        "  country    n  share  price  paid",
        "  de         7    0.5   1.50  True",
        "  austria  110  12.25  10.00  False",
    ]


def test_null_and_times_are_shown_as_in_sql() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    table = pa.table({"at": pa.array([at, None], pa.timestamp("us", "UTC")), "list": [[1, None], None]})
    assert listed(table).split("\n") == [
        "  at                   list",
        "  2026-01-02 03:04:05  [1, None]",
        "  NULL                 NULL",
    ]


def test_a_table_without_rows_is_its_header() -> None:
    assert listed(pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())})) == "  a  b"


def test_a_long_cell_is_cut_and_lines_of_a_cell_are_joined() -> None:
    lines = listed(pa.table({"text": ["x" * CELL_MAX, "y" * (CELL_MAX + 1), "two\nlines"]})).split("\n")
    assert lines[1:] == [f"  {'x' * CELL_MAX}", f"  {'y' * (CELL_MAX - 1)}…", "  two lines"]


def test_rows_beyond_the_most_are_counted() -> None:
    lines = listed(pa.table({"n": range(ROWS_MAX + 1_500)})).split("\n")
    assert len(lines) == 1 + ROWS_MAX + 1
    assert lines[-2].split() == [str(ROWS_MAX - 1)]
    assert lines[-1] == "  and 1,500 more"


def test_columns_that_do_not_fit_are_named() -> None:
    wide = {f"c{n}": ["x" * 30] for n in range(5)}
    first, row = listed(pa.table(wide)).split("\n")
    assert first.endswith("  (and c3, c4)")
    assert row.split() == ["x" * 30] * 3
    assert len(row) <= WIDTH_MAX
    exact = {"a": ["x" * 20], "b": ["y" * 20], "c": ["z" * 20], "d": ["v" * 20], "e": ["w" * 20]}
    assert len(listed(pa.table(exact)).split("\n")[1]) == WIDTH_MAX


def test_one_column_is_shown_however_wide_its_name() -> None:
    assert listed(pa.table({"n" * 200: [1]})).split("\n")[1].strip() == "1"
