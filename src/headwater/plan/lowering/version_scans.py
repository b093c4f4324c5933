"""Lowers row versions that a view derives itself from the records of a table.

In a plan they are a window that gives each record the begin of the next record of its key. `plan.time.on_time_versions`
adds it.
"""

from __future__ import annotations

from headwater.operators import graph as g
from headwater.plan.lowering.linear_steps import keyed, narrowed
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.relations.metadata_columns import is_changelog
from headwater.plan.relations.relations import SOURCE_KEY, Lowered
from headwater.spark.catalyst import Jvm, find, items, kind, output_of


def lower_records(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower a window over the records of a table, in which each record ends the version before it."""
    child = context.lower(plan.child())
    partition = items(plan.partitionSpec())
    op = next(a for a in child.attributes if a.name() == "_op")
    below, places = keyed(context, child, [*partition, *(o.child() for o in items(plan.orderSpec())), op])
    key, (begin, offset, tombstone) = places[: len(partition)], places[len(partition) :]
    attributes = [*below.attributes, plan.windowExpressions().head().toAttribute()]
    schema = context.catalyst.arrow_schema(attributes)
    node = g.VersionsNode(below.node, key, begin, offset, tombstone, schema)
    return narrowed(context, Lowered(node, attributes), output_of(plan))


def is_of_records(plan: Jvm) -> bool:
    """Whether a window looks at the next record of a table, with only filters and projections below it."""
    below = plan.child()
    while kind(below) in ("Project", "Filter"):
        below = below.child()
    if kind(below) != "LogicalRDD" or plan.windowExpressions().size() != 1:
        return False
    mark = below.output().head().metadata()
    is_lead = find(plan.windowExpressions().head(), lambda e: kind(e) == "Lead") is not None
    return is_lead and mark.contains(SOURCE_KEY) and is_changelog(mark.getString(SOURCE_KEY))
