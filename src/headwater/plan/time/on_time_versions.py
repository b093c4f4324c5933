"""Row versions in views that drop late rows: they are derived from the on-time records of the table.

A record of a table whose validity begins before the watermark at its arrival would change results that were already joined.
In such a view, `customers.versions`, however it is read, is therefore not the shared relation but this query over its
records:

    SELECT *, lead(_valid_from) OVER (PARTITION BY <key> ORDER BY _valid_from, _offset) AS _valid_to
    FROM (SELECT *, coalesce(<WATERMARK column>, _source_time, _appended_at) AS _valid_from FROM <records>)
    WHERE NOT _valid_from + correct_for < _watermark

without the tombstones, which may be late like any other record. This bounds the versions that must be kept. New records
begin at the table's watermark W or later: for each key, the newest version before W can still be ended, and older versions
are final. The join result of a row of time t is final once W is past t; a version that ended at e matches no further row
once the watermarks of both sides have reached e. All of this requires that the query does not use the end of versions,
which may be set long after rows were joined with them.
"""

from __future__ import annotations

from headwater.core.types import quote
from headwater.plan.relations.metadata_columns import VERSIONED, table_topic
from headwater.plan.relations.relations import Relation
from headwater.plan.relations.time_bounds import TimeRange, base_and_offset, terms
from headwater.plan.time.late_rows import admitted
from headwater.plan.time.timed_plan import AsOfJoin, Stream, TimedNode, VersionMention
from headwater.plan.time.timing_context import TimingContext
from headwater.spark.catalyst import Jvm, children_of, identity, items, kind, module, option, output_of

_VALID_FROM, _VALID_TO, _VERSION = VERSIONED.names


def has_on_time_versions(context: TimingContext, relation: Relation) -> bool:
    """Whether a relation has row versions from which this view drops late ones."""
    return context.policy.leaves_out and relation.is_versions and bool(relation.times)


def on_time_versions(context: TimingContext, plan: Jvm, relation: Relation) -> Jvm:
    """Replace a scan of row versions by the versions of on-time records."""
    c, topic = context.catalyst, table_topic(relation.name)
    table = context.relations[topic]
    assert context.changelog is not None
    assert table.versions is not None
    records = context.changelog(topic)
    columns = output_of(records)
    width, named = len(table.schema), {a.name(): a for a in columns}
    timestamp = module(c.jvm.org.apache.spark.sql.types, "TimestampType")
    times = [c.cast(named[name], timestamp) for name in table.versions.begins if name in named]
    begin = c.alias(c.expressions.Coalesce(c.seq(times)), _VALID_FROM)
    begun = c.plans.Project(c.seq([*columns, begin]), records)
    at = begin.toAttribute()
    stream = Stream(topic, tuple(columns[:width]), {a.name(): a for a in columns[width:]})
    on_time = admitted(context, TimedNode(begun, {identity(at): relation.times[_VALID_FROM]}, stream), at)
    context.expire("Window", at, [topic], 0)
    keys = ", ".join(quote(table.schema.field(k).name) for k in table.versions.key)
    ends = f"lead({_VALID_FROM}) OVER (PARTITION BY {keys} ORDER BY {_VALID_FROM}, _offset) AS {_VALID_TO}"
    known = f"concat(_partition, ':', _offset) AS {_VERSION}"
    spans = c.dataset(on_time.plan).selectExpr(c.seq(["*", ends, known])).where("_op <> 'delete'")
    made = spans.queryExecution().analyzed()
    found = {a.name(): a for a in output_of(made)}
    given = items(plan.projectList())
    shown = {e.child().name(): identity(e) for e in given}
    context.version_mentions.append(VersionMention(plan, relation.name, shown[_VALID_FROM], shown[_VALID_TO]))
    return plan.copy(c.seq(e.withNewChildren(c.seq([found[e.child().name()]])) for e in given), made)


