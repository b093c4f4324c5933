"""What runs in a Spark task: the share of an operator's step that has the keys of one range of hashes.

Nothing of the driver comes along but what `Work` says: a kernel, where its inputs and its state lie, and under which
tick to write. The driver's side is `placement`. A task may run twice, at once or after a failure, anywhere that sees the
workspace's folder: it reads what nobody changes, writes under names of its own, and only what it returns counts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import orjson
import pyarrow as pa

from headwater.errors import HeadwaterError, StorageError
from headwater.operators import (
    aggregate,
    join,
    range_join,
    ranking,
    session_aggregate,
    sessions,
    sliding,
)
from headwater.operators.delta import Delta
from headwater.operators.lanes import booleans
from headwater.operators.pairs import Condition
from headwater.operators.runs import Key, Run, split
from headwater.operators.sums import Bools
from headwater.state.cache import RunCache
from headwater.state.exchange import Exchange
from headwater.state.layout import Origin
from headwater.state.refs import RunRef
from headwater.state.writer import Writer
from headwater.storage import Storage

SCHEMA = "part bigint, made binary"
"""What a task returns, in Spark's words."""

_RETURNED = pa.schema([("part", pa.int64()), ("made", pa.binary())])


# --- kernels -----------------------------------------------------------------------------------------------------------


class Kernel(Protocol):
    """A step that can be divided: it looks at each key alone, and can be sent to another process."""

    rows_min: ClassVar[int]
    """From how many rows on tasks of a cluster are worth their while: what they cost is about 0.15 s for the job and
    0.1 s for each million rows that are handed over."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The key columns of each input; the arrangements are sorted by the same key."""

    def __call__(
        self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]
    ) -> tuple[Delta, Sequence[Run]]:
        """The change of the output, and a run to add to each arrangement."""


@dataclass(frozen=True)
class AggregateKernel:
    """Groups; their state first, then the values of each retractable minimum or maximum."""

    spec: aggregate.AggregateSpec
    rows_min: ClassVar[int] = 500_000
    """A million rows take 0.2 s for 100,000 groups, 0.5 s for five million."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The columns of the group."""
        return (tuple(range(self.spec.width)),)

    def __call__(
        self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]
    ) -> tuple[Delta, Sequence[Run]]:
        done = aggregate.step(self.spec, state[0], state[1:], inputs[0])
        return done.output, (done.state, *done.ordered)


@dataclass(frozen=True)
class JoinKernel:
    """Two sides; `condition` is what remains beside the equal keys."""

    spec: join.JoinSpec
    condition: Condition | None = None
    rows_min: ClassVar[int] = 500_000
    """A million rows take 0.4 s beside a table of a million."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The columns that must be equal, left and right."""
        return self.spec.left_key, self.spec.right_key

    def __call__(
        self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]
    ) -> tuple[Delta, Sequence[Run]]:
        done = join.step(self.spec, state[0], state[1], inputs[0], inputs[1], self.condition)
        return done.output, (done.left, done.right)


@dataclass(frozen=True)
class RangeJoinKernel:
    """The same where partners lie in a range."""

    spec: range_join.RangeJoinSpec
    condition: Condition | None = None
    rows_min: ClassVar[int] = 200_000

    @property
    def keys(self) -> tuple[Key, ...]:
        """The columns that must be equal, left and right."""
        return self.spec.left_key, self.spec.right_key

    def __call__(
        self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]
    ) -> tuple[Delta, Sequence[Run]]:
        done = range_join.step(self.spec, state[0], state[1], inputs[0], inputs[1], self.condition)
        return done.output, (done.left, done.right)


@dataclass(frozen=True)
class RankKernel:
    """The first rows of each group."""

    spec: ranking.RankSpec
    rows_min: ClassVar[int] = 200_000
    """A million rows take 1 to 2 s for 100,000 groups."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The columns of the group."""
        return (self.spec.key,)

    def __call__(
        self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]
    ) -> tuple[Delta, Sequence[Run]]:
        output, run = ranking.step(self.spec, state[0], inputs[0])
        return output, (run,)


@dataclass(frozen=True)
class SlideKernel:
    """Rows with functions over the rows near them."""

    spec: sliding.SlideSpec
    output: pa.Schema
    rows_min: ClassVar[int] = 200_000
    """A million rows take 2 s for 100,000 keys."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The columns of the partition."""
        return (self.spec.key,)

    def __call__(
        self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]
    ) -> tuple[Delta, Sequence[Run]]:
        output, run = sliding.step(self.spec, state[0], inputs[0], self.output)
        return output, (run,)


@dataclass(frozen=True)
class SessionsKernel:
    """Rows with their sessions; the rows first, then the sessions."""

    spec: sessions.SessionSpec
    rows_min: ClassVar[int] = 200_000
    """A million rows take 2 s for 100,000 keys."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The columns that sessions are told apart by."""
        return (self.spec.key,)

    def __call__(
        self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]
    ) -> tuple[Delta, Sequence[Run]]:
        done = sessions.step(self.spec, state[0], state[1], inputs[0])
        return done.output, (done.rows, done.sessions)


