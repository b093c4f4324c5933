"""The columns of a query with private values, and the subjects of these values, traced through every view that it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.view_definitions import ViewDefinition
from headwater.engine.collections.dependencies import private_below
from headwater.engine.collections.workload import Catalog, definitions
from headwater.engine.dataflow.facets.column_origins import PLAIN, ColumnOrigin, Origins, Subject
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.log.protocol import Log
from headwater.operators import graph as g
from headwater.plan.relations.metadata_columns import table_topic
from headwater.plan.time.late_policy import Policy
from headwater.sql.statements import QueryText


@dataclass(frozen=True)
class PrivateCopy:
    """A column of a query that is derived from private values; `by` is the column of their subject, None if no column
    provably is."""

    column: str
    by: str | None
    subject: str | None
    """Topic column of the subject; None if the values may be of several subjects."""

    @property
    def why(self) -> str:
        """Reason why no column is the subject's."""
        if self.subject is None:
            return f"column {self.column!r} may be computed from private values of several subjects"
        return f"column {self.column!r} is computed from values that are PRIVATE BY {self.subject}, which is not a column of the result"

    @property
    def remedy(self) -> str:
        """Advice for the author of the query."""
        if self.subject is None:
            return f"leave {self.column} out, or group by the column of the data subject"
        return f"add {self.subject} to the SELECT (and to its GROUP BY), or leave {self.column} out"


def copied_by_view(
    log: Log,
    catalog: Catalog,
    view: ViewDefinition,
    key: Sequence[str] = (),
    *,
    instead: ViewDefinition | None = None,
) -> list[PrivateCopy]:
    """Return the columns of a view that are derived from private values. `key` are columns to prefer as the subject's if
    several qualify; `instead` is a view that is about to replace the one of its name."""
    return _copied(_of_view(log, catalog, view, instead), view.columns.names, key)


def copied_by_query(
    log: Log, catalog: Catalog, query: QueryText, key: Sequence[str] = ()
) -> list[PrivateCopy]:
    """Return the columns of a query that are derived from private values; StatementError if the query cannot be planned."""
    plan = catalog.plan(query)
    return _copied(column_origins(plan.root, _of_sources(log, catalog)), plan.schema.names, key)


def _copied(origins: Origins, names: Sequence[str], key: Sequence[str]) -> list[PrivateCopy]:
    folded = {name.lower() for name in key}
    prefer = [place for place, name in enumerate(names) if name.lower() in folded]
    found = []
    for one in private_columns(origins, prefer):
        known = [f"{s.topic}.{s.column}" for s in one.subjects if s.topic is not None]
        subject = known[0] if len(known) == len(one.subjects) == 1 else None
        found.append(PrivateCopy(names[one.column], None if one.by is None else names[one.by], subject))
    return found


def _of_view(
    log: Log, catalog: Catalog, view: ViewDefinition, instead: ViewDefinition | None = None
) -> Origins:
    plan = catalog.plan(QueryText(view.query), view.inputs, Policy.of(view))
    return column_origins(plan.root, _of_sources(log, catalog, instead))


def _of_sources(
    log: Log, catalog: Catalog, instead: ViewDefinition | None = None
) -> Callable[[g.SourceNode], Origins]:
    """Return a function that computes the origins of the columns of a topic or view, at each mention in a query."""
    topics, views = log.topics(), dict(definitions(log))
    if instead is not None:
        views[instead.name] = instead

    def of_source(source: g.SourceNode) -> Origins:
        known: Origins | None = None
        names: list[str] = []
        if (topic := topics.get(table_topic(source.name))) is not None:
            known, names = _of_topic(topic), topic.schema.names
        elif (view := views.get(source.name)) is not None:
            known, names = _of_view(log, catalog, view, instead), view.columns.names
        shown = source.schema.names[: len(source.columns)]
        if known is not None and shown == [names[c] for c in source.columns if c < len(names)]:
            return (*(known[c] for c in source.columns), *(PLAIN,) * len(source.hidden))
        hides = instead is not None or private_below(log, table_topic(source.name)) is not None
        return (ColumnOrigin(frozenset({Subject()})) if hides else PLAIN,) * len(source.schema)

    return of_source


def _of_topic(topic: TopicDefinition) -> Origins:
    private = dict(topic.private)
    subjects = {by: Subject(topic.name, by) for by in private.values()}
    return tuple(
        ColumnOrigin(frozenset({subjects[private[name]]}))
        if name in private
        else ColumnOrigin(identifies=frozenset({subjects[name]}))
        if name in subjects
        else PLAIN
        for name in topic.schema.names
    )


def column_origins(node: g.Node, of_source: Callable[[g.SourceNode], Origins]) -> Origins:
    """Return the origin of each column of a node; `of_source` returns those of a topic or view."""
    if isinstance(node, g.SourceNode):
        return of_source(node)
    return kind_of(node).column_origins(node, [column_origins(child, of_source) for child in node.inputs])


@dataclass(frozen=True)
class Private:
    """A column that is derived from private values; `by` is the column of their subject, None if no column provably is."""

    column: int
    by: int | None
    subjects: tuple[Subject, ...]


def private_columns(origins: Origins, prefer: Iterable[int] = ()) -> list[Private]:
    """Return the columns that are derived from private values, each with the column of its subject, one of `prefer` if
    possible."""
    order = list(dict.fromkeys((*prefer, *range(len(origins)))))
    found = []
    for column, origin in enumerate(origins):
        if origin.of:
            by = next((c for c in order if not origins[c].of and origin.of <= origins[c].identifies), None)
            found.append(Private(column, by, tuple(origin.of)))
    return found
