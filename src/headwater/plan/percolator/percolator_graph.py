"""Builds the operator graph of a percolator view without Spark: two sources, a check of the queries, and one operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.core.errors import EvaluationError, HeadwaterError, SchemaError, StatementError, UsageError
from headwater.core.types import TIMESTAMP
from headwater.log.protocol import Log
from headwater.operators import graph as g
from headwater.operators.percolator.percolate import PercolatorSpec
from headwater.operators.percolator.query_history import DELETE, RECORDS
from headwater.plan.percolator.stored_query import StoredQueryReader, one_line
from headwater.plan.relations.metadata_columns import POSITION, READABLE, changelog_of
from headwater.plan.relations.relations import Relation
from headwater.plan.rewrite.commit_order import Commits
from headwater.sql.standing_statements import QUERIES, StandingDefinition

MEANING = 1
"""Version of the matching semantics: incremented when matches, scores or highlights change, so that views are rebuilt."""
_HIDDEN = ("_offset", "_appended_at", "_op")


def match_graph(standing: StandingDefinition, relations: Mapping[str, Relation], log: Log) -> g.Node:
    """Return the graph of the matches of documents and stored queries; SchemaError if the topics do not have the required
    columns."""
    documents, queries = (_relation(name, relations) for name in (standing.topic, standing.queries))
    _check_queries(queries)
    key = log.topic(documents.name).key
    reader = StoredQueryReader(standing, documents.schema, key)
    names = {name.lower(): name for name in documents.schema.names}
    shown = [names[name.lower()] for name in standing.show]
    time = next(iter(documents.times), None)
    wanted = dict.fromkeys(
        [*(f.name for f in reader.fields.columns), *key, *shown, *([time] if time else [])]
    )
    source = _source(documents, documents.name, list(wanted), POSITION, append_only=documents.append_only)
    place = source.schema.get_field_index
    spec = PercolatorSpec(
        source.schema,
        reader.fields,
        place("_partition"),
        place("_offset"),
        place("_appended_at"),
        place(time or "_appended_at"),
        tuple(map(place, key)),
        tuple(map(place, shown)),
        reader.stored,
        reader.holds,
        Commits(log, queries.name, documents.name),
        standing.backfill,
    )
    check_shown(spec)
    records = _source(queries, changelog_of(queries.name), QUERIES.names, _HIDDEN, append_only=True)
    text = f"{standing.sql}, by meaning {MEANING}"
    return g.Percolate(source, _checked(records, reader), text, spec.output, spec, backfill=standing.backfill)


def check_shown(spec: PercolatorSpec) -> None:
    """Raise SchemaError if a document column would be shown under the name of a column that matches have."""
    names = [name.lower() for name in spec.output.names]
    for name in names:
        if names.count(name) > 1:
            raise SchemaError(
                f"the matches would have two columns named {name!r}",
                hint="leave it out of show = '...'",
                reason="duplicate-column",
                name=name,
            )


def _relation(name: str, relations: Mapping[str, Relation]) -> Relation:
    found = relations.get(name)
    if found is None or not len(found.hidden):
        what = "is a view" if found is not None else "does not exist"
        raise UsageError(
            f"standing queries match documents of a topic; {name!r} {what}",
            hint="create a TOPIC sink for the view, and use its topic"
            if found is not None
            else f"CREATE TOPIC {name} (...)",
            reason="not-a-topic",
            name=name,
        )
    return found


def _check_queries(queries: Relation) -> None:
    """Raise SchemaError if a topic cannot hold stored queries."""
    types = {field.name: field.type for field in queries.schema}
    wrong = [f.name for f in QUERIES if types.get(f.name) != f.type]
    if queries.append_only or wrong or len(queries.versions.key if queries.versions else ()) != 1:
        raise SchemaError(
            f"topic {queries.name!r} exists and cannot hold stored queries"
            + (f": column {wrong[0]} is missing or has another type" if wrong else ""),
            hint="name another topic: WITH (queries = '...')",
            topic=queries.name,
            reason="not-a-query-topic",
        )


def _source(
    relation: Relation, name: str, columns: Sequence[str], hidden: Sequence[str], *, append_only: bool
) -> g.SourceNode:
    places = relation.places or tuple(range(len(relation.schema)))
    own = [relation.schema.get_field_index(column) for column in columns]
    fields = [pa.field(relation.schema.field(i).name, relation.schema.field(i).type) for i in own]
    fields += [pa.field(column, READABLE.field(column).type) for column in hidden]
    schema = pa.schema(fields)
    return g.SourceNode(name, tuple(places[i] for i in own), schema, append_only, hidden=tuple(hidden))


@dataclass(frozen=True)
class _Check:
    """Fails on query records that cannot be parsed, so that they are diverted and reported as error rows."""

    reader: StoredQueryReader

    def __call__(self, arguments: Sequence[pa.Array]) -> pa.Array:
        """Return true for every record; raise EvaluationError for the first one that cannot be parsed."""
        rows = pa.RecordBatch.from_arrays(arguments, names=[*QUERIES.names, "_op"]).to_pylist()
        for record in rows:
            if record["_op"] == DELETE:
                continue
            try:
                self.reader.check(record)
            except HeadwaterError as error:
                why = one_line(error) if isinstance(error, StatementError) else error.message
                raise EvaluationError(
                    f"stored query {record['id']!r} is invalid: {why}", reason=why, id=record["id"]
                ) from error
        return pa.array(np.ones(len(rows), np.bool_))


def _checked(records: g.SourceNode, reader: StoredQueryReader) -> g.Node:
    """Return a graph node over query records that fails on records which cannot be parsed."""
    asked = [*range(len(QUERIES)), records.schema.get_field_index("_op")]
    args = tuple(_column(records.schema, place) for place in asked)
    width = len(records.schema)
    call = g.UdfCall(
        "stored_query", f"stored query {MEANING}", "read the query", args, width, pa.bool_(), _Check(reader)
    )
    project = g.Project(tuple(_column(records.schema, place) for place in range(width)))
    types = [f.type if f.name != "_appended_at" else TIMESTAMP for f in RECORDS]
    schema = pa.schema([pa.field(f.name, t) for f, t in zip(RECORDS, types, strict=True)])
    return g.Map(records, (call, project), schema)


def _column(schema: pa.Schema, place: int) -> g.Expression:
    return g.Expression(schema.field(place).name, schema.field(place).type, place, None)
