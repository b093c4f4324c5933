"""Context of the timing of one plan, passed to all functions that apply a policy to a kind of plan node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from headwater.plan.relations.relations import Relation
from headwater.plan.relations.time_bounds import TimeBounds
from headwater.plan.time.late_policy import Policy
from headwater.plan.time.state_expiry import Expiring, Place
from headwater.plan.time.timed_plan import AsOfJoin, LatePlan, TimedNode, VersionMention
from headwater.spark.catalyst import Catalyst, Jvm, Refuse, identity, kind

Changelog = Callable[[str], Jvm]
"""Returns the plan of the records of a keyed topic, by name: the columns of its relation, then metadata columns."""


class TimingContext:
    """The application of a policy to one plan: readable relations, dropped late rows, and expiring state."""

    def __init__(
        self,
        catalyst: Catalyst,
        relations: Mapping[str, Relation],
        refuse: Refuse,
        policy: Policy,
        changelog: Changelog | None,
        timed_by: Callable[[str], NodeTiming],
    ) -> None:
        """`timed_by` returns the function for a kind of plan node; the other parameters are those of `timing_of`."""
        self.catalyst = catalyst
        self.relations = relations
        self.refuse = refuse
        self.policy = policy
        self.changelog = changelog
        self._timed_by = timed_by
        self.bounds = TimeBounds()
        self.late: list[LatePlan] = []
        """The plans of dropped late rows."""
        self.domains: list[frozenset[str]] = []
        """Sets of topics whose watermarks count; DOMAIN has the index into this list."""
        self.expiring: dict[Place, Expiring] = {}
        """State expiry by place."""
        self.mentions: list[str] = []
        """The relations of the plan, one entry per scan."""
        self.renamed: dict[int, int] = {}
        """IDs of plan attributes to the IDs of the relation attributes that they rename."""
        self.made_of: dict[int, int] = {}
        """IDs of attributes computed from a single event time, such as parts of cumulative windows, to the ID of that time."""
        self.version_mentions: list[VersionMention] = []
        self.as_of_joins: list[AsOfJoin] = []

    def visit(self, plan: Jvm) -> TimedNode:
        """Return a plan with the policy applied, and the event times of its columns."""
        return self._timed_by(kind(plan))(self, plan)

    def expire(self, node: str, attribute: Jvm, topics: Iterable[str], slack: int) -> None:
        """Record that state of a kind of node expires once watermarks of topics are past an attribute."""
        slack += self.policy.options.correct_for_us or 0
        for place in self.places(node, attribute):
            self.expiring[place] = Expiring(tuple(topics), slack)

    def places(self, node: str, attribute: Jvm) -> set[Place]:
        """Return the places of an attribute at a kind of node: under its own ID and the renamed one, since the optimizer
        removes renames."""
        number = identity(attribute)
        return {(node, number), (node, self.renamed.get(number, number))}


NodeTiming = Callable[[TimingContext, Jvm], TimedNode]
"""Applies the policy to a plan node of one kind."""
