"""Late rows: rows of topics that come too late for a view. They are found apart from its graph, counted, and reported
in `<view>.late`.

The view's own graph excludes late rows (see `plan.time.late_rows`). This module evaluates only rows behind the
watermark at which they were appended, which are few: each is reported once for every window that it misses. A row that
is late for some of its windows but not for others is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.core.clock import Microseconds
from headwater.core.errors import UsageError
from headwater.core.positions import Ends
from headwater.core.types import TIMESTAMP
from headwater.engine.dataflow.dataflow import Dataflow
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.linear import as_mask
from headwater.log.protocol import Log
from headwater.operators import graph as g
from headwater.operators.window.emit_on_close import EARLIEST
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.plan.planner import LateGraph
from headwater.plan.relations.metadata_columns import WATERMARK
from headwater.plan.time.late_policy import LATE_COLUMNS
from headwater.state.manifest import CollectionRecord

LATE_NAME = "late"
_REPORT_COLUMNS = pa.schema(
    [
        ("_window_start", TIMESTAMP),
        ("_window_end", TIMESTAMP),
        ("_lateness", pa.int64()),
        ("_watermark", TIMESTAMP),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
    ]
)
"""Columns that follow a late row's own columns in its report; `_lateness` is in microseconds behind the watermark."""


@dataclass(frozen=True)
class Late:
    """The late rows of a change: the reports, and by topic the number of rows that are used nowhere."""

    rows: Delta
    counted: Mapping[str, int]


class Lateness:
    """Finds the late rows of a view. `times` has the event-time column of each topic."""

    def __init__(
        self,
        graphs: Sequence[LateGraph],
        times: Mapping[str, str],
        schema: pa.Schema,
        evaluator: Evaluator,
        *,
        is_reported: bool,
    ) -> None:
        self.schema = schema
        self.is_reported = is_reported
        """Whether late rows are reported, and not only counted."""
        self._graphs = [(graph.topic, graph.source, Dataflow(graph.root, evaluator)) for graph in graphs]
        self._times = times

    def found(self, changes: Mapping[str, Delta]) -> Late:
        """Return the late rows in changes of topics, or of the records of keyed topics; the changes must have position
        and watermark columns.

        Retracted rows retract their reports.
        """
        went = {name: change.filter(change.weights < 0).negated() for name, change in changes.items()}
        if any(map(len, went.values())):
            came = self.found({name: change.filter(change.weights > 0) for name, change in changes.items()})
            gone = self.found(went)
            counted = {
                topic: came.counted.get(topic, 0) - gone.counted.get(topic, 0)
                for topic in dict.fromkeys((*came.counted, *gone.counted))
            }
            return Late(consolidate(concat([came.rows, gone.rows.negated()], self.schema)), counted)
        rows: list[tuple[str, Delta]] = []
        places: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        behind = {source: self._behind(topic, changes.get(source)) for topic, source, _ in self._graphs}
        for topic, source, pipeline in self._graphs:
            change = behind[source]
            if change is None:
                continue
            made = pipeline.step({source: change}, _no_state, first=False).change  # type: ignore[arg-type]
            is_late = as_mask(made.rows.column(made.rows.num_columns - 1))
            places.setdefault(topic, []).append((_positions(made.rows), is_late))
            rows.append((topic, made))
        counted = {topic: _lost(found) for topic, found in places.items()}
        return Late(reports_of(rows, self.schema), counted)

    def _behind(self, topic: str, change: Delta | None) -> Delta | None:
        """Return the rows of a change behind the watermark at which they were appended, or None if the result is empty."""
        if change is None or not len(change):
            return None
        time, watermark = change.rows.column(self._times[topic]), change.rows.column(WATERMARK)
        behind = _micros(time) < _micros(watermark)
        return change.filter(behind) if behind.any() else None


def reports_of(rows: Sequence[tuple[str, Delta]], schema: pa.Schema) -> Delta:
    """Return the reports of the late rows among rows of topics, whose last columns are LATE_COLUMNS."""
    reports = consolidate(concat([_reports(topic, made, schema) for topic, made in rows], schema))
    # a topic that is read in two places has its late rows in both
    return Delta(reports.rows, np.sign(reports.weights), distinct=True)


