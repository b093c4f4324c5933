"""Time in a plan: where a topic's rows get their windows, which of them are late there, and when a row is final.

Late rows are left out by a filter on a hidden column, the watermark that a row met, right above the place where it gets its
window or enters a session, a frame in time or a join with bounds on time. What that filter takes out is a small plan of
its own. Rows of a view that shows only what is final get two columns more: the time that the watermarks must have
reached, and which watermarks those are. Both are read by the engine and by batch alike, from the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from headwater.runtime.planning.catalyst import Jvm, children_of, find, identity, items, kind, output_of
from headwater.runtime.planning.cumulating import TIME_WINDOW
from headwater.runtime.planning.handles import Relation, Times
from headwater.runtime.planning.names import relation_of
from headwater.runtime.planning.time_bounds import windowed
from headwater.runtime.planning.timed_patterns import TimedMatches
from headwater.runtime.planning.timed_plans import (
    ARRIVAL,
    NO_TIME,
    SESSION,
    Seen,
    Stream,
    TimedPlan,
    has_windows_by_arrival,
)

_TRANSPARENT = ("SubqueryAlias", "View", "Filter", "Sort")


class Timing(TimedMatches):
    """Puts a policy into analysed plans."""

    def timed(self, plan: Jvm) -> TimedPlan:
        """The plan with the policy in it; refuses what it cannot be kept for."""
        if kind(plan) == "WithCTE":
            plan = self._c.jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False).apply(
                plan
            )
        seen = self._visit(plan)
        is_late = any(self._relations[part.topic].is_stream for part in self._late)
        if seen.stream is not None or (self._policy.leaves_out and not is_late):
            self._refuse_never_late(plan)
            self._refuse_timeless(plan)
        self._settle(plan)
        shown = output_of(plan)
        columns = shown
        if self._policy.emits:
            windows = [a for a in shown if identity(a) in seen.times and seen.times[identity(a)].window]
            if not seen.is_closing and windows:
                seen = self._closed(seen, self._closes(windows[0], seen.times[identity(windows[0])]))
            if not seen.is_closing:
                self._refuse_open_by_arrival(plan)
                self._refuse(
                    plan,
                    "EMIT ON WINDOW CLOSE needs rows that become final, and rows of this query never do",
                    hint="group by a window of the topic's WATERMARK column, or join within bounds on it; "
                    "or leave EMIT ON WINDOW CLOSE out",
                )
            columns = [*shown, *seen.carried]
        done = seen.plan
        if [identity(a) for a in output_of(done)] != [identity(a) for a in columns]:
            done = self._c.plans.Project(self._c.seq(columns), done)
        times = {i: seen.times[identity(a)] for i, a in enumerate(shown) if identity(a) in seen.times}
        return TimedPlan(done, tuple(self._late), tuple(self._domains), times, self._expiring)

    def _refuse_open_by_arrival(self, plan: Jvm) -> None:
        if has_windows_by_arrival(plan):
            self._refuse(
                plan,
                f"EMIT ON WINDOW CLOSE needs rows that become final, and nothing closes windows by {ARRIVAL}: "
                "watermarks are of event times",
                hint="leave it out: of windows by arrival only the newest can still grow; or use the topic's WATERMARK "
                "column",
            )

    # --- nodes -----------------------------------------------------------------------------------------------------

    def _visit(self, plan: Jvm) -> Seen:
        name = kind(plan)
        if name == "Project" and (relation := self._leaf(plan)) is not None:
            return self._relation(plan, relation)
        if name == "Filter" and kind(plan.child()) == "Join" and not _has_subquery(plan.condition()):
            plan = self._filtered_join(plan)
            name = kind(plan)
        if name in _TRANSPARENT:
            return self._passed(plan)
        reader = getattr(self, f"_{name.lower()}", None)
        if reader is not None:
            seen: Seen = reader(plan)
            return seen
        return self._other(plan)

    def _leaf(self, plan: Jvm) -> Relation | None:
        name = relation_of(plan)
        return None if name is None else self._relations[name]

    def _relation(self, plan: Jvm, relation: Relation) -> Seen:
        is_version = relation.is_versions
        if is_punctual := self._is_punctual(relation):
            plan = self._made_punctual(plan, relation)
        attributes = output_of(plan)
        width = len(relation.schema)
        times = {
            identity(a): relation.times[a.name()] for a in attributes[:width] if a.name() in relation.times
        }
        if relation.name not in self._mentions:
            self._renamed |= {identity(a): identity(a.child()) for a in items(plan.projectList())}
        else:  # of two places that read one relation neither is known by the relation's own attributes
            own = {identity(a.child()) for a in items(plan.projectList())}
            self._renamed = {i: renamed for i, renamed in self._renamed.items() if renamed not in own}
            self._expiring = {place: by for place, by in self._expiring.items() if place[1] not in own}
        self._mentions.append(relation.name)
        hidden = {a.name(): a for a in attributes[width:]}
        if self._policy.leaves_out and self._policy.emits and not (relation.is_stream or is_punctual):
            self._refuse(
                plan,
                f"{self._policy.told} and EMIT ON WINDOW CLOSE make a view to which rows are only ever added, "
                f"and rows of {relation.name} can be taken back",
                hint="leave one of the two out, or join it in a view above this one",
            )
        if is_version and hidden:
            times |= {identity(a): relation.times[n] for n, a in hidden.items() if n in relation.times}
        stream = None
        if relation.is_stream and self._policy.leaves_out:
            stream = Stream(relation.name, tuple(attributes[:width]), hidden)
        carried = tuple(attributes) if stream is not None else ()
        is_table = not is_version and relation.versions is not None and not relation.append_only
        return Seen(
            plan, times, stream, carried, is_version=is_version, is_table=is_table, stays=relation.is_stream
        )

    def _passed(self, plan: Jvm) -> Seen:
        children = [self._visit(c) for c in children_of(plan)]
        if len(children) != 1:
            return self._other(plan, children)
        seen = children[0]
        if kind(plan) == "Filter" and _has_subquery(plan.condition()):
            return self._other(plan, children)
        return replace(seen, plan=self._over(plan, [seen]))

    def _project(self, plan: Jvm) -> Seen:
        below = self._visit(plan.child())
        given = items(plan.projectList())
        times = {}
        for expression in given:
            found = self._time_of(expression, below)
            if found is not None:
                times[identity(expression)] = found
            else:
                self._made(expression, [expression], below)
        if any(_has_subquery(e) for e in given):
            return self._other(plan, [below])
        made = self._c.plans.Project(self._c.seq(self._with_carried(given, below)), below.plan)
        for attribute in below.carried:
            if identity(attribute) in below.times:
                times[identity(attribute)] = below.times[identity(attribute)]
        return replace(below, plan=made, times=times)

    def _expand(self, plan: Jvm) -> Seen:
        below = self._visit(plan.child())
        output, projections = output_of(plan), [items(p) for p in items(plan.projections())]
        times = {}
        for place, attribute in enumerate(output):
            columns = [p[place] for p in projections]
            if all(kind(c) == "AttributeReference" for c in columns):
                if identity(columns[0]) in below.times and len({identity(c) for c in columns}) == 1:
                    times[identity(attribute)] = below.times[identity(columns[0])]
            elif attribute.metadata().contains(TIME_WINDOW):
                found = self._read_time(columns[0], below)
                if found is not None:
                    times[identity(attribute)] = replace(found, window=True)
        missing = [a for a in below.carried if identity(a) not in {identity(o) for o in output}]
        made = self._c.plans.Expand(
            self._c.seq(self._c.seq([*p, *missing]) for p in projections),
            self._c.seq([*output, *missing]),
            below.plan,
        )
        return replace(below, plan=made, times=times)

    def _generate(self, plan: Jvm) -> Seen:
        below = self._visit(plan.child())
        made = plan.withNewChildren(self._c.seq([below.plan]))
        times = dict(below.times)
        self._made(plan.generator(), items(plan.generatorOutput()), below)
        for attribute in items(plan.generatorOutput()):
            if attribute.metadata().contains(TIME_WINDOW):
                found = self._read_time(plan.generator(), below)
                if found is not None:
                    times[identity(attribute)] = replace(found, window=True)
        return replace(below, plan=made, times=times)

    def _aggregate(self, plan: Jvm) -> Seen:
        below = self._visit(plan.child())
        keys = [e for e in items(plan.groupingExpressions()) if kind(e) == "AttributeReference"]
        windows = [k for k in keys if identity(k) in below.times and below.times[identity(k)].window]
        moments = [k for k in keys if identity(k) in below.times and not below.times[identity(k)].window]
        if below.stream is not None:
            if not windows:
                self._refuse_timeless(plan)
            is_session = windows[0].metadata().contains(SESSION)
            self._expire("Aggregate", windows[0], {below.stream.name}, 1 if is_session else 0)
            below = self._admitted(below, windows[0])
            # rows are admitted by this window alone: of others, and of their own times, more may come
            windows, moments = windows[:1], moments if is_session else []
        given = items(plan.aggregateExpressions())
        by_key = replace(below, times={identity(k): below.times[identity(k)] for k in (*windows, *moments)})
        times = {}
        for expression in given:
            found = self._time_of(expression, by_key)
            if found is not None:
                times[identity(expression)] = found
        carried: tuple[Jvm, ...] = ()
        if self._policy.emits and (windows or moments):
            key = (windows or moments)[0]
            carried = self._closing(self._closes(key, below.times[identity(key)]))
            given = [*given, *carried]
        made = plan.copy(plan.groupingExpressions(), self._c.seq(given), below.plan, plan.hint())
        return Seen(made, times, None, tuple(c.toAttribute() for c in carried), bool(carried))

    def _window(self, plan: Jvm) -> Seen:
        below = self._visit(plan.child())
        partition = [a for a in items(plan.partitionSpec()) if kind(a) == "AttributeReference"]
        windows = [a for a in partition if below.times.get(identity(a), NO_TIME).window]
        order = self._frame_time(plan, below)
        if below.stream is not None:
            attribute, following = order if order is not None else self._refuse_timeless(plan)
            if (reach := self._reach(plan, following)) is not None:
                self._expire("Window", attribute, {below.stream.name}, reach + 1)
            below = self._admitted(below, attribute)
        elif order is not None:
            self._expire_further(order[0], self._reach(plan, order[1]))
        made = plan.withNewChildren(self._c.seq([below.plan]))
        # what comes later can change a row through its frame: no other times say when it is final
        times = {identity(w): below.times[identity(w)] for w in windows}
        if windows and (below.is_closing or order is None):
            seen = Seen(made, times)
            closes = self._closes(windows[0], times[identity(windows[0])])
            return self._closed(seen, closes) if self._policy.emits else seen
        if order is None:
            return Seen(made, times)
        attribute, following = order
        known = below.times[identity(attribute)]
        times[identity(attribute)] = replace(known, slack_us=known.slack_us + following)
        seen = Seen(made, times)
        if self._policy.emits:
            at = self._plus(self._micros(attribute), known.slack_us + following + 1)
            seen = self._closed(seen, (at, known.domain))
        return seen

    def _join(self, plan: Jvm) -> Seen:
        return self._joined(plan, self._visit(plan.left()), self._visit(plan.right()))

    def _flatmapgroupsinarrow(self, plan: Jvm) -> Seen:
        return self._matched(plan, self._visit(plan.child()))

    def _distinct(self, plan: Jvm) -> Seen:
        below = self._visit(plan.child())
        shown = output_of(plan)
        windows = [a for a in shown if identity(a) in below.times and below.times[identity(a)].window]
        if below.stream is not None:
            if not windows:
                self._refuse_timeless(plan)
            slack = below.times[identity(windows[0])].slack_us
            self._expire("Aggregate", windows[0], {below.stream.name}, slack)
            below = self._admitted(below, windows[0])
            below = replace(below, times={identity(windows[0]): below.times[identity(windows[0])]})
        times = {identity(a): below.times[identity(a)] for a in shown if identity(a) in below.times}
        closing: tuple[Jvm, ...] = ()
        if self._policy.emits and windows:
            closing = self._closing(self._closes(windows[0], times[identity(windows[0])]))
        narrow = self._c.plans.Project(self._c.seq([*shown, *closing]), below.plan)
        carried = tuple(c.toAttribute() for c in closing)
        return Seen(plan.withNewChildren(self._c.seq([narrow])), times, None, carried, bool(closing))

    def _union(self, plan: Jvm) -> Seen:
        children = [self._visit(child) for child in children_of(plan)]
        if any(child.stream is not None for child in children):
            self._refuse_timeless(plan)
        made = plan.withNewChildren(self._c.seq(self._narrowed(p, s) for p, s in self._pairs(plan, children)))
        outputs = [[identity(a) for a in output_of(child)] for child in children_of(plan)]
        times = {}
        for place, attribute in enumerate(output_of(plan)):
            known = [seen.times.get(ids[place]) for seen, ids in zip(children, outputs, strict=True)]
            if all(k is not None and k.window == known[0].window for k in known):  # type: ignore[union-attr]
                some = [k for k in known if k is not None]
                domain = frozenset().union(*(k.domain for k in some))
                times[identity(attribute)] = replace(
                    some[0], domain=domain, slack_us=max(k.slack_us for k in some)
                )
        return Seen(made, times)

    def _other(self, plan: Jvm, seen: Sequence[Seen] | None = None) -> Seen:
        """A node that knows nothing of time."""
        children = [self._visit(c) for c in children_of(plan)] if seen is None else seen
        if any(_has_subquery(e) for e in items(plan.expressions())) and self._policy.leaves_out:
            self._refuse_timeless(plan)
        if any(child.stream is not None for child in children):
            self._refuse_timeless(plan)
        if not children:
            return Seen(plan)
        narrowed = [self._narrowed(p, s) for p, s in self._pairs(plan, children)]
        return Seen(plan.withNewChildren(self._c.seq(narrowed)))

    # --- frames ----------------------------------------------------------------------------------------------------

    def _frame_time(self, plan: Jvm, below: Seen) -> tuple[Jvm, int] | None:
        """The event time that frames look back from, and how far they look ahead; None if one looks at all rows."""
        order = items(plan.orderSpec())
        if not order or kind(order[0].child()) != "AttributeReference":
            return None
        attribute = order[0].child()
        known = below.times.get(identity(attribute))
        if known is None or known.window or kind(order[0].direction()) != "Ascending":
            return None
        ahead = [self._bounds.ahead(e) for e in items(plan.windowExpressions())]
        if any(a is None for a in ahead):
            return None
        return attribute, max([0, *(a for a in ahead if a is not None)])

    def _reach(self, plan: Jvm, following: int) -> int | None:
        """How far the frames of a window reach, back and ahead; None if by rows, or without bound."""
        behind = [self._bounds.behind(e) for e in items(plan.windowExpressions())]
        known = [b for b in behind if b is not None]
        return max([0, *known]) + following if len(known) == len(behind) else None

    def _expire_further(self, attribute: Jvm, reach: int | None) -> None:
        """Frames over rows that have frames already: what changes reaches as far back as both together."""
        for place in self._places("Window", attribute):
            known = self._expiring.pop(place, None)
            if known is not None and reach is not None:
                self._expiring[place] = replace(known, slack_us=known.slack_us + reach)

    # --- expressions -----------------------------------------------------------------------------------------------

    def _time_of(self, expression: Jvm, below: Seen) -> Times | None:
        """What a column of a projection is, in time."""
        inner = expression.child() if kind(expression) == "Alias" else expression
        if kind(inner) == "AttributeReference":
            return below.times.get(identity(inner))
        if kind(expression) != "Alias":
            return None
        metadata = expression.toAttribute().metadata()
        if metadata.contains(TIME_WINDOW) or metadata.contains(SESSION):
            found = self._read_time(inner, below)
            # a row at the very end of a session still joins it
            more = 1 if metadata.contains(SESSION) else 0
            return None if found is None else replace(found, window=True, slack_us=found.slack_us + more)
        end = find(inner, lambda e: kind(e) == "GetStructField")
        if end is not None and self._is_end(inner, end, below):
            return replace(below.times[identity(end.child())], window=False)
        return None

    def _is_end(self, expression: Jvm, field: Jvm, below: Seen) -> bool:
        """Whether an expression is the end of a window, or `window_time` of one."""
        window = field.child()
        if kind(window) != "AttributeReference" or not below.times.get(identity(window), NO_TIME).window:
            return False
        is_last = field.ordinal() == 1
        return is_last and (_same(expression, field) or kind(expression) == "PreciseTimestampConversion")

    def _read_time(self, expression: Jvm, below: Seen) -> Times | None:
        """The event time that a window is of, if it is of one as it is and reads nothing else."""
        parts = {identity(a) for a in items(expression.references().toSeq())}
        read = {self._made_of.get(each, each) for each in parts}
        found = below.times.get(read.pop()) if len(read) == 1 else None
        time = windowed(expression)
        as_it_is = parts <= self._made_of.keys() if time is None else kind(time) == "AttributeReference"
        return found if found is not None and not found.window and as_it_is else None

    def _made(self, expression: Jvm, attributes: Iterable[Jvm], below: Seen) -> None:
        """Note that attributes are made of one event time as it is, if they are."""
        if self._read_time(expression, below) is not None:
            read = identity(items(expression.references().toSeq())[0])
            self._made_of |= {identity(a): self._made_of.get(read, read) for a in attributes}


def _same(one: Jvm, other: Jvm) -> bool:
    return bool(one.semanticEquals(other))


def _has_subquery(expression: Jvm) -> bool:
    return (
        find(expression, lambda e: kind(e) in ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery"))
        is not None
    )
