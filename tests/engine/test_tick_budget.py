"""Ticks are as large as the memory allows; a tick that has run out of memory is run again with fewer rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.errors import UsageError
from headwater.engine.dataflow.dataflow_stages import DataflowStage
from headwater.engine.tick import tick_budget
from headwater.engine.tick.tick_budget import TickBudget, anonymous_bytes, is_too_large, memory_limit
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


def test_what_a_large_tick_has_used_replaces_the_estimate() -> None:
    budget = TickBudget(memory_bytes=1_000_000_000)
    base = budget._base
    budget.measured(1_000_000, base + 500_000_000, 1.0)
    assert budget._row_bytes == 500
    budget.measured(2_000_000, base + 500_000_000, 1.0)  # memory that was kept from the tick before, at most
    assert budget._row_bytes == 250
    budget.measured(250_000, base + 500_000_000, 1.0)  # says nothing: the tick did not raise the peak
    assert budget._row_bytes == 250
    budget.measured(1_000_000, base + 900_000_000, 1.0)
    assert budget._row_bytes == 900


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
    held = bytearray(b"x" * (64 << 20))
    assert anonymous_bytes() - before > 50 << 20
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
