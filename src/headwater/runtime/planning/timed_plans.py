"""What is known of times in a plan, and the plans made of it: without late rows, and with when a row is final.

The parts that `timing` and `timed_joins` put together, node by node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from headwater.runtime.hidden import table_topic
from headwater.runtime.planning.catalyst import (
    Catalyst,
    Jvm,
    Refuse,
    children_of,
    identity,
    module,
    output_of,
)
from headwater.runtime.planning.cumulating import ending_after
from headwater.runtime.planning.expiring import Expiring, Place
from headwater.runtime.planning.handles import Relation, Times
from headwater.runtime.planning.policy import CLOSE, DOMAIN, POSITION, WATERMARK, Policy
from headwater.runtime.planning.time_bounds import TimeBounds
from headwater.runtime.planning.time_expressions import TimeExpressions

ARRIVAL = "_appended_at"
SESSION = "spark.sessionWindow"
"""Metadata of a column that is a session window."""
NO_TIME = Times(frozenset())


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
class Stream:
    """Single rows of a topic."""

    name: str
    columns: tuple[Jvm, ...]
    hidden: Mapping[str, Jvm]


@dataclass(frozen=True)
class Seen:
    """A plan that was looked at."""

    plan: Jvm
    times: Mapping[int, Times] = field(default_factory=dict)
    """By the identity of an attribute."""
    stream: Stream | None = None
    """If its rows are still those of a topic, one by one."""
    carried: tuple[Jvm, ...] = ()
    """Attributes that are passed on to the top."""
    is_closing: bool = False
    """Whether these are CLOSE and DOMAIN."""
    is_version: bool = False
    """Whether its rows are versions of a table's, the later of which end the earlier."""
    is_table: bool = False
    """Whether its rows are those of a table, any of which may change at any time, whatever times it has."""
    stays: bool = False
    """Whether a row that is there never goes."""
    is_left_out: bool = False
    """Whether what comes late was left out, so that its rows change no more once the watermark has passed their times."""


