"""Contract of types: values of every type are read as they were written."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headwater.core.types import parse_type
from headwater.testing.contract.contract_base import Bench


class TypeContract(Bench):
    """Tests of each family of types; values are read before and after reopening, and after maintenance."""

    def round_trip(self, kind: str, values: list[Any]) -> list[Any]:
        """Append these values and a null, and return the values read; asserts that reopening and sealing change nothing."""
        self.create("t", pa.schema([pa.field("v", parse_type(kind))]))
        self.append("t", [{"v": value} for value in [*values, None]])
        live = self.column("t", "v")
        self.log = self.reopen(self.log)
        assert repr(self.column("t", "v")) == repr(live)
        self.log.maintain(force=True)
        assert repr(self.column("t", "v")) == repr(live)
        table = self.table("t", columns=["v"])
        assert table is not None
        assert table.schema.field("v").type == parse_type(kind)
        assert live[-1] is None
        return live[:-1]

    def test_booleans(self) -> None:
        assert self.round_trip("BOOLEAN", [True, False]) == [True, False]

    def test_tiny_integers(self) -> None:
        assert self.round_trip("TINYINT", [-128, 0, 127]) == [-128, 0, 127]

    def test_small_integers(self) -> None:
        assert self.round_trip("SMALLINT", [-(2**15), 2**15 - 1]) == [-(2**15), 2**15 - 1]

    def test_integers(self) -> None:
        assert self.round_trip("INT", [-(2**31), 2**31 - 1]) == [-(2**31), 2**31 - 1]

    def test_big_integers(self) -> None:
        assert self.round_trip("BIGINT", [-(2**63), 0, 2**63 - 1]) == [-(2**63), 0, 2**63 - 1]

    def test_floats(self) -> None:
        assert self.round_trip("FLOAT", [1.5, -0.25, math.inf]) == [1.5, -0.25, math.inf]

    def test_doubles_with_infinities(self) -> None:
        values = [0.1, 5e-324, 1.7976931348623157e308, math.inf, -math.inf]
        assert self.round_trip("DOUBLE", values) == values

    def test_not_a_number_is_not_null(self) -> None:
        (value,) = self.round_trip("DOUBLE", [math.nan])
        assert math.isnan(value)

    def test_negative_zero_keeps_its_sign(self) -> None:
        (value,) = self.round_trip("DOUBLE", [-0.0])
        assert math.copysign(1, value) == -1

    def test_decimals(self) -> None:
        values = [Decimal("12345678.90"), Decimal("-0.01"), Decimal("0.00")]
        assert self.round_trip("DECIMAL(10,2)", values) == values

    def test_the_widest_decimals(self) -> None:
        values = [Decimal("9" * 38), Decimal("-" + "9" * 38)]
        assert self.round_trip("DECIMAL(38,0)", values) == values

    def test_strings(self) -> None:
        values = ["", " ", "plain", "größer", "日本語", "👩‍🚀", "nul \x00 inside", "line\nbreak", "x" * 5_000]
        assert self.round_trip("STRING", values) == values

    def test_binaries(self) -> None:
        values = [b"", b"\x00", bytes(range(256)), b"\xff" * 5_000]
        assert self.round_trip("BINARY", values) == values

    def test_dates(self) -> None:
        values = [date(1, 1, 1), date(1969, 12, 31), date(2026, 2, 28), date(9999, 12, 31)]
        assert self.round_trip("DATE", values) == values

    def test_timestamps_to_the_microsecond(self) -> None:
        values = [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        ]
        assert self.round_trip("TIMESTAMP", values) == values

    def test_timestamps_without_zone(self) -> None:
        values = [datetime(2026, 3, 1, 12, 0, 0, 1), datetime(1960, 1, 1)]
        assert self.round_trip("TIMESTAMP_NTZ", values) == values

    def test_arrays(self) -> None:
        values = [[], [1], [1, None, 3], [None]]
        assert self.round_trip("ARRAY<BIGINT>", values) == values

    def test_arrays_of_arrays(self) -> None:
        values: list[Any] = [[], [[]], [["a"], None, ["b", None]]]
        assert self.round_trip("ARRAY<ARRAY<STRING>>", values) == values

    def test_maps(self) -> None:
        values = [[], [("a", 1)], [("b", None), ("a", 2)]]
        assert self.round_trip("MAP<STRING,INT>", values) == values

    def test_structs(self) -> None:
        values = [{"x": 1, "y": "a"}, {"x": 2, "y": None}]
        assert self.round_trip("STRUCT<x: INT NOT NULL, y: STRING>", values) == values

    def test_types_nested_in_each_other(self) -> None:
        kind = "ARRAY<STRUCT<at: TIMESTAMP, tags: MAP<STRING, ARRAY<DECIMAL(5,1)>>>>"
        values = [
            [
                {
                    "at": datetime(2026, 1, 1, tzinfo=UTC),
                    "tags": [("a", [Decimal("1.5"), None]), ("b", None)],
                },
                None,
            ]
        ]
        assert self.round_trip(kind, values) == values

    def test_rows_of_nothing_but_nulls(self) -> None:
        self.create("t", "a BIGINT, b STRING")
        self.append("t", [{}, {"a": None}])
        assert self.column("t", "a") == [None, None]
        assert self.column("t", "b") == [None, None]

    def test_column_names_that_need_quoting(self) -> None:
        self.create(
            "t",
            pa.schema(
                [pa.field("a b", pa.int64()), pa.field("größe", pa.int64()), pa.field("x.y", pa.int64())]
            ),
        )
        self.append("t", [{"a b": 1, "größe": 2, "x.y": 3}])
        self.log = self.reopen(self.log)
        self.log.maintain(force=True)
        table = self.table("t", columns=["a b", "größe", "x.y"])
        assert table is not None
        assert table.to_pylist() == [{"a b": 1, "größe": 2, "x.y": 3}]
