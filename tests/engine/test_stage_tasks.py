"""Whole stages in Spark tasks: rows are read, evaluated, exchanged and stepped away from the driver, with the same results."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.settings import LogSettings
from headwater.core.storage import Storage
from headwater.engine.dataflow import placement as placement_module
from headwater.engine.dataflow import stage_tasks
from headwater.engine.dataflow.executor import BoundStage
from headwater.engine.dataflow.placement import Placement
from headwater.engine.dataflow.spark_tasks import TaskOutcome
from headwater.engine.dataflow.stage_tasks import DividedStage, LogPiece
from headwater.engine.input.log_input import Inputs
from headwater.engine.tick.tick_run import TickRun
from headwater.operators.zset.delta import Delta
from headwater.state.state_files import EXCHANGE
from headwater.state.task_exchange import Exchange

TOPICS = """
CREATE TOPIC orders (id BIGINT, customer BIGINT, amount DOUBLE, note STRING) WITH (partitions = 3);
CREATE TOPIC customers (id BIGINT, country STRING, PRIMARY KEY (id))
"""
TOTALS = (
    "CREATE MATERIALIZED VIEW totals AS "
    "SELECT customer, count(*) AS n, sum(id) AS ids FROM orders WHERE amount > 2 GROUP BY customer"
)
SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[hw.Workspace]:
    """A workspace whose stages run in tasks where they can."""
    monkeypatch.setenv("HEADWATER_PLACEMENT", "tasks")
    with hw.open(tmp_path / "shop", spark=spark, settings=SETTINGS) as ws:
        ws.sql(TOPICS)
        yield ws


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> list[DividedStage]:
    """The stages that tasks have run."""
    works: list[DividedStage] = []
    job = Placement._stage_job

    def watched(self: Placement, work: DividedStage) -> Any:
        works.append(work)
        return job(self, work)

    monkeypatch.setattr(Placement, "_stage_job", watched)
    return works


@pytest.fixture
def read_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The topics whose records the driver has read."""
    topics: list[str] = []
    read = Inputs.read

    def watched(self: Inputs, unit: Any, topic: str, *rest: Any) -> Any:
        topics.append(topic)
        return read(self, unit, topic, *rest)

    monkeypatch.setattr(Inputs, "read", watched)
    return topics


def append(ws: hw.Workspace, seed: int, rows: int = 200) -> None:
    """Orders, and customers that move."""
    chance = random.Random(seed)
    orders = [
        {"id": i, "customer": chance.randrange(9), "amount": chance.random() * 9, "note": f"n{i % 4}"}
        for i in range(rows)
    ]
    moved = [{"id": chance.randrange(9), "country": chance.choice(["de", "fr"])} for _ in range(4)]
    ws.append({"orders": orders, "customers": moved})


def test_the_driver_reads_no_record_of_a_divided_stage(
    shop: hw.Workspace, stages: list[DividedStage], read_here: list[str]
) -> None:
    shop.sql(TOTALS)
    for seed in range(3):
        append(shop, seed)
        assert shop.run().rows == 200
    assert len(stages) == 3
    assert read_here == []
    assert shop.view("totals").ledger()["read"] == 600
    assert shop.verify().ok


def test_only_the_columns_that_are_used_are_read(shop: hw.Workspace, stages: list[DividedStage]) -> None:
    shop.sql("CREATE MATERIALIZED VIEW n AS SELECT customer, count(*) AS n FROM orders GROUP BY customer")
    append(shop, 1)
    shop.run()
    pieces = [piece for scan in stages[0].scans for piece in scan]
    assert {piece.names for piece in pieces if isinstance(piece, LogPiece)} == {("customer",)}


def test_a_join_exchanges_records_and_the_change_of_a_table(
    shop: hw.Workspace, stages: list[DividedStage], read_here: list[str]
) -> None:
    shop.sql(
        "CREATE MATERIALIZED VIEW sold AS SELECT o.id, c.country FROM orders o LEFT JOIN customers c ON o.customer = c.id"
    )
    for seed in range(3):
        append(shop, seed)
        shop.run()
    assert len(stages) == 3
    assert set(read_here) == {"customers"}  # the table of a keyed topic is applied by the driver
    assert shop.verify().ok


@pytest.mark.parametrize(
    "query",
    [
        "SELECT upper(note) AS note, count(*) AS n FROM orders GROUP BY upper(note)",  # of the JVM
        "SELECT count(*) AS n FROM orders",  # one key
        "SELECT id FROM orders WHERE amount > 3",  # no state
    ],
)
def test_what_cannot_travel_runs_in_the_driver(
    shop: hw.Workspace, stages: list[DividedStage], query: str
) -> None:
    shop.sql(f"CREATE MATERIALIZED VIEW v AS {query}")
    append(shop, 1)
    shop.run()
    assert stages == []
    assert shop.verify().ok


