"""Queries over views and topics as of one tick: by DuckDB where its answer equals Spark's, by Spark otherwise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import ViewUnavailableError
from headwater.engine.collections.version_table import VersionCollection, all_records, readable_versions
from headwater.engine.collections.workload import definitions, derived_of
from headwater.log.protocol import Log
from headwater.operators.zset.runs import contents_latest, first_contents
from headwater.plan.relations.metadata_columns import (
    hidden_among,
    table_with_hidden,
    topic_schema,
    version_schema,
    versions_of,
)
from headwater.plan.rewrite.system_versions import Unversioned, view_without_versions
from headwater.spark.spark_errors import own_errors, unplanned
from headwater.sql.system_time import are_versions_among
from headwater.state.manifest import Manifest, ViewState
from headwater.state.store import StateStore
from headwater.state.view_reader import view_contents, view_lookup, view_state

if TYPE_CHECKING:
    from headwater.engine.collections.engine_context import EngineContext


_Load = Callable[[Mapping[str, Any] | None, int | None], pa.Table]
"""Loads rows, given requested column values and a maximum number of first rows; the result may have other rows too."""


@dataclass(frozen=True)
class QueryRelation:
    """A view or topic at a tick, as a query reads it."""

    name: str
    schema: pa.Schema
    load: _Load
    unversioned: Unversioned | None = None
    """Reason why the relation has no versions, or None if it has versions."""
    key: tuple[str, ...] = ()
    """Columns that form the lookup key: rows are found by their values without a full read. () without a key."""

    def read(
        self, columns: Sequence[str] | None, equal: Mapping[str, Any] | None, first: int | None = None
    ) -> pa.Table:
        """Return the rows of the relation; at least those with the values of `equal`, or the first so many."""
        rows = self.load(equal, first)
        return rows if columns is None else rows.select(list(columns))


def relations(
    log: Log, store: StateStore, manifest: Manifest | None, names: set[str] | None
) -> dict[str, QueryRelation]:
    """Return the views and topics of these names (in lower case), by name in lower case; all of them if `names` is None."""
    found: dict[str, QueryRelation] = {}
    for name, view in definitions(log).items():
        if names is None or name.lower() in names:
            # while a shadow build of a new definition is in progress, the view has its old columns
            state = manifest.views.get(name) if manifest is not None else None
            columns = state.arrow_schema if state is not None else view.columns
            unversioned = view_without_versions(name)
            load = _view_loader(store, manifest, name)
            found[name.lower()] = QueryRelation(name, columns, load, unversioned, _key_of(state))
        for derived, shown in derived_of(view).items():
            if names is None or is_named(derived, names):
                found[derived.lower()] = QueryRelation(derived, shown, _view_loader(store, manifest, derived))
    for name, topic in log.topics().items():
        if names is None or is_named(name, names):
            schema = topic_schema(topic, hidden_among(names or ()))
            refusal = readable_versions(topic).refusal
            load = _topic_loader(log, store, manifest, topic, schema)
            found[name.lower()] = QueryRelation(name, schema, load, refusal)
            if refusal is None and are_versions_among(names or ()):
                load = _version_loader(log, store, manifest, topic)
                versions = QueryRelation(versions_of(name), version_schema(topic), load)
                found[versions.name.lower()] = versions
    return found


def is_named(relation: str, names: Collection[str]) -> bool:
    """Whether these names (in lower case) may include a relation with a name of several parts."""
    return relation.lower() in names or all(part in names for part in relation.lower().split("."))


@own_errors(unplanned)
def answer(text: str, found: Mapping[str, QueryRelation], tools: Callable[[], EngineContext]) -> pa.Table:
    """Run a query over the relations that it names."""
    from headwater.sql.duckdb.serve import serve

    served = serve(text, found)
    if served is not None:
        return served
    from headwater.serving.spark_batch import BatchSession, free_table

    made = tools()
    batch = BatchSession(made.spark, None, {}, made.functions)
    try:
        for relation in found.values():
            batch.register(relation.name, relation.read(None, None))
            if relation.unversioned is not None:
                batch.unversioned[relation.name] = relation.unversioned
        return free_table(batch.query(text, pinned=False))
    finally:
        batch.close()


def not_run_yet(view: str) -> ViewUnavailableError:
    """Return the error for a view of a workspace on which no engine has run yet."""
    return ViewUnavailableError(
        f"view {view!r} is backfilling: no tick has been committed yet",
        hint="ws.run() or `headwater run --once` commits the first",
        view=view,
        status="backfilling",
        tick=None,
        last_tick=None,
    )


def _key_of(state: ViewState | None) -> tuple[str, ...]:
    if state is None:
        return ()
    names = state.arrow_schema.names
    key = tuple(names[int(place)] for place in state.record.key)
    return key if len(key) < len(names) else ()


def _view_loader(store: StateStore, manifest: Manifest | None, name: str) -> _Load:
    def load(equal: Mapping[str, Any] | None, first: int | None) -> pa.Table:
        if manifest is None:
            raise not_run_yet(name)
        state = view_state(manifest, name)
        key = [int(k) for k in state.record.key]
        schema = state.arrow_schema
        names = [schema.field(k).name for k in key]
        if equal and len(key) < len(schema) and all(n in equal for n in names):
            values = [pa.array([equal[n]], schema.field(n).type) for n in names]
            keys = pa.RecordBatch.from_arrays(values, names=names)
            return view_lookup(store, manifest, name, key, keys)
        return view_contents(store, manifest, name, first)

    return load


def _topic_loader(
    log: Log, store: StateStore, manifest: Manifest | None, topic: TopicDefinition, schema: pa.Schema
) -> _Load:
    def load(equal: Mapping[str, Any] | None, first: int | None) -> pa.Table:
        from headwater.serving.spark_batch import current_rows

        del equal
        has_hidden = len(schema) > len(topic.schema)
        unit = table_with_hidden(topic.name) if has_hidden else topic.name
        state = manifest.views.get(unit) if manifest else None
        if manifest is not None and state is not None and state.status == "live" and topic.key:
            runs = store.runs(manifest, state.contents) if state.contents in manifest.arrangements else []
            read = partial(contents_latest, schema=state.arrow_schema, key=state.record.key)
            table = pa.Table.from_batches([first_contents(runs, read, first).rows])
            return table.select(schema.names).cast(schema) if has_hidden else table
        cut = manifest.positions.get(topic.name) if manifest else None
        return current_rows(log, topic, cut, schema.names, first)

    return load


def _version_loader(log: Log, store: StateStore, manifest: Manifest | None, topic: TopicDefinition) -> _Load:
    def load(equal: Mapping[str, Any] | None, first: int | None) -> pa.Table:
        del equal, first
        unit = VersionCollection(topic)
        state = manifest.views.get(unit.name) if manifest else None
        if manifest is not None and state is not None and state.status == "live":
            runs = store.runs(manifest, state.contents) if state.contents in manifest.arrangements else []
            found = unit.rows(runs)
        else:
            cut = manifest.positions.get(topic.name) if manifest else None
            found = unit.of_records(all_records(log, topic, cut))
        return pa.Table.from_batches([found.rows]).cast(version_schema(topic))

    return load