def note_as_of(
    context: TimingContext, plan: Jvm, left: TimedNode, right: TimedNode, bounds: TimeRange
) -> bool:
    """Whether a join matches rows with the versions valid at a time of the left row; such a join is recorded in the
    context."""
    mention = next((m for m in context.version_mentions if m.begin == identity(bounds.right)), None)
    if mention is None or bounds.most is None:
        return False
    for term, defined in terms(option(plan.condition()), {}):
        if kind(term) != "Or":
            continue
        end = next((e.child() for e in children_of(term) if kind(e) == "IsNull"), None)
        less = next((children_of(e) for e in children_of(term) if kind(e) == "LessThan"), None)
        if end is None or less is None or kind(end) != "AttributeReference":
            continue
        point = base_and_offset(less[0], defined)
        if identity(end) != mention.end or not end.semanticEquals(less[1]) or point is None:
            continue
        if (identity(point[0]), point[1]) == (identity(bounds.left), bounds.most):
            times = left.times[identity(bounds.left)]
            domains = times.domain, right.times[identity(bounds.right)].domain
            more = times.slack_us, left.is_left_out
            context.as_of_joins.append(AsOfJoin(mention, bounds, end, *domains, *more))
            return True
    return False


def settle_versions(context: TimingContext, plan: Jvm) -> None:
    """Let join state expire where the query does not use the end of versions.

    In a view that emits only final rows and never retracts them, reject uses of the end of versions, and versions that may
    appear or end at any time.
    """
    settled = [join for join in context.as_of_joins if not _is_read(plan, {join.mention.end})]
    if context.policy.emits:
        for mention in context.version_mentions:
            if not any(join.mention is mention for join in context.as_of_joins):
                _refuse_changing(context, mention, f"rows of {mention.relation} can be retracted", None)
            if not any(join.mention is mention for join in settled):
                why = f"{_VALID_TO} of {mention.relation} changes with the next version"
                _refuse_changing(context, mention, why, _VALID_TO)
    if len(settled) < len(context.as_of_joins):
        return  # rows of one join may be input of the next, and change when a version ends
    # the optimizer may reorder joins: the longest retention that one of them needs applies to all
    topics = sorted(frozenset().union(*(join.left | join.right for join in settled)))
    slack = max((max(join.slack_us, join.bounds.most or 0) for join in settled), default=0)
    for join in settled:
        assert join.bounds.most is not None
        if join.is_left_out:
            of_left = sorted(join.right) if len(settled) == len(join.left) == 1 else topics
            context.expire("Join", join.bounds.left, of_left, slack + 1)
            context.expire("Join", join.end, topics, max(0, slack - join.bounds.most))


def _refuse_changing(context: TimingContext, mention: VersionMention, why: str, column: str | None) -> None:
    if context.policy.options.late == "correct":
        return
    context.refuse(
        mention.plan,
        f"{context.policy.option} with EMIT ON WINDOW CLOSE makes the view append-only, and {why}",
        hint="join the version that is valid at the time of the row, and do not use the end of versions; or leave one of the two out",
        reason="not-append-only",
        relation=mention.relation,
        uses=column,
    )


def _is_read(plan: Jvm, columns: set[int]) -> bool:
    """Whether a plan outputs columns, or reads them anywhere but in one term of a join condition; aliases included."""
    return _times_read(plan, columns) > 1 or any(identity(a) in columns for a in output_of(plan))


def _times_read(plan: Jvm, columns: set[int]) -> int:
    """Count how often columns are read; aliases of the columns are added to `columns`."""
    count, name = sum(_times_read(child, columns) for child in children_of(plan)), kind(plan)
    for expression in items(plan.expressions()):
        if name == "Project" and kind(expression) == "AttributeReference":
            continue
        if not _refers(expression, columns):
            continue
        if name == "Project" and kind(expression) == "Alias" and _is_column(expression.child()):
            columns.add(identity(expression))
        elif name == "Join":
            count += sum(1 for term, _ in terms(expression, {}) if _refers(term, columns))
        else:
            count += 2  # any read outside of a join is one too many
    return count


def _refers(expression: Jvm, columns: set[int]) -> bool:
    return any(identity(a) in columns for a in items(expression.references().toSeq()))


def _is_column(expression: Jvm) -> bool:
    return kind(expression) == "AttributeReference"
