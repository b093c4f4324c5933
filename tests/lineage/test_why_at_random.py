"""Why rows are there, at random: whatever the views and the changes, the records found give the rows that the key finds."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.engine.dataflow.facets.demands import Slice
from headwater.lineage.search import Finder, LineageResult
from tests.equation.generator import FEATURES, Size, Step, generate
from tests.equation.oracle import Oracle, compare
from tests.equation.play import Player

SEEDS = range(2_000) if os.environ.get("HEADWATER_LONG") else range(1)


class Asking(Player):
    """Plays a case, and at ticks asks why rows are there, instead of whether they should be."""

    taken = asked = 0

    def _take(self, step: Step) -> None:
        self.taken += 1
        super()._take(step)

    def _check_between(self, first: int, last: int) -> None:
        """Nothing: others do."""

    def _check_all(self) -> None:
        rng = random.Random(f"{self.case.seed} {self.taken}")
        at_the_end = self.taken > len(self.case.steps)
        for name in self.history.views:
            rows = self.ws.view(name).read()
            if rows.num_rows and (at_the_end or rng.random() < 0.2):
                self._ask(name, rows.slice(rng.randrange(rows.num_rows), 1), rng)

    def _ask(self, name: str, row: pa.Table, rng: random.Random) -> None:
        columns = rng.sample(row.column_names, rng.randint(1, row.num_columns))
        key = {column: row.column(column)[0].as_py() for column in columns}
        why = self.ws.view(name).why(key)
        assert why.complete
        told = compare(why.recompute(), why.rows)
        assert told is None, f"{name} with {key}: {told}\n\n{why}"
        self.asked += 1


class Watched(Finder):
    """Finds records by tracing alone, or not at all."""

    def find(self, key: Slice) -> LineageResult:
        """What rows come from."""
        found = super().find(key)
        assert not found.last_resort
        return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_of_any_view_the_records_give_the_rows_that_the_key_finds(
    seed: int, tmp_path: Path, spark: Any, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.lineage.why.Finder", Watched)
    case = generate(seed, Size(views=4, steps=8), FEATURES - {"retention"})
    player = Asking(case, tmp_path / "ws", oracle, spark)
    player.play()
