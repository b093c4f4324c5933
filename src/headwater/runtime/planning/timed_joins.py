"""Joins in time: bounds on the times of both sides say which rows are late for a match, and when none can come."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from headwater.runtime.planning.catalyst import (
    Jvm,
    children_of,
    conjuncts,
    identity,
    items,
    kind,
    module,
    option,
    output_of,
)
from headwater.runtime.planning.handles import Times
from headwater.runtime.planning.names import relation_of
from headwater.runtime.planning.punctual import PunctualVersions
from headwater.runtime.planning.time_bounds import Bounds
from headwater.runtime.planning.timed_plans import NO_TIME, Seen


class TimedJoins(PunctualVersions):
    """Puts a policy into joins."""

    def _joined(self, plan: Jvm, left: Seen, right: Seen) -> Seen:
        """A join of two plans that were looked at."""
        condition = option(plan.condition())
        bounds = None
        if condition is not None:
            bounds = self._bounds.of(condition, _moments(left), _moments(right))
        is_timed = bounds is not None and (bounds.is_closed or right.is_version)
        if not is_timed and (left.stream is not None or right.stream is not None):
            self._refuse_timeless(plan)
        if bounds is None:
            return self._unbounded_join(plan, left, right)
        if left.stream is not None and right.stream is not None:
            assert bounds.least is not None
            assert bounds.most is not None
            of_left, of_right = {right.stream.name}, {left.stream.name}
            more = 0
            if kind(plan.joinType()) != "Inner":
                # a row that has had a match must not seem to have its first one later: both stay as long as either
                of_left = of_right = {left.stream.name, right.stream.name}
                more = max(0, bounds.most, -bounds.least)
            self._expire("Join", bounds.left, sorted(of_left), bounds.most + 1 + more)
            self._expire("Join", bounds.right, sorted(of_right), 1 - bounds.least + more)
        left = self._admitted(left, bounds.left) if left.stream is not None else left
        right = self._admitted(right, bounds.right) if right.stream is not None else right
        is_as_of = self._is_as_of(plan, left, right, bounds)
        seen = self._bounded_join(plan, left, right, bounds)
        return replace(seen, is_left_out=is_as_of and left.is_left_out)

    def _filtered_join(self, plan: Jvm) -> Jvm:
        """A filter over an inner join, as a join with that condition: `FROM a, b WHERE ...` is `a JOIN b ON ...`."""
        return self._with_condition(plan.child(), list(conjuncts(plan.condition()))) or plan

    def _with_condition(self, join: Jvm, conditions: list[Jvm]) -> Jvm | None:
        """An inner join with further conditions, as far down as all that they speak of is there; None of another one."""
        if kind(join) != "Join" or kind(join.joinType()) not in ("Inner", "Cross"):
            return None
        if (own := option(join.condition())) is not None:
            conditions = [*conjuncts(own), *conditions]
        left = join.left()
        known = {identity(a) for a in output_of(left)}
        below = [c for c in conditions if {identity(a) for a in items(c.references().toSeq())} <= known]
        if below and (made := self._with_condition(left, below)) is not None:
            left, conditions = made, [c for c in conditions if c not in below]
        some = module(self._c.jvm.scala, "Some")
        told = some.apply(reduce(self._c.expressions.And, conditions)) if conditions else self._c.none()
        inner = module(self._c.jvm.org.apache.spark.sql.catalyst.plans, "Inner")
        return join.copy(left, join.right(), inner, told, join.hint())

    def _unbounded_join(self, plan: Jvm, left: Seen, right: Seen) -> Seen:
        """Times of one side stay what they are beside a table, whose changes are revisions whenever they come; of two
        streams those of windows that are equal."""
        made = plan.withNewChildren(
            self._c.seq(self._narrowed(p, s) for p, s in self._pairs(plan, (left, right)))
        )
        if left.times and right.times and left.is_table == right.is_table:
            known = self._equal_windows(plan, left, right)
        elif any(not s.times and self._is_of_stream(p) for p, s in self._pairs(plan, (left, right))):
            known = {}  # beside no table, but what rows of a topic change at any time: none is ever final
        else:
            sides = [s for s in (left, right) if s.times]
            kept = [s for s in sides if not s.is_table] or sides
            known = {i: times for side in kept for i, times in side.times.items()}
        there = self._always_there(plan, left, right)
        return Seen(made, {i: times for i, times in known.items() if i in there})

    def _bounded_join(self, plan: Jvm, left: Seen, right: Seen, bounds: Bounds) -> Seen:
        c, join = self._c, kind(plan.joinType())
        l_time, r_time = left.times[identity(bounds.left)], right.times[identity(bounds.right)]
        domain, there = l_time.domain | r_time.domain, self._always_there(plan, left, right)
        times: dict[int, Times] = {}
        if bounds.most is not None:
            slack = max(l_time.slack_us, bounds.most + r_time.slack_us)
            times[identity(bounds.left)] = Times(domain, slack)
        if bounds.least is not None and not right.is_version:
            slack = max(r_time.slack_us, l_time.slack_us - bounds.least)
            times[identity(bounds.right)] = Times(domain, slack)
        known, times = times, {i: t for i, t in times.items() if i in there}
        left, right = (replace(s, plan=self._narrowed(p, s)) for p, s in self._pairs(plan, (left, right)))
        if not self._policy.emits or bounds.most is None:
            made = plan.withNewChildren(c.seq([left.plan, right.plan]))
            return Seen(made, times)
        there_left, there_right = self._there(left), self._there(right)
        made = plan.withNewChildren(c.seq([there_left[0], there_right[0]]))
        # rows that never go wait for the other side's alone; others can change until they are final themselves
        stay = left.stays and right.stays
        seen = Seen(made, times, stays=stay and join in ("Inner", "LeftSemi"))
        l_waits, r_waits = (r_time.domain if left.stays else domain, l_time.domain if stay else domain)
        more = bounds.most + r_time.slack_us if left.stays else known[identity(bounds.left)].slack_us
        at_left = self._plus(self._micros(bounds.left), more + 1)
        if right.is_version or join == "LeftAnti" or (join == "LeftSemi" and not stay):
            return self._closed(seen, (at_left, l_waits))
        both = module(c.expressions, "Literal").create(None, at_left.dataType())
        if not stay:
            l_waits = domain
            own = ((bounds.left, l_time), (bounds.right, r_time))
            both = c.expressions.Greatest(
                c.seq(self._plus(self._micros(at), time.slack_us + 1) for at, time in own)
            )
        if join in ("Inner", "LeftSemi"):
            return self._closed(seen, (both, l_waits))
        has_left, has_right = c.expressions.IsNotNull(there_left[1]), c.expressions.IsNotNull(there_right[1])
        matched = c.expressions.And(has_left, has_right)
        if join == "LeftOuter":
            return self._closed(seen, (c.expressions.If(matched, both, at_left), l_waits))
        if bounds.least is None:
            return seen
        more = l_time.slack_us - bounds.least if stay else known[identity(bounds.right)].slack_us
        at_right = self._plus(self._micros(bounds.right), more + 1)
        if join == "RightOuter":
            return self._closed(seen, (c.expressions.If(matched, both, at_right), r_waits))
        if join != "FullOuter":
            return seen
        at = c.expressions.If(matched, both, c.expressions.If(has_left, at_left, at_right))
        numbers = [self._number(self._domain(d)) for d in (l_waits, r_waits)]
        return self._closed(seen, (at, c.expressions.If(has_left, *numbers)))

    def _there(self, seen: Seen) -> tuple[Jvm, Jvm]:
        """One side of an outer join, with a column that is NULL where it has no row."""
        there = self._c.alias(module(self._c.expressions, "Literal").apply(True), "_there")
        made = self._c.plans.Project(self._c.seq([*output_of(seen.plan), there]), seen.plan)
        return made, there.toAttribute()

    def _equal_windows(self, plan: Jvm, left: Seen, right: Seen) -> dict[int, Times]:
        """The windows of the sides of a join that are the same in every row of it."""
        condition = option(plan.condition())
        found: dict[int, Times] = {}
        for one, other in [] if condition is None else self._bounds.equal(condition):
            for l_id, r_id in ((one, other), (other, one)):
                mine, theirs = left.times.get(l_id, NO_TIME), right.times.get(r_id, NO_TIME)
                if mine.window and theirs.window:
                    slack = max(mine.slack_us, theirs.slack_us)
                    found[l_id] = found[r_id] = Times(mine.domain | theirs.domain, slack, window=True)
        return found

    def _is_of_stream(self, plan: Jvm) -> bool:
        """Whether a plan reads a topic with event times, to which rows are only added."""
        name = relation_of(plan) if kind(plan) == "Project" else None
        if name is not None:
            return self._relations[name].is_stream
        return any(self._is_of_stream(child) for child in children_of(plan))

    def _always_there(self, plan: Jvm, left: Seen, right: Seen) -> set[int]:
        """The times of the sides of a join that are NULL in none of its rows."""
        join = kind(plan.joinType())
        there = set() if join in ("RightOuter", "FullOuter") else set(left.times)
        return there if join in ("LeftOuter", "FullOuter") else there | set(right.times)


def _moments(seen: Seen) -> set[int]:
    return {i for i, times in seen.times.items() if not times.window}
