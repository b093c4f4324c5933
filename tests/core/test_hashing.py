"""The hash that decides partitions: the same for ever, and equal where SQL finds keys equal."""

import math
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core import hashing
from headwater.core.hashing import hash_rows, partition_of, sum_of_rows


def one(value: Any, kind: pa.DataType, seed: int = 0) -> int:
    return int(hash_rows([pa.array([value], kind)], 1, seed)[0])


# What is in the logs that exist already: these numbers never change.
GOLDEN: list[tuple[Any, pa.DataType, int]] = [
    (True, pa.bool_(), 0x81C2B5D061575BB1),
    (False, pa.bool_(), 0x1B7053765AA790FD),
    (0, pa.int64(), 0x1B7053765AA790FD),
    (7, pa.int64(), 0xD398F50F5E14CA23),
    (-1, pa.int64(), 0xE6885E06DD0EF724),
    (2**63 - 1, pa.int64(), 0x54F0AC427C6C873D),
    (None, pa.int64(), 0xB8BDA4628F0AFA03),
    (1.5, pa.float64(), 0x598ACFEA75DF73DB),
    (0.0, pa.float64(), 0x1B7053765AA790FD),
    (math.nan, pa.float64(), 0x4397429F169FAE34),
    (-math.inf, pa.float64(), 0xA9789C5BF59E8175),
    (Decimal("12.34"), pa.decimal128(10, 2), 0x1FE158EB0FB1510C),
    (Decimal("-0.01"), pa.decimal128(38, 2), 0xFFD25C463F3F2A46),
    ("", pa.string(), 0xB7334502757611A6),
    ("a", pa.string(), 0xA5457BBE6E5C19B6),
    ("user-17", pa.string(), 0x70C7B5DF7C72900C),
    ("größer als acht", pa.string(), 0x16D611400253E2D3),
    ("x" * 512, pa.string(), 0xE088D1A2460777F0),
    ("x" * 513, pa.string(), 0x9350D701ECC8E8A0),
    (b"\x00\xff", pa.binary(), 0x4343C9F9B8B67462),
    (date(2026, 3, 1), pa.date32(), 0xC4A552BAF10D731E),
    (date(1969, 12, 31), pa.date32(), 0xE6885E06DD0EF724),
    (datetime(2026, 3, 1, 12, 0, 0, 1, tzinfo=UTC), pa.timestamp("us", tz="UTC"), 0x4A22157D35E3ABB3),
]


@pytest.mark.parametrize(("value", "kind", "expected"), GOLDEN)
def test_hashes_are_what_they_have_always_been(value: Any, kind: pa.DataType, expected: int) -> None:
    assert one(value, kind) == expected


def test_several_columns_and_seeds_are_what_they_have_always_been() -> None:
    columns = [pa.array([7, None]), pa.array(["a", "b"])]
    assert hash_rows(columns, 2).tolist() == GOLDEN_ROWS
    assert one(7, pa.int64(), seed=1) == GOLDEN_SEEDED


GOLDEN_ROWS = [0x8F4174C2A873B4DA, 0xD40E03727E9D47FB]
GOLDEN_SEEDED = 0x8EA4B4E786BE5381


@given(st.integers(-128, 127))
def test_widening_an_integer_changes_no_hash(value: int) -> None:
    kinds = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    assert len({one(value, kind) for kind in kinds}) == 1


@given(st.floats(width=32))
def test_widening_a_float_changes_no_hash(value: float) -> None:
    assert one(value, pa.float32()) == one(value, pa.float64())


def test_zeros_are_one_key_and_so_are_nans() -> None:
    assert one(0.0, pa.float64()) == one(-0.0, pa.float64())
    quiet, other = np.array([0x7FF8000000000000, 0xFFF8000000000123], dtype=np.uint64).view(np.float64)
    assert math.isnan(other)
    assert one(quiet, pa.float64()) == one(other, pa.float64())


def test_where_a_null_is_matters() -> None:
    def row(*values: int | None) -> int:
        return int(hash_rows([pa.array([v], pa.int64()) for v in values], 1)[0])

    assert len({row(None, 1), row(1, None), row(1), row(None), row(0), row(1, 1), row(None, None)}) == 7


def test_an_empty_string_is_not_null_and_zeros_at_the_end_count() -> None:
    found = {
        one(value, pa.binary()) for value in (None, b"", b"\0", b"\0\0", b"a", b"a\0", b"a" * 8, b"a" * 9)
    }
    assert len(found) == 8


