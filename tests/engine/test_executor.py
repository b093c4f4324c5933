"""The interface to an executor is whole: views equal their SELECT where every stage runs in another process."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from headwater.state import state_files
from headwater.testing import inspect_workspace
from tests.conftest import LONG
from tests.engine.process_executor import Evaluate, ProcessExecutor, TakeStep, Worker
from tests.equation.generator import FEATURES, Size, generate
from tests.equation.oracle import Oracle
from tests.equation.play import SETTINGS, Player

pytestmark = pytest.mark.slow

SEEDS = range(700, 780) if LONG else (700, 703, 706)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
DECLARED = """
CREATE TOPIC orders (id BIGINT, customer BIGINT, amount BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute')
  WITH (partitions = 2);
CREATE TOPIC customers (id BIGINT, country STRING, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW totals AS SELECT customer, count(*) AS n, sum(amount) AS amount FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW every_one AS SELECT count(*) AS n, max(amount) AS most FROM orders;
CREATE MATERIALIZED VIEW sold AS
  SELECT upper(c.country) AS country, o.amount FROM orders o LEFT JOIN customers c ON o.customer = c.id;
CREATE MATERIALIZED VIEW by_country AS SELECT country, sum(amount) AS amount FROM sold GROUP BY country;
CREATE MATERIALIZED VIEW closed WITH (late = 'divert') AS
  SELECT window(at, '1 minute') AS w, count(*) AS n FROM orders GROUP BY window(at, '1 minute') EMIT ON WINDOW CLOSE;
CREATE MATERIALIZED VIEW split WITH (on_error = 'divert') AS SELECT id, 100 / amount AS part FROM orders;
"""


@pytest.fixture
def shop(tmp_path: Path, spark: Any) -> Iterator[tuple[Workspace, ProcessExecutor]]:
    with hw.open(tmp_path / "shop", settings=SETTINGS, spark=spark) as ws:
        ws.sql(DECLARED)
        executor = ProcessExecutor(tmp_path / "shop", spark)
        inspect_workspace(ws).engine_context().executor = executor
        try:
            yield ws, executor
        finally:
            executor.end()


def sell(ws: Workspace, first: int) -> None:
    orders = [
        {"id": i, "customer": i % 5, "amount": i % 7, "at": BEGIN + timedelta(minutes=i % 50)}
        for i in range(first, first + 40)
    ]
    ws.append(
        {"orders": orders, "customers": [{"id": i, "country": "de" if i % 2 else "fr"} for i in range(4)]}
    )


def test_every_stage_of_a_tick_runs_in_another_process(shop: tuple[Workspace, ProcessExecutor]) -> None:
    ws, executor = shop
    for round_ in range(3):
        sell(ws, 40 * round_)
        ws.topic("customers").delete([{"id": round_}])
        report = ws.run()
        assert not report.stopped
        assert report.rows == 45
    assert ws.verify().ok
    assert executor.stages > 30
    assert executor.parts > 10
    # only the rows on which an expression fails are found in the driver
    assert all("zero" in error for error in executor.refused), executor.refused
    ledger = ws.view("closed").ledger()
    assert ledger["read"] == 120
    assert ledger["diverted"]
    assert ws.view("split").ledger()["failed"] == len([i for i in range(120) if not i % 7])
    assert ws.path is not None
    assert os.listdir(ws.path / state_files.EXCHANGE) == []


@pytest.mark.parametrize("kind", [Evaluate, TakeStep])
def test_a_stage_whose_process_is_killed_runs_again(
    shop: tuple[Workspace, ProcessExecutor], kind: type
) -> None:
    ws, executor = shop
    killed: list[int] = []

    def kill(worker: Worker, order: Any) -> None:
        if isinstance(order, kind) and len(killed) < 3 and executor.stages >= 2 * len(killed):
            killed.append(worker.process.pid)
            worker.process.kill()
            worker.process.wait()

    executor.before = kill
    sell(ws, 0)
    assert not ws.run().stopped
    assert len(killed) == 3
    assert ws.verify().ok


@dataclass
class ProcessPlayer(Player):
    """Plays a case with an engine whose stages run in other processes."""

    executor: ProcessExecutor | None = None

    def _open(self) -> Workspace:
        ws = super()._open()
        if self.executor is None:
            self.executor = ProcessExecutor(self.folder, self.spark)
        inspect_workspace(ws).engine_context().executor = self.executor
        return ws


@pytest.mark.parametrize("seed", SEEDS)
def test_views_equal_their_select_where_every_stage_runs_in_another_process(
    seed: int, tmp_path: Path, spark: Any, oracle: Oracle
) -> None:
    player = ProcessPlayer(generate(seed, Size(), FEATURES - {"retention"}), tmp_path / "ws", oracle, spark)
    try:
        player.play()
        assert player.checked
        assert player.executor is not None
        assert player.executor.stages
        assert not player.executor.refused, player.executor.refused
    finally:
        if player.executor is not None:
            player.executor.end()
