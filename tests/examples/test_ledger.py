"""The ledger of the examples: a closed period stays as it was, and the next shows what was corrected."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwater as hw
from examples.events.ledger import PERIODS, ClosePeriod, Correct, Post, ledger, two_periods

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_correction_leaves_the_closed_period_and_shows_in_the_next(
    tmp_path: Path, spark: SparkSession
) -> None:
    with hw.open(tmp_path, spark=spark) as ws:
        two_periods(ws)
        ws.sql(PERIODS)
        ws.run()
        rows = ws.query("SELECT period, total, entries, corrections FROM periods ORDER BY period").to_pylist()
        assert [tuple(row.values()) for row in rows] == [
            ("2026-03", Decimal("1710.00"), 2, 0),
            ("2026-04", Decimal("-630.00"), 2, 1),
        ]


def test_a_closed_period_takes_nothing(ws: hw.Workspace) -> None:
    two_periods(ws)
    books = ws.store(ledger)
    before = books.load("shop")
    for command in (
        Post("late", "2026-03", Decimal(1)),
        Correct("rent", "x", "2026-03", Decimal(1)),
        ClosePeriod("2026-03"),
        Post("rent", "2026-04", Decimal(1)),
        Correct("power", "again", "2026-04", Decimal(1)),
    ):
        with pytest.raises(hw.CommandRefusedError):
            books.execute("shop", command)
    assert books.load("shop") == before
    assert sum(before.state.entries.values()) == Decimal("1080.00")
