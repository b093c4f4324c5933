"""Where the step of an operator runs: in the driver, or divided by key among Spark tasks. `spark_tasks` is the task's side.

Both ways run the same operators on the same runs and give the same rows, so the choice affects only speed. The driver
divides the inputs by ranges of the key's hash and passes them as files. Each task probes its slice of the state, writes
its share of the new runs to files of its own, and returns only references to them. Spark decides which attempt of a
task counts; no manifest references the files of the other attempts.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard, cast

import pyarrow as pa

from headwater.core.errors import SparkJobError, UsageError
from headwater.core.storage import Storage
from headwater.engine.dataflow import stage_tasks
from headwater.engine.dataflow.executor import (
    BoundStage,
    LogRows,
    LogScan,
    RowsInMemory,
    RunParts,
    StageRows,
    size,
)
from headwater.engine.dataflow.keyed_operators import KeyedOperator
from headwater.engine.dataflow.operator_interface import Operator, TickContext
from headwater.engine.dataflow.spark_tasks import (
    SCHEMA,
    DividedStep,
    TaskOutcome,
    divided,
    input_file,
    task,
)
from headwater.engine.dataflow.stage_tasks import DividedStage, FilePiece, LogPiece
from headwater.operators.zset.delta import Delta, concat
from headwater.state.run_refs import RunRef
from headwater.state.task_exchange import Exchange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLACEMENT = "HEADWATER_PLACEMENT"
"""Environment variable: `driver`, `tasks` (every step that can be divided, however small), or `auto`, the default."""
ROWS_MIN = "HEADWATER_PLACED_ROWS_MIN"
"""Environment variable: the minimum number of input rows for a step to run in tasks, instead of the operator's own minimum. It
also enables tasks in local mode, where they are not used by default, because they are not worth their cost on few cores."""
PARTS_MAX = 256
"""Maximum number of parts: with more parts, the step would leave too many runs to probe."""
PIECE_ROWS_MIN = 65_536
"""Minimum number of offsets of the log that a scan reads at a time."""
SKIPPED_MAX = 64
"""Maximum number of steps that run in the driver after failed jobs, before tasks are tried again."""

_CHOICES = ("auto", "driver", "tasks")
_log = logging.getLogger("headwater")


class Placement:
    """Decides where the steps of one session run, and runs the steps that are divided among tasks."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._is_local = (spark.sparkContext.master or "local").startswith("local")
        self._failed = 0
        self._skipped = 0
        self._scans_refused = False
        """Whether executors run on other machines, which must not open the log."""
        self._exchanges: list[Exchange] = []
        """Exchanges that have the outputs of stages."""

    def wants(self, operator: Operator, inputs: Sequence[Delta]) -> TypeGuard[KeyedOperator]:
        """Return whether a step is to be divided among tasks."""
        least = self._rows_min(operator)
        return least is not None and self._is_worth_it(least, sum(len(change) for change in inputs))

    def _rows_min(self, operator: Operator | None) -> int | None:
        """Return the minimum number of rows for which a step is divided; None if it never is."""
        if not isinstance(operator, KeyedOperator) or not operator.keys or not all(map(len, operator.keys)):
            return None  # with an empty key, all rows have the same key, so there is nothing to divide
        choice = _choice()
        if choice != "auto":
            return 0 if choice == "tasks" else None
        return _rows_min(None if self._is_local else operator.rows_min)

    def _is_worth_it(self, least: int, rows: int) -> bool:
        if rows < least:
            return False
        if least and self._skipped:
            self._skipped -= 1
            return False
        return True

    def step(
        self,
        operator: KeyedOperator,
        inputs: Sequence[Delta],
        state: Sequence[Sequence[RunRef]],
        place: TickContext,
    ) -> tuple[Delta, Sequence[RunParts]] | None:
        """Run a step in tasks, and return the change of the output and the runs added to each arrangement.

        Returns None if the driver must run the step: the operator failed on these rows, or the Spark job failed and the
        placement is not forced to `tasks`.
        """
        exchange = place.exchange()
        exchange.create()
        try:
            bounds = ranges(min(self._spark.sparkContext.defaultParallelism, PARTS_MAX))
            for number, (change, key) in enumerate(zip(inputs, operator.keys or (), strict=True)):
                exchange.write(input_file(number), divided(change, key, len(bounds) - 1))
            known = tuple(change.distinct for change in inputs)
            refs = tuple(tuple(some) for some in state)
            work = DividedStep(place.root, exchange.name, operator, known, bounds, refs, place.origin)
            made = self._run(work)
            if made is None or any(part.refused is not None for part in made):
                return None
            return _assembled(exchange, made, len(state))
        finally:
            exchange.remove()

    def stage(self, stage: BoundStage) -> tuple[StageRows, Sequence[RunParts]] | None:
        """Run a whole stage in tasks, from reading the log to writing runs, and return its output and the runs added to each
        arrangement. The rows of the output can be loaded until the end of the block of `outputs`.

        Returns None if the stage is small, if a part of it can run in this process only, or for the reasons of `step`.
        """
        program = stage.program
        if self._scans_refused or (least := self._rows_min(program.operator)) is None:
            return None
        scans = [_scan_of(rows) for rows in stage.inputs]
        count = sum(map(_rows_at_most, stage.inputs))
        if not any(scans) or not count or not self._is_worth_it(least, count):
            return None
        portable, operator = program.portable(), program.operator
        if portable is None or portable.pickled is None:
            return None
        assert isinstance(operator, KeyedOperator)
        exchange = stage.state.exchange()
        self._exchanges.append(exchange)
        exchange.create()
        tasks = self._spark.sparkContext.defaultParallelism
        pieces: list[LogPiece | FilePiece] = []
        for source, (rows, scan) in enumerate(zip(stage.inputs, scans, strict=True)):
            if scan is not None:
                names = tuple(portable.inputs[source].names(scan.columns))
                pieces += _log_pieces(source, scan, names, tasks)
            else:
                pieces += _file_pieces(source, rows, exchange)
        refs = tuple(tuple(stage.state.refs(slot)) for slot in program.slots)
        bounds = ranges(min(tasks, PARTS_MAX))
        known = (False,) * len(portable.given)
        step = DividedStep(stage.state.root, exchange.name, operator, known, bounds, refs, stage.state.origin)
        work = DividedStage(
            portable.pickled,
            Storage(stage.state.root).boot_id(),
            _shared_out(pieces, tasks),
            step,
            stage.first,
        )
        made = self._collected(lambda: self._stage_job(work))
        if made is None or any(part.refused is not None for part in made):
            # executors on other machines will refuse the next stages as well
            self._scans_refused |= any(part.refused == stage_tasks.ELSEWHERE for part in made or ())
            return None
        for source, (rows, scan) in enumerate(zip(stage.inputs, scans, strict=True)):
            if scan is not None:
                counts = Counter[int]()
                for part in made:
                    counts.update({p: n for s, p, n in part.read if s == source})
                cast("LogRows", rows).was_scanned(scan, counts)
        runs = [
            RunParts(tuple(ref for part in made if part.runs and (ref := part.runs[i]) is not None))
            for i in range(len(refs))
        ]
        files = tuple((part.output, part.distinct) for part in made if part.output is not None)
        return ExchangeRows(exchange, files, program.named), runs

    @contextmanager
    def outputs(self) -> Iterator[None]:
        """Keep the outputs of the stages that run within the block until its end. Blocks may be nested: a view catches up
        while live views of its level wait."""
        kept = len(self._exchanges)
        try:
            yield
        finally:
            while len(self._exchanges) > kept:
                self._exchanges.pop().remove()

    def _stage_job(self, work: DividedStage) -> DataFrame:
        numbers = self._spark.range(0, len(work.scans), 1, len(work.scans))
        blobs = numbers.mapInArrow(stage_tasks.scan(work), stage_tasks.BLOBS)
        return blobs.repartitionById(work.step.parts, "part").mapInArrow(stage_tasks.step(work), SCHEMA)

    def _run(self, work: DividedStep) -> list[TaskOutcome] | None:
        """Return the outcomes of the tasks, by part; None if the Spark job failed."""

        def job() -> DataFrame:
            return self._spark.range(0, work.parts, 1, work.parts).mapInArrow(task(work), SCHEMA)

        return self._collected(job)

    def _collected(self, job: Callable[[], DataFrame]) -> list[TaskOutcome] | None:
        """Return the outcomes that the tasks of a job return, by part; None if the job failed."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            rows = job().collect()
        except (PySparkException, Py4JError) as error:
            self._failed += 1
            self._skipped = min(2**self._failed, SKIPPED_MAX)
            self._report(error)
            return None
        self._failed = 0
        return [TaskOutcome.decode(bytes(row.made)) for row in sorted(rows, key=lambda row: row.part)]

    def _report(self, error: Exception) -> None:
        said = [line.strip() for line in str(error).splitlines()]
        # The last line of a Python trace has the error; the lines of a Java trace have only locations.
        lines = [line for line in said if line and not line.startswith(("at ", "..."))]
        detail = lines[-1] if lines else type(error).__name__
        hint = f"executors need Headwater in their Python, and the workspace folder under the same path; {PLACEMENT}=driver runs all steps in the driver"
        if _choice() == "tasks":
            raise SparkJobError(
                "Spark could not run a step of the engine", detail=detail, hint=hint
            ) from error
        _log.warning("Spark could not run a step of the engine, so the driver runs it: %s (%s)", detail, hint)


@dataclass(frozen=True, eq=False)
class ExchangeRows:
    """The output of a divided step, in files of an exchange."""

    exchange: Exchange
    files: tuple[tuple[str, bool], ...]
    """Names of the files, each with whether its rows are distinct."""
    named: Callable[[Delta], Delta]

    @property
    def is_empty(self) -> bool:
        return not self.files

    def load(self) -> Delta:
        if not self.files:
            return self.named(Delta.empty(pa.schema([])))
        outputs = [self.exchange.read(file, distinct=distinct) for file, distinct in self.files]
        whole = concat(outputs, outputs[0].rows.schema)
        # A row contains its key, and a key is in one part: if rows are distinct within each part, they are distinct overall.
        return self.named(Delta(whole.rows, whole.weights, all(output.distinct for output in outputs)))

    def weight(self) -> int:
        return sum(int(self.exchange.read(file).weights.sum()) for file, _ in self.files)


def _scan_of(rows: StageRows) -> LogScan | None:
    return cast("LogRows", rows).scan() if hasattr(rows, "scan") else None


def _rows_at_most(rows: StageRows) -> int:
    """Return how many rows an input has at most, or about, without reading them."""
    if (scan := _scan_of(rows)) is not None:
        return scan.rows_max
    return size(rows.load()) if isinstance(rows, RowsInMemory) else 0


def _log_pieces(source: int, scan: LogScan, names: tuple[str, ...], tasks: int) -> list[LogPiece]:
    """Divide ranges of the log into about two pieces for each task."""
    piece = max(PIECE_ROWS_MIN, -(-scan.rows_max // (2 * tasks)))
    return [
        LogPiece(source, scan.topic, names, partition, at, min(at + piece, stop))
        for partition, begin, stop in scan.spans
        for at in range(begin, stop, piece)
    ]


def _file_pieces(source: int, rows: StageRows, exchange: Exchange) -> list[FilePiece]:
    """Return the files that have the rows of an input, after writing one if they are in memory."""
    if isinstance(rows, ExchangeRows):
        return [
            FilePiece(source, rows.exchange.name, file, 0, number)
            for number, (file, _) in enumerate(rows.files)
        ]
    given = rows.load()
    if not size(given):
        return []
    change = given if isinstance(given, Delta) else Delta.of(given)
    exchange.write(f"input-{source}.arrow", [change])
    return [FilePiece(source, exchange.name, f"input-{source}.arrow", 0, 0)]


def _shared_out(
    pieces: Sequence[LogPiece | FilePiece], tasks: int
) -> tuple[tuple[LogPiece | FilePiece, ...], ...]:
    """Share pieces out among scans: neighbours together, two scans for each task at most."""
    scans = max(1, min(len(pieces), 2 * tasks))
    return tuple(
        tuple(pieces[len(pieces) * i // scans : len(pieces) * (i + 1) // scans]) for i in range(scans)
    )


def ranges(parts: int) -> tuple[int, ...]:
    """Return bounds that divide all hashes into ranges of equal size."""
    return tuple(-(-(i << 32) // parts) << 32 for i in range(parts + 1))


def _assembled(
    exchange: Exchange, made: Sequence[TaskOutcome], arrangements: int
) -> tuple[Delta, list[RunParts]]:
    outputs = [exchange.read(part.output, distinct=part.distinct) for part in made if part.output is not None]
    runs = [
        RunParts(tuple(ref for part in made if (ref := part.runs[i]) is not None))
        for i in range(arrangements)
    ]
    if not outputs:
        return Delta.empty(pa.schema([])), runs
    whole = concat(outputs, outputs[0].rows.schema)
    # A row contains its key, and a key is in one part: if rows are distinct within each part, they are distinct overall.
    return Delta(whole.rows, whole.weights, all(output.distinct for output in outputs)), runs


def _choice() -> str:
    choice = os.environ.get(PLACEMENT, "auto").lower()
    if choice not in _CHOICES:
        raise UsageError(
            f"{PLACEMENT} is {choice!r}", hint=f"use one of {', '.join(_CHOICES)}", variable=PLACEMENT
        )
    return choice


def _rows_min(default: int | None) -> int | None:
    text = os.environ.get(ROWS_MIN)
    if text is None:
        return default
    if not text.isdecimal():
        raise UsageError(f"{ROWS_MIN} is {text!r}", hint="use a number of rows", variable=ROWS_MIN)
    return int(text)
