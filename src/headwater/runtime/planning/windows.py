"""Window functions and limits of a plan, as operators: top-k where only the first rows count, else by whole groups."""

from __future__ import annotations

from headwater.queries import graph as g
from headwater.runtime.planning.catalyst import (
    Jvm,
    children_of,
    find,
    identity,
    items,
    kind,
    output_of,
    readable,
)
from headwater.runtime.planning.handles import Evaluation, Lowered
from headwater.runtime.planning.reader import Reader

_RANKS: dict[str, g.RankFunction] = {"RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank"}


class WindowReader(Reader):
    """Reads OVER, QUALIFY and LIMIT."""

    def _window(self, plan: Jvm) -> Lowered:
        self._refuse_unordered(plan)
        child = self._counted(self.lower(plan.child()))
        below, key = self._keyed(child, items(plan.partitionSpec()))
        attributes = [*child.attributes, *(e.toAttribute() for e in items(plan.windowExpressions()))]
        node = g.Regroup(
            below.node,
            key,
            readable(plan).splitlines()[0],
            Evaluation(plan, tuple(child.attributes)),
            self._c.arrow_schema(attributes),
        )
        return self._narrowed(Lowered(node, attributes), output_of(plan))

    def _refuse_unordered(self, plan: Jvm) -> None:
        """A user's window of this kind was refused before: this one is what became of a correlated LIMIT."""
        if plan.orderSpec().size() == 0 and any(
            find(e, lambda e: kind(e) == "RowNumber") is not None for e in items(plan.windowExpressions())
        ):
            self._refuse(
                plan,
                "LIMIT without ORDER BY takes any rows, and another choice would be as good",
                hint="say which: ORDER BY ... LIMIT",
            )

    def filtered(self, plan: Jvm) -> Lowered:
        """What a filter filters: of a window whose ranks it bounds, the first rows alone."""
        ranked = self._rank_filter(plan)
        return ranked if ranked is not None else self.lower(plan.child())

    def _rank_filter(self, plan: Jvm) -> Lowered | None:
        """A filter `rank <= k` over a window that only ranks: the rows beyond k need not be looked at."""
        window = plan.child()
        if kind(window) != "Window" or window.windowExpressions().size() != 1:
            return None
        named = window.windowExpressions().head()
        found = find(named, lambda e: kind(e) == "WindowExpression")
        function = _RANKS.get(kind(found.windowFunction())) if found is not None else None
        limit = self._limit_in(plan.condition(), named.toAttribute())
        if function is None or limit is None or window.orderSpec().size() == 0:
            return None  # `_window` says what is wrong with a rank without an order
        child = self.lower(window.child())
        below, key = self._keyed(child, items(window.partitionSpec()))
        below, order = self._ordered(below, window.orderSpec())
        if below.node is not child.node and len(below.attributes) > len(child.attributes):
            # ties go by the remaining columns, which must not be the order's own helpers
            return None
        rank = named.toAttribute()
        attributes = [*below.attributes, rank]
        node = g.Rank(
            below.node, key, order, function, max(limit, 0), 0, True, self._c.arrow_schema(attributes)
        )
        return Lowered(node, attributes)

    def _limit_in(self, condition: Jvm, rank: Jvm) -> int | None:
        """The k of `rank <= k`, `rank < k` or `rank = k` among the terms of a condition."""
        if kind(condition) == "And":
            found = [self._limit_in(c, rank) for c in children_of(condition)]
            limits = [f for f in found if f is not None]
            return min(limits) if limits else None
        if kind(condition) not in ("LessThanOrEqual", "LessThan", "EqualTo"):
            return None
        left, right = children_of(condition)
        if kind(left) != "AttributeReference" or identity(left) != identity(rank) or kind(right) != "Literal":
            return None
        value = right.value()
        if not isinstance(value, int):
            return None
        return value - 1 if kind(condition) == "LessThan" else value

    def _globallimit(self, plan: Jvm) -> Lowered:
        return self._limited(plan, self._number(plan.limitExpr()), plan.child(), 0)

    def _offset(self, plan: Jvm) -> Lowered:
        return self._limited(plan, None, plan, 0)

    def _limited(self, plan: Jvm, limit: int | None, below: Jvm, offset: int) -> Lowered:
        projects: list[Jvm] = []
        while kind(below) in ("LocalLimit", "GlobalLimit", "Offset", "Project"):
            match kind(below):
                case "Offset":
                    offset += self._number(below.offsetExpr())
                case "Project":
                    projects.append(below)
                case _:
                    own = self._number(below.limitExpr())
                    limit = own if limit is None else min(limit, own)
            below = below.child()
        if kind(below) != "Sort" and projects and limit is not None and self._alike(projects[-1]):
            child = self.lower(projects[-1])
            node = g.Rank(child.node, (), (), "row_number", limit + offset, offset, False, child.node.schema)
            return self._over(projects[:-1], Lowered(node, child.attributes))
        if kind(below) != "Sort":
            self._refuse(
                plan,
                "LIMIT without ORDER BY takes any rows, and another choice would be as good",
                hint="say which: ORDER BY ... LIMIT",
            )
        if limit is None:
            self._refuse(plan, "OFFSET without LIMIT is not kept in views", hint="add LIMIT")
        child = self.lower(below.child())
        ordered, order = self._ordered(child, below.order())
        node = g.Rank(
            ordered.node,
            (),
            order,
            "row_number",
            limit + offset,
            offset,
            False,
            self._c.arrow_schema(ordered.attributes),
        )
        return self._over(projects, self._narrowed(Lowered(node, ordered.attributes), child.attributes))

    def _alike(self, project: Jvm) -> bool:
        """Whether all its rows are the same, so that it does not matter which one is taken: EXISTS (SELECT 1 ...)."""
        return all(
            e.foldable() or (kind(e) == "Alias" and e.child().foldable())
            for e in items(project.projectList())
        )

    def _locallimit(self, plan: Jvm) -> Lowered:
        return self._globallimit(plan)
