"""One Spark for the tests that hold served answers against it, and the tables that both are asked about."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headwater.core.types import TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="session")
def serving_spark(spark: SparkSession, served_tables: dict[str, pa.Table]) -> SparkSession:
    """A session of its own that knows the tables; tuned for many small queries."""
    session = spark.newSession()
    settings = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.crossJoin.enabled": "true",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    for name, value in settings.items():
        session.conf.set(name, value)
    for name, table in served_tables.items():
        session.createDataFrame(table).createOrReplaceTempView(name)
    return session


@pytest.fixture(scope="session")
def served_tables() -> dict[str, pa.Table]:
    """Numbers, extremes, texts and times, with everything that engines like to disagree about, and an empty table."""
    numbers = _numbers()
    return {
        "numbers": numbers,
        "nothing": numbers.slice(0, 0),
        "extremes": _extremes(),
        "texts": _texts(),
        "times": _times(),
    }


def _numbers() -> pa.Table:
    columns = {
        "k": (pa.int64(), [1, 2, 3, 4, 5, 6, 7, 8, 8, None]),
        "ti": (pa.int8(), [1, -2, 3, None, 0, 5, -6, 7, 7, 1]),
        "si": (pa.int16(), [10, -20, None, 40, 0, 50, 60, -70, -70, 10]),
        "i": (pa.int32(), [100, -7, 7, 13, 0, None, -100, 2, 2, 1]),
        "l": (pa.int64(), [5, -5, 3_000_000_000, None, 0, 1, 2, -3_000_000_000, -3_000_000_000, 5]),
        "f": (pa.float32(), [1.5, -0.25, 0.0, -0.0, NAN, None, INF, 3.25, 3.25, 1.5]),
        "d": (pa.float64(), [1.25, -2.5, 0.0, -0.0, NAN, None, -INF, 0.1, 0.1, 2.675]),
        "dec": (
            pa.decimal128(10, 2),
            [
                _dec(x)
                for x in ("1.25", "-2.50", "0.00", "99.99", "0.01", None, "-0.05", "7.00", "7.00", "2.50")
            ],
        ),
        "wide": (
            pa.decimal128(20, 4),
            [
                _dec(x)
                for x in (
                    "1.2345",
                    "-1.2345",
                    "0.0000",
                    None,
                    "123456789012345.6789",
                    "2.5",
                    "3",
                    "4",
                    "4",
                    "1",
                )
            ],
        ),
        "b": (pa.bool_(), [True, False, None, True, False, None, True, False, False, True]),
    }
    return _table(columns)


def _extremes() -> pa.Table:
    columns = {
        "ti": (pa.int8(), [127, -128, 0, None]),
        "i": (pa.int32(), [2**31 - 1, -(2**31), 0, None]),
        "l": (pa.int64(), [2**63 - 1, -(2**63), 0, None]),
        "d": (pa.float64(), [1.7976931348623157e308, 5e-324, -1e300, None]),
        "dec": (pa.decimal128(10, 2), [_dec("99999999.99"), _dec("-99999999.99"), _dec("0.00"), None]),
    }
    return _table(columns)


def _texts() -> pa.Table:
    texts = [
        "abc",
        "",
        " a b ",
        "ABC",
        "naïve",
        "a\u0301b",
        "😀x",
        "%_",
        None,
        "abc",
        "it's",
        "a\nb",
        "\u00a0z\u00a0",
        "a\x00b",
    ]
    others = ["a", "", " ", "abc", "ï", "b", None, "%", "x", "z", "'", "b", "Z", "A"]
    return _table(
        {
            "k": (pa.int32(), list(range(len(texts)))),
            "s": (pa.string(), texts),
            "t": (pa.string(), others),
            "raw": (pa.binary(), [None if s is None else s.encode() for s in texts]),
        }
    )


def _times() -> pa.Table:
    moments = [
        dt.datetime(2024, 2, 29, 12, 34, 56, 789_000, dt.UTC),
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, dt.UTC),
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2024, 12, 30, 0, 0, 1, tzinfo=dt.UTC),
        dt.datetime(1582, 10, 4, 1, 2, 3, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC),
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        None,
    ]
    days = [None if m is None else m.date() for m in moments]
    windows = [
        None if m is None else {"start": m, "end": moments[0], "Size": i} for i, m in enumerate(moments)
    ]
    lists = [[1, 2, 3], [], None, [None], [5], [6, None], [7], [8]]
    window = pa.struct([("start", TIMESTAMP), ("end", TIMESTAMP), ("Size", pa.int32())])
    return _table(
        {
            "k": (pa.int32(), [1, 2, 3, 4, 5, 6, 7, None]),
            "ts": (TIMESTAMP, moments),
            "day": (pa.date32(), [*days[1:], days[0]]),
            "ntz": (pa.timestamp("us"), [None if m is None else m.replace(tzinfo=None) for m in moments]),
            "w": (window, windows),
            "xs": (pa.list_(pa.int32()), lists),
            "tags": (
                pa.map_(pa.string(), pa.int32()),
                [[("a", 1), ("b", None)], [], None, *[[("c", 3)]] * 5],
            ),
            "spans": (pa.list_(window), [[w, None] if w else None for w in windows]),
        }
    )


def _dec(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)


def _table(columns: dict[str, tuple[pa.DataType, list[object]]]) -> pa.Table:
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})
