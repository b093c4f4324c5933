"""`/health` tells live from ready, whatever has become of the engine, the workspace and those who write to it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.errors import HeadwaterError
from headwater.state.ownership import claim
from headwater.testing import inspect_workspace
from tests.crash.script import ORDERS
from tests.crash.workers import PATIENCE
from tests.repo.tree import ROOT
from tests.web.serving import AppClient, client_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READY = {
    "live": True,
    "ready": True,
    "reasons": [],
    "warnings": ["the engine is not running"],
    "engine": False,
    "engine_state": "not running",
}
RUNNING = {**READY, "warnings": [], "engine": True, "engine_state": "running"}


def check_not_ready(client: AppClient, reason: str) -> None:
    answer = client.get("/health")
    assert (answer.status_code, answer.json()["live"]) == (200, True)
    for path in ("/health?ready", "/health/ready"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["ready"]) == (503, False)
        assert len(answer.json()["reasons"]) == 1
        assert answer.json()["reasons"][0].startswith(reason)


def test_without_an_engine_it_is_ready_and_says_so(ws: hw.Workspace, clock: ManualClock) -> None:
    with client_of(ws) as client:
        assert client.get("/health/ready").json() == READY
        with claim(inspect_workspace(ws).store.storage, clock):
            assert client.get("/health/ready").json() == RUNNING
            clock.advance("11 seconds")  # without a sign of life
            frozen = client.get("/health/ready")
            assert (frozen.status_code, frozen.json()["engine_state"]) == (503, "frozen")
            assert "has sent no heartbeat for 11 s" in frozen.json()["reasons"][0]
        assert client.get("/health/ready").json() == READY


def test_a_workspace_that_is_gone_is_not_ready(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", durability="os") as ws, client_of(ws) as client:
        ws.sql("CREATE TOPIC clicks (id BIGINT)")
        assert client.get("/health/ready").status_code == 200
        shutil.move(tmp_path / "ws", tmp_path / "elsewhere")
        check_not_ready(client, "the workspace cannot be read")
        shutil.move(tmp_path / "elsewhere", tmp_path / "ws")
        assert client.get("/health/ready").status_code == 200


def test_a_writer_that_is_frozen_with_the_lock_holds_up_no_answer(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", settings=PATIENCE) as ws:
        ws.log.create_topic(ORDERS)
        command = [sys.executable, "-m", "tests.crash.workers", "frozen", str(tmp_path / "ws")]
        with subprocess.Popen([*command, "with the lock"], cwd=ROOT, stdout=subprocess.DEVNULL) as child:
            try:
                _, status = os.waitpid(child.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status), "it did not stop"
                with client_of(ws) as client:
                    assert client.get("/health/ready").json() == READY
                    assert client.post("/topics/orders", json=[{"n": 7}]).status_code == 200, (
                        "it is left behind"
                    )
                    assert client.get("/health/ready").json() == READY
            finally:
                child.kill()


def test_an_engine_that_an_error_has_ended_is_not_ready(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws, client_of(ws) as client:
        ws.sql(
            "CREATE TOPIC clicks (id BIGINT); CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM clicks"
        )
        check_not_ready(client, "there are views, and no tick was made yet")
        runner = ws.start()
        ws.query("SELECT * FROM v", after=ws.topic("clicks").append([{"id": 1}]))
        assert client.get("/health/ready").json() == RUNNING
        kept = tmp_path / "manifests"
        shutil.copytree(tmp_path / "ws" / "state", kept)
        shutil.rmtree(tmp_path / "ws" / "state")
        ws.topic("clicks").append([{"id": 2}])
        while runner.running:
            threading.Event().wait(0.01)
        shutil.copytree(kept, tmp_path / "ws" / "state", dirs_exist_ok=True)
        check_not_ready(client, "the engine is failed")
        with pytest.raises(HeadwaterError):
            runner.stop()
        ws.run()
        with ws.start():
            assert client.get("/health/ready").json() == RUNNING
