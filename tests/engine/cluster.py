"""A Spark cluster on this machine, and an engine that uses it: `python -m tests.engine.cluster MASTER FOLDER MARKS`.

The cluster is Spark's own standalone one, from the files that the pip package has. The engine is a process of its own,
which is told what to do in lines on its input and says in lines on its output what came of it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

import headwater as hw
from headwater.core.settings import LogSettings
from headwater.engine.dataflow.keyed_operators import KeyedOperator
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run
from headwater.spark.java import find_java
from headwater.testing import inspect_workspace

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60.0
QUICK = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""For every Java, executors included: what lives for seconds is not worth the second compiler."""

DECLARED = """
CREATE TOPIC orders (id BIGINT, customer BIGINT, amount DOUBLE) WITH (partitions = 2);
CREATE TOPIC customers (id BIGINT, country STRING, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW totals AS
  SELECT customer, count(*) AS n, sum(amount) AS amount, max(id) AS last FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW sold AS
  SELECT o.id, o.amount, c.country FROM orders o LEFT JOIN customers c ON o.customer = c.id;
CREATE MATERIALIZED VIEW top AS
  SELECT customer, id, amount FROM orders
  QUALIFY row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id) <= 2;
"""
VIEWS = ("totals", "sold", "top")


def append(ws: hw.Workspace, seed: int) -> None:
    """Orders, and customers that move and go."""
    rng = random.Random(seed)
    orders = [
        {"id": rng.randrange(10**6), "customer": rng.randrange(40), "amount": rng.random() * 1e4}
        for _ in range(300)
    ]
    moved = [{"id": rng.randrange(40), "country": rng.choice(["de", "fr", "it"])} for _ in range(10)]
    ws.append({"orders": orders, "customers": moved})
    ws.topic("customers").delete([{"id": rng.randrange(40)}])


# --- the cluster -------------------------------------------------------------------------------------------------------


