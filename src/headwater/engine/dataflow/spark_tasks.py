"""What runs in a Spark task: the share of an operator's step that has the keys of one range of hashes.

Nothing of the driver comes along but what `DividedStep` says: an operator, where its inputs and its state lie, and under which
tick to write. The driver's side is `placement`. A task may run twice, at once or after a failure, anywhere that sees the
workspace's folder: it reads what nobody changes, writes under names of its own, and only what it returns counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import orjson
import pyarrow as pa

from headwater.core.errors import HeadwaterError, StorageError
from headwater.core.storage import Storage
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run, split
from headwater.state.cache import RunCache
from headwater.state.run_refs import RunRef
from headwater.state.state_files import FileOrigin
from headwater.state.task_exchange import Exchange
from headwater.state.writer import Writer

SCHEMA = "part bigint, made binary"
"""What a task returns, in Spark's words."""

_RETURNED = pa.schema([("part", pa.int64()), ("made", pa.binary())])


class DividedOperator(Protocol):
    """What a task needs of an operator: its step."""

    def step(self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]) -> tuple[Delta, Sequence[Run]]:
        """The change of the output, and a run to add to each arrangement."""


@dataclass(frozen=True)
class DividedStep:
    """One step of an operator, divided: part i has the hashes in [bounds[i], bounds[i + 1])."""

    root: str
    exchange: str
    operator: DividedOperator
    distinct: tuple[bool, ...]
    """Of each input, whether it is known to have no row twice."""
    bounds: tuple[int, ...]
    state: tuple[tuple[RunRef, ...], ...]
    """The runs of each arrangement, oldest first; each on disk and durable."""
    origin: FileOrigin
    """Of the engine's own writer: runs of tasks are of the same tick and epoch, and of another attempt."""

    @property
    def parts(self) -> int:
        """Into how many parts it is divided."""
        return len(self.bounds) - 1


@dataclass(frozen=True)
class TaskOutcome:
    """What a task made of its part: all of it is in files, which are durable where they are runs."""

    part: int
    output: str | None
    """The file of the change, within the exchange; None if nothing changed."""
    distinct: bool
    runs: tuple[RunRef | None, ...]
    """The run that it wrote for each arrangement, None where there is nothing to add."""
    refused: str | None = None
    """Why the operator gave up on these rows: the driver finds out, and says so as it always does."""

    def encode(self) -> bytes:
        """As bytes, for Spark to carry."""
        runs = [None if ref is None else orjson.loads(ref.json) for ref in self.runs]
        return orjson.dumps((self.part, self.output, self.distinct, runs, self.refused))

    @classmethod
    def decode(cls, data: bytes) -> TaskOutcome:
        """What `encode` made bytes of."""
        part, output, distinct, runs, refused = orjson.loads(data)
        refs = tuple(None if row is None else RunRef.from_json(row) for row in runs)
        return cls(part, output, distinct, refs, refused)


def task(work: DividedStep) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark maps over batches of part numbers."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            made = [run_part(work, part) for part in batch.column(0).to_pylist()]
            columns = [pa.array([m.part for m in made]), pa.array([m.encode() for m in made])]
            yield pa.RecordBatch.from_arrays(columns, schema=_RETURNED)

    return run


def run_part(work: DividedStep, part: int) -> TaskOutcome:
    """Do one part of a step. Errors of the disk are raised, for Spark to try again elsewhere."""
    storage = Storage(work.root)
    exchange = Exchange(storage, work.exchange)
    inputs = [exchange.read(input_file(i), part, distinct=known) for i, known in enumerate(work.distinct)]
    if not any(len(change) for change in inputs):
        return TaskOutcome(part, None, True, tuple(None for _ in work.state))
    low, high = work.bounds[part : part + 2]
    cache = RunCache(storage)  # of this task alone: it keeps no file from being removed
    try:
        state = [[split(run, low, high) for run in _opened(cache, refs, low, high)] for refs in work.state]
        output, runs = work.operator.step(inputs, state)
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


def input_file(number: int) -> str:
    """Where an input is, within the exchange: a change for each part."""
    return f"input-{number}.arrow"


def _opened(cache: RunCache, refs: Sequence[RunRef], low: int, high: int) -> Iterator[Run]:
    """The runs that have hashes of a range."""
    for ref in refs:
        if ref.rows and ref.low < high and ref.high > low:
            yield cache.open(ref)
