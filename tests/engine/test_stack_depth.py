"""How deep the stack is from the runner of ticks to a kernel: what a trace shows must be readable."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.engine.dataflow import driver_executor
from headwater.operators.aggregate import aggregate
from headwater.operators.join import join
from tests.equation.play import SETTINGS

pytestmark = pytest.mark.slow

FRAMES_MAX = 10


def frames_to(kernel: Callable[..., Any], found: dict[str, list[str]]) -> Callable[..., Any]:
    """A kernel that notes the functions between the runner's tick and itself, both included."""

    def noting(*given: Any, **named: Any) -> Any:
        # above the caller is this function, which stands for the kernel
        names = [frame.name for frame in traceback.extract_stack()]
        found[f"{kernel.__module__}.{kernel.__name__}"] = names[len(names) - names[::-1].index("tick") - 2 :]
        return kernel(*given, **named)

    return noting


def test_a_kernel_is_at_most_ten_frames_from_the_runner(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as ws:
        ws.sql("CREATE TOPIC t (k BIGINT, x BIGINT); CREATE TOPIC u (k BIGINT, y BIGINT)")
        ws.sql("CREATE MATERIALIZED VIEW total AS SELECT k, sum(x) AS x FROM t GROUP BY k")
        ws.sql("CREATE MATERIALIZED VIEW all_of_it AS SELECT sum(x) AS x FROM t")
        ws.sql("CREATE MATERIALIZED VIEW pairs AS SELECT t.k, t.x, u.y FROM t JOIN u ON t.k = u.k")
        ws.topic("t").append([{"k": 1, "x": 1}])
        ws.topic("u").append([{"k": 1, "y": 1}])
        ws.run()
        ws.sql("CREATE MATERIALIZED VIEW as_well AS SELECT k, sum(y) AS y FROM u GROUP BY k")
        ws.run()
        found: dict[str, list[str]] = {}
        for module, name in ((join, "step"), (aggregate, "step"), (driver_executor, "step_stacked")):
            kernel = getattr(module, name)
            monkeypatch.setattr(module, name, frames_to(kernel, found))
        ws.topic("t").append([{"k": 2, "x": 1}])
        ws.topic("u").append([{"k": 2, "y": 1}])
        ws.run()
    assert {kernel.rpartition(".")[2] for kernel in found} == {"step", "step_stacked"}
    assert len(found) == 3
    for kernel, frames in found.items():
        assert len(frames) <= FRAMES_MAX, (kernel, frames)
