"""Time in a plan: where a topic's rows get their windows, which of them are late there, and when a row is final.

Late rows are left out by a filter on a hidden column, the watermark that a row met, right above the place where it gets its
window or enters a session, a frame in time or a join with bounds on time. What that filter takes out is a small plan of
its own. Rows of a view that shows only what is final get two columns more: the time that the watermarks must have
reached, and which watermarks those are. Both are read by the engine and by batch alike, from the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from headwater.catalog import ViewDefinition, ViewOptions
from headwater.runtime.planning.catalyst import Catalyst, Jvm, find, identity, items, kind, module, option
from headwater.runtime.planning.determinism import Refuse
from headwater.runtime.planning.expiring import Expiring, Place
from headwater.runtime.planning.handles import Relation, Times
from headwater.runtime.planning.names import relation_of
from headwater.runtime.planning.time_bounds import Bounds, TimeBounds, windowed
from headwater.runtime.planning.time_expressions import TimeExpressions

WATERMARK = "_watermark"
POSITION = ("_partition", "_offset")
NEEDED = (*POSITION, WATERMARK)
"""The hidden columns of a topic that its late rows are told by."""
CLOSE = "_close"
DOMAIN = "_domain"
LATE_COLUMNS = (*POSITION, WATERMARK, "_window_start", "_window_end", "_time", "_late")
"""What a plan of late rows has after the topic's own columns."""

_WINDOW = "spark.timeWindow"
_SESSION = "spark.sessionWindow"
_TRANSPARENT = ("SubqueryAlias", "View", "Filter", "Sort")


@dataclass(frozen=True)
class Policy:
    """What a view does with late rows, and whether it shows only final ones."""

    options: ViewOptions = field(default_factory=ViewOptions)
    emits: bool = False
    replayed: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Late rows that were given back: see `ViewDefinition.replayed`."""

    @staticmethod
    def of(view: ViewDefinition) -> Policy:
        """That of a view."""
        return Policy(view.options, view.emit_on_close, view.replayed)

    @property
    def leaves_out(self) -> bool:
        """Whether there are rows that it does not take."""
        return self.options.late != "correct" or self.options.correct_for_us is not None

    @property
    def is_plain(self) -> bool:
        """Whether it is as if there were none."""
        return not self.leaves_out and not self.emits

    @property
    def told(self) -> str:
        """How the user has said it."""
        if self.options.late != "correct":
            return f"late = '{self.options.late}'"
        return "correct_for" if self.leaves_out else "EMIT ON WINDOW CLOSE"


@dataclass(frozen=True)
class LatePlan:
    """The rows of a topic that may be late at one place of a query: its columns, then LATE_COLUMNS."""

    topic: str
    plan: Jvm


@dataclass(frozen=True)
class TimedPlan:
    """A plan with its policy in it."""

    plan: Jvm
    """With CLOSE and DOMAIN as its last columns, if it emits."""
    late: tuple[LatePlan, ...] = ()
    domains: tuple[frozenset[str], ...] = ()
    """The topics whose watermarks count, by the number that DOMAIN has for them."""
    times: Mapping[int, Times] = field(default_factory=dict)
    """The output columns that have event times, by their place."""
    expiring: Mapping[Place, Expiring] = field(default_factory=dict)
    """Where rows were left out by an attribute: what is older is not met again there."""


@dataclass(frozen=True)
class _Stream:
    """Single rows of a topic."""

    name: str
    columns: tuple[Jvm, ...]
    hidden: Mapping[str, Jvm]


@dataclass(frozen=True)
class _Seen:
    """A plan that was looked at."""

    plan: Jvm
    times: Mapping[int, Times] = field(default_factory=dict)
    """By the identity of an attribute."""
    stream: _Stream | None = None
    """If its rows are still those of a topic, one by one."""
    carried: tuple[Jvm, ...] = ()
    """Attributes that are passed on to the top."""
    is_closing: bool = False
    """Whether these are CLOSE and DOMAIN."""
    is_version: bool = False
    """Whether its rows are versions of a table's, the later of which end the earlier."""
    stays: bool = False
    """Whether a row that is there never goes."""


