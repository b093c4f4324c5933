"""The work of a Spark task: the part of an operator's step whose keys are in one range of hashes.

A task gets nothing from the driver but a `DividedStep`: an operator, the locations of its inputs and its state, and the
origin of the files that it writes. The driver's side is `placement`. A task may run twice, concurrently or after a
failure, on any machine that has the workspace's folder: it reads immutable files, writes under unique names, and only
the outcome that it returns counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import orjson
import pyarrow as pa

from headwater.core.errors import HeadwaterError, StorageError
from headwater.core.storage import Storage
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Key, Run, key_hashes, split
from headwater.state.cache import RunCache
from headwater.state.run_refs import RunRef
from headwater.state.state_files import FileOrigin
from headwater.state.task_exchange import Exchange
from headwater.state.writer import Writer

SCHEMA = "part bigint, made binary"
"""Schema of the rows that a task returns, as Spark DDL."""

_RETURNED = pa.schema([("part", pa.int64()), ("made", pa.binary())])


class DividedOperator(Protocol):
    """The part of an operator's interface that a task needs: its step."""

    def step(self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]) -> tuple[Delta, Sequence[Run]]:
        """Return the change of the output, and a run to add to each arrangement."""

    def begin(self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]) -> tuple[Delta, Sequence[Run]]:
        """Run the first step."""


@dataclass(frozen=True)
class DividedStep:
    """One step of an operator, divided into parts: part i has the hashes in [bounds[i], bounds[i + 1])."""

    root: str
    exchange: str
    operator: DividedOperator
    distinct: tuple[bool, ...]
    """For each input, whether its rows are known to be distinct."""
    bounds: tuple[int, ...]
    state: tuple[tuple[RunRef, ...], ...]
    """The runs of each arrangement, oldest first; each is on disk and durable."""
    origin: FileOrigin
    """Origin of the engine's own writer: runs of tasks have the same tick and epoch, and another attempt."""

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self.bounds) - 1


@dataclass(frozen=True)
class TaskOutcome:
    """The outcome of a task: references to files, of which the runs are durable."""

    part: int
    output: str | None
    """File of the change within the exchange; None if nothing changed."""
    distinct: bool
    runs: tuple[RunRef | None, ...]
    """For each arrangement, the run that the task wrote, or None if the run would be empty."""
    refused: str | None = None
    """Why the operator failed on these rows. The driver then runs the step itself, and reports the error."""
    read: tuple[tuple[int, int, int], ...] = ()
    """Number of records of the log that scans have read, each with its input and its partition."""

    def encode(self) -> bytes:
        """Return the outcome as bytes, for Spark to transfer."""
        runs = [None if ref is None else orjson.loads(ref.json) for ref in self.runs]
        return orjson.dumps((self.part, self.output, self.distinct, runs, self.refused, self.read))

    @classmethod
    def decode(cls, data: bytes) -> TaskOutcome:
        """Return the outcome that `encode` has serialized."""
        part, output, distinct, runs, refused, read = orjson.loads(data)
        refs = tuple(None if row is None else RunRef.from_json(row) for row in runs)
        return cls(part, output, distinct, refs, refused, tuple(map(tuple, read)))


def task(work: DividedStep) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark maps over batches of part numbers."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield encoded([run_part(work, part) for part in batch.column(0).to_pylist()])

    return run


def encoded(outcomes: Sequence[TaskOutcome]) -> pa.RecordBatch:
    """Return outcomes of parts as the rows that a task returns."""
    columns = [
        pa.array([m.part for m in outcomes], pa.int64()),
        pa.array([m.encode() for m in outcomes], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_RETURNED)


def run_part(work: DividedStep, part: int) -> TaskOutcome:
    """Run one part of a step over the inputs that the driver has divided."""
    exchange = Exchange(Storage(work.root), work.exchange)
    inputs = [exchange.read(input_file(i), part, distinct=known) for i, known in enumerate(work.distinct)]
    return step_part(work, part, inputs)


def step_part(work: DividedStep, part: int, inputs: Sequence[Delta], *, first: bool = False) -> TaskOutcome:
    """Run one part of a step. Storage errors are raised, so that Spark retries the task elsewhere."""
    storage = Storage(work.root)
    exchange = Exchange(storage, work.exchange)
    if not any(len(change) for change in inputs):
        return TaskOutcome(part, None, True, tuple(None for _ in work.state))
    low, high = work.bounds[part : part + 2]
    cache = RunCache(storage)  # used by this task only: it does not prevent files from being removed
    try:
        state = [[split(run, low, high) for run in _opened(cache, refs, low, high)] for refs in work.state]
        output, runs = (work.operator.begin if first else work.operator.step)(inputs, state)
    except StorageError:
        raise
    except (HeadwaterError, pa.ArrowInvalid) as error:
        return TaskOutcome(part, None, False, (), str(error))
    attempt = uuid.uuid4().hex[:12]
    file = None
    if len(output):
        file = f"output-{part}-{attempt}.arrow"
        exchange.write(file, [output])
    writer = Writer(storage, FileOrigin(work.origin.tick, work.origin.epoch, attempt))
    ticks = (work.origin.tick, work.origin.tick)
    refs = tuple(writer.add(run, ticks=ticks) if len(run) else None for run in runs)
    writer.flush()
    return TaskOutcome(part, file, output.distinct, refs)


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


def input_file(number: int) -> str:
    """Return the name of an input's file within the exchange; it has one change for each part."""
    return f"input-{number}.arrow"


def _opened(cache: RunCache, refs: Sequence[RunRef], low: int, high: int) -> Iterator[Run]:
    """Open the runs that have hashes in a range."""
    for ref in refs:
        if ref.rows and ref.low < high and ref.high > low:
            yield cache.open(ref)
