"""What is known of times in a plan, and the plans made of it: without late rows, and with when a row is final."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.plan.relations.relations import Times
from headwater.plan.relations.time_bounds import TimeRange
from headwater.plan.time.state_expiry import Expiring, Place
from headwater.spark.catalyst import Catalyst, Jvm, children_of, identity, output_of

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
class TimedNode:
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


@dataclass(frozen=True)
class VersionMention:
    """A place of a query that reads versions."""

    plan: Jvm
    relation: str
    begin: int
    end: int
    """The identities of the attributes that say when a version is valid."""


@dataclass(frozen=True)
class AsOfJoin:
    """A join with the versions that are valid at the times of its left side's rows."""

    mention: VersionMention
    bounds: TimeRange
    end: Jvm
    left: frozenset[str]
    right: frozenset[str]
    """The topics whose watermarks say what comes on either side."""
    slack_us: int
    """How much longer rows of the left side can change than those of its topics."""
    is_left_out: bool
    """Whether none that comes late is among these."""


def pairs(plan: Jvm, seen: Sequence[TimedNode]) -> list[tuple[Jvm, TimedNode]]:
    """The nodes below one, each with what became of it."""
    return list(zip(children_of(plan), seen, strict=True))


def with_carried(given: Sequence[Jvm], below: TimedNode) -> list[Jvm]:
    """The expressions of a projection, with the columns that are passed on to the top."""
    known = {identity(e) for e in given}
    return [*given, *(a for a in below.carried if identity(a) not in known)]


def narrowed(catalyst: Catalyst, before: Jvm, seen: TimedNode) -> Jvm:
    """A plan with the columns that it had, for those who count on them."""
    wanted = output_of(before)
    if [identity(a) for a in output_of(seen.plan)] == [identity(a) for a in wanted]:
        return seen.plan
    return catalyst.plans.Project(catalyst.seq(wanted), seen.plan)


def has_windows_by_arrival(plan: Jvm) -> bool:
    """Whether a query has windows of the times at which rows came."""
    return f"precisetimestampconversion({ARRIVAL}#" in plan.toString()
