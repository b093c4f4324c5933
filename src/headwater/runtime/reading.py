"""Queries over views and topics as they are at one tick: by DuckDB where its answer is Spark's, by Spark otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.catalog import TopicDefinition
from headwater.errors import ViewUnavailableError
from headwater.log.protocol import Log
from headwater.operators.runs import contents_latest
from headwater.runtime.catalog import definitions
from headwater.state.manifest import Manifest
from headwater.state.serving import view_contents, view_lookup, view_state
from headwater.state.store import StateStore

if TYPE_CHECKING:
    from headwater.runtime.tools import Tools


@dataclass(frozen=True)
class Relation:
    """Something that a query can read: a view or a topic at a tick."""

    name: str
    schema: pa.Schema
    load: Callable[[Mapping[str, Any] | None], pa.Table]

    def read(self, columns: Sequence[str] | None, equal: Mapping[str, Any] | None) -> pa.Table:
        """Its rows, or at least those that have the values of `equal`."""
        rows = self.load(equal)
        return rows if columns is None else rows.select(list(columns))


def relations(
    log: Log, store: StateStore, manifest: Manifest | None, names: set[str] | None
) -> dict[str, Relation]:
    """The views and topics of these names (in lower case), by name in lower case."""
    found: dict[str, Relation] = {}
    for name, view in definitions(log).items():
        if names is None or name.lower() in names:
            found[name.lower()] = Relation(name, view.columns, _view_loader(store, manifest, name))
    for name, topic in log.topics().items():
        if names is None or name.lower() in names:
            found[name.lower()] = Relation(name, topic.schema, _topic_loader(log, store, manifest, topic))
    return found


def answer(text: str, found: Mapping[str, Relation], tools: Callable[[], Tools]) -> pa.Table:
    """Run a query over the relations that it names."""
    from headwater.queries.serving import serve

    served = serve(text, found)
    if served is not None:
        return served
    from headwater.runtime.batch import Batch, free_table

    made = tools()
    batch = Batch(made.spark, None, {})
    try:
        for relation in found.values():
            batch.register(relation.name, relation.read(None, None))
        return free_table(batch.query(text, pinned=False))
    finally:
        batch.close()


def not_run_yet(view: str) -> ViewUnavailableError:
    """The error for a view of a workspace on which no engine ever ran."""
    return ViewUnavailableError(
        f"view {view!r} is backfilling: no tick was made yet",
        hint="ws.run(), or `headwater run --once`, makes the first",
        view=view,
        status="backfilling",
        tick=None,
        last_tick=None,
    )


def _view_loader(
    store: StateStore, manifest: Manifest | None, name: str
) -> Callable[[Mapping[str, Any] | None], pa.Table]:
    def load(equal: Mapping[str, Any] | None) -> pa.Table:
        if manifest is None:
            raise not_run_yet(name)
        state = view_state(manifest, name)
        key = [int(k) for k in state.extra["key"]]
        schema = state.arrow_schema
        names = [schema.field(k).name for k in key]
        if equal and len(key) < len(schema) and all(n in equal for n in names):
            values = [pa.array([equal[n]], schema.field(n).type) for n in names]
            keys = pa.RecordBatch.from_arrays(values, names=names)
            return view_lookup(store, manifest, name, key, keys)
        return view_contents(store, manifest, name)

    return load


def _topic_loader(
    log: Log, store: StateStore, manifest: Manifest | None, topic: TopicDefinition
) -> Callable[[Mapping[str, Any] | None], pa.Table]:
    def load(equal: Mapping[str, Any] | None) -> pa.Table:
        from headwater.runtime.batch import current_rows

        del equal
        state = manifest.views.get(topic.name) if manifest else None
        if manifest is not None and state is not None and state.status == "live" and topic.key:
            runs = store.runs(manifest, state.contents) if state.contents in manifest.arrangements else []
            rows = contents_latest(runs, state.arrow_schema, state.extra["key"]).rows
            return pa.Table.from_batches([rows])
        cut = manifest.positions.get(topic.name) if manifest else None
        return current_rows(log, topic, cut)

    return load
