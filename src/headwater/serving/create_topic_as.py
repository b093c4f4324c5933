"""Rows of a query, read once, for CREATE TOPIC ... AS SELECT.

A query that maps each row of one topic independently is streamed in log order up to the current end of the log, and needs
memory for one chunk, or for one partition of a keyed topic. Any other query is answered as `ws.query` answers it, at the
newest tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import HeadwaterError, StatementError
from headwater.engine.collections.engine_context import EngineContext
from headwater.engine.dataflow.linear import compile_map, renamed
from headwater.log.cuts import next_cut
from headwater.log.protocol import Log
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta, concat_rows, take_rows
from headwater.plan.relations.metadata_columns import read_records
from headwater.serving.spark_batch import current_rows
from headwater.sql.statements import QueryText

CHUNK_ROWS = 65_536
"""Rows processed together: enough to amortise the cost of each step."""


@dataclass(frozen=True)
class QueryRows:
    """The result of a query: its columns, and an iterator over its rows, which can be consumed once."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


def rows_of(
    query: QueryText, log: Log, tools: Callable[[], EngineContext], answer: Callable[[str], pa.Table]
) -> QueryRows:
    """Return the rows of a query; `answer` runs a query that cannot be streamed. HeadwaterError if the query cannot be run."""
    refused: StatementError | None = None
    try:
        plan = tools().catalog.plan(query)
    except StatementError as error:  # a query that cannot be a view may still run once
        refused = error
    else:
        source = _streamed(plan.root)
        if source is not None and source.name in log.topics():
            topic = log.topic(source.name)
            run = compile_map(plan.root, tools().evaluator) if isinstance(plan.root, g.Map) else None
            return QueryRows(plan.schema, _stream(log, topic, source, run, plan.schema))
    try:
        table = answer(query.text)
    except HeadwaterError:
        if refused is None:
            raise
        raise refused from None
    return QueryRows(table.schema, iter(table.to_batches(max_chunksize=CHUNK_ROWS)))


def _streamed(root: g.Node) -> g.SourceNode | None:
    """Return the source of a graph without any operator but a map of single rows; None for other graphs."""
    below = root.input if isinstance(root, g.Map) else root
    return below if isinstance(below, g.SourceNode) else None


def _stream(
    log: Log,
    topic: TopicDefinition,
    source: g.SourceNode,
    run: Callable[[Delta], Delta] | None,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    names = [*(topic.schema.names[i] for i in source.columns), *source.hidden]
    chunks = _current(log, topic, names) if topic.key else _records(log, topic, names)
    for chunk in chunks:
        given = Delta.of(renamed(chunk, source.schema))
        made = given if run is None else run(given)
        rows = made.rows
        if (made.weights != 1).any():
            rows = take_rows(rows, np.repeat(np.arange(len(made)), made.weights))
        if rows.num_rows:
            yield renamed(rows, schema)


def _records(log: Log, topic: TopicDefinition, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the records of a topic, commit by commit: if whole partitions were copied in turn, rows of the later ones would
    be late."""
    name = topic.name
    ends = log.ends([name])[name]
    at = {p: info.first for p, info in log.partitions(name).items()}
    while any(at[p] < end for p, end in ends.items()):
        cut = next_cut(log, [name], {name: at}, CHUNK_ROWS)
        to = {p: min(cut.positions[name][p], end) for p, end in ends.items()}
        found = (
            batch
            for partition, end in sorted(to.items())
            if at[partition] < end
            for batch in read_records(log, name, partition, (at[partition], end), [*names, "_sequence"])
        )
        if cut.rows <= CHUNK_ROWS:
            yield from _by_commit(list(found))
        else:  # one commit, larger than a chunk
            yield from (piece.drop_columns("_sequence") for batch in found for piece in _sliced(batch))
        at = {p: max(at[p], end) for p, end in to.items()}


def _by_commit(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if batches:
        rows = concat_rows(batches, batches[0].schema)
        order = np.argsort(rows.column("_sequence").to_numpy(), kind="stable")
        yield take_rows(rows, order).drop_columns("_sequence")


def _current(log: Log, topic: TopicDefinition, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the current rows of a keyed topic, partition by partition: a key is in one partition."""
    ends = log.ends([topic.name])[topic.name]
    for partition, end in sorted(ends.items()):
        table = current_rows(log, topic, {partition: end}, names).select(names)
        yield from table.to_batches(max_chunksize=CHUNK_ROWS)


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for start in range(0, batch.num_rows, CHUNK_ROWS):
        yield batch.slice(start, CHUNK_ROWS)
