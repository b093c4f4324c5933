"""The equation, at random: whatever the views, the changes and the ticks, a view holds what its SELECT gives in batch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.engine.generator import FEATURES, Size, generate
from tests.engine.oracle import Oracle
from tests.engine.play import Player

SEEDS = range(5_000) if os.environ.get("HEADWATER_LONG") else range(24)
NOT_YET = {"retention"}
"""What removes history that a view would need to be built anew."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_views_equal_their_select_at_every_tick(
    seed: int, tmp_path: Path, spark: SparkSession, oracle: Oracle
) -> None:
    case = generate(seed, Size(), FEATURES - NOT_YET)
    player = Player(case, tmp_path / "ws", oracle, spark)
    player.play()
    assert player.checked


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 104))
def test_expressions_mean_the_same_on_arrow_and_in_spark(
    seed: int, tmp_path: Path, spark: SparkSession, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_NATIVE_OFF", "1")
    case = generate(seed, Size(), FEATURES - NOT_YET)
    Player(case, tmp_path / "ws", oracle, spark).play()
