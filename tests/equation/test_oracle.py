"""The equation, at random: whatever the views, the changes and the ticks, a view holds what its SELECT gives in batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.equation.generator import FEATURES, Size, generate
from tests.equation.oracle import Oracle
from tests.equation.play import Player

FAILED_ONCE = (513, 538, 720, 760, 767, 835, 909, 965, 970, 1187, 1267, 1330, 1331)
"""Rows without columns, conditions that are never true, floats summed in another order, NULL structs, subqueries in
aggregates: what each taught is in `test_seldom_plans`."""
SEEDS = range(5_000) if os.environ.get("HEADWATER_LONG") else range(50)
RARE = () if os.environ.get("HEADWATER_LONG") else FAILED_ONCE
KEPT = [(42, Size(views=4, steps=8)), (216, Size(views=5, steps=6, depth=3))]
"""Cases that failed once: NULL among the elements of an array that `transform` reads."""
WHOLE = range(24, 28)
"""Cases of which every tick is held against the oracle."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.long) for seed in RARE)])
def test_views_equal_their_select_at_every_tick(
    seed: int, tmp_path: Path, spark: SparkSession, oracle: Oracle
) -> None:
    player = Player(generate(seed, Size(), FEATURES), tmp_path / "ws", oracle, spark)
    player.play()
    assert player.checked


@pytest.mark.slow
@pytest.mark.parametrize("seed", WHOLE)
def test_every_tick_on_the_way_is_a_batch_select_too(
    seed: int, tmp_path: Path, spark: SparkSession, oracle: Oracle
) -> None:
    case = generate(seed, Size(topics=2, views=3, steps=10, rows=5), FEATURES)
    player = Player(case, tmp_path / "ws", oracle, spark, every_tick=True)
    player.play()
    assert player.checked


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "size"), KEPT)
def test_cases_that_once_failed_hold(
    seed: int, size: Size, tmp_path: Path, spark: SparkSession, oracle: Oracle
) -> None:
    Player(generate(seed, size, FEATURES - {"retention"}), tmp_path / "ws", oracle, spark).play()


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [100, 101, *(pytest.param(seed, marks=pytest.mark.long) for seed in (102, 103))]
)
def test_expressions_mean_the_same_on_arrow_and_in_spark(
    seed: int, tmp_path: Path, spark: SparkSession, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_NATIVE_OFF", "1")
    case = generate(seed, Size(), FEATURES)
    Player(case, tmp_path / "ws", oracle, spark).play()
