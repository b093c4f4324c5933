"""One key that has nearly all rows of both sides: a join in time looks at partners near in time, and at no others."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import headwater as hw
from headwater.operators.join import range_join
from headwater.operators.zset.ranges import Spans, spans

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ROWS = 30_000
NEAR_S = 10
"""Rows are about a second apart, so each has some twenty partners; without bounds there were 900 million pairs."""
START_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
COLUMNS = "id BIGINT, k BIGINT, at TIMESTAMP"
BOUNDS = (
    f"l.k = r.k AND r.at BETWEEN l.at - INTERVAL '{NEAR_S}' SECONDS AND l.at + INTERVAL '{NEAR_S}' SECONDS"
)

Times = dict[int, int]
"""By number of a row its time, in microseconds after the start."""


class Looked:
    """How many pairs of rows joins looked at, and the most memory that was in use meanwhile."""

    pairs = 0
    peak_mb = 0.0


@contextmanager
def looking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Looked]:
    """Count what happens inside. Of Arrow's memory it is what goes beyond the most that this process ever used."""
    looked, arrow = Looked(), pa.default_memory_pool()
    before, most = arrow.bytes_allocated(), arrow.max_memory()

    def counted(*arguments: Any) -> Spans:
        found = spans(*arguments)
        looked.pairs += int((found.ends - found.starts).sum())
        return found

    with monkeypatch.context() as patched:
        patched.setattr(range_join, "spans", counted)
        tracemalloc.start()
        try:
            yield looked
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    if arrow.max_memory() > most:
        peak += arrow.max_memory() - before
    looked.peak_mb = peak / 2**20


def table(times: Times) -> pa.Table:
    at = pa.array([START_US + t for t in times.values()]).cast(pa.timestamp("us", "UTC"))
    return pa.table({"id": list(times), "k": [7] * len(times), "at": at})


def times(random: np.random.Generator, first: int, count: int, since_s: int) -> Times:
    """Rows about a second apart, in no order."""
    made = (since_s + random.permutation(count)) * 1_000_000 + random.integers(0, 1_000_000, count)
    return dict(zip(range(first, first + count), made.tolist(), strict=True))


def near(left: Times, right: Times) -> set[tuple[int, int]]:
    """The pairs that are near in time, found by searching in the sorted times."""
    ids, at = np.array(list(right)), np.array(list(right.values()))
    order = np.argsort(at)
    ids, at = ids[order], at[order]
    mine = np.array(list(left.values()))
    low = np.searchsorted(at, mine - NEAR_S * 1_000_000, side="left")
    high = np.searchsorted(at, mine + NEAR_S * 1_000_000, side="right")
    return {(a, b) for a, i, j in zip(left, low, high, strict=True) for b in ids[i:j].tolist()}


def test_rows_of_one_key_meet_those_near_in_time_within_little_memory(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(3)
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(f"CREATE TOPIC l ({COLUMNS}); CREATE TOPIC r ({COLUMNS}, PRIMARY KEY (id))")
        ws.sql(
            f"CREATE MATERIALIZED VIEW pairs AS SELECT l.id AS a, r.id AS b FROM l JOIN r ON {BOUNDS};"
            f"CREATE MATERIALIZED VIEW alone AS SELECT l.id FROM l LEFT ANTI JOIN r ON {BOUNDS}"
        )
        left, right = times(random, 0, ROWS, 0), times(random, 0, ROWS, 50)
        ws.append({"l": table(left), "r": table(right)})
        with looking(monkeypatch) as looked:
            assert ws.run().stopped == {}
        wanted = near(left, right)
        holds(ws, left, wanted)
        # two joins, and the second asks once more about rows that come to have a partner
        assert len(wanted) <= looked.pairs <= 4 * len(wanted)
        assert (
            looked.peak_mb < 400
        )  # the pairs alone are 10 MB, and a few times that with the columns of both sides

        # a few rows come, move and go in the midst of so many
        more = times(random, ROWS, 50, ROWS // 2)
        moved = times(random, 1_000, 50, 0)
        ws.append({"l": table(more), "r": table(moved)})
        ws.topic("r").delete([{"id": i} for i in range(50)])
        left |= more
        right = {i: t for i, t in (right | moved).items() if i >= 50}
        with looking(monkeypatch) as looked:
            assert ws.run().stopped == {}
        holds(ws, left, near(left, right))
        assert 0 < looked.pairs <= 100 * 200 * 4  # rows that changed, with all near them and what these have
        assert looked.peak_mb < 100


def holds(ws: hw.Workspace, left: Times, wanted: set[tuple[int, int]]) -> None:
    """Compare both views with the pairs."""
    rows = ws.view("pairs").read()
    assert rows.num_rows == len(wanted)
    assert set(zip(rows["a"].to_pylist(), rows["b"].to_pylist(), strict=True)) == wanted
    met = {a for a, _ in wanted}
    assert sorted(ws.view("alone").read()["id"].to_pylist()) == sorted(left.keys() - met)
