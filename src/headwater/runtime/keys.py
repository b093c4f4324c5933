"""Which columns of a view are a key by what the view is: the topics and views below it, and its own operators."""

from __future__ import annotations

from headwater.catalog import ViewDefinition
from headwater.log.protocol import Log
from headwater.queries import graph as g
from headwater.queries.statements import Query
from headwater.queries.uniqueness import NONE, Keys, unique_keys
from headwater.runtime.catalog import Catalog, definitions
from headwater.runtime.hidden import is_changelog, is_versions, table_topic
from headwater.runtime.planning.policy import Policy


def keys_of(log: Log, catalog: Catalog, view: ViewDefinition) -> list[tuple[str, ...]]:
    """The keys of a view by the names of their columns, the shortest first; () says that it has one row at most."""
    found = _keys(log, catalog, view)
    return sorted((tuple(view.columns.names[c] for c in sorted(key)) for key in found), key=len)


def only_grows(catalog: Catalog, view: ViewDefinition) -> bool:
    """Whether a view never takes a row back, by what it is."""
    return catalog.plan(Query(view.query), view.inputs, Policy.of(view)).root.append_only


def _keys(log: Log, catalog: Catalog, view: ViewDefinition) -> Keys:
    views, topics = definitions(log), log.topics()

    def of_source(source: g.Source) -> Keys:
        if is_versions(source.name) or is_changelog(source.name):
            return NONE
        name = table_topic(source.name)
        known: list[tuple[str, ...]] = []
        if name in views:
            known = keys_of(log, catalog, views[name])
        elif name in topics and topics[name].key:
            known = [topics[name].key]
        place = {column: at for at, column in enumerate(source.schema.names)}
        return frozenset(frozenset(place[c] for c in key) for key in known if all(c in place for c in key))

    plan = catalog.plan(Query(view.query), view.inputs, Policy.of(view))
    return unique_keys(plan.root, of_source)
