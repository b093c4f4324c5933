"""An executor that runs every stage in other processes: `python -m tests.engine.process_executor FOLDER` is one of them.

What a stage is given travels by description: a range of the log by its offsets, a change as a file of the exchange, the
state as references to runs, and the program as the collection that it belongs to and its number. A worker opens the
workspace and plans the same view by itself; what only a JVM can evaluate it asks the JVM of the tests, by a connection of
its own. One worker reads and evaluates, and divides the rows by key; each part then steps in any worker, which writes its
runs. The driver gets references.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import headwater as hw
from headwater.core.errors import EvaluationError, HeadwaterError
from headwater.core.storage import Storage
from headwater.engine.collections.collection_steps import CollectionStep
from headwater.engine.collections.collections import Collection
from headwater.engine.dataflow.driver_executor import DriverExecutor
from headwater.engine.dataflow.executor import (
    BoundStage,
    Rows,
    RowsInMemory,
    RunParts,
    StageProgram,
    StageResult,
    run_one,
    size,
)
from headwater.engine.dataflow.placement import ranges
from headwater.engine.dataflow.spark_tasks import divided
from headwater.engine.input.log_input import Inputs
from headwater.engine.input.log_range import LogRange, log_ranges
from headwater.engine.metrics.phases import Phases
from headwater.engine.metrics.rows_taken import ReadSpan
from headwater.operators.zset.delta import Delta, concat
from headwater.operators.zset.runs import split
from headwater.state.cache import RunCache
from headwater.state.run_refs import RunRef
from headwater.state.state_files import FileOrigin
from headwater.state.task_exchange import Exchange
from headwater.state.writer import Writer
from headwater.testing import inspect_workspace
from tests.equation.play import SETTINGS

ROOT = Path(__file__).parents[2]
PARTS = 3
WHOLE = (0, 1 << 64)


# --- what travels ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileRows:
    """A change in a file of an exchange."""

    root: str
    exchange: str
    file: str
    distinct: bool
    is_empty: bool = False
    are_records: bool = False

    def load(self) -> Rows:
        found = Exchange(Storage(self.root), self.exchange).read(self.file, distinct=self.distinct)
        return found.rows if self.are_records else found

    def weight(self) -> int:
        return int(Exchange(Storage(self.root), self.exchange).read(self.file).weights.sum())


@dataclass(frozen=True)
class FilesRows:
    """A change in several files."""

    parts: tuple[FileRows, ...]
    is_empty: bool = False

    def load(self) -> Delta:
        found = [part.load() for part in self.parts]
        changes = [change for change in found if isinstance(change, Delta)]
        whole = concat(changes, changes[0].rows.schema)
        return Delta(whole.rows, whole.weights, all(change.distinct for change in changes))

    def weight(self) -> int:
        return sum(part.weight() for part in self.parts)


@dataclass(frozen=True)
class TopicRange:
    """A range of a topic, by its offsets."""

    topic: str
    start: Mapping[int, int]
    end: Mapping[int, int]


@dataclass(frozen=True)
class StageAddress:
    """A stage of a collection, as any process that has the definitions finds it."""

    collection: str
    identity: str
    number: int
    first: bool
    watermarks: Mapping[str, int]
    root: str
    exchange: str


@dataclass(frozen=True)
class Evaluate:
    """Read the inputs of a stage, evaluate its linear operators, and divide the rows by key."""

    stage: StageAddress
    inputs: Sequence[TopicRange | FileRows | FilesRows | None]
    parts: int


@dataclass(frozen=True)
class Evaluated:
    """What came of `Evaluate`: the rows of the step in files, or the output where no state is needed."""

    reads: Mapping[int, Sequence[ReadSpan]]
    given: Sequence[FileRows] = ()
    output: FileRows | None = None
    divided: bool = False


@dataclass(frozen=True)
class TakeStep:
    """Take the step of a stage for the keys of one range, and write the runs."""

    stage: StageAddress
    given: Sequence[FileRows]
    part: int
    bounds: tuple[int, int]
    state: Mapping[str, Sequence[RunRef]]
    origin: FileOrigin


@dataclass(frozen=True)
class Stepped:
    """What came of `TakeStep`."""

    output: FileRows | None
    runs: Mapping[str, RunRef] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """The error of a worker: the driver runs the stage, and reports it in its own words."""

    error: str


# --- the side of the driver --------------------------------------------------------------------------------------------


class Worker:
    """A process that runs parts of stages."""

    def __init__(self, folder: Path, spark: Any) -> None:
        gateway = spark.sparkContext._gateway.gateway_parameters
        environ = {
            **os.environ,
            "PYSPARK_GATEWAY_PORT": str(gateway.port),
            "PYSPARK_GATEWAY_SECRET": gateway.auth_token,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.process_executor", str(folder)],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, order: Any) -> Any:
        """Have something done, and return what came of it. EOFError if the worker is gone."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            pickle.dump(order, self.process.stdin)
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise EOFError from error
        return pickle.load(self.process.stdout)

    def end(self) -> None:
        self.process.kill()
        with contextlib.suppress(BrokenPipeError), self.process:
            self.process.wait()


