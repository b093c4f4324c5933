"""Sessions as values of the query that groups by them: operations above a GROUP BY see whole sessions.

Spark merges rows into sessions when it runs an aggregate, because of a mark in the metadata of a grouping column that until
then has the interval of each row. Its optimizer is unaware of this. It pushes conditions on such a column below the
aggregate, where they remove rows and so split sessions; or it removes the aggregate as redundant below another GROUP BY or
DISTINCT, which then merges sessions of its own. So where a query uses sessions above their GROUP BY, the columns that
expose them are wrapped in an identity function that is declared non-deterministic: the optimizer does not move or remove
expressions that depend on it.

    Filter (end > x)                                    Filter (end > x)
    +- Aggregate [user, session],            becomes    +- Aggregate [user, own],
         [user, session.end AS end]                          [user, as_made(own.end) AS end]
                                                             +- Project [*, session AS own]

The engine removes the function from the optimized plan; batch runs execute it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from headwater.plan.rewrite.cumulate_window import exchanged, rewritten_plan
from headwater.plan.time.timed_plan import SESSION
from headwater.spark.catalyst import (
    Catalyst,
    Jvm,
    children_of,
    find,
    identity,
    items,
    kind,
    module,
    output_of,
)

_NAME = "headwater_session"
SESSION_COLUMN = "session_window"
"""Spark's name for the column of every session window."""
_PASSING = frozenset(["GlobalLimit", "LocalLimit", "Offset", "Sort", "SubqueryAlias", "View"])
_MAKING = frozenset(["Expand", "Generate", "Project", "Union", "Window"])
"""Nodes that may read sessions without parts of them being pushed below the session aggregate."""


class SessionPlan(NamedTuple):
    """A plan whose sessions are values above their GROUP BY."""

    plan: Jvm
    renamed: Mapping[int, int]
    """By the expression ID of a grouping column of the plan: the ID of the column in the given plan."""


def with_sessions_kept(catalyst: Catalyst, plan: Jvm) -> SessionPlan:
    """Return an analysed plan in which nothing above a GROUP BY with a session window is pushed below it; the plan itself
    if nothing would be."""
    # one JVM call, where a check of each node takes hundreds
    if SESSION_COLUMN not in plan.toString() or not _has_sessions(plan):
        return SessionPlan(plan, {})
    inlined = catalyst.jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False).apply(plan)
    uses = _SessionUses()
    uses.visit(inlined)
    if not uses.found:
        return SessionPlan(plan, {})
    renamed: dict[int, int] = {}
    shown: set[int] = set()

    def change(node: Jvm) -> Jvm:
        _pass_on(node, shown)
        node = _unmarked(catalyst, node, shown)
        session = session_of(node)
        return node if session is None else _with_session(catalyst, node, session, renamed, shown)

    return SessionPlan(rewritten_plan(catalyst, inlined, change), renamed)


def without_barriers(catalyst: Catalyst, plan: Jvm) -> Jvm:
    """Remove the identity function around sessions from an optimized plan."""

    def taken_out(expression: Jvm) -> Jvm | None:
        return children_of(expression)[0] if _is_barrier(expression) else None

    def change(node: Jvm) -> Jvm:
        holders = [e for e in items(node.expressions()) if find(e, _is_barrier) is not None]
        return exchanged(catalyst, node, [(e, catalyst.rewritten(e, taken_out)) for e in holders])

    return rewritten_plan(catalyst, plan, change)


def _with_session(
    catalyst: Catalyst, plan: Jvm, session: Jvm, renamed: dict[int, int], shown: set[int]
) -> Jvm:
    """Return an aggregate by sessions whose results expose the session through the identity function."""
    c, number = catalyst, identity(session)
    some = module(c.jvm.scala, "Some").apply(session.metadata())
    none = c.seq([])
    own = c.expressions.Alias(
        session, session.name(), c.expressions.NamedExpression.newExprId(), none, some, none
    )
    attribute = own.toAttribute()
    renamed[identity(attribute)] = number

    def of_own(expression: Jvm) -> Jvm | None:
        is_session = kind(expression) == "AttributeReference" and identity(expression) == number
        return attribute if is_session else None

    def result(given: Jvm) -> Jvm:
        made = c.rewritten(given, of_own)
        if made is given:
            return given
        shown.add(identity(given))
        value = made.child() if kind(made) == "Alias" else made
        return c.alias(_barrier(c, value), given.name(), like=given)

    below = c.plans.Project(c.seq([*output_of(plan.child()), own]), plan.child())
    keys = [c.rewritten(e, of_own) for e in items(plan.groupingExpressions())]
    results = [result(e) for e in items(plan.aggregateExpressions())]
    return plan.copy(c.seq(keys), c.seq(results), below, plan.hint())


