"""Patterns of events: a small payment, some medium ones, then a large one within an hour, of 100,000 accounts.

The same query in a view, in the kernels alone, and in Flink's MATCH_RECOGNIZE. A view reads Parquet files and appends them to its log;
the kernels are given the events in memory, with conditions as pyarrow's functions, and so is Flink, on two cores with its state in
memory and no checkpoints. Flink is left out where its jars are not found: in FLINK_HOME, or in the package apache-flink-libraries.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import sides
from benchmarks.harness import Bench
from headwater.operators.match_recognize.match_operator import cuts_key, cuts_order, rows_order, step
from headwater.operators.match_recognize.pattern import Concat, Quantified, Variable
from headwater.operators.match_recognize.reference import match_rows
from headwater.operators.match_recognize.spec import (
    MatchSpec,
    Navigate,
    PatternAggregate,
    PatternExpression,
    Shown,
)
from headwater.operators.zset.collation import ColumnOrder
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.ordered_runs import merge_ordered
from headwater.operators.zset.runs import Run

TITLE = "Patterns, beside Flink"
GOAL = 500_000.0
ACCOUNTS = 100_000
HOUR_US = 3_600_000_000
APART_US = 2_000
BEGIN_US = 1_767_225_600_000_000
RUNS_MAX = 4
"""Runs of an arrangement that are merged into one."""

TOPIC = "CREATE TOPIC payments (account BIGINT, at TIMESTAMP, amount DOUBLE) WITH (partitions = 2)"
QUERY = """
    SELECT account, began, amount, times FROM payments MATCH_RECOGNIZE (
        PARTITION BY account ORDER BY `at`
        MEASURES FIRST(A.`at`) AS began, LAST(C.amount) AS amount, COUNT(B.amount) AS times
        ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
        PATTERN (A B+ C) WITHIN INTERVAL '1' HOUR
        DEFINE A AS A.amount < 2, B AS B.amount < 50, C AS C.amount > 200) AS m
