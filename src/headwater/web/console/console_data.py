"""Data of the console, collected from the log and committed ticks: no engine, no Spark, no external systems.

Every function returns a document of plain values. Times are milliseconds since 1970, durations are seconds, and rows
are lists of values in the order of the columns next to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headwater import __version__
from headwater.catalog.connectors import SINK, SOURCE
from headwater.core.clock import Microseconds, to_us
from headwater.core.errors import HeadwaterError, TickNotKeptError, UsageError, ViewUnavailableError
from headwater.core.types import format_type
from headwater.engine.collections.collections import view_of
from headwater.engine.collections.workload import definitions, derived_of
from headwater.log.lag import lag_report
from headwater.operators.zset.delta import concat_rows
from headwater.sinks.base.text_values import json_texts, texts
from headwater.views.view_status import ViewStatus, standings, stopped_lines
from headwater.web.committed_reads import manifest_at, view_relation
from headwater.web.console.console_graph import HEIGHT, WIDTH, Kind, Picture, draw
from headwater.web.console.console_health import add_health
from headwater.web.console.console_ticks import TickHistory
from headwater.web.idempotency_keys import TOPIC as KEYS_TOPIC

if TYPE_CHECKING:
    from headwater.catalog.definitions import TopicDefinition
    from headwater.catalog.view_definitions import ViewDefinition
    from headwater.connectors.health.health import Kind as ComponentKind
    from headwater.log.protocol import Log, PartitionInfo
    from headwater.state.manifest import Manifest
    from headwater.web.server_context import ServedWorkspace

SAMPLE_ROWS = 8
TEXT_MAX = 2_000
"""Longest text of a value, in characters; longer ones are cut."""
HISTORY_TICKS = 160
SORT_ROWS_MAX = 200_000
"""Size up to which results are sorted by default; larger ones are shown in stored order."""
HIDDEN_IN_TAIL = ("_partition", "_offset", "_appended_at")

Document = dict[str, Any]


def is_internal(topic: str) -> bool:
    """Whether a topic is Headwater's own, and so not shown in the graph."""
    return topic.startswith("_") or topic == KEYS_TOPIC


def milliseconds(moment: Microseconds | datetime | None) -> float | None:
    """Return a time in milliseconds, as browsers count it."""
    return None if moment is None else to_us(moment) / 1_000


# --- the graph -----------------------------------------------------------------------------------------------------


def graph(here: ServedWorkspace) -> Document:
    """Return the dataflow graph: sources, topics, views and sinks, with their positions, and the edges between them."""
    kinds, labels, edges = _graph(here)
    picture = _drawn(tuple(kinds.items()), tuple(edges))
    document = {
        "workspace": here.workspace.path.name if here.workspace.path is not None else "memory",
        "version": __version__,
        "size": [WIDTH, HEIGHT],
        "width": picture.width,
        "height": picture.height,
        "nodes": [
            {
                "id": node.id,
                "kind": kinds[node.id],
                "name": node.id.partition(":")[2],
                "label": labels[node.id],
                "column": node.column,
                "x": node.x,
                "y": node.y,
            }
            for node in picture.nodes
        ],
        "edges": [{"from": a, "to": b, "points": points} for a, b, points in picture.edges],
    }
    return {**document, "shape": shape(here)}


@lru_cache(maxsize=4)
def _drawn(kinds: tuple[tuple[str, Kind], ...], edges: tuple[tuple[str, str], ...]) -> Picture:
    """Return the layout of a graph, cached, as all clients see the same graph."""
    return draw(dict(kinds), edges)


def shape(here: ServedWorkspace) -> str:
    """Return a hash of the graph: it changes if and only if the graph does."""
    return str(xxhash.xxh3_64_hexdigest(orjson.dumps(_graph(here))))


