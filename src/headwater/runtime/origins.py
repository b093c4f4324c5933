"""Whose private values the columns of a query are, through every view that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.catalog import TopicDefinition, ViewDefinition
from headwater.log.protocol import Log
from headwater.queries import graph as g
from headwater.queries.origins import PLAIN, Origin, Origins, Subject, Tracer, private_columns
from headwater.queries.statements import Query
from headwater.runtime.catalog import Catalog, definitions
from headwater.runtime.dependencies import private_below
from headwater.runtime.hidden import table_topic
from headwater.runtime.linear import columns_of
from headwater.runtime.planning.policy import Policy


@dataclass(frozen=True)
class Copied:
    """A column of a query that is made of private values: the column that says whose, None if none provably does."""

    column: str
    by: str | None
    subject: str | None
    """Whose values it has, as a column of a topic; None if they may be of several."""

    @property
    def why(self) -> str:
        """Why no column says whose it is."""
        if self.subject is None:
            return f"column {self.column!r} may be made of private values of several subjects"
        return f"column {self.column!r} is made of values that are private by {self.subject}, which is not among the columns"

    @property
    def remedy(self) -> str:
        """What to do about it."""
        if self.subject is None:
            return f"leave {self.column} out, or group by the column that says whose values they are"
        return f"add {self.subject} to the SELECT as it is (and to its GROUP BY), or leave {self.column} out"


def copied_by_view(
    log: Log,
    catalog: Catalog,
    view: ViewDefinition,
    key: Sequence[str] = (),
    *,
    instead: ViewDefinition | None = None,
) -> list[Copied]:
    """The columns of a view that are made of private values. `key` are those that rather say whose, of several that do; `instead` is
    a view that is about to take the place of the one of its name."""
    return _copied(_of_view(log, catalog, view, instead), view.columns.names, key)


def copied_by_query(log: Log, catalog: Catalog, query: Query, key: Sequence[str] = ()) -> list[Copied]:
    """The columns of a query that are made of private values; StatementError if it cannot be planned."""
    plan = catalog.plan(query)
    return _copied(_tracer(log, catalog).origins(plan.root), plan.schema.names, key)


def _copied(origins: Origins, names: Sequence[str], key: Sequence[str]) -> list[Copied]:
    folded = {name.lower() for name in key}
    prefer = [place for place, name in enumerate(names) if name.lower() in folded]
    found = []
    for one in private_columns(origins, prefer):
        known = [f"{s.topic}.{s.column}" for s in one.subjects if s.topic is not None]
        subject = known[0] if len(known) == len(one.subjects) == 1 else None
        found.append(Copied(names[one.column], None if one.by is None else names[one.by], subject))
    return found


def _of_view(
    log: Log, catalog: Catalog, view: ViewDefinition, instead: ViewDefinition | None = None
) -> Origins:
    plan = catalog.plan(Query(view.query), view.inputs, Policy.of(view))
    return _tracer(log, catalog, instead).origins(plan.root)


def _tracer(log: Log, catalog: Catalog, instead: ViewDefinition | None = None) -> Tracer:
    topics, views = log.topics(), dict(definitions(log))
    if instead is not None:
        views[instead.name] = instead

    def of_source(source: g.Source) -> Origins:
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
        return (Origin(frozenset({Subject()})) if hides else PLAIN,) * len(source.schema)

    return Tracer(of_source, columns_of)


def _of_topic(topic: TopicDefinition) -> Origins:
    private = dict(topic.private)
    subjects = {by: Subject(topic.name, by) for by in private.values()}
    return tuple(
        Origin(frozenset({subjects[private[name]]}))
        if name in private
        else Origin(tells=frozenset({subjects[name]}))
        if name in subjects
        else PLAIN
        for name in topic.schema.names
    )