class Timing(TimeExpressions):
    """Puts a policy into analysed plans."""

    def __init__(
        self,
        catalyst: Catalyst,
        relations: Mapping[str, Relation],
        refuse: Refuse,
        policy: Policy,
    ) -> None:
        """`relations` are those that a plan may read, put into it by `Names`."""
        super().__init__(catalyst)
        self._relations = relations
        self._refuse = refuse
        self._policy = policy
        self._bounds = TimeBounds()
        self._late: list[LatePlan] = []
        self._domains: list[frozenset[str]] = []
        self._expiring: dict[Place, Expiring] = {}
        self._mentions: list[str] = []
        self._renamed: dict[int, int] = {}
        self._made_of: dict[int, int] = {}
        """By attributes that are made of one event time alone, as parts of cumulative windows are: that time."""

    def timed(self, plan: Jvm) -> TimedPlan:
        """The plan with the policy in it; refuses what it cannot be kept for."""
        if kind(plan) == "WithCTE":
            assert self._c.jvm is not None
            plan = self._c.jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(True, False, False).apply(
                plan
            )
        seen = self._visit(plan)
        if seen.stream is not None or (self._policy.leaves_out and not self._late):
            self._refuse_timeless(plan)
        shown = items(plan.output())
        columns = shown
        if self._policy.emits:
            windows = [a for a in shown if identity(a) in seen.times and seen.times[identity(a)].window]
            if not seen.is_closing and windows:
                seen = self._closed(seen, self._closes(windows[0], seen.times[identity(windows[0])]))
            if not seen.is_closing:
                self._refuse(
                    plan,
                    "EMIT ON WINDOW CLOSE needs rows that become final, and rows of this query never do",
                    hint="group by a window of the topic's WATERMARK column, or join within bounds on it; "
                    "or leave EMIT ON WINDOW CLOSE out",
                )
            columns = [*shown, *seen.carried]
        done = seen.plan
        if [identity(a) for a in items(done.output())] != [identity(a) for a in columns]:
            done = self._c.plans.Project(self._c.seq(columns), done)
        times = {i: seen.times[identity(a)] for i, a in enumerate(shown) if identity(a) in seen.times}
        return TimedPlan(done, tuple(self._late), tuple(self._domains), times, self._expiring)

    # --- nodes -----------------------------------------------------------------------------------------------------

    def _visit(self, plan: Jvm) -> _Seen:
        name = kind(plan)
        if name == "Project" and (relation := self._leaf(plan)) is not None:
            return self._relation(plan, relation)
        if name in _TRANSPARENT:
            return self._passed(plan)
        reader = getattr(self, f"_{name.lower()}", None)
        if reader is not None:
            seen: _Seen = reader(plan)
            return seen
        return self._other(plan)

    def _leaf(self, plan: Jvm) -> Relation | None:
        name = relation_of(plan)
        return None if name is None else self._relations[name]

    def _relation(self, plan: Jvm, relation: Relation) -> _Seen:
        attributes = items(plan.output())
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
        is_version = relation.is_versions
        if self._policy.leaves_out and self._policy.emits and not (relation.is_stream or is_version):
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
            stream = _Stream(relation.name, tuple(attributes[:width]), hidden)
        carried = tuple(attributes) if stream is not None else ()
        return _Seen(plan, times, stream, carried, is_version=is_version, stays=relation.is_stream)

    def _passed(self, plan: Jvm) -> _Seen:
        children = [self._visit(c) for c in items(plan.children())]
        if len(children) != 1:
            return self._other(plan, children)
        seen = children[0]
        if kind(plan) == "Filter" and _has_subquery(plan.condition()):
            return self._other(plan, children)
        return replace(seen, plan=self._over(plan, [seen]))

    def _project(self, plan: Jvm) -> _Seen:
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

    def _expand(self, plan: Jvm) -> _Seen:
        below = self._visit(plan.child())
        output, projections = items(plan.output()), [items(p) for p in items(plan.projections())]
        times = {}
        for place, attribute in enumerate(output):
            columns = [p[place] for p in projections]
            if all(kind(c) == "AttributeReference" for c in columns):
                if identity(columns[0]) in below.times and len({identity(c) for c in columns}) == 1:
                    times[identity(attribute)] = below.times[identity(columns[0])]
            elif attribute.metadata().contains(_WINDOW):
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

    def _generate(self, plan: Jvm) -> _Seen:
        below = self._visit(plan.child())
        made = plan.withNewChildren(self._c.seq([below.plan]))
        times = dict(below.times)
        self._made(plan.generator(), items(plan.generatorOutput()), below)
        for attribute in items(plan.generatorOutput()):
            if attribute.metadata().contains(_WINDOW):
                found = self._read_time(plan.generator(), below)
                if found is not None:
                    times[identity(attribute)] = replace(found, window=True)
        return replace(below, plan=made, times=times)

    def _aggregate(self, plan: Jvm) -> _Seen:
        below = self._visit(plan.child())
        keys = [e for e in items(plan.groupingExpressions()) if kind(e) == "AttributeReference"]
        windows = [k for k in keys if identity(k) in below.times and below.times[identity(k)].window]
        moments = [k for k in keys if identity(k) in below.times and not below.times[identity(k)].window]
        if below.stream is not None:
            if not windows:
                self._refuse_timeless(plan)
            is_session = windows[0].metadata().contains(_SESSION)
            self._expire("Aggregate", windows[0], {below.stream.name}, 1 if is_session else 0)
            below = self._admitted(below, windows[0])
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
        return _Seen(made, times, None, tuple(c.toAttribute() for c in carried), bool(carried))

    def _window(self, plan: Jvm) -> _Seen:
        below = self._visit(plan.child())
        partition = {identity(a) for a in items(plan.partitionSpec()) if kind(a) == "AttributeReference"}
        by_window = any(i in below.times and below.times[i].window for i in partition)
        order = self._frame_time(plan, below)
        if below.stream is not None:
            attribute, following = order if order is not None else self._refuse_timeless(plan)
            if (reach := self._reach(plan, following)) is not None:
                self._expire("Window", attribute, {below.stream.name}, reach + 1)
            below = self._admitted(below, attribute)
        elif order is not None:
            self._expire_further(order[0], self._reach(plan, order[1]))
        made = plan.withNewChildren(self._c.seq([below.plan]))
        if below.is_closing and by_window:
            return replace(below, plan=made)
        # what comes later can change a row through its frame: no other times say when it is final
        times = {i: below.times[i] for i in partition if i in below.times and below.times[i].window}
        if order is None:
            return _Seen(made, times)
        attribute, following = order
        known = below.times[identity(attribute)]
        times[identity(attribute)] = replace(known, slack_us=known.slack_us + following)
        seen = _Seen(made, times)
        if self._policy.emits:
            at = self._plus(self._micros(attribute), known.slack_us + following + 1)
            seen = self._closed(seen, (at, known.domain))
        return seen

    def _join(self, plan: Jvm) -> _Seen:
        left, right = self._visit(plan.left()), self._visit(plan.right())
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
            self._expire("Join", bounds.left, {right.stream.name}, bounds.most + 1)
            self._expire("Join", bounds.right, {left.stream.name}, 1 - bounds.least)
        left = self._admitted(left, bounds.left) if left.stream is not None else left
        right = self._admitted(right, bounds.right) if right.stream is not None else right
        return self._bounded_join(plan, left, right, bounds)

    def _unbounded_join(self, plan: Jvm, left: _Seen, right: _Seen) -> _Seen:
        """Times of one side stay what they are beside a table; of two streams those of windows that are equal."""
        made = plan.withNewChildren(
            self._c.seq(self._narrowed(p, s) for p, s in self._pairs(plan, (left, right)))
        )
        known = {**left.times, **right.times}
        if left.times and right.times:
            known = self._equal_windows(plan, left, right)
        there = self._always_there(plan, left, right)
        return _Seen(made, {i: times for i, times in known.items() if i in there})

    def _bounded_join(self, plan: Jvm, left: _Seen, right: _Seen, bounds: Bounds) -> _Seen:
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
            return _Seen(made, times)
        there_left, there_right = self._there(left), self._there(right)
        made = plan.withNewChildren(c.seq([there_left[0], there_right[0]]))
        # rows that never go wait for the other side's alone; others can change until they are final themselves
        stay = left.stays and right.stays
        seen = _Seen(made, times, stays=stay and join in ("Inner", "LeftSemi"))
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

    def _distinct(self, plan: Jvm) -> _Seen:
        below = self._visit(plan.child())
        shown = items(plan.output())
        windows = [a for a in shown if identity(a) in below.times and below.times[identity(a)].window]
        if below.stream is not None:
            if not windows:
                self._refuse_timeless(plan)
            slack = below.times[identity(windows[0])].slack_us
            self._expire("Aggregate", windows[0], {below.stream.name}, slack)
            below = self._admitted(below, windows[0])
        times = {identity(a): below.times[identity(a)] for a in shown if identity(a) in below.times}
        closing: tuple[Jvm, ...] = ()
        if self._policy.emits and windows:
            closing = self._closing(self._closes(windows[0], times[identity(windows[0])]))
        narrow = self._c.plans.Project(self._c.seq([*shown, *closing]), below.plan)
        carried = tuple(c.toAttribute() for c in closing)
        return _Seen(plan.withNewChildren(self._c.seq([narrow])), times, None, carried, bool(closing))

    def _union(self, plan: Jvm) -> _Seen:
        children = [self._visit(child) for child in items(plan.children())]
        if any(child.stream is not None for child in children):
            self._refuse_timeless(plan)
        made = plan.withNewChildren(self._c.seq(self._narrowed(p, s) for p, s in self._pairs(plan, children)))
        outputs = [[identity(a) for a in items(child.output())] for child in items(plan.children())]
        times = {}
        for place, attribute in enumerate(items(plan.output())):
            known = [seen.times.get(ids[place]) for seen, ids in zip(children, outputs, strict=True)]
            if all(k is not None and k.window == known[0].window for k in known):  # type: ignore[union-attr]
                some = [k for k in known if k is not None]
                domain = frozenset().union(*(k.domain for k in some))
                times[identity(attribute)] = replace(
                    some[0], domain=domain, slack_us=max(k.slack_us for k in some)
                )
        return _Seen(made, times)

    def _other(self, plan: Jvm, seen: Sequence[_Seen] | None = None) -> _Seen:
        """A node that knows nothing of time."""
        children = [self._visit(c) for c in items(plan.children())] if seen is None else seen
        if any(_has_subquery(e) for e in items(plan.expressions())) and self._policy.leaves_out:
            self._refuse_timeless(plan)
        if any(child.stream is not None for child in children):
            self._refuse_timeless(plan)
        if not children:
            return _Seen(plan)
        narrowed = [self._narrowed(p, s) for p, s in self._pairs(plan, children)]
        return _Seen(plan.withNewChildren(self._c.seq(narrowed)))

    # --- late rows -------------------------------------------------------------------------------------------------

    def _admitted(self, seen: _Seen, by: Jvm) -> _Seen:
        """The rows of a topic that are not late for a window, or at a time; the others are kept apart."""
        c, stream = self._c, seen.stream
        assert stream is not None
        known = seen.times[identity(by)]
        watermark = self._micros(stream.hidden[WATERMARK])
        allowed = self._policy.options.correct_for_us or 0
        start, end = self._no_time(), self._no_time()
        time = by
        late = None
        if by.metadata().contains(_SESSION):
            time = self._field(by, 0)
        elif known.window:
            start, end = self._field(by, 0), self._field(by, 1)
            late = c.expressions.LessThanOrEqual(self._plus(self._micros(end), allowed), watermark)
            time = self._stream_time(seen)
        if late is None:
            late = c.expressions.LessThan(self._plus(self._micros(time), allowed), watermark)
        late = self._coalesced(self._not_replayed(late, stream))
        behind = c.expressions.LessThan(self._micros(time), watermark)
        told = [
            *stream.columns,
            *(stream.hidden[name] for name in (*POSITION, WATERMARK)),
            c.alias(start, "_window_start"),
            c.alias(end, "_window_end"),
            c.alias(time, "_time"),
            c.alias(late, "_late"),
        ]
        plan = c.plans.Project(c.seq(told), c.plans.Filter(behind, seen.plan))
        self._late.append(LatePlan(stream.name, plan))
        admitted = c.plans.Filter(c.expressions.Not(late), seen.plan)
        return replace(seen, plan=admitted, stream=None, carried=())

    def _expire(self, node: str, attribute: Jvm, topics: Iterable[str], slack: int) -> None:
        slack += self._policy.options.correct_for_us or 0
        for place in self._places(node, attribute):
            self._expiring[place] = Expiring(tuple(topics), slack)

    def _expire_further(self, attribute: Jvm, reach: int | None) -> None:
        """Frames over rows that have frames already: what changes reaches as far back as both together."""
        for place in self._places("Window", attribute):
            known = self._expiring.pop(place, None)
            if known is not None and reach is not None:
                self._expiring[place] = replace(known, slack_us=known.slack_us + reach)

    def _places(self, node: str, attribute: Jvm) -> set[Place]:
        number = identity(attribute)
        return {
            (node, number),
            (node, self._renamed.get(number, number)),
        }  # the optimizer takes renamings back

    def _reach(self, plan: Jvm, following: int) -> int | None:
        """How far the frames of a window reach, back and ahead; None if by rows, or without bound."""
        behind = [self._bounds.behind(e) for e in items(plan.windowExpressions())]
        known = [b for b in behind if b is not None]
        return max([0, *known]) + following if len(known) == len(behind) else None

    def _not_replayed(self, late: Jvm, stream: _Stream) -> Jvm:
        """Rows that were given back are not late."""
        c = self._c
        for partition, end in sorted(self._policy.replayed.get(stream.name, {}).items()):
            inside = c.expressions.And(
                c.expressions.EqualTo(stream.hidden["_partition"], self._number(partition)),
                c.expressions.LessThan(stream.hidden["_offset"], self._long(end)),
            )
            late = c.expressions.And(late, c.expressions.Not(inside))
        return late

    def _stream_time(self, seen: _Seen) -> Jvm:
        assert seen.stream is not None
        relation = self._relations[seen.stream.name]
        return next(a for a in seen.stream.columns if a.name() in relation.times)

    def _refuse_timeless(self, plan: Jvm) -> NoReturn:
        self._refuse(
            plan,
            f"{self._policy.told} is for rows that come too late for a window, and here rows of a topic "
            "have none by their event time",
            hint="group by window(), session_window() or cumulate_window() of the topic's WATERMARK column, use OVER "
            "(... ORDER BY it RANGE ...) or join within bounds on it, over the topic itself; or leave the option out",
        )

    # --- final rows ------------------------------------------------------------------------------------------------

    def _closes(self, key: Jvm, times: Times) -> tuple[Jvm, frozenset[str]]:
        """When a group of this key is final."""
        if times.window:
            return self._plus(self._micros(self._field(key, 1)), times.slack_us), times.domain
        return self._plus(self._micros(key), times.slack_us + 1), times.domain

    def _closing(self, closes: tuple[Jvm, frozenset[str] | Jvm]) -> tuple[Jvm, Jvm]:
        at, domain = closes
        number = self._number(self._domain(domain)) if isinstance(domain, frozenset) else domain
        return self._c.alias(at, CLOSE), self._c.alias(number, DOMAIN)

    def _closed(self, seen: _Seen, closes: tuple[Jvm, frozenset[str] | Jvm]) -> _Seen:
        """The same rows, with when they are final."""
        carried = self._closing(closes)
        made = self._c.plans.Project(self._c.seq([*items(seen.plan.output()), *carried]), seen.plan)
        return replace(seen, plan=made, carried=tuple(c.toAttribute() for c in carried), is_closing=True)

    def _domain(self, topics: frozenset[str]) -> int:
        if topics not in self._domains:
            self._domains.append(topics)
        return self._domains.index(topics)

    def _there(self, seen: _Seen) -> tuple[Jvm, Jvm]:
        """One side of an outer join, with a column that is NULL where it has no row."""
        there = self._c.alias(module(self._c.expressions, "Literal").apply(True), "_there")
        made = self._c.plans.Project(self._c.seq([*items(seen.plan.output()), there]), seen.plan)
        return made, there.toAttribute()

    def _frame_time(self, plan: Jvm, below: _Seen) -> tuple[Jvm, int] | None:
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

    def _equal_windows(self, plan: Jvm, left: _Seen, right: _Seen) -> dict[int, Times]:
        """The windows of the sides of a join that are the same in every row of it."""
        condition = option(plan.condition())
        found: dict[int, Times] = {}
        for one, other in [] if condition is None else self._bounds.equal(condition):
            for l_id, r_id in ((one, other), (other, one)):
                mine, theirs = left.times.get(l_id, _NO_TIME), right.times.get(r_id, _NO_TIME)
                if mine.window and theirs.window:
                    slack = max(mine.slack_us, theirs.slack_us)
                    found[l_id] = found[r_id] = Times(mine.domain | theirs.domain, slack, window=True)
        return found

    def _always_there(self, plan: Jvm, left: _Seen, right: _Seen) -> set[int]:
        """The times of the sides of a join that are NULL in none of its rows."""
        join = kind(plan.joinType())
        there = set() if join in ("RightOuter", "FullOuter") else set(left.times)
        return there if join in ("LeftOuter", "FullOuter") else there | set(right.times)

    # --- expressions -----------------------------------------------------------------------------------------------

    def _time_of(self, expression: Jvm, below: _Seen) -> Times | None:
        """What a column of a projection is, in time."""
        inner = expression.child() if kind(expression) == "Alias" else expression
        if kind(inner) == "AttributeReference":
            return below.times.get(identity(inner))
        if kind(expression) != "Alias":
            return None
        metadata = expression.toAttribute().metadata()
        if metadata.contains(_WINDOW) or metadata.contains(_SESSION):
            found = self._read_time(inner, below)
            # a row at the very end of a session still joins it
            more = 1 if metadata.contains(_SESSION) else 0
            return None if found is None else replace(found, window=True, slack_us=found.slack_us + more)
        end = find(inner, lambda e: kind(e) == "GetStructField")
        if end is not None and self._is_end(inner, end, below):
            return replace(below.times[identity(end.child())], window=False)
        return None

    def _is_end(self, expression: Jvm, field: Jvm, below: _Seen) -> bool:
        """Whether an expression is the end of a window, or `window_time` of one."""
        window = field.child()
        if kind(window) != "AttributeReference" or not below.times.get(identity(window), _NO_TIME).window:
            return False
        is_last = field.ordinal() == 1
        return is_last and (_same(expression, field) or kind(expression) == "PreciseTimestampConversion")

    def _read_time(self, expression: Jvm, below: _Seen) -> Times | None:
        """The event time that a window is of, if it is of one as it is and reads nothing else."""
        parts = {identity(a) for a in items(expression.references().toSeq())}
        read = {self._made_of.get(each, each) for each in parts}
        found = below.times.get(read.pop()) if len(read) == 1 else None
        time = windowed(expression)
        as_it_is = parts <= self._made_of.keys() if time is None else kind(time) == "AttributeReference"
        return found if found is not None and not found.window and as_it_is else None

    def _made(self, expression: Jvm, attributes: Iterable[Jvm], below: _Seen) -> None:
        """Note that attributes are made of one event time as it is, if they are."""
        if self._read_time(expression, below) is not None:
            read = identity(items(expression.references().toSeq())[0])
            self._made_of |= {identity(a): self._made_of.get(read, read) for a in attributes}

    def _with_carried(self, given: Sequence[Jvm], below: _Seen) -> list[Jvm]:
        known = {identity(e) for e in given}
        return [*given, *(a for a in below.carried if identity(a) not in known)]

    def _over(self, plan: Jvm, seen: Iterable[_Seen]) -> Jvm:
        return plan.withNewChildren(self._c.seq(s.plan for s in seen))

    def _pairs(self, plan: Jvm, seen: Sequence[_Seen]) -> list[tuple[Jvm, _Seen]]:
        return list(zip(items(plan.children()), seen, strict=True))

    def _narrowed(self, before: Jvm, seen: _Seen) -> Jvm:
        """A plan with the columns that it had, for those who count on them."""
        wanted = items(before.output())
        if [identity(a) for a in items(seen.plan.output())] == [identity(a) for a in wanted]:
            return seen.plan
        return self._c.plans.Project(self._c.seq(wanted), seen.plan)


_NO_TIME = Times(frozenset())


def _moments(seen: _Seen) -> set[int]:
    return {i for i, times in seen.times.items() if not times.window}


def _same(one: Jvm, other: Jvm) -> bool:
    return bool(one.semanticEquals(other))


def _has_subquery(expression: Jvm) -> bool:
    return (
        find(expression, lambda e: kind(e) in ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery"))
        is not None
    )
