"""Admission of topic rows to a view: under `on_error = 'divert'`, rows on which the view's own expressions fail are excluded.

A row belongs to a topic as long as only filters, projections, generators and unions have processed it: up to the first
aggregate, join or window. An expression that fails there fails on a single row, regardless of when it is evaluated, so
a row that fails when it is inserted also fails when it is retracted. Such a row is excluded from everything that the
view reads, wherever in the query it has failed, and is reported in the view's errors. An error after that point does
not belong to a single row.

Rows are checked only after a step has failed. Then each linear step is evaluated once over all rows, to find those on
which it fails; error messages are obtained by evaluating one row of each group of equal rows.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headwater.core.errors import EvaluationError
from headwater.core.hashing import Indices, Mask, identities
from headwater.engine.dataflow.dataflow_stages import source_change
from headwater.engine.dataflow.jvm_expressions import Compiled, Evaluator
from headwater.engine.dataflow.linear import LinearStep, as_mask, compile_steps, renamed
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta, concat, groups_of, take_rows
from headwater.plan.relations.metadata_columns import POSITION, READABLE, table_topic
from headwater.plan.relations.relations import Bound
from headwater.spark.catalyst import identity, items

ERRORS = pa.schema(
    [
        ("_topic", pa.string()),
        *((name, READABLE.field(name).type) for name in POSITION),
        ("_error", pa.string()),
        ("_row", pa.string()),
    ]
)
"""Schema of a view's errors: the topic and position of the record, the error message, and the record's columns as JSON."""

Failures = dict[int, str]
"""By the index of a row in a change: the error message."""
Reasons = Callable[[Delta], "list[str | None]"]


@dataclass(frozen=True)
class AdmittedRows:
    """Changes of sources without the rows that fail, and the reports of those rows."""

    admitted: Mapping[str, Delta]
    errors: Delta
    failed: Mapping[str, int]
    """By topic, the increase in the number of failing rows."""


class Admission:
    """Finds the rows that fail in a view. `topics` has, by the topic's name in the graph, the columns that the view knows."""

    def __init__(self, root: g.Node, topics: Mapping[str, Sequence[str]], evaluator: Evaluator) -> None:
        self.topics = topics
        self._evaluator = evaluator
        self._above: dict[int, list[g.Node]] = {}
        nodes = {id(node): node for node in g.walk(root)}
        for node in nodes.values():
            for child in {id(child): child for child in node.inputs}.values():
                self._above.setdefault(id(child), []).append(node)
        self._sources = [node for node in nodes.values() if isinstance(node, g.SourceNode)]
        self._maps: dict[int, list[_Step]] = {}

    def sorted_out(self, changes: Mapping[str, Delta]) -> AdmittedRows:
        """Exclude the rows that fail from the changes of topics; the changes must have position columns."""
        admitted, errors, failed = dict(changes), [], {}
        for topic in self.topics:
            change = changes.get(topic)
            failures = self._failures(topic, change) if change is not None and len(change) else {}
            if change is None or not failures:
                continue
            places = np.array(sorted(failures), dtype=np.int64)
            kept = np.ones(len(change), dtype=np.bool_)
            kept[places] = False
            admitted[topic] = change.filter(kept)
            errors.append(self._errors(topic, change.take(places), [failures[int(p)] for p in places]))
            failed[table_topic(topic)] = int(change.weights[places].sum())
        return AdmittedRows(admitted, concat(errors, ERRORS), failed)

    def _failures(self, topic: str, change: Delta) -> Failures:
        found: Failures = {}
        numbered = Delta(change.rows, np.arange(1, len(change) + 1, dtype=np.int64))
        for source in self._sources:
            if source.name == topic:
                self._follow(source, source_change(source, numbered), found)
        return found

    def _follow(self, node: g.Node, rows: Delta, found: Failures) -> None:
        """Evaluate the nodes above while rows are single rows of a topic; a row's weight is its number, from 1 on."""
        for above in self._above.get(id(node), ()):
            if not len(rows):
                return
            if isinstance(above, g.Union):
                self._follow(above, rows.renamed(renamed(rows.rows, above.schema)), found)
            elif isinstance(above, g.Map) and not any(isinstance(s, g.Replicate) for s in above.steps):
                self._follow(above, self._mapped(above, rows, found), found)

    def _mapped(self, node: g.Map, rows: Delta, found: Failures) -> Delta:
        if id(node) not in self._maps:
            runs = compile_steps(node, self._evaluator)
            self._maps[id(node)] = [
                _Step(step, run, self._evaluator) for step, run in zip(node.steps, runs, strict=True)
            ]
        for step in self._maps[id(node)]:
            if not len(rows):
                return Delta.empty(node.schema)
            rows = step(rows, found)
        return rows.renamed(renamed(rows.rows, node.schema)) if len(rows) else Delta.empty(node.schema)

    def _errors(self, topic: str, rows: Delta, texts: list[str]) -> Delta:
        names = self.topics[topic]
        columns = [
            pa.array([table_topic(topic)] * len(rows), pa.string()),
            *(rows.rows.column(name).cast(READABLE.field(name).type) for name in POSITION),
            pa.array(texts, pa.string()),
            pa.array([_json(row) for row in rows.rows.select(names).to_pylist()], pa.string()),
        ]
        return rows.with_rows(pa.RecordBatch.from_arrays(columns, schema=ERRORS))


