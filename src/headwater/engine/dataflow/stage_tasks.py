"""The work of the Spark tasks of a whole stage: scans read the log and divide rows by key, steps take them range by range.

    range(scans) ── scan: read, evaluate, divide ──▶ shuffle by range of the key's hash ──▶ step: operator, runs

Between the two travel blobs: Arrow streams of at most `BLOB_BYTES_MAX`, one for each range that has rows. A step first sorts
its blobs by input, source, partition and offset, whatever the order of arrival: a task is a function of the set of its rows, and
may run twice. That is the order of the log, except that a union alternates between its inputs piece by piece. What a scan has to report (the records it has read, or why it
refuses) travels to one of the steps, whose outcome has it.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from headwater.core.errors import HeadwaterError, StorageError
from headwater.core.storage import Storage
from headwater.engine.dataflow.linear import renamed
from headwater.engine.dataflow.portable_stages import PortableInput, PortableStage
from headwater.engine.dataflow.spark_tasks import DividedStep, TaskOutcome, divided, encoded, step_part
from headwater.log.embedded.open_logs import open_log
from headwater.operators.zset.delta import Delta, concat, concat_rows
from headwater.plan.relations.metadata_columns import read_records
from headwater.state.task_exchange import Exchange

BLOBS = "part int, input int, source int, partition int, offset bigint, number int, rows binary"
"""Schema of the rows that are exchanged, as Spark DDL."""
BLOB_BYTES_MAX = 16 << 20
_BLOBS = pa.schema(
    [
        ("part", pa.int32()),
        ("input", pa.int32()),
        ("source", pa.int32()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("number", pa.int32()),
        ("rows", pa.binary()),
    ]
)
ELSEWHERE = "the log is written on another machine"
"""Why a scan refuses to open the log."""
_REPORT = -1
"""The number, as an input, of what a scan reports."""


@dataclass(frozen=True)
class LogPiece:
    """A range of offsets of a partition, for one input of a stage."""

    source: int
    topic: str
    names: tuple[str, ...]
    """The columns to read; empty if only the number of records matters."""
    partition: int
    begin: int
    stop: int


@dataclass(frozen=True)
class FilePiece:
    """A change in a file of an exchange, for one input of a stage."""

    source: int
    exchange: str
    file: str
    place: int
    number: int
    """Position of the piece among those of its input."""


@dataclass(frozen=True)
class DividedStage:
    """A stage, divided into scans and, by ranges of the key's hash, into steps."""

    stage: bytes
    machine: str
    """Identity of the engine's machine since its start: to open the log on another machine would fence the engine's writers."""
    scans: tuple[tuple[LogPiece | FilePiece, ...], ...]
    step: DividedStep
    first: bool


@dataclass(frozen=True)
class ScanReport:
    """What a scan reports: the number of records that it has read, by source and partition, or why it refuses."""

    read: tuple[tuple[int, int, int], ...] = ()
    refused: str | None = None


def scan(work: DividedStage) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark maps over batches of the numbers of scans."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _scanned(work, number)

    return run


def step(work: DividedStage) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark maps over the blobs of one range of hashes."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blobs = [row for batch in batches for row in batch.to_pylist()]
        parts = sorted({row["part"] for row in blobs})
        yield encoded([_stepped(work, part, [row for row in blobs if row["part"] == part]) for part in parts])

    return run


def _scanned(work: DividedStage, number: int) -> Iterator[pa.RecordBatch]:
    stage, storage = _stage(work.stage), Storage(work.step.root)
    parts, read = work.step.parts, Counter[tuple[int, int]]()
    refused = None
    for piece in work.scans[number]:
        if isinstance(piece, LogPiece) and storage.boot_id() != work.machine:
            refused = ELSEWHERE
            break
        try:
            if isinstance(piece, LogPiece):
                change = _from_log(work.step.root, piece)
                read[piece.source, piece.partition] += len(change)
                at = piece.partition, piece.begin
            else:
                change = Exchange(storage, piece.exchange).read(piece.file, piece.place)
                at = 0, piece.number
            source = stage.inputs[piece.source]
            read_rows = _as_read(source, change, from_log=isinstance(piece, LogPiece))
            given = _evaluated(stage, source, read_rows)
            for place, (rows, key) in enumerate(zip(given, stage.keys, strict=True)):
                if len(rows):
                    yield from _blobs(divided(rows, key, parts), place, piece.source, at)
        except StorageError:
            raise
        except (HeadwaterError, pa.ArrowException) as error:
            refused = str(error)
            break
    report = ScanReport(tuple((s, p, n) for (s, p), n in read.items()), refused)
    values = number % parts, _REPORT, 0, 0, number, 0, pickle.dumps(report)
    yield pa.RecordBatch.from_pylist([dict(zip(_BLOBS.names, values, strict=True))], schema=_BLOBS)