def _graph(here: ServedWorkspace) -> tuple[dict[str, Kind], dict[str, str], list[tuple[str, str]]]:
    log = here.log
    kinds: dict[str, Kind] = {}
    labels: dict[str, str] = {}
    edges: list[tuple[str, str]] = []
    sources = here.supervisor.sources.definitions() if log.entries(SOURCE) else {}
    sinks = here.supervisor.sinks.definitions() if log.entries(SINK) else {}
    views = definitions(log)
    for name, source in sources.items():
        kinds[f"source:{name}"], labels[f"source:{name}"] = "source", source.kind
    for name, topic in sorted(log.topics().items()):
        if not is_internal(name):
            kinds[f"topic:{name}"] = "topic"
            labels[f"topic:{name}"] = "table" if topic.key else "topic"
            edges.append((f"source:{topic.captured_by}", f"topic:{name}"))
    for name, view in sorted(views.items()):
        kinds[f"view:{name}"] = "view"
        labels[f"view:{name}"] = "final rows" if view.emit_on_close else "view"
        for read in map(view_of, view.reads):
            edges.append((f"{'view' if read in views else 'topic'}:{read}", f"view:{name}"))
    for name, sink in sorted(sinks.items()):
        kinds[f"sink:{name}"], labels[f"sink:{name}"] = "sink", sink.kind
        edges.append((f"view:{view_of(sink.view)}", f"sink:{name}"))
        if sink.kind == "topic":
            edges.append((f"sink:{name}", f"topic:{sink.options.get('topic')}"))
    return kinds, labels, edges


# --- rows ----------------------------------------------------------------------------------------------------------


def columns_of(schema: pa.Schema, key: Sequence[str] = ()) -> list[Document]:
    """Return the columns of a schema, with their SQL types."""
    return [
        {"name": f.name, "type": format_type(f.type), "nullable": f.nullable, "key": f.name in key}
        for f in schema
    ]


def rows_of(table: pa.Table | pa.RecordBatch) -> orjson.Fragment:
    """Return rows as lists of values; long values are cut."""
    if isinstance(table, pa.Table):
        table = concat_rows(table.to_batches(), table.schema)
    cells = [_cells(column) for column in table.columns]
    lines = ("[" + ",".join(row) + "]" for row in zip(*cells, strict=True))
    return orjson.Fragment(("[" + ",".join(lines) + "]").encode())


def _cells(column: pa.Array) -> list[str]:
    found = []
    for text in json_texts(column).to_pylist():
        if text is None:
            found.append("null")
        elif len(text) > TEXT_MAX:
            shown = orjson.loads(text) if text.startswith('"') else text
            found.append(orjson.dumps(str(shown)[:TEXT_MAX] + "…").decode())
        else:
            found.append(text)
    return found


def sample(table: pa.Table) -> Document:
    """Return the first rows of a table with their columns."""
    some = table.slice(0, SAMPLE_ROWS)
    return {"columns": columns_of(some.schema), "rows": rows_of(some)}


# --- topics --------------------------------------------------------------------------------------------------------


def topic(here: ServedWorkspace, name: str) -> Document:
    """Return the details of a topic."""
    log = here.log
    made = log.topic(name)
    infos = log.partitions(made.name)
    readers = sorted(v.name for v in definitions(log).values() if made.name in v.reads)
    lags = [lag for lag in lag_report(log, here.clock) if lag.topic == made.name]
    return {
        "kind": "topic",
        "name": made.name,
        "internal": is_internal(made.name),
        "sql": made.to_sql(),
        "columns": columns_of(made.schema, made.key),
        "keyed": made.keyed,
        "time": made.time,
        "lateness_s": made.lateness_us / 1e6 if made.time else None,
        "source": made.captured_by,
        "readers": readers,
        "partitions": [
            {
                "partition": p,
                "first": info.first,
                "end": info.end,
                "rows": info.rows,
                "bytes": info.size_bytes,
                "watermark": milliseconds(info.watermark),
                "appended_at": milliseconds(info.last_appended_at),
            }
            for p, info in sorted(infos.items())
        ],
        "cursors": [
            {"name": lag.cursor, "lag_rows": lag.rows, "lag_s": lag.seconds, "missed": lag.missed}
            for lag in lags
        ],
        "sample": sample(_newest(log, made, infos, SAMPLE_ROWS)),
    }


