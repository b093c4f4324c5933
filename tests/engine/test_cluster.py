"""The engine on a Spark cluster with two workers: the same results, whoever is killed, and however often a task runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.state import state_files
from headwater.testing import inspect_workspace
from tests.engine.cluster import DECLARED, QUICK, SETTINGS, VIEWS, Cluster, Driver, append, wait_for_marks


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path / "cluster")
    yield made
    made.end()


def contents(ws: hw.Workspace) -> dict[str, Counter[str]]:
    return {view: Counter(map(repr, ws.view(view).read().to_pylist())) for view in VIEWS}


@pytest.mark.slow
def test_a_cluster_gives_what_one_machine_gives_whatever_is_killed(
    tmp_path: Path, cluster: Cluster, spark: Any
) -> None:
    """Ticks on the cluster, one after the other: left alone; with a task that runs twice at once; with a worker that
    is killed in the middle of a step; with the engine itself killed there, which another finishes in local mode."""
    folder, marks = tmp_path / "ws", tmp_path / "marks"
    driver = Driver(cluster.url, folder, marks)
    try:
        begun = driver.answer()
        assert begun["master"] == cluster.url
        assert all(worker["frozen"] > 0 and worker["kernels"] for worker in begun["workers"]), begun

        driver.tell(seed=1)
        assert driver.answer()["jobs"] == len(VIEWS)

        # The second part waits until it was begun a second time, which Spark does because it is slow.
        driver.tell(seed=2, held=[1], until="begun-2")
        driver.answer()
        assert (marks / "begun-2").exists()
        _clear(marks)

        driver.tell(seed=3, held=[0, 1], until="go")
        wait_for_marks(marks, 2)
        cluster.workers[1].kill()
        (marks / "go").touch()
        told = driver.answer()
        assert not told["stopped"]
        assert len(list(marks.glob("begun-*"))) == 3
        _clear(marks)

        driver.tell(seed=4, held=[0, 1], until="go")
        wait_for_marks(marks, 1)
    finally:
        driver.kill()
        (marks / "go").touch()

    assert len(os.listdir(folder / state_files.EXCHANGE)) == 1
    with hw.open(folder, spark=spark, settings=SETTINGS) as ws, hw.open(tmp_path / "one", spark=spark) as one:
        one.sql(DECLARED)
        for seed in range(1, 5):
            append(one, seed)
        one.run()
        assert ws.run().tick > told["tick"]
        assert ws.verify().ok
        assert contents(ws) == contents(one)
        inspect_workspace(ws).collect(1)
        assert os.listdir(folder / state_files.EXCHANGE) == []


def _clear(marks: Path) -> None:
    for mark in marks.iterdir():
        mark.unlink()


@pytest.mark.slow
def test_doctor_checks_every_executor(tmp_path: Path, cluster: Cluster) -> None:
    with hw.open(tmp_path / "shop", settings=SETTINGS):
        pass
    command = [
        sys.executable,
        "-m",
        "headwater",
        "-w",
        str(tmp_path / "shop"),
        "doctor",
        "--cluster",
        "--json",
    ]
    environ = {
        **os.environ,
        **QUICK,
        "HEADWATER_SPARK_MASTER": cluster.url,
        "HEADWATER_SPARK_EXECUTOR_MEMORY": "512m",
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    checks = {check["name"]: check for check in json.loads(done.stdout)}
    assert (done.returncode, checks["executors"]["status"]) == (0, "ok"), done.stdout
    assert checks["executors"]["message"].startswith(f"2 reached through {cluster.url}")
