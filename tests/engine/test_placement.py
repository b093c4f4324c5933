"""Steps in the driver and steps in Spark tasks give the same, bit for bit; what fails in a task changes nothing."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.errors import PySparkException

import headwater as hw
from headwater import Workspace
from headwater.core.clock import ManualClock
from headwater.core.errors import SparkJobError, UsageError
from headwater.core.storage import Storage
from headwater.engine.dataflow.executor import BoundStage
from headwater.engine.dataflow.keyed_operators import KeyedOperator
from headwater.engine.dataflow.operator_interface import ArrangementSpec
from headwater.engine.dataflow.placement import Placement, RunParts, ranges
from headwater.engine.dataflow.spark_tasks import divided
from headwater.engine.merging.run_compaction import Compaction, Due, merged_run
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Key, Run, key_hashes
from headwater.spark.spark_session import configuration
from headwater.state import state_files
from headwater.state.store import StateStore
from headwater.testing import inspect_workspace
from tests.equation.generator import FEATURES, Size, generate
from tests.equation.oracle import Oracle
from tests.equation.play import SETTINGS, Player
from tests.raising import raises

# Workers do not have this module: operators that are made here travel with the task.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

DECLARED = """
CREATE TOPIC orders (id BIGINT, customer BIGINT, item STRING, amount DOUBLE, price DECIMAL(12, 2), at TIMESTAMP)
  WITH (partitions = 2);
CREATE TOPIC customers (id BIGINT, country STRING, since BIGINT, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW totals AS
  SELECT item, count(*) AS n, sum(amount) AS amount, avg(amount) AS mean, sum(price) AS price FROM orders GROUP BY item;
CREATE MATERIALIZED VIEW by_amount AS SELECT amount, count(*) AS n, max(at) AS last FROM orders GROUP BY amount;
CREATE MATERIALIZED VIEW eldest AS
  SELECT country, min(since) AS first, max(since) AS last, count(DISTINCT since) AS n FROM customers GROUP BY country;
CREATE MATERIALIZED VIEW sold AS
  SELECT o.id, o.item, c.country FROM orders o LEFT JOIN customers c ON o.customer = c.id AND o.id > c.since;
CREATE MATERIALIZED VIEW both AS
  SELECT o.id, o.at, c.id AS customer, c.country FROM orders o FULL JOIN customers c ON o.customer = c.id;
CREATE MATERIALIZED VIEW idle AS
  SELECT id FROM customers WHERE id NOT IN (SELECT customer FROM orders WHERE customer IS NOT NULL);
CREATE MATERIALIZED VIEW top AS
  SELECT customer, id, amount FROM orders
  QUALIFY row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id) <= 2;
"""
VIEWS = ("totals", "by_amount", "eldest", "sold", "both", "idle", "top")
GROUPED = (209, 210, 212)
"""Cases that have groups, joins and ranks."""
SEEDS = range(200, 600) if os.environ.get("HEADWATER_LONG") else GROUPED[:1]
FLOATS = (0.0, -0.0, float("nan"), float("inf"), 1e300, 1e-9, 0.1, None)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def orders(rng: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "id": rng.randrange(1_000),
            "customer": rng.choice([None, *range(12)]),
            "item": rng.choice(["pen", "ink", "", None, "pad" * 30]),
            "amount": rng.choice(FLOATS) if rng.random() < 0.3 else rng.random() * 1e6,
            "price": None if rng.random() < 0.1 else Decimal(rng.randrange(10**6)) / 100,
            "at": BEGIN + timedelta(seconds=rng.randrange(10_000)),
        }
        for _ in range(count)
    ]


def append(ws: Workspace, rng: random.Random) -> None:
    """Orders, and customers that come, move and go."""
    moved = {rng.randrange(14): rng.choice(["de", "fr", None]) for _ in range(rng.randint(1, 6))}
    rows = [
        {"id": number, "country": country, "since": rng.randrange(800)} for number, country in moved.items()
    ]
    ws.append({"orders": orders(rng, rng.randint(1, 60)), "customers": rows})
    if rng.random() < 0.5:
        ws.topic("customers").delete([{"id": rng.randrange(14)}])


def declared(folder: Path, spark: Any) -> Workspace:
    ws = hw.open(folder, spark=spark, settings=SETTINGS)
    ws.sql(DECLARED)
    return ws


def arrangements(ws: Workspace) -> dict[str, Counter[str]]:
    """What every arrangement of the newest tick holds, bit for bit."""
    store, manifest = inspect_workspace(ws).store, inspect_workspace(ws).manifest()
    assert manifest is not None
    found = {}
    for unit in inspect_workspace(ws).engine_context().catalog.units():
        for slot in unit.slots:
            name = f"{unit.identity}/{slot.name}"
            runs = store.open_runs(manifest, manifest.arrangements[name])
            # incarnations are positions in the log, which are the same in both workspaces
            found[name] = counted(merged_run(slot, runs, bottom=True)) if runs else Counter()
    return found


def counted(run: Run) -> Counter[str]:
    assert (run.hashes[1:] >= run.hashes[:-1]).all()
    columns = [run.hashes.tolist(), *(column.to_pylist() for column in run.rows.columns)]
    rows = zip(*columns, strict=True)
    total: Counter[str] = Counter()
    for row, weight in zip(rows, run.weights.tolist(), strict=True):
        total[repr(row)] += weight
    return total


@pytest.fixture
def in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_PLACEMENT", "tasks")


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators of the steps that were carried out by tasks."""
    names: list[str] = []
    step = Placement.step

    def watched(self: Placement, operator: KeyedOperator, *rest: Any) -> Any:
        made = step(self, operator, *rest)
        if made is not None:
            names.append(type(operator).__name__)
        return made

    whole = Placement.stage

    def watched_whole(self: Placement, stage: BoundStage) -> Any:
        made = whole(self, stage)
        if made is not None:
            names.append(type(stage.program.operator).__name__)
        return made

    monkeypatch.setattr(Placement, "step", watched)
    monkeypatch.setattr(Placement, "stage", watched_whole)
    return names


