"""The versions of a table's rows where a view makes them itself, from the table's records, as an operator.

In a plan they are a window: each record with when the next one of its key begins. See `punctual`, which puts it there.
"""

from __future__ import annotations

from headwater.queries import graph as g
from headwater.runtime.hidden import is_changelog
from headwater.runtime.planning.catalyst import Jvm, find, items, kind, output_of
from headwater.runtime.planning.handles import SOURCE_KEY, Lowered
from headwater.runtime.planning.windows import WindowReader


class SpanReader(WindowReader):
    """Reads the windows that make versions of records."""

    def _window(self, plan: Jvm) -> Lowered:
        return self._spans(plan) if _is_of_records(plan) else super()._window(plan)

    def _spans(self, plan: Jvm) -> Lowered:
        child = self.lower(plan.child())
        partition = items(plan.partitionSpec())
        op = next(a for a in child.attributes if a.name() == "_op")
        below, places = self._keyed(child, [*partition, *(o.child() for o in items(plan.orderSpec())), op])
        key, (begin, offset, tombstone) = places[: len(partition)], places[len(partition) :]
        attributes = [*below.attributes, plan.windowExpressions().head().toAttribute()]
        schema = self._c.arrow_schema(attributes)
        node = g.Versions(below.node, key, begin, offset, tombstone, schema)
        return self._narrowed(Lowered(node, attributes), output_of(plan))


def _is_of_records(plan: Jvm) -> bool:
    """Whether a window looks at the next record of a table, with nothing but filters and projections below it."""
    below = plan.child()
    while kind(below) in ("Project", "Filter"):
        below = below.child()
    if kind(below) != "LogicalRDD" or plan.windowExpressions().size() != 1:
        return False
    mark = below.output().head().metadata()
    is_lead = find(plan.windowExpressions().head(), lambda e: kind(e) == "Lead") is not None
    return is_lead and mark.contains(SOURCE_KEY) and is_changelog(mark.getString(SOURCE_KEY))