def test_private_columns_are_read_where_their_keys_are(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, stages: list[DividedStage]
) -> None:
    monkeypatch.setenv("HEADWATER_PLACEMENT", "tasks")
    with hw.open(tmp_path / "shop", spark=spark, settings=SETTINGS) as ws:
        ws.sql("CREATE TOPIC people (id BIGINT NOT NULL, email STRING PRIVATE BY (id))")
        ws.sql("CREATE MATERIALIZED VIEW emails AS SELECT email, count(*) AS n FROM people GROUP BY email")
        ws.topic("people").append([{"id": i, "email": f"{i % 3}@example.com"} for i in range(20)])
        ws.run()
        assert stages == []
        assert ws.query("SELECT sum(n) AS n FROM emails").to_pylist() == [{"n": 20}]


def test_an_expression_that_fails_is_evaluated_again_by_spark(
    shop: hw.Workspace, stages: list[DividedStage]
) -> None:
    shop.sql(
        "CREATE MATERIALIZED VIEW doubled WITH (on_error = 'divert') AS "
        "SELECT customer, sum(id + 9223372036854775000) AS s FROM orders GROUP BY customer"
    )
    shop.topic("orders").append([{"id": i, "customer": 1, "amount": 1.0, "note": ""} for i in (1, 5_000, 2)])
    report = shop.run()
    assert len(stages) >= 1, "tasks have tried"
    assert set(report.stopped) == {"doubled"} or shop.query('SELECT * FROM "doubled.errors"').num_rows == 1


