"""Event times of relations: the times of their columns, and table versions derived from on-time records."""

from __future__ import annotations

from headwater.plan.relations.relations import Relation
from headwater.plan.rewrite.relation_names import relation_of
from headwater.plan.time.on_time_versions import has_on_time_versions, on_time_versions
from headwater.plan.time.timed_plan import Stream, TimedNode
from headwater.plan.time.timing_context import TimingContext
from headwater.spark.catalyst import Jvm, identity, items, output_of


def relation_in(context: TimingContext, plan: Jvm) -> Relation | None:
    """Return the relation that a projection was inserted for, or None."""
    name = relation_of(plan)
    return None if name is None else context.relations[name]


def time_relation(context: TimingContext, plan: Jvm, relation: Relation) -> TimedNode:
    """Apply the policy to a scan of a relation."""
    is_version = relation.is_versions
    if is_on_time := has_on_time_versions(context, relation):
        plan = on_time_versions(context, plan, relation)
    attributes = output_of(plan)
    width = len(relation.schema)
    times = {identity(a): relation.times[a.name()] for a in attributes[:width] if a.name() in relation.times}
    if relation.name not in context.mentions:
        context.renamed |= {identity(a): identity(a.child()) for a in items(plan.projectList())}
    else:  # if two scans read one relation, neither can be identified by the relation's own attributes
        own = {identity(a.child()) for a in items(plan.projectList())}
        context.renamed = {i: renamed for i, renamed in context.renamed.items() if renamed not in own}
        context.expiring = {place: by for place, by in context.expiring.items() if place[1] not in own}
    context.mentions.append(relation.name)
    hidden = {a.name(): a for a in attributes[width:]}
    if context.policy.leaves_out and context.policy.emits and not (relation.is_stream or is_on_time):
        context.refuse(
            plan,
            f"{context.policy.option} with EMIT ON WINDOW CLOSE makes the view append-only, and rows of {relation.name} can be retracted",
            hint=f"leave one of the two out, or join {relation.name} in a view over this one",
            reason="not-append-only",
            relation=relation.name,
        )
    if is_version and hidden:
        times |= {identity(a): relation.times[n] for n, a in hidden.items() if n in relation.times}
    stream = None
    if relation.is_stream and context.policy.leaves_out:
        stream = Stream(relation.name, tuple(attributes[:width]), hidden)
    carried = tuple(attributes) if stream is not None else ()
    is_table = not is_version and relation.versions is not None and not relation.append_only
    return TimedNode(
        plan, times, stream, carried, is_version=is_version, is_table=is_table, stays=relation.is_stream
    )