"""
FLINK = Path(__file__).resolve().parent / "flink" / "Matching.java"
OPENED = ("java.util", "java.lang", "java.time", "java.util.concurrent", "java.net")


def run(bench: Bench) -> None:
    """All sides on the same events."""
    ticks, rows = bench.size(5, 3), bench.size(1_000_000, 2_000)
    group = f"three steps, {ACCOUNTS:,} accounts, {ticks} ticks of {rows:,} events"
    batches = [_events(rows, tick) for tick in range(ticks)]
    repeated = range(bench.size(3, 1))
    with bench.space() as space:
        (space / "events").mkdir()
        for number, batch in enumerate(batches):
            pq.write_table(pa.Table.from_batches([batch]), space / "events" / f"{number:04d}.parquet")
        inputs = sides.Inputs(TOPIC, {"payments": space / "events"}, rows)
        ours = [sides.headwater(space, inputs, {"result": QUERY}, costs := sides.Costs()) for _ in repeated]
        bench.note(group, "a view", "records/s", ours, goal=GOAL)
        costs.note(bench, "a view")
        base = statistics.median(ours)
        figures = [_kept(batches) for _ in repeated]
        bench.note(
            group, "the kernel, tick by tick", "records/s", figures, ratio=statistics.median(figures) / base
        )
        figures = [_at_once(batches) for _ in repeated]
        bench.note(
            group, "the kernel, all at once", "records/s", figures, ratio=statistics.median(figures) / base
        )
        if (jars := _jars()) is not None:
            figures = [_flink(space, jars, batches)]  # it takes minutes
            bench.note(group, "Flink", "records/s", figures, ratio=figures[0] / base)


def _events(rows: int, tick: int) -> pa.RecordBatch:
    """Payments, in the order of time."""
    random = np.random.default_rng(tick + 1)
    at = BEGIN_US + (tick * rows + np.arange(rows)) * APART_US
    columns = [
        pa.array(random.integers(0, ACCOUNTS, rows)),
        pa.array(at).cast(pa.timestamp("us", "UTC")),
        pa.array(random.lognormal(3.0, 1.2, rows).round(2)),
    ]
    return pa.record_batch(columns, names=["account", "at", "amount"])


def _spec(schema: pa.Schema) -> MatchSpec:
    """The query as the kernels take it."""
    amount = (Navigate(2),)
    expressions = (
        *(PatternExpression(amount, pa.bool_()) for _ in range(3)),
        PatternExpression((Navigate(1, frozenset("A"), "first"),), schema.field(1).type),
        PatternExpression((Navigate(2, frozenset("C")),), pa.float64()),
        PatternExpression((PatternAggregate("count", frozenset("B")),), pa.int64()),
    )
    names = ("began", "amount", "times")
    return MatchSpec(
        schema,
        (0,),
        (ColumnOrder(1, descending=False, nulls_first=True),),
        Concat((Variable("A"), Quantified(Variable("B"), 1, None), Variable("C"))),
        "(A B+ C)",
        expressions,
        {"A": (0,), "B": (1,), "C": (2,)},
        (3, 4, 5),
        (Shown("account", "column", 0), *(Shown(name, "measure", i) for i, name in enumerate(names))),
        within=HOUR_US,
        time=1,
    )


def _evaluate(number: int, inputs: pa.RecordBatch, count: int) -> pa.Array:
    del count
    values = inputs.column(0)
    match number:
        case 0:
            return pc.less(values, 2.0)
        case 1:
            return pc.less(values, 50.0)
        case 2:
            return pc.greater(values, 200.0)
    return values


def _at_once(batches: Sequence[pa.RecordBatch]) -> float:
    (rows,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    spec = _spec(rows.schema)
    started = time.perf_counter()
    match_rows(spec, rows, _evaluate)
    return rows.num_rows / (time.perf_counter() - started)


def _kept(batches: Sequence[pa.RecordBatch]) -> float:
    """Events a second, without the first tick; merges of state, which an engine does beside, are not counted."""
    spec = _spec(batches[0].schema)
    rows: list[Run] = []
    cuts: list[Run] = []
    seconds = 0.0
    for tick, batch in enumerate(batches):
        started = time.perf_counter()
        made = step(spec, rows, cuts, Delta.of(batch), _evaluate)
        rows, cuts = [*rows, made.rows], [*cuts, made.cuts]
        seconds += time.perf_counter() - started if tick else 0.0
        if len(rows) > RUNS_MAX:
            rows = [merge_ordered(rows, spec.partition, rows_order(spec))]
            cuts = [merge_ordered(cuts, cuts_key(spec), cuts_order(spec))]
    return sum(batch.num_rows for batch in batches[1:]) / seconds


def _jars() -> Path | None:
    """Where Flink's jars are, if they are anywhere and Java can compile."""
    if shutil.which("javac") is None:
        return None
    found = importlib.util.find_spec("pyflink")
    homes: list[Any] = [
        os.environ.get("FLINK_HOME"),
        *(found.submodule_search_locations or () if found else ()),
    ]
    folders = [Path(home) / "lib" for home in homes if home]
    return next((folder for folder in folders if any(folder.glob("flink-dist-*.jar"))), None)


def _flink(space: Path, jars: Path, batches: Sequence[pa.RecordBatch]) -> float:
    """Events a second, from the first event to the end of the job."""
    count = sum(batch.num_rows for batch in batches)
    events = np.empty((count, 3), dtype="<i8")
    (rows,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    events[:, 0] = rows.column(0).to_numpy()
    events[:, 1] = rows.column(1).cast(pa.int64()).to_numpy() // 1_000
    events[:, 2] = rows.column(2).to_numpy().view("<i8")
    events.tofile(space / "events.bin")
    (space / "query.sql").write_text(QUERY, encoding="utf-8")
    path = f"{jars}/*"
    subprocess.run(["javac", "-nowarn", "-cp", path, "-d", space, FLINK], check=True, capture_output=True)
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    done = subprocess.run(
        [
            "java",
            "-Xmx3g",
            *opened,
            "-cp",
            f"{space}:{path}",
            "Matching",
            space / "events.bin",
            space / "query.sql",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    matches, milliseconds = map(int, done.stdout.split()[-2:])
    spec = _spec(rows.schema)
    if (mine := match_rows(spec, rows, _evaluate).num_rows) != matches:
        raise AssertionError(f"Flink found {matches} matches, and Headwater {mine}")
    return count * 1e3 / milliseconds