def _unmarked(catalyst: Catalyst, plan: Jvm, shown: Collection[int]) -> Jvm:
    """Remove the session mark from a node that reads merged sessions, so that its GROUP BY does not merge them again."""
    if not shown:
        return plan
    none = catalyst.jvm.org.apache.spark.sql.types.Metadata.empty()

    def change(expression: Jvm) -> Jvm | None:
        is_shown = kind(expression) == "AttributeReference" and identity(expression) in shown
        return expression.withMetadata(none) if is_shown and _is_marked(expression) else None

    pairs = []
    for expression in items(plan.expressions()):
        made = catalyst.rewritten(expression, change)
        if made is not expression:
            pairs.append((expression, made))
    return exchanged(catalyst, plan, pairs)


def _pass_on(plan: Jvm, shown: set[int]) -> None:
    """Add the columns of a node that rename sessions from below to `shown`."""

    def is_shown(expression: Jvm) -> bool:
        return kind(expression) == "AttributeReference" and identity(expression) in shown

    if not shown:
        return
    if kind(plan) == "Expand":
        projections = [items(projection) for projection in items(plan.projections())]
        columns = zip(output_of(plan), zip(*projections, strict=True), strict=True)
        shown |= {identity(a) for a, made in columns if any(map(is_shown, made))}
        return
    named = (e for e in items(plan.expressions()) if kind(e) == "Alias")
    shown |= {identity(e) for e in named if is_shown(e.child())}


def _barrier(catalyst: Catalyst, value: Jvm) -> Jvm:
    """Wrap a value in an identity function that the optimizer treats as opaque."""
    c, none = catalyst, catalyst.none()
    same = getattr(module(c.jvm.scala, "Predef"), "$conforms")()
    name = module(c.jvm.scala, "Some").apply(_NAME)
    return c.expressions.ScalaUDF(
        same, value.dataType(), c.seq([value]), c.seq([]), none, name, value.nullable(), False
    )


def _is_barrier(expression: Jvm) -> bool:
    return kind(expression) == "ScalaUDF" and expression.name() == _NAME


def session_of(plan: Jvm) -> Jvm | None:
    """Return the session window that an aggregate groups by, or None."""
    if kind(plan) != "Aggregate":
        return None
    keys = items(plan.groupingExpressions())
    return next((e for e in keys if kind(e) == "AttributeReference" and _is_marked(e)), None)


def _is_marked(attribute: Jvm) -> bool:
    return bool(attribute.metadata().contains(SESSION))


def _has_sessions(plan: Jvm) -> bool:
    """Whether any aggregate of a plan, including subqueries, groups by sessions."""
    if session_of(plan) is not None:
        return True
    below = [*children_of(plan), *items(plan.subqueries())]
    return any(map(_has_sessions, below))


class _SessionUses:
    """Detects whether a plan uses sessions above their GROUP BY for anything but output."""

    def __init__(self) -> None:
        self.found = False
        self._sessions: set[int] = set()
        """Attributes that contain sessions, or are derived from them."""

    def visit(self, plan: Jvm) -> None:
        """Inspect a plan, bottom-up."""
        below = children_of(plan)
        for child in below:
            self.visit(child)
        name = kind(plan)
        if plan.subqueries().size():  # a subquery may use sessions anywhere in the expression
            self.found = True
        reads = self._reads(plan.groupingExpressions() if name == "Aggregate" else plan.expressions())
        if name in ("Distinct", "Intersect", "Except", "Deduplicate"):
            reads |= self._among(a for child in below for a in output_of(child))
        if reads and name not in _PASSING | _MAKING:
            self.found = True
        self._pass_on(plan, name)

    def _pass_on(self, plan: Jvm, name: str) -> None:
        output = [identity(a) for a in output_of(plan)]
        if name == "Union":
            for child in children_of(plan):
                pairs = zip(output, output_of(child), strict=True)
                self._sessions |= {a for a, b in pairs if identity(b) in self._sessions}
        elif name in ("Project", "Aggregate", "Window"):
            session = session_of(plan)
            mine = self._sessions if session is None else {*self._sessions, identity(session)}
            named = {
                identity(e): e
                for e in items(plan.expressions())
                if kind(e) in ("Alias", "AttributeReference")
            }
            self._sessions |= {i for i in output if i in named and _references(named[i]) & mine}
        elif self._reads(plan.expressions()):
            self._sessions |= set(output)

    def _reads(self, expressions: Jvm) -> bool:
        return any(_references(e) & self._sessions for e in items(expressions))

    def _among(self, attributes: Iterable[Jvm]) -> bool:
        return any(identity(a) in self._sessions for a in attributes)


def _references(expression: Jvm) -> set[int]:
    return {identity(a) for a in items(expression.references().toSeq())}
