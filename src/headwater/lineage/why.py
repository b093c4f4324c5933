"""`ws.view(v).why(key)`: the records from which a row of a view was computed. `search` explains how the records are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import (
    GapError,
    RowNotFoundError,
    TickNotKeptError,
    UsageError,
    ViewUnavailableError,
)
from headwater.core.table_text import listed
from headwater.core.types import TIMESTAMP, quote
from headwater.core.values import UNFIT, array_of
from headwater.engine.collections.collections import ViewCollection, view_of
from headwater.engine.collections.engine_context import EngineContext
from headwater.engine.collections.version_table import VersionCollection, all_records
from headwater.engine.collections.workload import definitions
from headwater.engine.dataflow.facets.demands import Slice
from headwater.lineage.input_slices import EVERYTHING, Slices, either, of_sources, within
from headwater.lineage.search import Finder
from headwater.lineage.source_records import Records, records_of
from headwater.log.protocol import Log
from headwater.operators.zset.delta import Delta, concat_rows, empty_rows, take_rows
from headwater.plan.relations.metadata_columns import (
    WATERMARK,
    changelog_of,
    hidden_in,
    hidden_schema,
    in_order,
    is_changelog,
    is_versions,
    marked,
    table_topic,
    version_schema,
    versions_of,
)
from headwater.plan.time.late_policy import NEEDED, Policy
from headwater.serving.spark_batch import BatchSession, as_table
from headwater.sql.standing_statements import parse_standing
from headwater.state.manifest import Manifest, ViewState
from headwater.state.store import StateStore
from headwater.state.view_reader import view_contents, view_lookup, view_state
from headwater.verify.recompute_matches import recomputed
from headwater.verify.table_equality import difference


@dataclass(frozen=True, eq=False)
class Why:
    """The rows of a view that a key selects at a tick, and the records that the rows come from.

    The SELECTs of the views, run over exactly these `records`, give exactly these rows with that key; `recompute` runs
    them.
    """

    view: str
    tick: int
    rows: pa.Table
    """The rows that the key selects."""
    changed_tick: int | None
    """The last tick that changed the selected rows; None if that was before `kept_from`."""
    kept_from: int
    """The first tick whose changes are kept."""
    records: Mapping[str, pa.Table]
    """The records by topic, in order of partition and offset: `_partition`, `_offset`, `_appended_at`, for a keyed topic
    `_op`, and the topic's columns. For a topic that was joined AS OF a time, the records are row versions, under the name
    `<topic>.versions`; in a view that drops late rows, they are all records of the keys, under the name
    `<topic>.changelog`."""
    path: Mapping[str, pa.Table]
    """The rows of intermediate views from which the rows come; a view follows the views that it reads."""
    complete: bool
    """Whether the records are complete. If not, retention or compaction has removed some since, and the remaining ones do
    not give the rows."""
    _again: Callable[[], pa.Table] = field(repr=False)

    def recompute(self) -> pa.Table:
        """Run the SELECTs in batch, by Spark, over exactly these records, and return the rows that the key selects."""
        return self._again()

    @property
    def changed(self) -> str:
        """The time of the last change to the rows, in words."""
        if self.changed_tick is None:
            return f"last changed before tick {self.kept_from}, the first kept tick"
        return f"last changed by tick {self.changed_tick}"

    @property
    def remarks(self) -> Sequence[str]:
        """Remarks for people: that the rows come from no record, or that records are missing."""
        said = []
        if not self.records:
            said.append(
                "from no record: the row is a constant of the SELECT, or is there because no record matches"
            )
        if not self.complete:
            said.append("records were removed since: the remaining records do not give the row")
        return said

    def __str__(self) -> str:
        parts = [f"{self.view} at tick {self.tick}, {self.changed}", listed(self.rows)]
        for view, rows in reversed(list(self.path.items())):
            parts += ["", f"through {_counted(rows, 'row')} of {view}", listed(rows)]
        for topic, rows in self.records.items():
            parts += ["", f"from {_counted(rows, 'record')} of {topic}", listed(rows)]
        for remark in self.remarks:
            parts += ["", remark]
        return "\n".join(parts)


def why(
    log: Log, store: StateStore, tools: Callable[[], EngineContext], manifest: Manifest, view: str, key: Any
) -> Why:
    """Return the origin, at a tick, of the rows of a view that a key selects.

    ViewUnavailableError if the view is no part of the tick, RowNotFoundError if no row has the key, GapError if the records
    that the row comes from were removed.
    """
    state = view_state(manifest, view)
    if view_of(view) != view:
        raise UsageError(
            f"{view} contains records of topics unchanged",
            hint="_partition and _offset give the position of each record in the log",
            view=view,
        )
    wanted = key_slice(state, key)
    rows = _looked_up(store, manifest, state, wanted)
    if not rows.num_rows:
        raise _no_row(state, wanted, manifest.tick)
    changed, kept_from = _last_change(store, manifest, state, wanted)
    made = tools()
    units = _units(made, manifest, view)
    topics = _records(log, manifest, units, wanted)
    watermarks = {unit.name: view_state(manifest, unit.name).record.watermarks for unit in units}
    finder = Finder(units, topics, made.evaluator, watermarks)
    computed = finder.rows(wanted)
    complete = difference(computed, rows) is None
    if not computed.num_rows:
        raise GapError(
            f"the records that this row of view {view!r} comes from were removed",
            hint="retention and compaction also remove records that rows of views come from",
            view=view,
            tick=manifest.tick,
        )
    found = finder.find(wanted)
    return Why(
        view=view,
        tick=manifest.tick,
        rows=rows,
        changed_tick=changed,
        kept_from=kept_from,
        records=found.records,
        path={name: table for name, table in found.path.items() if name != view},
        complete=complete,
        _again=lambda: _recomputed(made, log, units, found.records, watermarks, wanted),
    )


def key_slice(state: ViewState, key: Any) -> Slice:
    """Return the slice for a key as users write it: columns with their values, or the values of the view's key columns in
    order."""
    schema = state.arrow_schema
    if isinstance(key, Mapping):
        return {_column(state, name): _value(state, _column(state, name), v) for name, v in key.items()}
    own = [int(c) for c in state.record.key]
    values = list(key) if isinstance(key, tuple) else [key]
    if len(values) != len(own):
        names = [schema.field(c).name for c in own]
        raise UsageError(
            f"a row of view {state.name!r} is found by {', '.join(names)}: "
            f"{len(own)} values, not {len(values)}",
            hint=f"pass values of any columns, such as {{{names[0]!r}: ...}}",
            view=state.name,
            expected=len(own),
            actual=len(values),
        )
    return {c: _value(state, c, v) for c, v in zip(own, values, strict=True)}


def _column(state: ViewState, name: Any) -> int:
    names = state.arrow_schema.names
    found = [c for c, n in enumerate(names) if isinstance(name, str) and n.lower() == name.lower()]
    if not found:
        raise UsageError(
            f"view {state.name!r} has no column {name!r}",
            hint=f"its columns are {', '.join(names)}",
            view=state.name,
            column=name,
        )
    return found[0]


def _value(state: ViewState, column: int, value: Any) -> pa.Array:
    about = state.arrow_schema.field(column)
    try:
        return array_of([value], about.type)
    except UNFIT:
        raise UsageError(
            f"column {about.name!r} of view {state.name!r} is {about.type}, and {value!r} is not",
            view=state.name,
            column=about.name,
            value=value,
        ) from None


def _looked_up(store: StateStore, manifest: Manifest, state: ViewState, wanted: Slice) -> pa.Table:
    own = [int(c) for c in state.record.key]
    if own and set(own) == set(wanted):
        keys = pa.RecordBatch.from_arrays([wanted[c] for c in own], names=[str(c) for c in own])
        return view_lookup(store, manifest, state.name, own, keys)
    return _having(view_contents(store, manifest, state.name), wanted)


def _no_row(state: ViewState, wanted: Slice, tick: int) -> RowNotFoundError:
    key = {state.arrow_schema.field(c).name: value[0].as_py() for c, value in wanted.items()}
    condition = ", ".join(f"{name} = {value!r}" for name, value in key.items())
    return RowNotFoundError(
        f"view {state.name!r} has no row at tick {tick}" + (f" with {condition}" if condition else ""),
        hint=f"ws.view({state.name!r}).read(as_of={tick}) returns all its rows",
        view=state.name,
        key=key,
        tick=tick,
    )


def _last_change(
    store: StateStore, manifest: Manifest, state: ViewState, wanted: Slice
) -> tuple[int | None, int]:
    """Return the last kept tick that changed the rows that a key selects, or None, and the first tick that was checked."""
    at, now = manifest, state
    while True:
        if now.change is not None:
            (run,) = store.open_runs(at, [now.change])
            if within(run.rows.columns, len(run), (wanted,)).any():
                return at.tick, at.tick
        try:
            before = store.manifest(at.tick - 1)
        except TickNotKeptError:
            return None, at.tick
        then = before.views.get(state.name)
        if then is None or then.history != state.history or then.status != "live":
            return None, at.tick
        at, now = before, then


def _units(tools: EngineContext, manifest: Manifest, view: str) -> Sequence[ViewCollection]:
    """Return a view and the views that it reads, directly or indirectly, sources first, as they were at the tick."""
    served = {name: state.incarnation for name, state in manifest.views.items() if state.status == "live"}
    known = {unit.name: unit for unit in tools.catalog.workload(served).units}
    wanted = {view}
    found: list[ViewCollection] = []
    for unit in reversed(known.values()):
        if unit.name in wanted and isinstance(unit, ViewCollection):
            found.insert(0, unit)
            wanted |= set(unit.units)
    for unit in found:
        named = (name for name in unit.sources if view_of(name) != name and not is_versions(name))
        if (derived := next(named, None)) is not None:
            raise UsageError(
                f"view {unit.name!r} reads {derived}, through which rows are not traced",
                hint=f"{derived} has _topic, _partition and _offset of every record",
                view=unit.name,
                reads=derived,
            )
        state = view_state(manifest, unit.name)
        if state.record.identity != unit.identity:
            raise ViewUnavailableError(
                f"view {unit.name!r} was replaced after tick {manifest.tick}",
                detail="its earlier definition is no longer known",
                hint="commit a tick of the new definition with ws.run(), and ask for that tick",
                view=unit.name,
                status="replaced",
                tick=manifest.tick,
                last_tick=state.last_tick,
            )
    return found


def _records(
    log: Log, manifest: Manifest, units: Sequence[ViewCollection], wanted: Slice
) -> dict[str, Records]:
    """Return the records of the topics under a view at the tick, restricted to those that the key may depend on."""
    slices: dict[str, Slices] = {unit.name: () for unit in units} | {units[-1].name: (wanted,)}
    for unit in reversed(units):
        nodes = [node for node, _ in unit.pipeline.nodes]
        for name, more in of_sources(nodes, slices[unit.name] or EVERYTHING).items():
            slices[name] = either(slices.get(name, ()), more)
    # a topic that is read only by views added in this very tick is not in the tick's own positions
    cut = {t: ends for v in manifest.views.values() if v.status == "live" for t, ends in v.positions.items()}
    names = slices.keys() - {unit.name for unit in units}
    return {n: _of_topic(log, n, cut.get(table_topic(n), {}), slices[n]) for n in sorted(names)}


def _of_topic(log: Log, name: str, ends: Mapping[int, int], slices: Slices) -> Records:
    """Return the records of a topic, or of its row versions, at the cut. A version is shown as the record that began it."""
    topic = log.topic(table_topic(name))
    if is_changelog(name):
        records = all_records(log, topic, ends, met=True)
        mine = within(records.columns, records.num_rows, slices)
        return Records(topic, take_rows(records, np.flatnonzero(mine)))
    if not is_versions(name):
        return records_of(log, topic, ends, slices)
    versions = VersionCollection(topic).of_records(all_records(log, topic, ends)).rows
    mine = within(versions.columns, versions.num_rows, slices)
    return Records(topic, take_rows(versions, np.flatnonzero(mine)))


def _recomputed(
    tools: EngineContext,
    log: Log,
    units: Sequence[ViewCollection],
    records: Mapping[str, pa.Table],
    watermarks: Mapping[str, Mapping[str, int]],
    wanted: Slice,
) -> pa.Table:
    batch = BatchSession(tools.spark, None, {}, tools.functions)
    below = {unit.name for unit in units}
    try:
        for unit in units:
            if (standing := parse_standing(unit.definition.query)) is not None:
                stored = _changelog(
                    log, log.topic(standing.queries), records.get(changelog_of(standing.queries))
                )
                documents = _given(log, standing.topic, records)
                batch.register(unit.name, recomputed(unit.plan.root, stored, documents))
                frame = batch.query(f"SELECT * FROM {quote(unit.name)}")
                continue
            others, policy = [n for n in unit.definition.reads if n not in below], Policy.of(unit.definition)
            given = unit.admitted({name: Delta.of(_given(log, name, records)) for name in others})
            for name in others:
                rows = pa.Table.from_batches([given[name].rows])
                needed = (*hidden_in(unit.definition.query), *(NEEDED if policy.leaves_out else ()))
                hidden = (n for n in in_order(needed) if n in rows.schema.names)
                rows = rows.select([*unit.definition.inputs[name], *hidden])
                topic = log.topics().get(name)
                batch.register(name, rows if topic is None else rows.cast(marked(rows.schema, topic)))
            for name in filter(is_versions, unit.sources):
                topic = log.topic(table_topic(name))
                schema = version_schema(topic, unit.definition.inputs[topic.name])
                versions = records.get(name, version_schema(topic).empty_table())
                batch.register(name, versions.select(schema.names).cast(schema))
            for name in filter(is_changelog, unit.named.values()):
                topic = log.topic(table_topic(name))
                columns = unit.definition.inputs[topic.name]
                batch.changelog(topic.name, _changelog(log, topic, records.get(name)), columns)
                batch.register(versions_of(topic.name), version_schema(topic, columns).empty_table())
            if policy.is_plain:
                frame = batch.view(unit.definition)
            else:
                relations = tools.catalog.relations_of(unit.definition)
                frame, _ = batch.timed_view(unit.definition, relations, watermarks[unit.name])
        table = as_table(frame, units[-1].schema).combine_chunks()
    finally:
        batch.close()
    return _having(table, wanted)


def _given(log: Log, name: str, records: Mapping[str, pa.Table]) -> pa.RecordBatch:
    """Return the records of a topic: its columns, then the metadata columns. A view that does not affect the meaning of the
    SQL is empty."""
    views = definitions(log)
    if name in views:
        return empty_rows(views[name].columns)
    topic = log.topic(name)
    schema = pa.schema([*topic.schema, *hidden_schema(topic)])
    rows = empty_rows(schema)
    if name in records:
        rows = concat_rows(records[name].select(schema.names).combine_chunks().to_batches(), schema)
    return rows if topic.time is None or topic.key else rows.append_column(WATERMARK, _met(log, name, rows))


def _changelog(log: Log, topic: TopicDefinition, found: pa.Table | None) -> pa.RecordBatch:
    """Return some records of a keyed topic, including tombstones, each with the watermark at which it arrived."""
    schema = pa.schema([*topic.schema, *hidden_schema(topic)])
    rows = empty_rows(schema)
    if found is not None:
        rows = concat_rows(found.select(schema.names).combine_chunks().to_batches(), schema)
    return rows.append_column(WATERMARK, _met(log, topic.name, rows))


def _met(log: Log, topic: str, rows: pa.RecordBatch) -> pa.Array:
    """Return the watermark at the arrival of every record."""
    places = zip(rows.column("_partition").to_pylist(), rows.column("_offset").to_pylist(), strict=True)
    return pa.array([log.watermark(topic, *place) for place in places], pa.int64()).view(TIMESTAMP)


def _having(table: pa.Table, wanted: Slice) -> pa.Table:
    rows = concat_rows(table.combine_chunks().to_batches(), table.schema)
    return table.filter(pa.array(within(rows.columns, rows.num_rows, (wanted,)), pa.bool_()))


def _counted(rows: pa.Table, what: str) -> str:
    return f"{rows.num_rows:,} {what}" + ("" if rows.num_rows == 1 else "s")