# --- the same --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_views_and_their_state_are_the_same_both_ways_bit_for_bit(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, placed: list[str]
) -> None:
    sides = {mode: declared(tmp_path / mode, spark) for mode in ("driver", "tasks")}
    for tick in range(3):
        for mode, ws in sides.items():
            monkeypatch.setenv("HEADWATER_PLACEMENT", mode)
            append(ws, random.Random(tick))
            assert not ws.run().stopped
        assert arrangements(sides["driver"]) == arrangements(sides["tasks"])
        if tick == 1:  # the next engine begins with runs in parts
            sides["tasks"].close()
            sides["tasks"] = hw.open(tmp_path / "tasks", spark=spark, settings=SETTINGS)
    assert Counter(placed).keys() == {"AggregateOperator", "JoinOperator", "RankOperator"}
    with sides["driver"], sides["tasks"] as ws:
        assert ws.verify().ok
        assert ws.path is not None
        assert os.listdir(ws.path / state_files.EXCHANGE) == []
        for view in VIEWS:
            # what followers see is the same too
            both = [side.view(view).changes(since=0) for side in sides.values()]
            assert Counter(map(repr, both[0].to_pylist())) == Counter(map(repr, both[1].to_pylist()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.usefixtures("in_tasks")
def test_views_equal_their_select_where_every_step_runs_in_tasks(
    seed: int, tmp_path: Path, spark: Any, oracle: Oracle, placed: list[str]
) -> None:
    player = Player(generate(seed, Size(), FEATURES - {"retention"}), tmp_path / "ws", oracle, spark)
    player.play()
    assert player.checked
    assert placed or seed not in GROUPED


@given(st.lists(st.integers() | st.none(), max_size=50), st.integers(1, 256))
def test_rows_are_divided_by_the_hash_of_their_key_and_stay_in_order(
    values: list[int | None], parts: int
) -> None:
    keys = pa.array([None if v is None else v % 2**40 for v in values], pa.int64())
    rows = pa.RecordBatch.from_arrays([keys, pa.array(range(len(values)), pa.int64())], names=["k", "at"])
    made = divided(Delta.of(rows), (0,), parts)
    bounds = ranges(parts)
    assert len(made) == parts
    assert (bounds[0], bounds[-1]) == (0, 2**64)
    assert sorted(at for part in made for at in part.rows.column(1).to_pylist()) == list(range(len(values)))
    for part, low, high in zip(made, bounds, bounds[1:], strict=False):
        assert all(low <= int(h) < high for h in key_hashes(part.rows, (0,)))
        assert part.rows.column(1).to_pylist() == sorted(part.rows.column(1).to_pylist())


def test_a_run_in_parts_is_merged_as_one(tmp_path: Path) -> None:
    """As many parts as there are cores must not look like as many ticks."""
    store = StateStore(Storage(tmp_path), ManualClock())
    writer = store.begin(1, 1)
    slot = ArrangementSpec("rows", "multiset", (0,), (), pa.schema([("k", pa.int64())]))
    refs, runs = [], []
    for tick, rows in enumerate((64_000, 8_000), 1):
        hashes = np.linspace(0, 2**63, rows).astype(np.uint64)
        for at in np.array_split(np.arange(rows), 8):
            batch = pa.RecordBatch.from_arrays([pa.array(at + tick * 10**6)], names=["k"])
            runs.append(Run(hashes[at], batch, np.ones(len(at), dtype=np.int64)))
            refs.append(writer.add(runs[-1], ticks=(tick, tick)))
    assert list(Compaction(writer, store).done(Due(slot, tuple(refs), runs, 0, None)).refs) == refs
    half = Run(runs[0].hashes[:5_000], runs[0].rows.slice(0, 5_000), runs[0].weights[:5_000])
    refs.append(writer.add(half, ticks=(3, 3)))
    done = Compaction(writer, store).done(Due(slot, tuple(refs), [*runs, half], 0, None))
    assert [ref.ticks for ref in done.refs] == [(1, 1)] * 8 + [(2, 3)]
    assert len(done.runs[-1]) == 13_000


# --- where -----------------------------------------------------------------------------------------------------------


def change(rows: int) -> Delta:
    return Delta.of(pa.RecordBatch.from_arrays([pa.array(np.arange(rows))], names=["k"]))


@pytest.mark.parametrize(
    ("choice", "is_local", "rows", "wanted"),
    [
        ("auto", True, 1_000, False),
        ("auto", False, 1_000, True),
        ("auto", False, 999, False),
        ("tasks", True, 1, True),
        ("driver", False, 1_000, False),
    ],
)
def test_a_step_goes_to_tasks_if_it_is_large_and_there_is_a_cluster(
    spark: Any, monkeypatch: pytest.MonkeyPatch, choice: str, is_local: bool, rows: int, wanted: bool
) -> None:
    monkeypatch.setenv("HEADWATER_PLACEMENT", choice)
    placement = Placement(spark)
    assert placement._is_local
    placement._is_local = is_local
    assert placement.wants(Plain(), [change(rows)]) is wanted


def test_how_large_can_be_said(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement(spark)
    monkeypatch.setenv("HEADWATER_PLACED_ROWS_MIN", "10")
    assert placement.wants(Plain(), [change(10)])
    assert not placement.wants(Plain(), [change(9)])
    for name, value in {"HEADWATER_PLACED_ROWS_MIN": "many", "HEADWATER_PLACEMENT": "moon"}.items():
        monkeypatch.setenv(name, value)
        with raises(UsageError, variable=name):
            placement.wants(Plain(), [change(10)])


@pytest.mark.usefixtures("in_tasks")
def test_what_has_one_key_only_stays_in_the_driver(tmp_path: Path, spark: Any, placed: list[str]) -> None:
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as ws:
        ws.sql("CREATE TOPIC t (a BIGINT)")
        ws.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n, max(a) AS m FROM t")
        ws.sql("CREATE MATERIALIZED VIEW first AS SELECT a FROM t ORDER BY a LIMIT 3")
        ws.topic("t").append([{"a": 1}, {"a": 2}])
        ws.run()
        assert ws.query("SELECT * FROM n").to_pylist() == [{"n": 2, "m": 2}]
    assert placed == []


def test_a_master_elsewhere_may_find_its_way_to_the_driver() -> None:
    here = configuration({})
    assert here["spark.driver.host"] == "127.0.0.1"
    assert (
        configuration({"HEADWATER_SPARK_MASTER": "spark://127.0.0.1:7077"})["spark.driver.host"]
        == "127.0.0.1"
    )
    there = configuration({"HEADWATER_SPARK_MASTER": "spark://10.0.0.4:7077"})
    assert "spark.driver.host" not in there
    assert "spark.driver.bindAddress" not in there
    own = configuration({"HEADWATER_SPARK_PYSPARK_PYTHON": "/opt/python"})
    assert own["spark.pyspark.python"] == "/opt/python"
    assert here["spark.pyspark.python"] == sys.executable
    assert here["spark.python.daemon.module"] == "headwater.engine.dataflow.python_worker"


# --- what fails ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain(KeyedOperator):
    """Passes its input on, and keeps it."""

    rows_min: ClassVar[int] = 1_000
    keys: ClassVar[tuple[Key, ...]] = ((0,),)

    def step(self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]) -> tuple[Delta, Sequence[Run]]:
        hashes = key_hashes(inputs[0].rows, (0,))
        order = np.argsort(hashes, kind="stable")
        taken = inputs[0].take(order)
        return taken, [Run(hashes[order], taken.rows, taken.weights)]


@dataclass(frozen=True)
class Dies(Plain):
    """Kills its own process, in the middle, the first time that a part is tried."""

    folder: str = ""

    def step(self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]) -> tuple[Delta, Sequence[Run]]:
        made = Plain.step(self, inputs, state)
        try:
            Path(self.folder, str(inputs[0].rows.column(0)[0])).touch(exist_ok=False)
        except FileExistsError:
            return made
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@dataclass(frozen=True)
class Breaks(Plain):
    """Fails wherever it runs, in a way that is nobody's fault but ours."""

    def step(self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]) -> tuple[Delta, Sequence[Run]]:
        raise ZeroDivisionError("on purpose")


