"""Ticks are as large as the memory allows; a tick that has run out of memory is run again with fewer rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.errors import UsageError
from headwater.engine.dataflow.dataflow_stages import DataflowStage
from headwater.engine.input import log_input
from headwater.engine.tick import tick_budget
from headwater.engine.tick.tick_budget import (
    MemoryWatch,
    TickBudget,
    anonymous_bytes,
    is_too_large,
    memory_limit,
)
from headwater.engine.tick.tick_engine import Engine
from headwater.operators.zset.delta import concat_rows
from tests.raising import raises

TOPIC = "CREATE TOPIC clicks (id BIGINT, url STRING) WITH (partitions = 2)"
VIEW = "CREATE MATERIALIZED VIEW hits AS SELECT url, count(*) AS n, sum(id) AS ids FROM clicks GROUP BY url"
ROWS = 400


def fill(ws: hw.Workspace, rows: int = ROWS) -> None:
    """Append rows, few at a time, because a tick never splits an append."""
    for start in range(0, rows, 5):
        ws.topic("clicks").append([{"id": i, "url": f"/{i % 7}"} for i in range(start, start + 5)])


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A workspace with a live view and a backlog, where more than twenty rows are a large tick."""
    monkeypatch.setattr(tick_budget, "TICK_ROWS", 20)
    monkeypatch.setattr(tick_budget, "MEASURED_ROWS_MIN", 1_000_000)
    with hw.open(tmp_path / "shop", spark=spark) as ws:
        ws.sql(f"{TOPIC}; {VIEW}")
        ws.run()
        fill(ws)
        yield ws


def test_a_backlog_is_taken_in_with_few_ticks(shop: hw.Workspace) -> None:
    report = shop.run()
    assert (report.rows, report.ticks) == (ROWS, 3)  # each at most eight times as large as a usual one
    assert shop.verify().ok