@given(st.lists(st.one_of(st.none(), st.text(max_size=40), st.text(min_size=400, max_size=700)), max_size=12))
def test_a_rows_hash_does_not_depend_on_its_neighbours(values: list[str | None]) -> None:
    whole = hash_rows([pa.array(values, pa.string())], len(values)).tolist() if values else []
    assert whole == [one(value, pa.string()) for value in values]


@given(st.lists(st.one_of(st.none(), st.text(max_size=12)), min_size=3, max_size=12))
def test_slices_hash_like_copies(values: list[str | None]) -> None:
    array = pa.array(values, pa.string())
    assert hash_rows([array.slice(2)], len(values) - 2).tolist() == [one(v, pa.string()) for v in values[2:]]


@given(st.lists(st.one_of(st.none(), st.decimals(-999, 999, places=2)), min_size=3, max_size=12))
def test_slices_of_decimals_hash_like_copies(values: list[Decimal | None]) -> None:
    kind = pa.decimal128(10, 2)
    array = pa.array(values, kind)
    assert hash_rows([array.slice(2)], len(values) - 2).tolist() == [one(v, kind) for v in values[2:]]


@given(st.binary(max_size=600))
def test_strings_and_binaries_of_the_same_bytes_hash_alike(value: bytes) -> None:
    text = value.decode("latin-1")
    assert one(text, pa.string()) == one(text.encode(), pa.binary())


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, 64])
def test_partitions_are_in_range_and_evenly_filled(partitions: int) -> None:
    hashes = hash_rows([pa.array(range(20_000))], 20_000)
    counts = np.bincount(partition_of(hashes, partitions), minlength=partitions)
    assert len(counts) == partitions
    assert counts.min() > 0.7 * 20_000 / partitions


def test_the_extremes_of_the_hash_are_in_range() -> None:
    edges = np.array([0, 2**64 - 1], dtype=np.uint64)
    assert partition_of(edges, 5).tolist() == [0, 4]


def test_the_sum_of_rows_knows_a_bag_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(3)
    rows = [
        {
            "n": chance.choice([None, 0, 1, -1, chance.getrandbits(60)]),
            "s": chance.choice([None, "", "a", "\0", "abcdefgh", "abcdefghi", "x" * 600, "y" * 512]),
            "d": chance.choice([None, 0.0, -0.0, float("nan"), chance.random()]),
            "m": chance.choice([None, Decimal("1.50"), Decimal("-9999999999999999999999.25")]),
            "b": chance.choice([None, True, False]),
            "l": chance.choice([None, [], [None], ["a"], ["a", None]]),
        }
        for _ in range(200)
    ]
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("s", pa.string()),
            ("d", pa.float64()),
            ("m", pa.decimal128(30, 2)),
            ("b", pa.bool_()),
            ("l", pa.list_(pa.string())),
        ]
    )

    def total(some: list[dict[str, Any]]) -> int:
        batch = pa.RecordBatch.from_pylist(some, schema=schema)
        return sum_of_rows(batch.columns, batch.num_rows)

    whole = total(rows)
    assert total(chance.sample(rows, len(rows))) == whole
    assert (total(rows[:70]) + total(rows[70:])) % 2**64 == whole
    sliced = pa.RecordBatch.from_pylist([rows[0], *rows], schema=schema).slice(1)
    assert sum_of_rows(sliced.columns, sliced.num_rows) == whole
    with monkeypatch.context() as patch:
        patch.setattr(hashing, "_BLOCK_ROWS", 64)
        assert total(rows) == whole
    rows = rows[:20]
    whole = total(rows)
    for at in range(len(rows)):
        for name, values in (
            ("n", [7]),
            ("s", ["b", "xy" * 300]),
            ("m", [Decimal("1.51")]),
            ("b", [None, True]),
        ):
            for value in values:
                if rows[at][name] != value:
                    assert total([*rows[:at], {**rows[at], name: value}, *rows[at + 1 :]]) != whole
    assert total([{"d": 0.0}]) != total([{"d": -0.0}])
    assert total([{"n": 1}, {"s": "a"}]) != total([{"n": 1, "s": "a"}, {}])


def test_the_sum_of_rows_is_the_same_for_ever() -> None:
    """It is stored: another sum of the same rows would refuse a producer's retry."""
    batch = pa.record_batch(
        {"n": [1, None, -5], "s": ["a", "bcdefghij", None], "d": [0.5, float("nan"), -0.0]}
    )
    assert f"{sum_of_rows(batch.columns, 3):016x}" == "ea974e0a5909b27b"