@dataclass(frozen=True)
class Lost:
    """A session whose cluster is gone."""

    sparkContext: Any

    def range(self, *_: int) -> Any:
        raise PySparkException("all masters are unresponsive")


class Bench:
    """A tick under way in an empty workspace."""

    def __init__(self, folder: Path) -> None:
        self.store = StateStore(Storage(folder), ManualClock())
        self.writer = self.store.begin(7, 3)
        self.root = str(folder)
        self.origin = self.writer.origin
        self.exchanges = 0

    def exchange(self) -> Any:
        self.exchanges += 1
        return self.store.exchange(self.writer, self.exchanges)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "disk")
    yield bench
    assert os.listdir(tmp_path / "disk" / state_files.EXCHANGE) == []


def held(bench: Bench, parts: RunParts) -> list[int]:
    return sorted(k for ref in parts.refs for k in bench.store.open_run(ref).rows.column(0).to_pylist())


def test_a_task_whose_process_dies_is_done_again(bench: Bench, spark: Any, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    placement = Placement(spark)
    made = placement.step(Dies(str(marks)), [change(1_000)], [()], bench)
    assert made is not None
    output, (parts,) = made
    assert len(os.listdir(marks)) == spark.sparkContext.defaultParallelism
    assert sorted(output.rows.column(0).to_pylist()) == list(range(1_000))
    assert held(bench, parts) == list(range(1_000))
    assert {(ref.ticks, state_files.runs_origin(ref.file).tick) for ref in parts.refs} == {((7, 7), 7)}  # type: ignore[union-attr]


@pytest.mark.usefixtures("in_tasks")
def test_a_job_that_fails_is_an_error_where_tasks_were_asked_for(bench: Bench, spark: Any) -> None:
    with pytest.raises(SparkJobError) as caught:
        Placement(spark).step(Breaks(), [change(10)], [()], bench)
    assert "ZeroDivisionError: on purpose" in str(caught.value.detail)
    assert caught.value.retryable


def test_the_driver_does_what_no_task_got_through(
    bench: Bench, spark: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement = Placement(spark)
    placement._spark = Lost(spark.sparkContext)  # type: ignore[assignment]
    monkeypatch.setenv("HEADWATER_PLACED_ROWS_MIN", "10")
    large = change(10)
    with caplog.at_level(logging.WARNING, "headwater"):
        assert placement.step(Plain(), [large], [()], bench) is None
    assert "HEADWATER_PLACEMENT=driver" in caplog.text
    # and it is not tried again at once
    assert [placement.wants(Plain(), [large]) for _ in range(3)] == [False, False, True]


@pytest.mark.usefixtures("in_tasks")
def test_a_sum_that_overflows_stops_its_view_as_it_does_in_the_driver(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = []
    for mode in ("tasks", "driver"):
        monkeypatch.setenv("HEADWATER_PLACEMENT", mode)
        with hw.open(tmp_path / mode, spark=spark, settings=SETTINGS) as ws:
            ws.sql("CREATE TOPIC t (k BIGINT, a BIGINT)")
            ws.sql("CREATE MATERIALIZED VIEW s AS SELECT k, sum(a) AS s FROM t GROUP BY k")
            ws.topic("t").append([{"k": k, "a": 2**62} for k in (1, 2, 3) for _ in range(2)])
            reasons.append(ws.run().stopped["s"])
    assert reasons[0] == reasons[1]
    assert "does not fit" in reasons[0]


@pytest.mark.usefixtures("in_tasks")
def test_what_a_crashed_step_left_is_swept_and_what_is_under_way_is_not(tmp_path: Path, spark: Any) -> None:
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as ws:
        ws.sql("CREATE TOPIC t (k BIGINT)")
        ws.sql("CREATE MATERIALIZED VIEW n AS SELECT k, count(*) AS n FROM t GROUP BY k")
        ws.topic("t").append([{"k": k} for k in range(20)])
        tick = ws.run().tick
        store = inspect_workspace(ws).store
        latest = store.latest()
        assert latest is not None
        left = tmp_path / "ws" / state_files.EXCHANGE / f"{tick:012d}-{latest.epoch}-abc-1"
        left.mkdir()
        (left / "input-0.arrow").touch()
        stray = tmp_path / "ws" / state_files.RUNS / f"{tick:012d}-{latest.epoch}-twice.runs"
        stray.touch()  # of a second attempt at a task, which did not count
        exchange = store.exchange(store.begin(tick, latest.epoch), 1)
        exchange.create()
        store.collect(100)
        assert os.listdir(left.parent) == [exchange.name]
        assert not stray.exists()
        assert ws.view("n").read().num_rows == 20
