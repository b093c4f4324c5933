"""The records that are measured: a click of about 100 bytes (user BIGINT, at TIMESTAMP, url STRING)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

COLUMNS = "user BIGINT, at TIMESTAMP, url STRING"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
RECORD_BYTES = 100


@lru_cache(maxsize=4)
def clicks(rows: int, start: int = 0) -> pa.RecordBatch:
    """Clicks a millisecond apart: users at random, urls of 80 characters, half of them from a thousand paths."""
    random = np.random.default_rng(start + 1)
    users = pa.array(random.integers(0, 1_000_000, rows))
    first = int(BEGIN.timestamp() * 1e6) + start * 1_000
    at = pa.array(first + np.arange(rows) * 1_000).cast(pa.timestamp("us", "UTC"))
    pages, visits = random.integers(0, 1_000, rows), random.integers(0, 2**63, rows)
    urls = [
        f"https://shop.example/products/{p:04d}/reviews?page=2&campaign=spring&v={v:016x}"
        for p, v in zip(pages.tolist(), visits.tolist(), strict=True)
    ]
    return pa.RecordBatch.from_arrays([users, at, pa.array(urls)], names=["user", "at", "url"])


def dicts(rows: int) -> list[dict[str, Any]]:
    """The same as Python objects."""
    return clicks(rows).to_pylist()  # type: ignore[no-any-return]


def tuples(rows: int) -> list[tuple[int, int, str]]:
    """The same as SQLite takes them, with the time in microseconds."""
    batch = clicks(rows)
    at = batch.column("at").view(pa.int64()).to_pylist()
    return list(zip(batch.column("user").to_pylist(), at, batch.column("url").to_pylist(), strict=True))


def raw(rows: int) -> bytes:
    """As many bytes as the records have, for the plain file."""
    line = b"x" * (RECORD_BYTES - 1) + b"\n"
    return line * rows


def batches(total: int, size: int) -> Iterator[pa.RecordBatch]:
    """Batches of `size` rows that make `total`, cut from one that is kept."""
    whole = clicks(min(total, 100_000))
    done = 0
    while done < total:
        take = min(size, total - done, whole.num_rows)
        yield whole.slice(done % (whole.num_rows - take + 1), take)
        done += take


def moment(row: int) -> datetime:
    """The event time of the row of that number."""
    return BEGIN + timedelta(milliseconds=row)
