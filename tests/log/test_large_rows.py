"""Rows of any size: batches that are read, and row groups of sealed segments, are bounded by bytes as well as by rows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.catalog.definitions import define_topic
from headwater.core.settings import LogSettings
from headwater.log.embedded import EmbeddedLog

TOPIC = define_topic("pages", pa.schema([("n", pa.int64()), ("text", pa.string())]))


def pages(rows: int, size: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, 20):
        numbers = list(range(start, min(start + 20, rows)))
        yield pa.RecordBatch.from_pydict(
            {"n": numbers, "text": [str(n) + "x" * size for n in numbers]}, TOPIC.row_schema
        )


@pytest.mark.parametrize(
    ("rows", "size"),
    [(160, 1 << 20), pytest.param(2_300, 1 << 20, marks=[pytest.mark.slow, pytest.mark.long])],
    ids=["160 MB", "more than a column can have"],
)
def test_large_rows_are_read_and_sealed_in_bounded_pieces(tmp_path: Path, rows: int, size: int) -> None:
    log = EmbeddedLog.open(tmp_path, settings=LogSettings(durability="os", maintenance_every_ms=0))
    try:
        log.create_topic(TOPIC)
        stage = log.stage()
        for batch in pages(rows, size):
            stage.add("pages", batch)
        stage.commit()
        for sealed in (False, True):
            if sealed:
                log.maintain(force=True)
                (path,) = tmp_path.rglob("*.parquet")
                groups = pq.ParquetFile(path).metadata
                assert groups.num_row_groups >= rows * size >> 28
            seen = 0
            for batch in log.read("pages", 0, 0, rows, ["n", "text", "_offset"]):
                assert batch.column("n").to_pylist() == list(range(seen, seen + batch.num_rows))
                assert batch.nbytes < 140 << 20
                seen += batch.num_rows
                del batch
                gc.collect()
            assert seen == rows
    finally:
        log.close()
