"""Unique keys of a view, derived from the topics and views below it and from its own operators."""

from __future__ import annotations

from collections.abc import Callable

from headwater.catalog.view_definitions import ViewDefinition
from headwater.engine.collections.workload import Catalog, definitions
from headwater.engine.dataflow.facets.unique_keys import NONE, Keys
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.log.protocol import Log
from headwater.operators import graph as g
from headwater.plan.relations.metadata_columns import is_changelog, is_versions, table_topic
from headwater.plan.time.late_policy import Policy
from headwater.sql.statements import QueryText


def keys_of(log: Log, catalog: Catalog, view: ViewDefinition) -> list[tuple[str, ...]]:
    """Return the keys of a view as column names, the shortest first; () means that the view has at most one row."""
    found = _keys(log, catalog, view)
    return sorted((tuple(view.columns.names[c] for c in sorted(key)) for key in found), key=len)


def only_grows(catalog: Catalog, view: ViewDefinition) -> bool:
    """Whether a view, by its definition, never retracts a row."""
    return catalog.plan(QueryText(view.query), view.inputs, Policy.of(view)).root.append_only


def _keys(log: Log, catalog: Catalog, view: ViewDefinition) -> Keys:
    views, topics = definitions(log), log.topics()

    def of_source(source: g.SourceNode) -> Keys:
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

    plan = catalog.plan(QueryText(view.query), view.inputs, Policy.of(view))
    return unique_keys(plan.root, of_source)


def unique_keys(node: g.Node, of_source: Callable[[g.SourceNode], Keys]) -> Keys:
    """Return the keys of a node's output; `of_source` returns those of a topic or view, among the columns that are read of
    it."""
    if isinstance(node, g.SourceNode):
        return of_source(node)
    return kind_of(node).unique_keys(node, [unique_keys(child, of_source) for child in node.inputs])