class ProcessExecutor:
    """Runs every stage in worker processes."""

    def __init__(self, folder: Path, spark: Any, workers: int = 2) -> None:
        self._folder = folder
        self._spark = spark
        self._workers = [Worker(folder, spark) for _ in range(workers)]
        self._turns = itertools.count()
        self.stages = 0
        """The stages that workers have run."""
        self.parts = 0
        """The steps of those that were divided by key, by part."""
        self.refused: list[str] = []
        """The errors for which the driver has run a stage."""
        self.before: Callable[[Worker, Any], None] = lambda worker, order: None
        """What happens before an order is given."""

    def end(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.end()

    def run(
        self,
        steps: Iterable[CollectionStep],
        done: Callable[[CollectionStep], None],
        failed: Callable[[CollectionStep, HeadwaterError], None],
    ) -> None:
        for step in steps:
            exchanges: list[Exchange] = []
            try:
                while self._advance(step, exchanges):
                    pass
                done(step)
            except HeadwaterError as error:
                failed(step, error)
            finally:
                for exchange in exchanges:
                    exchange.remove()

    def _advance(self, step: CollectionStep, exchanges: list[Exchange]) -> bool:
        try:
            if (stage := step.next_stage()) is None:
                return False
            step.take(self._result(step.unit, stage, exchanges))
        except EvaluationError as error:
            step.recover(error)
        return True

    def _result(self, unit: Collection, stage: BoundStage, exchanges: list[Exchange]) -> StageResult:
        exchange = stage.state.exchange()
        exchange.create()
        exchanges.append(exchange)
        number = unit.stages.index(stage.program)
        address = StageAddress(
            unit.name,
            unit.identity,
            number,
            stage.first,
            dict(stage.watermarks),
            stage.state.root,
            exchange.name,
        )
        inputs = [self._sent(exchange, stage, place) for place in range(len(stage.inputs))]
        made = self._ask(Evaluate(address, inputs, PARTS))
        if isinstance(made, Evaluated):
            if made.output is not None:
                result: StageResult | None = StageResult(made.output)
            else:
                result = self._stepped(stage, address, made)
            if result is not None:
                for place, reads in made.reads.items():
                    rows = stage.inputs[place]
                    assert isinstance(rows, LogRange)
                    rows.was_read(reads)
                self.stages += 1
                return result
        else:
            self.refused.append(made.error)
        return run_one(DriverExecutor(), OneStage(stage), lambda one: one.result)

    def _sent(
        self, exchange: Exchange, stage: BoundStage, place: int
    ) -> TopicRange | FileRows | FilesRows | None:
        """An input of a stage, as it is described to a worker."""
        rows = stage.inputs[place]
        if isinstance(rows, LogRange):
            return TopicRange(rows.topic, dict(rows.start), dict(rows.end))
        if isinstance(rows, FileRows | FilesRows):
            return rows
        given = rows.load()
        if not size(given):
            return None
        change = given if isinstance(given, Delta) else Delta.of(given)
        exchange.write(f"input-a{place}.arrow", [change])
        return FileRows(
            stage.state.root,
            exchange.name,
            f"input-a{place}.arrow",
            change.distinct,
            are_records=not isinstance(given, Delta),
        )

    def _stepped(self, stage: BoundStage, address: StageAddress, made: Evaluated) -> StageResult | None:
        slots = stage.program.slots
        state = {slot.name: tuple(stage.state.refs(slot)) for slot in slots}
        bounds = ranges(PARTS) if made.divided else WHOLE
        outcomes = []
        for part, low in enumerate(bounds[:-1]):
            span = low, bounds[part + 1]
            outcome = self._ask(TakeStep(address, made.given, part, span, state, stage.state.origin))
            if isinstance(outcome, Refused):
                self.refused.append(outcome.error)
                return None
            outcomes.append(outcome)
        self.parts += len(outcomes) if made.divided else 0
        runs = {
            slot: RunParts(tuple(o.runs[slot.name] for o in outcomes if slot.name in o.runs))
            for slot in slots
        }
        parts = tuple(outcome.output for outcome in outcomes if outcome.output is not None)
        output = FilesRows(parts) if parts else RowsInMemory(Delta.empty(pa.schema([])))
        return StageResult(output, {slot: run for slot, run in runs.items() if run.refs})

    def _ask(self, order: Any) -> Any:
        """Have a worker do something; another one, if the first is gone."""
        while True:
            place = next(self._turns) % len(self._workers)
            worker = self._workers[place]
            self.before(worker, order)
            try:
                return worker.ask(order)
            except EOFError:
                worker.end()
                self._workers[place] = Worker(self._folder, self._spark)


class OneStage:
    """A step that is one stage."""

    def __init__(self, stage: BoundStage) -> None:
        self._stage = stage
        self._result: StageResult | None = None

    @property
    def result(self) -> StageResult:
        assert self._result is not None
        return self._result

    def next_stage(self) -> BoundStage | None:
        return self._stage if self._result is None else None

    def take(self, result: StageResult) -> None:
        self._result = result

    def recover(self, error: EvaluationError) -> None:
        raise error


# --- the side of a worker ----------------------------------------------------------------------------------------------


class Stages:
    """Runs parts of stages over a workspace."""

    def __init__(self, ws: hw.Workspace) -> None:
        self._ws = ws

    def evaluate(self, order: Evaluate) -> Evaluated:
        stage, reads = order.stage, {}
        unit, program = self._found(stage)
        inputs: list[Rows] = []
        for place, given in enumerate(order.inputs):
            if isinstance(given, TopicRange):
                taken = Inputs(self._ws.log)
                start, end = {given.topic: given.start}, {given.topic: given.end}
                found = {each.topic: each for each in log_ranges(taken, unit, start, end, Phases()).values()}
                inputs.append(found[given.topic].load())
                reads[place] = tuple(taken.reads)
            else:
                inputs.append(Delta.empty(pa.schema([])) if given is None else given.load())
        made = program.evaluate(inputs, first=stage.first)
        if (output := program.without_state(made, first=stage.first)) is not None:
            return Evaluated(reads, output=self._written(stage, [output], "output"))
        parts = order.parts if program.keys is not None and all(map(len, program.keys)) else 1
        files = []
        for place, rows in enumerate(made):
            change = rows if isinstance(rows, Delta) else Delta.of(rows)
            pieces = [change]
            if parts > 1:
                assert program.keys is not None
                pieces = divided(change, program.keys[place], parts)
            files.append(self._written(stage, pieces, f"input-{place}", isinstance(rows, pa.RecordBatch)))
        return Evaluated(reads, files, divided=parts > 1)

    def step(self, order: TakeStep) -> Stepped:
        stage = order.stage
        _, program = self._found(stage)
        storage = Storage(stage.root)
        exchange, cache = Exchange(storage, stage.exchange), RunCache(storage)
        pieces = [exchange.read(each.file, order.part, distinct=each.distinct) for each in order.given]
        given = [
            piece.rows if each.are_records else piece for piece, each in zip(pieces, order.given, strict=True)
        ]

        def state(slot: Any) -> list[Any]:
            return [split(cache.open(ref), *order.bounds) for ref in order.state[slot.name] if ref.rows]

        made = program.preaggregated(given, state)  # type: ignore[arg-type]
        if made is None:
            given = list(program.expanded(given))
            made = program.step(given, state, first=stage.first, watermarks=stage.watermarks)  # type: ignore[arg-type]
        output, added = made
        writer = Writer(storage, FileOrigin(order.origin.tick, order.origin.epoch, uuid.uuid4().hex[:12]))
        ticks = (order.origin.tick, order.origin.tick)
        runs = {
            slot.name: writer.add(run, ticks=ticks)
            for slot, run in zip(program.slots, added, strict=False)
            if not isinstance(run, RunParts) and len(run)
        }
        writer.flush()
        named = program.named(output)
        if not len(named):
            return Stepped(None, runs)
        return Stepped(self._written(stage, [named], f"output-{order.part}"), runs)

    def _written(
        self, stage: StageAddress, changes: Sequence[Delta], name: str, are_records: bool = False
    ) -> FileRows:
        file = f"{name}-{uuid.uuid4().hex[:12]}.arrow"
        Exchange(Storage(stage.root), stage.exchange).write(file, changes)
        is_empty = not any(map(len, changes))
        return FileRows(stage.root, stage.exchange, file, changes[0].distinct, is_empty, are_records)

    def _found(self, stage: StageAddress) -> tuple[Collection, StageProgram]:
        """The collection and the program of a stage, planned by this process."""
        before = inspect_workspace(self._ws).manifest()
        served = (
            {}
            if before is None
            else {v.name: v.incarnation for v in before.views.values() if v.status == "live"}
        )
        workload = inspect_workspace(self._ws).engine_context().catalog.workload(served)
        for unit in workload.units:
            if unit.name == stage.collection and unit.identity == stage.identity:
                return unit, unit.stages[stage.number]
        raise HeadwaterError(f"there is no collection {stage.collection} with the identity {stage.identity}")


def main(folder: str) -> None:
    """Open the workspace beside the driver, and do as told until the input ends."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    scala = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(scala)
    spark = SparkSession(SparkContext(gateway=gateway, jsc=java))
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    with hw.open(folder, settings=SETTINGS, spark=spark) as ws:
        stages = Stages(ws)
        with contextlib.suppress(EOFError):
            while True:
                order = pickle.load(sys.stdin.buffer)
                try:
                    answer: Any = (
                        stages.evaluate(order) if isinstance(order, Evaluate) else stages.step(order)
                    )
                except (HeadwaterError, pa.ArrowInvalid) as error:
                    answer = Refused(str(error))
                pickle.dump(answer, answers)
                answers.flush()
        os._exit(0)  # the JVM and its context are the driver's, and go on


if __name__ == "__main__":
    # by its own name, so that what is pickled here is what the driver knows
    from tests.engine import process_executor

    process_executor.main(sys.argv[1])
