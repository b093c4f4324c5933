"""Values as text: one text for each, in the forms that are promised."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.types import parse_type
from headwater.sinks.base.text_values import (
    binaries,
    canonical_json,
    hex_texts,
    json_rows,
    json_texts,
    texts,
)

CASES: list[tuple[str, list[Any], list[str | None]]] = [
    ("BOOLEAN", [True, False, None], ["true", "false", None]),
    ("TINYINT", [-128, 127], ["-128", "127"]),
    ("BIGINT", [2**63 - 1, -(2**63), None], ["9223372036854775807", "-9223372036854775808", None]),
    ("DOUBLE", [0.1, 1.0, 1e20, -0.0, None], ["0.1", "1", "1e+20", "-0", None]),
    ("DOUBLE", [math.nan, math.inf, -math.inf, None], ["NaN", "Infinity", "-Infinity", None]),
    ("FLOAT", [0.1, None], ["0.1", None]),
    (
        "DECIMAL(20,10)",
        [Decimal("0.0000000001"), Decimal("-12.5"), None],
        ["0.0000000001", "-12.5000000000", None],
    ),
    ("DECIMAL(38,0)", [Decimal(10) ** 37, Decimal(-1)], ["1" + "0" * 37, "-1"]),
    ("DECIMAL(3,3)", [Decimal("-0.001"), Decimal("0.999")], ["-0.001", "0.999"]),
    ("STRING", ["", "ü", None], ["", "ü", None]),
    ("BINARY", [b"", b"\x00\xff", None], ["", "AP8=", None]),
    ("DATE", [date(1970, 1, 1), date(9999, 12, 31), None], ["1970-01-01", "9999-12-31", None]),
    ("TIMESTAMP", [datetime(2026, 3, 1, 12, tzinfo=UTC), None], ["2026-03-01T12:00:00.000000Z", None]),
    ("TIMESTAMP_NTZ", [datetime(1, 1, 1, 0, 0, 0, 1)], ["0001-01-01T00:00:00.000001"]),
    ("ARRAY<INT>", [[1, None, 2], [], None], ["[1,null,2]", "[]", None]),
    ("MAP<STRING,DOUBLE>", [[("b", 1.0), ("a", math.nan)]], ['{"a":"NaN","b":1}']),
    ("MAP<INT,STRING>", [[(2, "x"), (1, None)]], ['[[2,"x"],[1,null]]']),
    (
        "STRUCT<a: DECIMAL(5,2), `b c`: TIMESTAMP, f: FLOAT>",
        [{"a": Decimal("1.50"), "b c": datetime(2026, 1, 1, tzinfo=UTC), "f": 0.1}],
        ['{"a":1.5,"b c":"2026-01-01T00:00:00.000000Z","f":0.1}'],
    ),
]


@pytest.mark.parametrize(("kind", "values", "expected"), CASES, ids=lambda case: str(case)[:30])
def test_each_type_has_its_text(kind: str, values: list[Any], expected: list[str | None]) -> None:
    assert texts(pa.array(values, parse_type(kind))).to_pylist() == expected


def test_a_slice_has_the_texts_of_its_rows() -> None:
    for kind, values, expected in CASES:
        column = pa.array([values[0], *values], parse_type(kind)).slice(1)
        assert texts(column).to_pylist() == expected, kind


def test_years_beyond_the_usual_are_written_in_full() -> None:
    numbers = np.array([-62_135_596_800_000_001, 253_402_300_800_000_000, 2**63 - 1, 0])
    found = texts(pa.array(numbers, pa.timestamp("us")))
    assert found.to_pylist() == [
        "0000-12-31T23:59:59.999999",
        "10000-01-01T00:00:00.000000",
        "294247-01-10T04:00:54.775807",
        "1970-01-01T00:00:00.000000",
    ]


def test_json_has_numbers_as_numbers_and_the_rest_as_strings() -> None:
    rows = pa.RecordBatch.from_pylist(
        [
            {"i": 2**60, "d": Decimal("1.50"), "f": 0.5, "s": 'a"\n\\ü', "b": b"\x00", "n": None, "l": [1]},
            {"i": None, "d": None, "f": math.inf, "s": "plain", "b": None, "n": None, "l": None},
            {"i": None, "d": None, "f": None, "s": None, "b": None, "n": None, "l": None},
        ],
        schema=pa.schema(
            [
                ("i", pa.int64()),
                ("d", pa.decimal128(5, 2)),
                ("f", pa.float64()),
                ("s", pa.string()),
                ("b", pa.binary()),
                ("n", pa.string()),
                ("l", pa.list_(pa.int64())),
            ]
        ),
    )
    found = json_rows(rows).to_pylist()
    assert found[0] == '{"i":1152921504606846976,"d":1.50,"f":0.5,"s":"a\\"\\n\\\\ü","b":"AA==","l":[1]}'
    assert found[1] == '{"f":"Infinity","s":"plain"}'
    assert found[2] == "{}"


@given(st.lists(st.one_of(st.none(), st.text()), max_size=5))
def test_text_in_json_is_read_back_to_the_letter(values: list[str | None]) -> None:
    try:
        column = pa.array(values, pa.string())
    except UnicodeEncodeError:  # a lone surrogate is no text
        return
    found = json_texts(column).to_pylist()
    assert [None if text is None else orjson.loads(text) for text in found] == values


@given(st.lists(st.one_of(st.none(), st.binary(max_size=9)), max_size=6), st.integers(0, 3))
def test_hexadecimal_digits_are_read_back(values: list[bytes | None], start: int) -> None:
    column = pa.array(values, pa.binary()).slice(min(start, len(values)))
    found = hex_texts(column)
    assert found.to_pylist() == [None if value is None else value.hex() for value in column.to_pylist()]
    assert binaries(found).equals(column)


def test_json_from_elsewhere_is_brought_into_one_form() -> None:
    given = ['{"b": [1, 2.50, {"x": null}], "a": "1"}', "[ ]", "1.0", None, "1e2", "12345678901234567890.10"]
    assert canonical_json(pa.array(given)).to_pylist() == [
        '{"a":"1","b":[1,2.5,{"x":null}]}',
        "[]",
        "1",
        None,
        "100",
        "12345678901234567890.1",
    ]