class TimedPlans(TimeExpressions):
    """Makes plans under a policy, and notes what it left out and what its state can forget."""

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

    # --- late rows -------------------------------------------------------------------------------------------------

    def _admitted(self, seen: Seen, by: Jvm) -> Seen:
        """The rows of a topic that are not late for a window, or at a time; the others are kept apart."""
        c, stream = self._c, seen.stream
        assert stream is not None
        known = seen.times[identity(by)]
        watermark = self._micros(stream.hidden[WATERMARK])
        allowed = self._policy.options.correct_for_us or 0
        start, end = self._no_time(), self._no_time()
        time = by
        late = None
        if by.metadata().contains(SESSION):
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
        admitted = ending_after(c, seen.plan, by, self._limit(stream)) if known.window else None
        if admitted is None:
            admitted = c.plans.Filter(c.expressions.Not(late), seen.plan)
        return replace(seen, plan=admitted, stream=None, carried=(), is_left_out=True)

    def _expire(self, node: str, attribute: Jvm, topics: Iterable[str], slack: int) -> None:
        slack += self._policy.options.correct_for_us or 0
        for place in self._places(node, attribute):
            self._expiring[place] = Expiring(tuple(topics), slack)

    def _places(self, node: str, attribute: Jvm) -> set[Place]:
        number = identity(attribute)
        return {
            (node, number),
            (node, self._renamed.get(number, number)),
        }  # the optimizer takes renamings back

    def _not_replayed(self, late: Jvm, stream: Stream) -> Jvm:
        """Rows that were given back are not late."""
        for given in self._given_back(stream):
            late = self._c.expressions.And(late, self._c.expressions.Not(given))
        return late

    def _limit(self, stream: Stream) -> Jvm:
        """The end up to which windows are late, in microseconds; NULL where none is."""
        allowed = self._policy.options.correct_for_us or 0
        limit = self._plus(self._micros(stream.hidden[WATERMARK]), -allowed)
        none = module(self._c.expressions, "Literal").create(None, limit.dataType())
        for given in self._given_back(stream):
            limit = self._c.expressions.If(given, none, limit)
        return limit

    def _given_back(self, stream: Stream) -> Iterator[Jvm]:
        """Whether a row was given back, by partition."""
        e = self._c.expressions
        for partition, end in sorted(self._policy.replayed.get(stream.name, {}).items()):
            own = e.EqualTo(stream.hidden["_partition"], self._number(partition))
            yield e.And(own, e.LessThan(stream.hidden["_offset"], self._long(end)))

    def _stream_time(self, seen: Seen) -> Jvm:
        assert seen.stream is not None
        relation = self._relations[seen.stream.name]
        return next(a for a in seen.stream.columns if a.name() in relation.times)

    def _refuse_never_late(self, plan: Jvm) -> None:
        """Refuse a query that reads no topic whose rows can be late: there is nothing for the policy to leave out."""
        read = [self._relations[name] for name in dict.fromkeys(self._mentions)]
        if any(relation.is_stream for relation in read):
            return
        told = [_why_never_late(relation) for relation in read] or ["this query reads no topic"]
        views = [relation.name for relation in read if _is_view(relation)]
        hint = "leave the option out"
        if views:
            hint += f" here; it is for {views[0]}, or for a view below it, where a topic is read"
        elif any(relation.append_only for relation in read):
            hint += ", or make a topic that has a WATERMARK"
        self._refuse(
            plan,
            f"{self._policy.told} is for rows of a topic that come too late, and {', and '.join(told)}",
            hint=hint,
        )

    def _refuse_timeless(self, plan: Jvm) -> NoReturn:
        if has_windows_by_arrival(plan):
            self._refuse(
                plan,
                f"{self._policy.told} is for rows that come too late, and no row is late by {ARRIVAL}, which is when it came",
                hint="use the topic's WATERMARK column, or leave the option out",
            )
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

    def _closed(self, seen: Seen, closes: tuple[Jvm, frozenset[str] | Jvm]) -> Seen:
        """The same rows, with when they are final."""
        carried = self._closing(closes)
        made = self._c.plans.Project(self._c.seq([*output_of(seen.plan), *carried]), seen.plan)
        return replace(seen, plan=made, carried=tuple(c.toAttribute() for c in carried), is_closing=True)

    def _domain(self, topics: frozenset[str]) -> int:
        if topics not in self._domains:
            self._domains.append(topics)
        return self._domains.index(topics)

    # --- columns ---------------------------------------------------------------------------------------------------

    def _with_carried(self, given: Sequence[Jvm], below: Seen) -> list[Jvm]:
        known = {identity(e) for e in given}
        return [*given, *(a for a in below.carried if identity(a) not in known)]

    def _over(self, plan: Jvm, seen: Iterable[Seen]) -> Jvm:
        return plan.withNewChildren(self._c.seq(s.plan for s in seen))

    def _pairs(self, plan: Jvm, seen: Sequence[Seen]) -> list[tuple[Jvm, Seen]]:
        return list(zip(children_of(plan), seen, strict=True))

    def _narrowed(self, before: Jvm, seen: Seen) -> Jvm:
        """A plan with the columns that it had, for those who count on them."""
        wanted = output_of(before)
        if [identity(a) for a in output_of(seen.plan)] == [identity(a) for a in wanted]:
            return seen.plan
        return self._c.plans.Project(self._c.seq(wanted), seen.plan)


def has_windows_by_arrival(plan: Jvm) -> bool:
    """Whether a query has windows of the times at which rows came."""
    return f"precisetimestampconversion({ARRIVAL}#" in plan.toString()


def _is_view(relation: Relation) -> bool:
    return relation.versions is None and not relation.is_versions


def _why_never_late(relation: Relation) -> str:
    """What is the case with something that a query reads, where its rows are never late."""
    if _is_view(relation):
        return f"{relation.name} is a view: which rows were late was decided where it reads its topics"
    if relation.append_only:
        return f"topic {relation.name} has no WATERMARK, so that none of its rows is late"
    name = table_topic(relation.name) if relation.is_versions else relation.name
    return f"{name} is a table: whenever a newer row comes, it replaces the older one of its key"