def _from_log(root: str, piece: LogPiece) -> Delta:
    names, log = list(piece.names) or ["_offset"], open_log(root)
    if log.ends([piece.topic])[piece.topic][piece.partition] < piece.stop:
        raise StorageError(
            f"partition {piece.partition} of topic {piece.topic!r} ends before offset {piece.stop} on this machine",
            hint="the file system of the workspace must show every machine what another one has written",
            topic=piece.topic,
            partition=piece.partition,
            offset=piece.stop,
        )
    batches = list(read_records(log, piece.topic, piece.partition, (piece.begin, piece.stop), names))
    if not batches:
        return Delta.empty(pa.schema([]))
    rows = concat_rows(
        batches, batches[0].schema
    )  # raises an error if a column of texts exceeds two gigabytes
    return Delta(rows if piece.names else rows.select([]), np.ones(rows.num_rows, dtype=np.int64))


def _as_read(source: PortableInput, change: Delta, *, from_log: bool) -> Delta:
    """Return a change with the columns that the stage reads of its input."""
    if not len(change):
        return Delta.empty(source.schema)
    rows, schema = change.rows, source.schema
    if source.columns is not None and not from_log:
        rows = rows.select([*source.columns, *map(rows.schema.names.index, source.hidden)])
    elif source.used is not None and from_log:
        rows = renamed(rows, pa.schema([schema.field(i) for i in source.used]))
        columns = dict(zip(source.used, rows.columns, strict=True))
        arrays = [columns.get(i, pa.nulls(len(change), field.type)) for i, field in enumerate(schema)]
        rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return Delta(renamed(rows, schema), change.weights)


def _evaluated(stage: PortableStage, source: PortableInput, change: Delta) -> list[Delta]:
    """Return the inputs of the stage's step, where one of the stage's inputs has a change and the others have none."""
    outputs = {each.place: Delta.empty(each.schema) for each in stage.inputs}
    outputs[source.place] = change
    for each in stage.linear:
        given = [outputs[place] for place in each.inputs]
        output = Delta.empty(each.schema)
        if any(map(len, given)):
            made = each.operator.step(given, ())[0]
            output = made.renamed(renamed(made.rows, each.schema)) if len(made) else output
        outputs[each.place] = output
    return [outputs[place] for place in stage.given]


def _blobs(pieces: Sequence[Delta], place: int, source: int, at: tuple[int, int]) -> Iterator[pa.RecordBatch]:
    for part, piece in enumerate(pieces):
        if not len(piece):
            continue
        width = max(1, piece.rows.nbytes // len(piece))
        rows_max = max(1, BLOB_BYTES_MAX // (width + 8))
        for number, start in enumerate(range(0, len(piece), rows_max)):
            some = piece.slice(start, rows_max)
            values = part, place, source, *at, number, _encoded(some)
            yield pa.RecordBatch.from_pylist([dict(zip(_BLOBS.names, values, strict=True))], schema=_BLOBS)


def _encoded(change: Delta) -> bytes:
    weights = pa.array(np.ascontiguousarray(change.weights, dtype=np.int64))
    schema = pa.schema([pa.field("_weight", pa.int64()), *change.rows.schema])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([weights, *change.rows.columns], schema=schema))
    return bytes(sink.getvalue())


def _decoded(data: bytes) -> Delta:
    batch = pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()
    return Delta(batch.select(range(1, batch.num_columns)), batch.column(0).to_numpy())


def _stepped(work: DividedStage, part: int, blobs: Sequence[dict[str, object]]) -> TaskOutcome:
    """Run one part of the step over its blobs; report what scans have said."""
    reports = [_report(row["rows"]) for row in blobs if row["input"] == _REPORT]
    read = tuple(each for report in reports for each in report.read)
    refused = next((report.refused for report in reports if report.refused is not None), None)
    if refused is not None:
        return TaskOutcome(part, None, False, (), refused, read)
    ordered = sorted(
        (row for row in blobs if row["input"] != _REPORT),
        key=lambda row: (row["input"], row["source"], row["partition"], row["offset"], row["number"]),
    )
    inputs = []
    for place, schema in enumerate(_stage(work.stage).given_schemas):
        changes = [_decoded(row["rows"]) for row in ordered if row["input"] == place]  # type: ignore[arg-type]
        inputs.append(concat(changes, schema) if changes else Delta.empty(schema))
    outcome = step_part(work.step, part, inputs, first=work.first)
    return TaskOutcome(part, outcome.output, outcome.distinct, outcome.runs, outcome.refused, read)


def _report(data: object) -> ScanReport:
    assert isinstance(data, bytes)
    report = pickle.loads(data)
    assert isinstance(report, ScanReport)
    return report


@lru_cache(maxsize=64)
def _stage(data: bytes) -> PortableStage:
    return PortableStage.unpickled(data)