class _Step:
    """One step of a Map, evaluated without the rows on which it fails."""

    def __init__(self, step: g.Step, run: LinearStep, evaluator: Evaluator) -> None:
        self._step = step
        self._run = run
        self._evaluator = evaluator
        self._failing: Compiled | None = None
        self._every: Compiled | None = None

    def __call__(self, rows: Delta, found: Failures) -> Delta:
        try:
            return self._run(rows)
        except EvaluationError:
            rest = rows.filter(~self._noted(rows, self._looked_up(rows), self._said, found))
        try:
            return self._run(rest) if len(rest) else rest
        except EvaluationError:  # the step calls a user's function, which Spark cannot evaluate
            rest = rest.filter(~self._noted(rest, self._tried(rest), self._all_said, found))
        return self._run(rest) if len(rest) else rest

    def _looked_up(self, rows: Delta) -> Mask:
        """Return a mask of the rows on which an expression fails, computed by Spark."""
        bound = self._bound()
        if not bound:
            return np.zeros(len(rows), dtype=np.bool_)
        if self._failing is None:
            handles = [b.expression for b in bound]
            self._failing = self._evaluator.compile_failing(handles, bound[0].attributes)
            self._every = self._evaluator.compile(handles, bound[0].attributes)
        return as_mask(self._failing(rows.rows, len(rows))[0])

    def _said(self, rows: Delta) -> list[str | None]:
        """Return Spark's error message for each row."""
        return self._every.reasons(rows.rows, len(rows)) if self._every is not None and len(rows) else []

    def _all_said(self, rows: Delta) -> list[str | None]:
        """Return the error message of each row, found by running the step on each row alone."""
        return [self._why(rows.take(np.array([i]))) for i in range(len(rows))]

    def _tried(self, rows: Delta) -> Mask:
        """Return a mask of the rows on which the step fails, found by bisection."""
        failing = np.zeros(len(rows), dtype=np.bool_)
        left = [(0, len(rows))]
        while left:
            start, end = left.pop()
            if self._why(rows.take(np.arange(start, end))) is None:
                continue
            if end - start == 1:
                failing[start] = True
            else:
                middle = (start + end) // 2
                left += [(start, middle), (middle, end)]
        return failing

    def _noted(self, rows: Delta, suspected: Mask, reasons: Reasons, found: Failures) -> Mask:
        """Return a mask of the suspected rows that do fail, and record their messages; rows that are equal to the step
        share one."""
        failing = np.zeros(len(rows), dtype=np.bool_)
        kinds = list(self._kinds(rows, np.flatnonzero(suspected)))
        firsts = rows.take(np.array([alike[0] for alike in kinds], dtype=np.int64))
        for alike, text in zip(kinds, reasons(firsts), strict=True):
            if text is not None:
                failing[alike] = True
                for place in rows.weights[alike].tolist():
                    found.setdefault(place - 1, text)
        return failing

    def _kinds(self, rows: Delta, places: Indices) -> Iterator[Indices]:
        """Group the rows at these indices by their values in the columns that the step reads."""
        read = rows.rows.select(list(self._columns(rows.rows.num_columns)))
        columns = take_rows(read, places).columns
        groups = groups_of(*identities(columns, len(places), exact=True))
        if groups is None:
            yield from places.reshape(-1, 1)
        else:
            yield from np.split(places[groups.order], groups.starts[1:])

    def _columns(self, width: int) -> Sequence[int]:
        read: set[int] = set()
        for bound in self._bound():
            wanted = {identity(a) for a in items(bound.expression.references().toSeq())}
            read |= {i for i, a in enumerate(bound.attributes) if identity(a) in wanted}
        return sorted(read) or range(width)

    def _why(self, rows: Delta) -> str | None:
        try:
            self._run(rows)
        except EvaluationError as error:
            return str(error.facts.get("reason") or error.message)
        return None

    def _bound(self) -> list[Bound]:
        return [
            e.handle for e in _expressions(self._step) if e.column is None and isinstance(e.handle, Bound)
        ]


def _expressions(step: g.Step) -> Sequence[g.Expression]:
    match step:
        case g.Filter(condition):
            return (condition,)
        case g.Project(expressions):
            return expressions
        case g.Expand(projections):
            return [e for projection in projections for e in projection]
        case g.Replicate(count, keep):
            return (count, *keep)
        case g.Generate(_, _, argument):
            return (argument,)
        case g.UdfCall():
            return step.args


def no_single_row(error: EvaluationError) -> EvaluationError:
    """Return an error of a view that diverts rows, extended by the reason why no row can be diverted."""
    elsewhere = "compute it in a subquery over the topic, below joins and aggregates, or use try_divide, try_cast and the like"
    return EvaluationError(
        f"{error.message.rstrip('.')}. The error belongs to no single row of a topic, so no row can be diverted",
        detail=error.detail,
        hint=error.hint if "pattern" in error.facts else elsewhere,
        **error.facts,
    )


def _json(row: Mapping[str, Any]) -> str:
    return orjson.dumps(row, default=_plain, option=orjson.OPT_NON_STR_KEYS).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