@dataclass(frozen=True)
class SessionAggregateKernel:
    """Sessions, with what is aggregated over them."""

    spec: session_aggregate.SessionAggregateSpec
    rows_min: ClassVar[int] = 500_000
    """A million rows take 0.2 to 0.5 s for 100,000 keys."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The columns that sessions are told apart by."""
        return (self.spec.key,)

    def __call__(
        self, inputs: Sequence[Delta], state: Sequence[Sequence[Run]]
    ) -> tuple[Delta, Sequence[Run]]:
        output, run = session_aggregate.step(self.spec, state[0], inputs[0])
        return output, (run,)


@dataclass(frozen=True)
class ArrowCondition:
    """A condition whose meaning on Arrow is Spark's, so that it needs no JVM."""

    evaluate: Callable[[pa.RecordBatch, int], pa.Array]

    def __call__(self, rows: pa.RecordBatch) -> Bools:
        return booleans(self.evaluate(rows, rows.num_rows))


# --- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """One step of an operator, divided: part i has the hashes in [bounds[i], bounds[i + 1])."""

    root: str
    exchange: str
    kernel: Kernel
    distinct: tuple[bool, ...]
    """Of each input, whether it is known to have no row twice."""
    bounds: tuple[int, ...]
    state: tuple[tuple[RunRef, ...], ...]
    """The runs of each arrangement, oldest first; each on disk and durable."""
    origin: Origin
    """Of the engine's own writer: runs of tasks are of the same tick and epoch, and of another attempt."""

    @property
    def parts(self) -> int:
        """Into how many parts it is divided."""
        return len(self.bounds) - 1


@dataclass(frozen=True)
class Made:
    """What a task made of its part: all of it is in files, which are durable where they are runs."""

    part: int
    output: str | None
    """The file of the change, within the exchange; None if nothing changed."""
    distinct: bool
    runs: tuple[RunRef | None, ...]
    """The run that it wrote for each arrangement, None where there is nothing to add."""
    refused: str | None = None
    """Why the kernel gave up on these rows: the driver finds out, and says so as it always does."""

    def encode(self) -> bytes:
        """As bytes, for Spark to carry."""
        runs = [None if ref is None else orjson.loads(ref.json) for ref in self.runs]
        return orjson.dumps((self.part, self.output, self.distinct, runs, self.refused))

    @classmethod
    def decode(cls, data: bytes) -> Made:
        """What `encode` made bytes of."""
        part, output, distinct, runs, refused = orjson.loads(data)
        refs = tuple(None if row is None else RunRef.from_json(row) for row in runs)
        return cls(part, output, distinct, refs, refused)


def task(work: Work) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark maps over batches of part numbers."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            made = [run_part(work, part) for part in batch.column(0).to_pylist()]
            columns = [pa.array([m.part for m in made]), pa.array([m.encode() for m in made])]
            yield pa.RecordBatch.from_arrays(columns, schema=_RETURNED)

    return run


def run_part(work: Work, part: int) -> Made:
    """Do one part of a step. Errors of the disk are raised, for Spark to try again elsewhere."""
    storage = Storage(work.root)
    exchange = Exchange(storage, work.exchange)
    inputs = [exchange.read(input_file(i), part, distinct=known) for i, known in enumerate(work.distinct)]
    if not any(len(change) for change in inputs):
        return Made(part, None, True, tuple(None for _ in work.state))
    low, high = work.bounds[part : part + 2]
    cache = RunCache(storage)  # of this task alone: it keeps no file from being removed
    try:
        state = [[split(run, low, high) for run in _opened(cache, refs, low, high)] for refs in work.state]
        output, runs = work.kernel(inputs, state)
    except StorageError:
        raise
    except (HeadwaterError, pa.ArrowInvalid) as error:
        return Made(part, None, False, (), str(error))
    attempt = uuid.uuid4().hex[:12]
    file = None
    if len(output):
        file = f"output-{part}-{attempt}.arrow"
        exchange.write(file, [output])
    writer = Writer(storage, Origin(work.origin.tick, work.origin.epoch, attempt))
    ticks = (work.origin.tick, work.origin.tick)
    refs = tuple(writer.add(run, ticks=ticks) if len(run) else None for run in runs)
    writer.flush()
    return Made(part, file, output.distinct, refs)


def input_file(number: int) -> str:
    """Where an input is, within the exchange: a change for each part."""
    return f"input-{number}.arrow"


def _opened(cache: RunCache, refs: Sequence[RunRef], low: int, high: int) -> Iterator[Run]:
    """The runs that have hashes of a range."""
    for ref in refs:
        if ref.rows and ref.low < high and ref.high > low:
            yield cache.open(ref)
