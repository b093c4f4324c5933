"""Evaluation of alert conditions: on the rows of a view at a tick, or on the current samples of a metric.

Conditions are SQL, answered in this process: a condition that needs Spark is rejected when the alert is created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
from prometheus_client.core import Metric

from headwater.catalog.connectors import AlertDefinition
from headwater.core.errors import StatementError, UsageError
from headwater.core.types import quote
from headwater.log.protocol import Log
from headwater.serving.query import QueryRelation, relations
from headwater.sinks.base.json_values import plain_values
from headwater.sql.duckdb.serve import decline_reason, serve

if TYPE_CHECKING:
    from headwater.views.view_manager import Views

CollectMetrics = Callable[[], Iterable[Metric]]
"""Callable that returns the current metrics."""
WHOLE = "*"
"""Key of an episode for a view as a whole."""
ROWS_MAX = 1_000
"""Maximum number of rows that are reported one by one; more are reported as a whole."""
_SERIES = pa.schema([("value", pa.float64()), ("series", pa.int64())])


@dataclass(frozen=True)
class MatchingRows:
    """The rows that meet a condition, as JSON, by key. If `crowded`, they are too many to say anything about a single key."""

    holding: Mapping[str, str]
    crowded: bool = False
    present: frozenset[str] | None = field(default=None, compare=False)
    """Keys of all samples of a metric; None for a view. A missing sample does not end an episode at once."""


class Observer:
    """Evaluates the alerts of a workspace. The result at a tick is cached until the next tick."""

    def __init__(self, log: Log, views: Callable[[], Views], metrics: CollectMetrics) -> None:
        self._log = log
        self._views = views
        self._metrics = metrics
        self._kept: dict[str, tuple[AlertDefinition, int, MatchingRows]] = {}
        self._samples: list[Metric] | None = None

    def begin(self) -> None:
        """Start an evaluation: metrics are collected again."""
        self._samples = None

    def matching(self, alert: AlertDefinition) -> MatchingRows:
        """Return the rows that meet the condition of an alert; HeadwaterError if it cannot be evaluated."""
        return self._metric(alert) if alert.metric else self._view(alert)

    def check(self, alert: AlertDefinition) -> None:
        """Raise StatementError if the condition of an alert cannot be answered, or its metric does not exist."""
        if alert.metric:
            names = {name for family in self._families() for name in _names(family)}
            if alert.on not in names:
                near = get_close_matches(alert.on, names, 1)
                raise StatementError(
                    f"there is no metric {alert.on!r}",
                    hint=f"did you mean {near[0]}?" if near else "`headwater metrics` lists them",
                    metric=alert.on,
                )
            found: Mapping[str, QueryRelation] = {
                "metric": QueryRelation("metric", _SERIES, lambda *_: _SERIES.empty_table())
            }
        else:
            found = self._relations(alert)
        reason = decline_reason(_question(alert), found)
        if reason is not None:
            columns = "value" if alert.metric else ", ".join(next(iter(found.values())).schema.names)
            raise StatementError(
                f"the condition of alert {alert.name!r} cannot be evaluated: {reason}",
                detail=f"available columns: {columns}",
                hint="compute the value in a view, and create the alert on that view",
                alert=alert.name,
                condition=alert.condition,
            )

    # --- views -----------------------------------------------------------------------------------------------------

    def _relations(self, alert: AlertDefinition) -> dict[str, QueryRelation]:
        views = self._views()
        name = views.names.canonical_name(alert.on)
        found = relations(self._log, views.store, views.store.latest(), {name.lower()})
        return {name.lower(): found[name.lower()]}

    def _view(self, alert: AlertDefinition) -> MatchingRows:
        latest = self._views().store.latest()
        tick = 0 if latest is None else latest.tick
        kept = self._kept.get(alert.name)
        if kept is not None and kept[:2] == (alert, tick):
            return kept[2]
        rows = serve(_question(alert), self._relations(alert))
        if rows is None:
            raise UsageError(
                f"the condition of alert {alert.name!r} failed at tick {tick}: {alert.condition}",
                hint="run a query with the same condition to see the error",
                alert=alert.name,
                tick=tick,
            )
        matching = matching_rows(rows, alert)
        self._kept[alert.name] = (alert, tick, matching)
        return matching

    # --- metrics ---------------------------------------------------------------------------------------------------

    def _families(self) -> list[Metric]:
        if self._samples is None:
            self._samples = list(self._metrics())
        return self._samples

    def _metric(self, alert: AlertDefinition) -> MatchingRows:
        samples = [
            sample
            for family in self._families()
            if alert.on in _names(family)
            for sample in family.samples
            if sample.name in (alert.on, f"{alert.on}_total")
            and alert.labels.items() <= sample.labels.items()
        ]
        keys = [_json(dict(sorted(sample.labels.items()))) for sample in samples]
        table = pa.table(
            [pa.array([s.value for s in samples], pa.float64()), pa.array(range(len(samples)), pa.int64())],
            schema=_SERIES,
        )
        met = serve(_question(alert), {"metric": QueryRelation("metric", _SERIES, lambda *_: table)})
        if met is None:
            raise UsageError(
                f"the condition of alert {alert.name!r} failed: {alert.condition}", alert=alert.name
            )
        found = met.column("series").to_pylist()
        holding = {keys[i]: _json({**samples[i].labels, "value": samples[i].value}) for i in found}
        return MatchingRows(holding, present=frozenset(keys))


def _question(alert: AlertDefinition) -> str:
    if alert.metric:
        return f"SELECT series FROM metric WHERE ({alert.condition})"
    return f"SELECT * FROM {quote(alert.on)} WHERE ({alert.condition})"


def matching_rows(rows: pa.Table, alert: AlertDefinition) -> MatchingRows:
    """Return the rows that met the condition of an alert, by its key; their number alone if there is no key, or too many rows."""
    whole = {WHOLE: _json({"rows": rows.num_rows})}
    if WHOLE in alert.key or rows.num_rows > ROWS_MAX:
        return MatchingRows(whole if rows.num_rows else {}, crowded=WHOLE not in alert.key)
    columns = [plain_values(column.combine_chunks(), readable=True) for column in rows.columns]
    found = [dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]
    return MatchingRows({_json({name: row[name] for name in alert.key}): _json(row) for row in found})


def _names(family: Metric) -> set[str]:
    return {family.name, *(sample.name for sample in family.samples)} | (
        {f"{family.name}_total"} if family.type == "counter" else set()
    )


def _json(value: object) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