def _newest(log: Log, made: TopicDefinition, infos: Mapping[int, PartitionInfo], rows: int) -> pa.Table:
    columns = [*HIDDEN_IN_TAIL[1:], *made.schema.names]
    share = max(1, -(-rows // len(infos)))
    starts = {p: max(info.first, info.end - share) for p, info in infos.items()}
    return newest_first(read(log, made, starts, infos, columns)).slice(0, rows)


def read(
    log: Log,
    made: TopicDefinition,
    starts: Mapping[int, int],
    infos: Mapping[int, PartitionInfo],
    columns: Sequence[str],
) -> pa.Table:
    """Return the records of each partition from a position to its known end, with `_partition` as the first column."""
    tables = []
    for partition, start in starts.items():
        info = infos[partition]
        begin = max(start, info.first)
        if begin < info.end:
            for batch in log.read(made.name, partition, begin, info.end, columns):
                numbers = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
                tables.append(pa.Table.from_batches([batch]).add_column(0, "_partition", numbers))
    if not tables:
        schema = [pa.field("_partition", pa.int32())]
        for name in columns:
            known = name in made.schema.names
            schema.append(made.schema.field(name) if known else pa.field(name, _hidden_type(name)))
        return pa.schema(schema).empty_table()
    return pa.concat_tables(tables)


def _hidden_type(name: str) -> pa.DataType:
    return {"_offset": pa.int64(), "_op": pa.string()}.get(name, pa.timestamp("us", "UTC"))


def newest_first(rows: pa.Table) -> pa.Table:
    """Return records by append time, the newest first; records of the same time by offset."""
    keys = [("_appended_at", "descending"), ("_offset", "descending"), ("_partition", "ascending")]
    return rows.take(pc.sort_indices(rows, keys))


def event_times(here: ServedWorkspace, name: str, rows: int) -> Document:
    """Return the append and event times of a topic's newest records, each with the watermark before the record."""
    log = here.log
    made = log.topic(name)
    if made.time is None:
        raise UsageError(
            f"topic {made.name!r} has no event time",
            hint="WATERMARK FOR column AS column - INTERVAL '...' in CREATE TOPIC declares one",
            topic=made.name,
        )
    infos = log.partitions(made.name)
    share = max(1, rows // len(infos))
    starts = {p: info.end - share for p, info in infos.items()}
    found = read(log, made, starts, infos, [made.time, "_offset", "_appended_at", "_watermark"])
    found = found.filter(pc.is_valid(found[made.time]))
    keys = [("_appended_at", "ascending"), ("_offset", "ascending"), ("_partition", "ascending")]
    found = found.take(pc.sort_indices(found, keys))
    late = pc.fill_null(pc.less(_us(found[made.time]), _us(found["_watermark"])), False)
    return {
        "topic": made.name,
        "time": made.time,
        "lateness_s": made.lateness_us / 1e6,
        "total": sum(info.rows for info in infos.values()),
        "late": pc.sum(late).as_py() or 0,
        "partition": found["_partition"].to_pylist(),
        "offset": found["_offset"].to_pylist(),
        "appended": _ms(found["_appended_at"]),
        "event": _ms(found[made.time]),
        "watermark": _ms(found["_watermark"]),
        "is_late": [int(value) for value in late.to_pylist()],
    }


def _us(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())


def _ms(column: pa.ChunkedArray) -> list[float | None]:
    return [None if value is None else value / 1_000 for value in _us(column).to_pylist()]


# --- views ---------------------------------------------------------------------------------------------------------


def view(here: ServedWorkspace, name: str, ticks: TickHistory) -> Document:
    """Return the details of a view."""
    log, views = here.log, here.views
    made = views.names.describe(name)
    manifest = views.store.latest()
    standing = next(s for s in standings(log, manifest) if s.view == made.name)
    derived = sorted(derived_of(made))
    return {
        "kind": "view",
        "name": made.name,
        "sql": made.to_sql(),
        "columns": columns_of(made.columns, _key(made, manifest)),
        "reads": list(dict.fromkeys(map(view_of, made.reads))),
        "readers": sorted(v.name for v in definitions(log).values() if made.name in map(view_of, v.reads)),
        "sinks": here.supervisor.sinks.of_view(made.name) if log.entries(SINK) else [],
        "derived": derived,
        "late": made.options.late,
        "on_error": made.options.on_error,
        "final": made.emit_on_close,
        **view_metrics(standing, manifest),
        "hint": _hint(log, standing, manifest),
        "ledger": views.reports.ledger(made.name),
        "state": _state(made, manifest),
        "history": [
            {"tick": t.tick, "at": t.committed_at // 1_000, "changed": t.changed.get(made.name, 0)}
            for t in ticks.last(HISTORY_TICKS)
        ],
        "errors": _peek(here, f"{made.name}.errors", derived, manifest),
        "diverted": _peek(here, f"{made.name}.late", derived, manifest),
        "sample": _peek(here, made.name, [made.name], manifest),
    }


def _key(made: ViewDefinition, manifest: Manifest | None) -> list[str]:
    state = manifest.views.get(made.name) if manifest is not None else None
    if state is None or state.status != "live":
        return []
    schema = state.arrow_schema
    key = [schema.field(int(k)).name for k in state.record.key]
    return key if len(key) < len(schema) else []


def view_metrics(standing: ViewStatus, manifest: Manifest | None) -> Document:
    """Return the metrics of a view at the newest tick."""
    return {
        "status": standing.status,
        "reason": standing.reason,
        "lag_rows": standing.behind_rows,
        "last_tick": standing.last_tick,
        "watermark": milliseconds(standing.watermark),
        "totals": dict(standing.ledger),
        "state_bytes": state_bytes(manifest, standing.view),
    }


def state_bytes(manifest: Manifest | None, view: str) -> int:
    """Return the size of a view's arrangements, in bytes."""
    return sum(ref.size for refs in _arrangements(manifest, view).values() for ref in refs)


def _arrangements(manifest: Manifest | None, view: str) -> Mapping[str, Any]:
    state = manifest.views.get(view) if manifest is not None else None
    return {} if manifest is None or state is None else manifest.kept_for(state)


def _state(made: ViewDefinition, manifest: Manifest | None) -> list[Document]:
    return [
        {
            "name": name.rpartition("/")[2],
            "runs": len(refs),
            "rows": sum(ref.rows for ref in refs),
            "bytes": sum(ref.size for ref in refs),
        }
        for name, refs in sorted(_arrangements(manifest, made.name).items())
    ]


def _hint(log: Log, standing: ViewStatus, manifest: Manifest | None) -> str | None:
    if standing.status == "stopped":
        lines = stopped_lines(log, manifest)
        return next((line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")), None)
    if manifest is None:
        return "there is no tick yet: `headwater run`, or ws.run(), makes the first"
    return None


def _peek(
    here: ServedWorkspace, name: str, there: Sequence[str], manifest: Manifest | None
) -> Document | None:
    """Return the first rows of a view or derived relation; None if it does not exist, or is in no tick yet."""
    if name not in there or manifest is None:
        return None
    try:
        rows = view_relation(here.log, here.views, name, manifest).read(None, None)
    except (ViewUnavailableError, TickNotKeptError):
        return None
    return {"total": rows.num_rows, **sample(rows)}


def view_rows(
    here: ServedWorkspace,
    name: str,
    as_of: int | str | datetime | None,
    search: str,
    sort: str | None,
    limit: int,
) -> Document:
    """Return the rows of a view, or of a relation derived from it, at a tick: those with a value that contains `search`."""
    manifest = manifest_at(here.views, as_of)
    relation = view_relation(here.log, here.views, name, manifest)
    assert manifest is not None, "a view without a tick was refused"
    rows = relation.read(None, None)
    total = rows.num_rows
    if search:
        rows = rows.filter(_matching(rows, search))
    return {
        "view": relation.name,
        "tick": manifest.tick,
        "at": manifest.committed_at // 1_000,
        "total": total,
        "matching": rows.num_rows,
        "columns": columns_of(relation.schema),
        "rows": rows_of(_sorted(rows, sort).slice(0, limit)),
    }


def _matching(rows: pa.Table, search: str) -> pa.ChunkedArray | pa.Array:
    """Return which rows have a value whose displayed text contains `search`, ignoring case."""
    found = None
    for column in concat_rows(rows.to_batches(), rows.schema).columns:
        part = pc.fill_null(pc.match_substring(texts(column), search, ignore_case=True), False)
        found = part if found is None else pc.or_(found, part)
    return found if found is not None else pa.array([False] * rows.num_rows, pa.bool_())


def _sorted(rows: pa.Table, sort: str | None) -> pa.Table:
    """Return rows sorted by a column (`-column`: descending), then by all others, so that their order is stable between
    ticks."""
    if rows.num_rows > SORT_ROWS_MAX and sort is None:
        return rows
    order = "descending" if sort is not None and sort.startswith("-") else "ascending"
    first = (sort or "").removeprefix("-")
    if sort is not None and first not in rows.column_names:
        raise UsageError(f"there is no column {first!r} to sort by", column=first)
    names = [first] if sort is not None else []
    names += [name for name in rows.column_names if name not in names]
    flat: dict[str, pa.ChunkedArray] = {}
    for name in dict.fromkeys(names):
        for part in rows.select([name]).flatten().columns:
            if not pa.types.is_nested(part.type) and not pa.types.is_binary(part.type):
                flat[f"{len(flat)} {name}"] = part
    if not flat:
        return rows
    keys = [(key, order if key.partition(" ")[2] == first else "ascending") for key in flat]
    return rows.take(pc.sort_indices(pa.table(flat), keys))


# --- ticks ---------------------------------------------------------------------------------------------------------


def tick(here: ServedWorkspace, number: int, ticks: TickHistory) -> Document:
    """Return the records that a tick read, its changes of views, and its phases; TickNotKeptError."""
    store = here.views.store
    manifest = store.manifest(number)
    before = ticks.get(number - 1)
    then = store.manifest(number - 1).positions if before is not None else None
    one, after = ticks.get(number), ticks.get(number + 1)
    assert one is not None
    views = definitions(here.log)
    taken = {}
    if then is not None:
        for name, ends in manifest.positions.items():
            taken[name] = sum(end - then.get(name, {}).get(p, 0) for p, end in ends.items())
    return {
        "tick": number,
        "at": manifest.committed_at // 1_000,
        "rows": one.rows,
        "phases": one.cost(after),
        "whole": after is not None,
        "topics": [{"name": name, "rows": rows} for name, rows in sorted(taken.items()) if rows],
        "views": [
            {
                "name": name,
                "status": state.status,
                "reason": state.reason,
                "changed": one.changed.get(name, 0),
            }
            for name, state in sorted(manifest.views.items())
            if name in views
        ],
    }


# --- external systems ----------------------------------------------------------------------------------------------


def source(here: ServedWorkspace, name: str) -> Document:
    """Return the details of a source, without connecting to its system."""
    sources = here.supervisor.sources
    declared_name = sources.canonical_name(name)
    made = sources.definitions()[declared_name]
    summary = sources.status(declared_name)
    return _with_health(
        here,
        "source",
        {
            "kind": "source",
            "name": declared_name,
            "sql": made.to_sql(),
            "type": made.kind,
            "position": summary.position,
            "topics": sorted(t.name for t in here.log.topics().values() if t.captured_by == declared_name),
            **source_metrics(sources.facts().get(declared_name), summary.state),
        },
    )


def _with_health(here: ServedWorkspace, kind: ComponentKind, document: Document) -> Document:
    found = here.supervisor.health().of(kind, document["name"])
    if found is not None:
        add_health(document, found)
    return document


def source_metrics(facts: Mapping[str, Any] | None, state: str) -> Document:
    """Return the metrics of a source."""
    reported = facts or {}
    return {
        "state": state,
        "failed": not reported.get("up", True),
        "running": facts is not None and bool(reported.get("up")),
        "rows": reported.get("rows"),
        "commits": reported.get("commits"),
        "committed_at": milliseconds(reported.get("committed_at")),
        "retained_bytes": reported.get("retained_bytes"),
        "behind_bytes": reported.get("behind_bytes"),
        "over_budget": bool(reported.get("over_budget")),
        "stopped_tables": list(reported.get("stopped_tables") or ()),
        "counts": reported.get("counts") or {},
        "last_refused": list(reported.get("last_refused") or ()),
    }


def sink(here: ServedWorkspace, name: str) -> Document:
    """Return the details of a sink, without connecting to its target."""
    sinks = here.supervisor.sinks
    declared_name = sinks.canonical_name(name)
    made = sinks.definitions()[declared_name]
    return _with_health(
        here,
        "sink",
        {
            "kind": "sink",
            "name": declared_name,
            "sql": made.to_sql(),
            "type": made.kind,
            "view": made.view,
            "key": list(made.key),
            **sink_metrics(sinks.facts().get(declared_name)),
        },
    )


def sink_metrics(facts: Mapping[str, Any] | None) -> Document:
    """Return the metrics of a sink, as reported by the process that runs the sink."""
    status: Mapping[str, Any] = facts["status"] if facts is not None else {}
    lag: Mapping[str, Any] = facts["lag"] if facts is not None else {}
    return {
        "state": status.get("state", "not running"),
        "reason": status.get("reason"),
        "tick": status.get("tick"),
        "attempts": status.get("attempts", 0),
        "withheld": status.get("withheld", 0),
        "circuit": status.get("circuit"),
        "applied_rows": status.get("applied_rows"),
        "lag_ticks": lag.get("ticks"),
        "lag_rows": lag.get("rows"),
        "lag_s": lag.get("seconds"),
    }


# --- dead letters --------------------------------------------------------------------------------------------------


def letters(here: ServedWorkspace, of: str | None, state: str, limit: int) -> Document:
    """Return the dead letters of sources, views, sinks and queues, the newest first."""
    dead = here.workspace.dead()
    found = dead.page(of, state, limit)
    return {
        "total": found.total,
        "silent": dict(dead.unreadable),
        "letters": [letter_document(one) for one in found.letters],
    }


def letter_document(one: Any) -> Document:
    """Return a dead letter with the actions on it."""
    return {
        "id": one.id,
        "kind": one.letter.kind,
        "owner": one.letter.owner,
        "state": one.state,
        "at": milliseconds(one.letter.at),
        "error": one.letter.error,
        "row": one.row[:TEXT_MAX],
        "original": one.letter.row[:TEXT_MAX],
        "copies": one.letter.copies,
        "version": one.version,
        "actions": [
            {
                "action": record.action,
                "who": record.who,
                "at": milliseconds(record.at),
                "reason": record.reason,
                "settled": record.settled,
                "edited": record.edited,
            }
            for record in one.actions
        ],
    }


def letter(here: ServedWorkspace, name: str) -> Document:
    """Return a dead letter with the columns that can be edited, or with the reason why it cannot be edited."""
    dead = here.workspace.dead()
    found = letter_document(dead.show(name))
    try:
        return {**found, "columns": columns_of(dead.columns(name)), "fixed": None}
    except HeadwaterError as error:
        why = error.message if error.hint is None else f"{error.message}: {error.hint}"
        return {**found, "columns": [], "fixed": why}
