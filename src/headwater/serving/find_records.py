"""Finds the records of a topic that match a condition, with DuckDB in this process and without a JVM."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import StatementError
from headwater.core.types import quote
from headwater.log.protocol import Log
from headwater.plan.relations.metadata_columns import fitted, hidden_among, read_records, topic_schema
from headwater.serving.name_hints import suggest
from headwater.sql.lexer import Word, pointing, words_of

ROWS_AT_ONCE = 500_000
"""Records searched together: bounds the memory that a long topic takes."""
_UNKNOWN = re.compile(r"the name '(.+)', which is not known")
_FUNCTION = re.compile(r"the function (\w+)")


@dataclass(frozen=True)
class _Some:
    """Some records of a topic, in the form in which a query reads relations."""

    table: pa.Table

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def read(
        self, columns: Sequence[str] | None, equal: Mapping[str, Any] | None, first: int | None = None
    ) -> pa.Table:
        """Return all of the records, restricted to `columns`."""
        del equal, first
        return self.table if columns is None else self.table.select(list(columns))


def found(log: Log, topic: TopicDefinition, where: str) -> dict[int, list[int]]:
    """Return the offsets of the records that match a condition, by partition, in ascending order.

    The condition is the expression after WHERE, over one record and its metadata columns. StatementError, before any record
    is read, if the text is not a condition or if only Spark can evaluate it.
    """
    from headwater.sql.duckdb.serve import decline_reason, serve

    words = words_of(where)
    if (select := next((w for w in words if w.is_("SELECT", "WITH", "VALUES")), None)) is not None:
        _refuse(topic, where, "a condition of an excision cannot have a subquery", select, "subquery")
    _balanced(where, words)
    names = {word.text.lower() for word in words if word.is_name}
    hidden = ("_partition", "_offset", *hidden_among(names))
    declared = topic_schema(topic, list(dict.fromkeys(hidden)))
    schema = pa.schema([field.with_nullable(True) for field in declared])  # tombstones have key values only
    query = f"SELECT _partition, _offset FROM {quote(topic.name)} WHERE ({where}\n)"
    known = topic.name.lower()
    if (reason := decline_reason(query, {known: _Some(schema.empty_table())})) is not None:
        _decline(topic, where, words, reason, schema)
    own = {field.name for field in topic.schema}
    shown = pa.schema([f for f in schema if f.name not in own or f.name.lower() in names])
    offsets: dict[int, list[int]] = {}
    for partition, table in _records(log, topic, shown):
        answered = serve(query, {known: _Some(table)})
        if answered is None:
            raise StatementError(
                f"the condition fails on a record of topic {topic.name!r}: {where}",
                detail=f"the record is at or after offset {table.column('_offset')[0].as_py()} of partition {partition}",
                hint="use try_cast, or CASE WHEN ... THEN ... END, for such records",
                topic=topic.name,
                partition=partition,
                reason="condition-failed",
            )
        if answered.num_rows:
            mine = offsets.setdefault(partition, [])
            mine += np.sort(answered.column("_offset").to_numpy()).tolist()
    return offsets


def _records(log: Log, topic: TopicDefinition, schema: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
    """Yield all records of a topic with these columns, in tables of one partition each and of bounded size."""
    for partition, info in log.partitions(topic.name).items():
        batches: list[pa.RecordBatch] = []
        for batch in read_records(log, topic.name, partition, (info.first, info.end), schema.names):
            batches.append(fitted(batch, schema))
            if sum(b.num_rows for b in batches) >= ROWS_AT_ONCE:
                yield partition, pa.Table.from_batches(batches)
                batches = []
        if batches:
            yield partition, pa.Table.from_batches(batches)


def _balanced(where: str, words: Sequence[Word]) -> None:
    """Reject text that would close the surrounding parentheses, or that has more than one condition."""
    depth = 0
    for word in words:
        depth += word.is_("(") - word.is_(")")
        if depth < 0 or word.is_(";"):
            raise pointing(
                where,
                word.start,
                word.end,
                f"{where!r} is not one condition",
                hint='write a condition as after WHERE: "user = 7"',
                reason="not-one-condition",
            )


def _decline(
    topic: TopicDefinition, where: str, words: Sequence[Word], reason: str, schema: pa.Schema
) -> NoReturn:
    if (unknown := _UNKNOWN.fullmatch(reason)) is not None:
        name = unknown[1]
        near = suggest(name, schema.names)
        hint = f"did you mean {near}?" if near else f"it has {', '.join(topic.schema.names)}"
        word = next((w for w in words if w.is_name and w.text.lower() == name.lower().split(".")[-1]), None)
        start, end = (word.start, word.end) if word is not None else (0, len(where))
        raise pointing(
            where,
            start,
            end,
            f"topic {topic.name!r} has no column {name!r}",
            hint=hint,
            reason="unknown-column",
            topic=topic.name,
            name=name,
        )
    if reason == "syntax that the parser does not support":
        raise pointing(
            where,
            0,
            len(where),
            f"{where!r} is not a condition",
            hint='write a condition as after WHERE: "user = 7"',
            reason="not-a-condition",
        )
    called = _FUNCTION.fullmatch(reason)
    word = next(
        (w for w in words if called is not None and w.is_name and w.text.lower() == called[1].lower()), None
    )
    _refuse(
        topic,
        where,
        f"this condition needs Spark, which an excision does not start: {reason}",
        word,
        "needs-spark",
    )


def _refuse(topic: TopicDefinition, where: str, message: str, word: Word | None, reason: str) -> NoReturn:
    start, end = (word.start, word.end) if word is not None else (0, len(where))
    asked = f"SELECT _partition, _offset FROM {quote(topic.name)} WHERE ..."
    raise pointing(
        where,
        start,
        end,
        message,
        hint=f'find the records with ws.query("{asked}"), and excise them with '
        '"_partition = 0 AND _offset IN (...)"',
        reason=reason,
        topic=topic.name,
    )
