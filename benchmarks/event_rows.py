"""What views are measured on: narrow events in Parquet files of a million rows, and a table that they refer to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

EVENT = "id BIGINT, k BIGINT, big BIGINT, d BIGINT, amount BIGINT, v DOUBLE, at TIMESTAMP, note STRING"
ITEM = "id BIGINT, name STRING, price BIGINT, PRIMARY KEY (id)"
NOTES = 1_000


def events(
    rows: int, start: int = 0, *, keys: int = 100_000, big: int = 5_000_000, items: int = 1_000_000
) -> pa.Table:
    """Events a millisecond apart, from number `start` on."""
    random = np.random.default_rng(start + 1)
    notes = pa.array([f"note number {i}" for i in range(NOTES)])
    at = (1_767_225_600_000_000 + (start + np.arange(rows)) * 1_000).astype(np.int64)
    return pa.table(
        {
            "id": pa.array(start + np.arange(rows)),
            "k": pa.array(random.integers(0, keys, rows)),
            "big": pa.array(random.integers(0, big, rows)),
            "d": pa.array(random.integers(0, items, rows)),
            "amount": pa.array(random.integers(0, 1_000, rows)),
            "v": pa.array(random.random(rows) * 100),
            "at": pa.array(at).cast(pa.timestamp("us", "UTC")),
            "note": notes.take(pa.array(random.integers(0, NOTES, rows))),
        }
    )


def items(rows: int) -> pa.Table:
    """The table: a row per item."""
    numbers = np.arange(rows)
    return pa.table(
        {
            "id": pa.array(numbers),
            "name": pa.array([f"item {i}" for i in range(rows)]),
            "price": pa.array(numbers % 997),
        }
    )


def files(folder: Path, count: int, rows: int, total_items: int) -> list[Path]:
    """Parquet files of events, one per tick."""
    folder.mkdir()
    made = []
    for number in range(count):
        made.append(folder / f"{number:04d}.parquet")
        pq.write_table(events(rows, number * rows, items=total_items), made[-1])
    return made