class Node:
    """A master or a worker."""

    def __init__(self, work: Path, kind: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        environ = {
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            **QUICK,
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        work.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            command,
            cwd=work,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid
        self._said: list[str] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            with self._changed:
                self._said.append(line)
                self._changed.notify_all()

    def wait_for(self, words: str) -> str:
        """The line of its log that has these words."""

        def found() -> str | None:
            return next((line for line in self._said if words in line), None)

        with self._changed:
            line = self._changed.wait_for(found, PATIENCE_SECONDS)
        assert line is not None, f"{words!r} was not said in:\n{''.join(self._said)}"
        return line

    def kill(self) -> None:
        """Send kill -9 to it and to the executors that it started, as if the machine went off."""
        for pid in [*_below(self.pid), self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with self._process:
            self._process.wait()


class Cluster:
    """A master and two workers of a core each, on hosts of different names: Spark starts no duplicate on the same."""

    def __init__(self, folder: Path) -> None:
        master = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.master = Node(folder, "master.Master", *master)
        self.nodes = [self.master]
        self.url = self.master.wait_for("Starting Spark master at ").rsplit(" ", 1)[1].strip()
        self.workers = [
            Node(
                folder,
                "worker.Worker",
                *("--host", host, "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"),
                *("--work-dir", str(folder / host), self.url),
            )
            for host in ("127.0.0.1", "localhost")
        ]
        self.nodes += self.workers
        for worker in self.workers:
            worker.wait_for("Successfully registered with master")

    def end(self) -> None:
        """End all of its processes."""
        for node in reversed(self.nodes):
            node.kill()


def _below(pid: int) -> list[int]:
    """The processes that a process started, and theirs."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.stdout.splitlines())}
    found, left = [], [pid]
    while left:
        parent = left.pop()
        children = [child for child, its in parents.items() if its == parent]
        found += children
        left += children
    return found


# --- the side of the tests ---------------------------------------------------------------------------------------------


class Driver:
    """An engine on a cluster, in a process of its own."""

    def __init__(self, url: str, folder: Path, marks: Path) -> None:
        environ = {
            **os.environ,
            "HEADWATER_PLACEMENT": "tasks",
            "HEADWATER_SPARK_MASTER": url,
            "HEADWATER_SPARK_SPECULATION": "true",
            "HEADWATER_SPARK_EXECUTOR_MEMORY": "512m",
            "HEADWATER_SPARK_UI_ENABLED": "false",
            **QUICK,
        }
        marks.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.cluster", url, str(folder), str(marks)],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, **order: Any) -> None:
        """Give it something to do."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """What came of it."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError(f"the engine ended ({self._process.wait()}) without an answer")

    def kill(self) -> None:
        """Send it kill -9."""
        with self._process:
            self._process.kill()
            self._process.wait()


def wait_for_marks(marks: Path, count: int) -> None:
    """Wait until so many parts have been begun."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list(marks.glob("begun-*"))) < count:
        assert time.monotonic() < deadline, f"{sorted(marks.iterdir())}"
        time.sleep(0.01)


# --- the side of the engine --------------------------------------------------------------------------------------------


@dataclass
class Held(KeyedOperator):
    """An operator that says when it begins, and waits until something has happened.

    `held` are the numbers, in the order in which parts are begun, of those that wait for the file `until`.
    """

    operator: KeyedOperator
    marks: str
    held: tuple[int, ...]
    until: str

    def __post_init__(self) -> None:
        self.keys = self.operator.keys

    def step(self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]) -> tuple[Delta, Sequence[Run]]:
        number = 0
        while True:
            try:
                Path(self.marks, f"begun-{number}").touch(exist_ok=False)
                break
            except FileExistsError:
                number += 1
        deadline = time.monotonic() + PATIENCE_SECONDS
        while number in self.held and not Path(self.marks, self.until).exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.until} did not happen")
            time.sleep(0.01)
        return self.operator.step(inputs, state)


def serve(url: str, folder: str, marks: str) -> None:
    """Open the workspace on the cluster, and do as told until the input ends."""
    from headwater.engine.dataflow.placement import Placement
    from headwater.engine.dataflow.stage_tasks import DividedStage

    step = Placement.step
    held: list[tuple[tuple[int, ...], str]] = []
    jobs = 0

    def watched(self: Placement, operator: KeyedOperator, *rest: Any) -> Any:
        nonlocal jobs
        jobs += 1
        return step(self, Held(operator, marks, *held.pop()) if held else operator, *rest)

    stage_job = Placement._stage_job

    def watched_stage(self: Placement, work: DividedStage) -> Any:
        nonlocal jobs
        jobs += 1
        if held:
            operator = Held(cast(KeyedOperator, work.step.operator), marks, *held.pop())
            work = replace(work, step=replace(work.step, operator=operator))
        return stage_job(self, work)

    Placement.step = watched  # type: ignore[method-assign, assignment]
    Placement._stage_job = watched_stage  # type: ignore[method-assign]
    with hw.open(folder, settings=SETTINGS) as ws:
        ws.sql(DECLARED)
        _say(
            workers=_about_workers(ws),
            master=inspect_workspace(ws).engine_context().spark.sparkContext.master,
        )
        for line in sys.stdin:
            order = json.loads(line)
            held[:] = [(tuple(order["held"]), order["until"])] if "held" in order else []
            append(ws, order["seed"])
            jobs = 0
            report = ws.run()
            _say(tick=report.tick, stopped=dict(report.stopped), jobs=jobs)


def _about_workers(ws: hw.Workspace) -> list[dict[str, Any]]:
    """What the processes that run tasks say of themselves."""

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            kernels = "headwater.engine.dataflow.keyed_operators" in sys.modules
            columns = [pa.array([gc.get_freeze_count()], pa.int64()), pa.array([kernels])]
            yield pa.RecordBatch.from_arrays(columns, names=["frozen", "kernels"])

    spark = inspect_workspace(ws).engine_context().spark
    rows = spark.range(0, 2, 1, 2).mapInArrow(ask, "frozen bigint, kernels boolean").collect()
    return [row.asDict() for row in rows]


def _say(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve(*sys.argv[1:])