def test_outputs_of_tasks_are_removed_with_the_tick(shop: hw.Workspace) -> None:
    shop.sql(TOTALS)
    append(shop, 1)
    shop.run()
    assert shop.path is not None
    assert os.listdir(shop.path / EXCHANGE) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_step_does_not_depend_on_the_order_in_which_blobs_arrive(
    shop: hw.Workspace, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("headwater.engine.dataflow.placement.PIECE_ROWS_MIN", 10)
    monkeypatch.setattr(stage_tasks, "BLOB_BYTES_MAX", 200)
    shop.sql(TOTALS)
    append(shop, seed)
    works: list[DividedStage] = []
    monkeypatch.setattr(Placement, "_stage_job", lambda self, work: works.append(work))
    monkeypatch.setattr(Placement, "_collected", lambda self, job: job())
    shop.run()
    (work,) = works
    exchange = Exchange(Storage(work.step.root), work.step.exchange)
    exchange.create()
    numbers = pa.RecordBatch.from_arrays([pa.array(range(len(work.scans)))], names=["id"])
    blobs = [row for batch in stage_tasks.scan(work)(iter([numbers])) for row in batch.to_pylist()]
    assert len([row for row in blobs if row["input"] >= 0]) > 20
    found = set()
    for _ in range(4):
        random.Random(seed).shuffle(blobs)
        batch = pa.RecordBatch.from_pylist(blobs, schema=stage_tasks._BLOBS)
        (made,) = stage_tasks.step(work)(iter([batch]))
        outcomes = [TaskOutcome.decode(data) for data in made.column("made").to_pylist()]
        rows = [exchange.read(each.output) for each in outcomes if each.output is not None]
        found.add(repr([(each.rows.to_pylist(), each.weights.tolist()) for each in rows]))
        assert sum(n for each in outcomes for *_, n in each.read) == 200
    assert len(found) == 1


def test_a_blob_keeps_rows_without_columns() -> None:
    change = Delta(pa.RecordBatch.from_arrays([], names=[]), np.array([1, 2, -1]))
    assert stage_tasks._decoded(stage_tasks._encoded(change)).weights.tolist() == [1, 2, -1]


def test_a_stage_that_reads_what_an_earlier_one_has_put_out(
    shop: hw.Workspace, stages: list[DividedStage]
) -> None:
    shop.sql(
        "CREATE MATERIALIZED VIEW busy AS SELECT n, count(*) AS customers, sum(s) AS s FROM "
        "(SELECT customer, count(*) AS n, sum(id) AS s FROM orders GROUP BY customer) AS c GROUP BY n"
    )
    for seed in range(3):
        append(shop, seed)
        shop.run()
    assert len(stages) == 3
    assert shop.verify().ok


def test_a_job_that_fails_leaves_the_stage_to_the_driver(
    shop: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_PLACEMENT", "auto")
    monkeypatch.setenv("HEADWATER_PLACED_ROWS_MIN", "1")
    tried: list[BoundStage] = []
    stage = Placement.stage

    def watched(self: Placement, one: BoundStage) -> Any:
        made = stage(self, one)
        if made is None:
            tried.append(one)
        return made

    def broken(work: DividedStage) -> Any:
        def run(batches: Any) -> Any:
            for _ in batches:
                raise OSError("the folder of the workspace is not mounted here")
            yield from ()

        return run

    monkeypatch.setattr(Placement, "stage", watched)
    monkeypatch.setattr(stage_tasks, "scan", broken)
    shop.sql(TOTALS)
    append(shop, 1)
    assert shop.run().stopped == {}
    assert tried
    monkeypatch.undo()
    assert shop.verify().ok


QUERIES = {
    "two_aggregates": "SELECT a.customer, a.n, b.s FROM (SELECT customer, count(*) AS n FROM orders WHERE amount > 8.9 GROUP BY customer) AS a "
    "FULL JOIN (SELECT customer, sum(id) AS s FROM orders GROUP BY customer) AS b ON a.customer = b.customer",
    "one_side_empty": "SELECT a.customer, a.n, b.s FROM (SELECT customer, count(*) AS n FROM orders WHERE amount > 1000 GROUP BY customer) AS a "
    "FULL JOIN (SELECT customer, sum(id) AS s FROM orders GROUP BY customer) AS b ON a.customer = b.customer",
    "union_empty": "SELECT upper(k) AS k, sum(n) AS n FROM (SELECT note AS k, count(*) AS n FROM orders WHERE amount > 1000 GROUP BY note "
    "UNION ALL SELECT note AS k, sum(id) AS n FROM orders GROUP BY note) GROUP BY upper(k)",
    "self_join": "SELECT a.id, b.id AS other FROM orders AS a JOIN orders AS b ON a.customer = b.customer AND a.note = b.note "
    "WHERE a.id < 40 AND b.id < 40",
    "cubes": "SELECT customer, note, sum(id) AS s, min(amount) AS m FROM orders GROUP BY CUBE (customer, note)",
    "twice": "SELECT customer, sum(id) AS s FROM (SELECT customer, id FROM orders WHERE note = 'n1' "
    "UNION ALL SELECT customer, id + 1 FROM orders) GROUP BY customer",
    "exploded": "SELECT x, sum(id) AS s FROM (SELECT explode(array(customer, id, 1)) AS x, id FROM orders) GROUP BY x",
    "metadata": "SELECT _partition AS p, count(*) AS n, max(_offset) AS o FROM orders WHERE _offset > 3 GROUP BY _partition",
    "exists_": "SELECT c.id, c.country FROM customers AS c WHERE EXISTS "
    "(SELECT 1 FROM orders AS o WHERE o.customer = c.id AND o.amount > 8.5)",
    "not_in": "SELECT customer, count(*) AS n FROM orders WHERE customer NOT IN "
    "(SELECT id FROM customers WHERE country = 'de') GROUP BY customer",
    "distinct_": "SELECT DISTINCT customer, note FROM orders",
    "except_": "SELECT customer, note FROM orders WHERE amount > 3 EXCEPT SELECT customer, note FROM orders WHERE amount > 8.5",
}


@pytest.mark.slow
def test_queries_of_many_shapes_equal_their_select(shop: hw.Workspace, stages: list[DividedStage]) -> None:
    for name, query in QUERIES.items():
        shop.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    for seed in range(3):
        append(shop, seed)
        assert shop.run().stopped == {}
    assert len(stages) > 20
    result = shop.verify()
    assert result.ok, result.differences


@pytest.mark.slow
def test_a_view_that_catches_up_leaves_the_outputs_of_others(
    shop: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sql(
        "CREATE MATERIALIZED VIEW a AS WITH t AS (SELECT customer, count(*) AS n, sum(id) AS s FROM orders GROUP BY customer), "
        "m AS (SELECT upper(cast(n AS STRING)) AS k, sum(s) AS ms FROM t GROUP BY upper(cast(n AS STRING))) "
        "SELECT t.customer, t.n, m.ms FROM t JOIN m ON upper(cast(t.n AS STRING)) = m.k"
    )
    append(shop, 1)
    shop.run()
    monkeypatch.setattr(Placement, "wants", lambda *_: False)  # small steps wait to be stacked
    shop.sql("CREATE MATERIALIZED VIEW z AS SELECT note, count(*) AS n FROM orders GROUP BY note")
    append(shop, 2)
    assert shop.run().stopped == {}
    assert shop.verify().ok


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["driver", "tasks"])
def test_records_that_are_excised_while_a_tick_reads_them(
    shop: hw.Workspace, monkeypatch: pytest.MonkeyPatch, placement: str
) -> None:
    monkeypatch.setenv("HEADWATER_PLACEMENT", placement)
    shop.sql(TOTALS)
    append(shop, 1)
    shop.run()
    append(shop, 2)
    run, done = TickRun.run, list[int]()

    def raced(self: TickRun) -> None:
        if not done:
            done.append(1)
            shop.excise("orders", "id % 3 = 1 AND _offset > 80")
        run(self)

    with monkeypatch.context() as patches:
        patches.setattr(TickRun, "run", raced)
        shop.run()
    shop.run()
    assert shop.verify().ok


def test_executors_on_other_machines_leave_the_log_alone(
    shop: hw.Workspace, stages: list[DividedStage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open the log on another machine would fence this machine's writers."""
    monkeypatch.setattr(placement_module, "DividedStage", elsewhere)
    shop.sql(TOTALS)
    for seed in range(2):
        append(shop, seed)
        assert shop.run().stopped == {}
    assert len(stages) == 1, "the next stages do not try"
    assert shop.verify().ok


def elsewhere(stage: bytes, machine: str, *rest: Any) -> DividedStage:
    """A stage whose engine runs on another machine."""
    del machine
    return DividedStage(stage, "another machine", *rest)
