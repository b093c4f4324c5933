"""Where the step of an operator runs: in the driver, or divided by key among Spark tasks. `spark_tasks` is the task's side.

Both ways run the same operators on the same runs and give the same rows, so the choice affects only speed. The driver
divides the inputs by ranges of the key's hash and passes them as files. Each task probes its slice of the state, writes
its share of the new runs to files of its own, and returns only references to them. Spark decides which attempt of a
task counts; no manifest references the files of the other attempts.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import pyarrow as pa

from headwater.core.errors import SparkJobError, UsageError
from headwater.engine.dataflow.executor import RunParts
from headwater.engine.dataflow.keyed_operators import KeyedOperator
from headwater.engine.dataflow.operator_interface import Operator, TickContext
from headwater.engine.dataflow.spark_tasks import SCHEMA, DividedStep, TaskOutcome, input_file, task
from headwater.operators.zset.delta import Delta, concat
from headwater.operators.zset.runs import Key, key_hashes
from headwater.state.run_refs import RunRef
from headwater.state.task_exchange import Exchange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACEMENT = "HEADWATER_PLACEMENT"
"""Environment variable: `driver`, `tasks` (every step that can be divided, however small), or `auto`, the default."""
ROWS_MIN = "HEADWATER_PLACED_ROWS_MIN"
"""Environment variable: the minimum number of input rows for a step to run in tasks, instead of the operator's own minimum. It
also enables tasks in local mode, where they are not used by default, because they are not worth their cost on few cores."""
PARTS_MAX = 256
"""Maximum number of parts: with more parts, the step would leave too many runs to probe."""
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

    def wants(self, operator: Operator, inputs: Sequence[Delta]) -> TypeGuard[KeyedOperator]:
        """Return whether a step is to be divided among tasks."""
        if not isinstance(operator, KeyedOperator) or not all(map(len, operator.keys or ((),))):
            return False  # all rows have the same key, so there is nothing to divide
        choice = _choice()
        if choice != "auto":
            return choice == "tasks"
        least = _rows_min(None if self._is_local else operator.rows_min)
        if least is None or sum(len(change) for change in inputs) < least:
            return False
        if self._skipped:
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

    def _run(self, work: DividedStep) -> list[TaskOutcome] | None:
        """Return the outcomes of the tasks, by part; None if the Spark job failed."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            numbers = self._spark.range(0, work.parts, 1, work.parts)
            rows = numbers.mapInArrow(task(work), SCHEMA).collect()
        except (PySparkException, Py4JError) as error:
            self._failed += 1
            self._skipped = min(2**self._failed, SKIPPED_MAX)
            self._tell(error)
            return None
        self._failed = 0
        return [TaskOutcome.decode(bytes(row.made)) for row in sorted(rows, key=lambda row: row.part)]

    def _tell(self, error: Exception) -> None:
        said = [line.strip() for line in str(error).splitlines()]
        # The last line of a Python trace has the error; the lines of a Java trace have only locations.
        lines = [line for line in said if line and not line.startswith(("at ", "..."))]
        detail = lines[-1] if lines else type(error).__name__
        hint = (
            "executors need Headwater in their Python and the workspace's folder under the same path; "
            f"{PLACEMENT}=driver does without them"
        )
        if _choice() == "tasks":
            raise SparkJobError(
                "Spark could not run a step of the engine", detail=detail, hint=hint
            ) from error
        _log.warning("Spark could not run a step of the engine, which does it itself: %s (%s)", detail, hint)


def ranges(parts: int) -> tuple[int, ...]:
    """Return bounds that divide all hashes into ranges of equal size."""
    return tuple(-(-(i << 32) // parts) << 32 for i in range(parts + 1))


def divided(change: Delta, key: Key, parts: int) -> list[Delta]:
    """Return the rows of a change by the hash range of their key; the order of rows within a range is kept."""
    hashes = key_hashes(change.rows, key)
    places = ((hashes >> np.uint64(32)) * np.uint64(parts) >> np.uint64(32)).astype(np.uint16)
    together = change.take(np.argsort(places, kind="stable"))
    ends = np.cumsum(np.bincount(places, minlength=parts))
    starts = ends - np.diff(ends, prepend=0)
    return [
        Delta(together.rows.slice(start, end - start), together.weights[start:end], change.distinct)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


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
        raise UsageError(f"{PLACEMENT} is {choice!r}", hint=f"it is one of {', '.join(_CHOICES)}")
    return choice


def _rows_min(default: int | None) -> int | None:
    text = os.environ.get(ROWS_MIN)
    if text is None:
        return default
    if not text.isdecimal():
        raise UsageError(f"{ROWS_MIN} is {text!r}", hint="it is a number of rows")
    return int(text)