def _reports(topic: str, made: Delta, schema: pa.Schema) -> Delta:
    late = made.filter(as_mask(made.rows.column(made.rows.num_columns - 1)))
    columns, names = late.rows.columns, late.rows.schema.names
    own, extra = columns[: -len(LATE_COLUMNS)], columns[-len(LATE_COLUMNS) :]
    known = {**dict(zip(names, own, strict=False)), **dict(zip(LATE_COLUMNS, extra, strict=True))}
    known["_lateness"] = pa.array(_micros(known[WATERMARK]) - _micros(known["_time"]))
    known["_topic"] = pa.array([topic] * len(late), pa.string())
    given = [known[f.name].cast(f.type) if f.name in known else pa.nulls(len(late), f.type) for f in schema]
    return late.with_rows(pa.RecordBatch.from_arrays(given, schema=schema))


def late_schema(graphs: Sequence[LateGraph]) -> pa.Schema:
    """Return the columns of `<view>.late`: those of the topic (or of all topics, with `_topic`), and those of the report."""
    topics = dict.fromkeys(graph.topic for graph in graphs)
    fields: dict[str, pa.Field] = {}
    for graph in graphs:
        for field in list(graph.root.schema)[: -len(LATE_COLUMNS)]:
            if fields.setdefault(field.name, field).type != field.type:
                raise UsageError(
                    f"late rows of {' and '.join(topics)} cannot be recorded in one view: column {field.name!r} has another type in each topic",
                    hint="late = 'drop' only counts them; or read one of the topics through another view",
                    reason="late-column-type",
                    column=field.name,
                )
    first = [pa.field("_topic", pa.string())] if len(topics) > 1 else []
    return pa.schema([*first, *fields.values(), *_REPORT_COLUMNS])


def reports_late_rows(late: str, correct_for_us: int | None) -> bool:
    """Whether late rows are reported, and not only counted."""
    return late == "divert" or correct_for_us is not None


def domains_of(root: g.Node) -> tuple[tuple[str, ...], ...]:
    """Return the groups of topics whose watermarks a graph waits for."""
    closes = (node for node in g.walk(root) if isinstance(node, g.Close))
    return tuple(dict.fromkeys(domain for node in closes for domain in node.domains))


def watermarks_at(log: Log, topics: Iterable[str], at: Ends) -> dict[str, int]:
    """Return the watermark of each topic at some positions: the minimum over its partitions, or EARLIEST."""
    found = {}
    for topic in topics:
        levels = [log.watermark(topic, partition, end) for partition, end in at.get(topic, {}).items()]
        found[topic] = min((EARLIEST if w is None else w for w in levels), default=EARLIEST)
    return found


def watermark_of(record: CollectionRecord) -> Microseconds | None:
    """Return the watermark that a view has reached: the minimum over the topics that it waits for.

    Returns None if the view waits for no topic, or a topic has no watermark yet.
    """
    reached = min(record.watermarks.values(), default=EARLIEST)
    return None if reached == EARLIEST else int(reached)


def _positions(rows: pa.RecordBatch) -> np.ndarray:
    first = rows.num_columns - len(LATE_COLUMNS)
    partition, offset = (rows.column(first + i).to_numpy().astype(np.int64) for i in range(2))
    positions: np.ndarray = partition << 48 | offset
    return positions


def _lost(places: Sequence[tuple[np.ndarray, np.ndarray]]) -> int:
    """Return the number of records that are late in every place of the graph that reads them."""
    positions = np.concatenate([p for p, _ in places])
    used = np.unique(np.concatenate([p[~late] for p, late in places]))
    return len(np.setdiff1d(positions, used))


def _micros(column: pa.Array) -> np.ndarray:
    values: np.ndarray = column.view(pa.int64()).fill_null(EARLIEST).to_numpy()
    return values


def _no_state(slot: object) -> list[object]:
    raise AssertionError(f"late rows are found without state, not with {slot}")
