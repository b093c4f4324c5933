"""Event times of plan nodes, and the plans derived by a policy: without late rows, and with the time when a row is final."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.plan.relations.relations import Times
from headwater.plan.relations.time_bounds import TimeRange
from headwater.plan.time.state_expiry import Expiring, Place
from headwater.spark.catalyst import Catalyst, Jvm, children_of, identity, output_of

ARRIVAL = "_appended_at"
SESSION = "spark.sessionWindow"
"""Metadata key of a column that is a session window."""
NO_TIME = Times(frozenset())


@dataclass(frozen=True)
class LatePlan:
    """The rows of a topic that may be late at one place of a query: the topic's columns, then LATE_COLUMNS."""

    topic: str
    plan: Jvm


@dataclass(frozen=True)
class TimedPlan:
    """A plan with its policy applied."""

    plan: Jvm
    """The plan; its last columns are CLOSE and DOMAIN if the policy emits only final rows."""
    late: tuple[LatePlan, ...] = ()
    domains: tuple[frozenset[str], ...] = ()
    """Sets of topics whose watermarks count; DOMAIN has the index into this tuple."""
    times: Mapping[int, Times] = field(default_factory=dict)
    """Output columns that have event times, by index."""
    expiring: Mapping[Place, Expiring] = field(default_factory=dict)
    """State expiry by the attributes by which late rows were dropped."""


@dataclass(frozen=True)
class Stream:
    """Independent rows of a topic."""

    name: str
    columns: tuple[Jvm, ...]
    hidden: Mapping[str, Jvm]


@dataclass(frozen=True)
class TimedNode:
    """A visited plan node, with the policy applied and the event times of its columns."""

    plan: Jvm
    times: Mapping[int, Times] = field(default_factory=dict)
    """Event times by attribute ID."""
    stream: Stream | None = None
    """The topic, if the rows of the node still correspond to the rows of one topic."""
    carried: tuple[Jvm, ...] = ()
    """Attributes that are passed up to the root."""
    is_closing: bool = False
    """Whether the carried attributes are CLOSE and DOMAIN."""
    is_version: bool = False
    """Whether the rows are versions of table rows, where later versions end earlier ones."""
    is_table: bool = False
    """Whether the rows are those of a table, any of which may change at any time, whatever their times."""
    stays: bool = False
    """Whether rows are never retracted."""
    is_left_out: bool = False
    """Whether late rows were dropped, so that rows no longer change once the watermark has passed their times."""


@dataclass(frozen=True)
class VersionMention:
    """A scan of row versions in a query."""

    plan: Jvm
    relation: str
    begin: int
    end: int
    """Attribute IDs of the begin and end of validity."""


@dataclass(frozen=True)
class AsOfJoin:
    """A join with the versions that are valid at the times of the left rows."""

    mention: VersionMention
    bounds: TimeRange
    end: Jvm
    left: frozenset[str]
    right: frozenset[str]
    """The topics whose watermarks bound the new rows of each side."""
    slack_us: int
    """How much longer left rows can change than the rows of their topics, in microseconds."""
    is_left_out: bool
    """Whether late rows are excluded from the left side."""


def pairs(plan: Jvm, seen: Sequence[TimedNode]) -> list[tuple[Jvm, TimedNode]]:
    """Return the child nodes of a plan, each paired with its visited node."""
    return list(zip(children_of(plan), seen, strict=True))


def with_carried(given: Sequence[Jvm], below: TimedNode) -> list[Jvm]:
    """Return the expressions of a projection, plus the attributes that are passed up to the root."""
    known = {identity(e) for e in given}
    return [*given, *(a for a in below.carried if identity(a) not in known)]


def narrowed(catalyst: Catalyst, before: Jvm, seen: TimedNode) -> Jvm:
    """Return a visited plan reduced to the columns that the plan had before, for nodes that rely on their position."""
    wanted = output_of(before)
    if [identity(a) for a in output_of(seen.plan)] == [identity(a) for a in wanted]:
        return seen.plan
    return catalyst.plans.Project(catalyst.seq(wanted), seen.plan)


def has_windows_by_arrival(plan: Jvm) -> bool:
    """Whether a query has windows over the arrival times of rows."""
    return f"precisetimestampconversion({ARRIVAL}#" in plan.toString()