def test_a_bound_on_rows_holds_whatever_the_memory(shop: hw.Workspace) -> None:
    report = shop.run(tick_rows=50)
    assert (report.rows, report.ticks) == (ROWS, ROWS // 50)


def test_less_memory_makes_more_ticks(shop: hw.Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_MEMORY", "20 KB")
    ticks = shop.run().ticks
    assert 4 < ticks <= ROWS // 20
    assert shop.verify().ok


@pytest.mark.parametrize(
    "error", [MemoryError("no memory"), pa.ArrowInvalid("offset overflow while concatenating arrays")]
)
def test_a_tick_without_memory_is_run_again_with_fewer_rows(
    shop: hw.Workspace, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    evaluate, sizes = DataflowStage.evaluate, list[int]()

    def failing(stage: DataflowStage, inputs: Any, *, first: bool) -> Any:
        sizes.append(sum(map(len, inputs)))
        if sizes[-1] > 30:
            raise error
        return evaluate(stage, inputs, first=first)

    monkeypatch.setattr(DataflowStage, "evaluate", failing)
    report = shop.run()
    assert report.rows == ROWS
    assert max(sizes) > 100
    assert sizes[-1] <= 30
    assert sum(size for size in sizes if size > 30) < 4 * ROWS, "the engine remembers what was too large"
    monkeypatch.undo()
    assert shop.verify().ok


def test_an_error_that_is_not_about_memory_ends_the_tick(
    shop: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> Any:
        raise pa.ArrowInvalid("no such thing")

    monkeypatch.setattr(DataflowStage, "evaluate", failing)
    with pytest.raises(pa.ArrowInvalid):
        shop.run()


def test_a_view_over_a_long_history_is_built_in_large_parts(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwater.engine.tick import backfill_parts

    monkeypatch.setattr(tick_budget, "TICK_ROWS", 20)
    monkeypatch.setattr(backfill_parts, "TICK_ROWS", 20)
    monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 10)
    with hw.open(tmp_path / "shop", spark=spark) as ws:
        ws.sql(f"{TOPIC}; CREATE MATERIALIZED VIEW ids AS SELECT id FROM clicks")
        fill(ws)
        ws.run()
        ws.sql(VIEW)
        assert ws.run().ticks <= ROWS // 80 + 1
        assert ws.verify().ok


def test_rows_that_cannot_be_read_at_once_are_read_in_several_ticks(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = list[int]()
    cut = Engine._cut

    def overflowing(batches: Any, schema: pa.Schema) -> pa.RecordBatch:
        if sum(batch.num_rows for batch in batches) > 60:
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        return concat_rows(batches, schema)

    def watched_cut(self: Engine, workload: Any, before: Any, rows_max: Any) -> Any:
        cuts.append(rows_max)
        return cut(self, workload, before, rows_max)

    with hw.open(tmp_path / "shop", spark=spark) as ws:
        ws.sql(f"{TOPIC}; {VIEW}")
        ws.run()
        fill(ws)
        monkeypatch.setattr(log_input, "concat_rows", overflowing)
        monkeypatch.setattr(Engine, "_cut", watched_cut)
        assert ws.run().rows == ROWS
        assert min(cuts) > 20
        monkeypatch.undo()
        assert ws.verify().ok


def watched(used: int) -> MemoryWatch:
    """A watch of a tick that has used so many bytes."""
    watch = MemoryWatch()
    watch.peak = watch.base + used
    return watch


def test_what_a_large_tick_has_used_replaces_the_estimate() -> None:
    budget = TickBudget(memory_bytes=1_000_000_000)
    budget.record(100_000, watched(900_000_000), 1.0)  # too few rows to say anything
    assert budget._row_bytes != 9_000
    budget.record(1_000_000, watched(500_000_000), 1.0)
    assert budget._row_bytes == 500
    budget.record(
        1_000_000, watched(0), 1.0
    )  # in the memory of the tick before, or not measured on this system
    assert budget._row_bytes == 500
    budget.record(1_000_000, watched(100_000_000), 1.0)  # falls slowly
    assert budget._row_bytes == pytest.approx(350)
    budget.record(1_000_000, watched(900_000_000), 1.0)
    assert budget._row_bytes == 900


def test_a_limit_after_a_lack_of_memory_is_raised_again() -> None:
    budget = TickBudget(memory_bytes=1_000_000_000)
    assert budget.halve(1_000) == 500
    budget.relax()  # the tick that has failed first
    assert budget._rows_max == 500
    budget.relax()
    assert budget._rows_max == 626
    for _ in range(100):
        budget.relax()
    assert budget._rows_max is None


def test_a_tick_that_cannot_be_smaller_is_tried_once(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def failing(*_: object, **__: object) -> Any:
        tries.append(1)
        raise MemoryError("no memory")

    with hw.open(tmp_path / "shop", spark=spark) as ws:
        ws.sql(f"{TOPIC}; {VIEW}")
        ws.run()
        ws.topic("clicks").append([{"id": i, "url": "/a"} for i in range(500)])  # one commit
        monkeypatch.setattr(DataflowStage, "evaluate", failing)
        with pytest.raises(MemoryError):
            ws.run()
        assert len(tries) <= 3
        monkeypatch.undo()
        assert ws.run().rows == 500
        assert ws.verify().ok


def test_the_setting_is_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_MEMORY", "3 GB")
    assert memory_limit() == 3 << 30
    monkeypatch.setenv("HEADWATER_MEMORY", "much")
    with raises(UsageError, setting="HEADWATER_MEMORY"):
        memory_limit()
    monkeypatch.delenv("HEADWATER_MEMORY")
    assert 0 < memory_limit() < 1 << 50


def test_memory_of_the_process_is_measured_without_mapped_files(tmp_path: Path) -> None:
    before = anonymous_bytes()
    held = np.ones(32 << 20)  # 256 MB, more than other threads free in the meantime
    assert anonymous_bytes() - before > 128 << 20
    del held


@pytest.mark.long
def test_texts_of_more_than_two_gigabytes_are_recognised() -> None:
    texts = pa.array(["x" * (1 << 20)] * 1_500)
    with pytest.raises(pa.ArrowInvalid) as concatenated:
        pa.concat_arrays([texts, texts])
    with pytest.raises(pa.ArrowInvalid) as taken:
        texts.take(pa.array([*range(1_500)] * 2))
    assert is_too_large(concatenated.value)
    assert is_too_large(taken.value)
