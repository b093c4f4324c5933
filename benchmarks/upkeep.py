"""Upkeep: sealing active segments as Parquet, and compacting a keyed topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headwater as hw
from benchmarks import data
from benchmarks.harness import Bench, Case
from headwater.core.settings import LogSettings

TITLE = "Sealing, compaction and verification"
SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)


def run(bench: Bench) -> None:
    """Each run seals, compacts or checks a workspace made for it."""
    rows = bench.size(2_000_000, 5_000)
    runs = 2 if bench.quick else 3
    with bench.space() as space:
        seal = Case("seal", _maintain, prepare=lambda: _clicks(space, rows), clean=_close)
        verify_active = Case("verify, active", _verify, prepare=lambda: _clicks(space, rows), clean=_close)
        verify_sealed = Case("verify, sealed", _verify, prepare=lambda: _sealed(space, rows), clean=_close)
        bench.compare(f"{rows:,} clicks", [seal, verify_active, verify_sealed], runs=runs, ratios=False)
    with bench.space() as space:
        keys = max(1, rows // 10)
        compact = Case("compact", _maintain, prepare=lambda: _keyed(space, rows, keys), clean=_close)
        bench.compare(f"{rows:,} upserts of {keys:,} keys, sealed", [compact], runs=runs)


def _close(prepared: tuple[Any, int]) -> None:
    prepared[0].close()


def _maintain(prepared: tuple[Any, int]) -> float:
    prepared[0].maintain()
    return prepared[1]


def _verify(prepared: tuple[Any, int]) -> float:
    if not prepared[0].verify().ok:
        raise AssertionError("the workspace that was just written fails its verification")
    return prepared[1]


def _new(space: Path) -> Path:
    return space / str(len(list(space.iterdir())))


def _clicks(space: Path, rows: int) -> tuple[Any, int]:
    workspace = hw.open(_new(space), settings=SETTINGS)
    topic = workspace.topic("clicks", data.COLUMNS)
    for batch in data.batches(rows, 100_000):
        topic.append(batch)
    return workspace, rows


def _sealed(space: Path, rows: int) -> tuple[Any, int]:
    workspace, _ = _clicks(space, rows)
    workspace.maintain()
    return workspace, rows


def _keyed(space: Path, rows: int, keys: int) -> tuple[Any, int]:
    """A keyed topic, sealed and not yet compacted."""
    workspace = hw.open(_new(space), settings=SETTINGS)
    topic = workspace.topic("customers", "id BIGINT, name STRING", key="id")
    random = np.random.default_rng(3)
    size = min(rows, 100_000)
    for _ in range(rows // size):
        ids = random.integers(0, keys, size)
        names = pa.array([f"customer {number} of the shop" for number in ids.tolist()])
        topic.append(pa.table({"id": ids, "name": names}))
    workspace.maintain()
    workspace.sql("ALTER TOPIC customers SET (cleanup = 'compact')")
    return workspace, rows
