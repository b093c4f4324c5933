"""Context of the timing of one plan: the functions that put a policy into one kind of node each all take it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from headwater.plan.relations.relations import Relation
from headwater.plan.relations.time_bounds import TimeBounds
from headwater.plan.time.late_policy import Policy
from headwater.plan.time.state_expiry import Expiring, Place
from headwater.plan.time.timed_plan import AsOfJoin, LatePlan, TimedNode, VersionMention
from headwater.spark.catalyst import Catalyst, Jvm, Refuse, identity, kind

Changelog = Callable[[str], Jvm]
"""The plan of the records of a keyed topic: the columns of its relation, then hidden ones."""


class TimingContext:
    """One plan that a policy is put into: what it may read, what it left out, and what its state can forget."""

    def __init__(
        self,
        catalyst: Catalyst,
        relations: Mapping[str, Relation],
        refuse: Refuse,
        policy: Policy,
        changelog: Changelog | None,
        timed_by: Callable[[str], NodeTiming],
    ) -> None:
        """`timed_by` gives the function for a kind of plan node; the rest is as in `timing_of`."""
        self.catalyst = catalyst
        self.relations = relations
        self.refuse = refuse
        self.policy = policy
        self.changelog = changelog
        self._timed_by = timed_by
        self.bounds = TimeBounds()
        self.late: list[LatePlan] = []
        """Where rows were left out."""
        self.domains: list[frozenset[str]] = []
        """The topics whose watermarks count, by the number that DOMAIN has for them."""
        self.expiring: dict[Place, Expiring] = {}
        """Where no row will come for what is older."""
        self.mentions: list[str] = []
        """The relations of the plan, one for each scan."""
        self.renamed: dict[int, int] = {}
        """By attributes of the plan those of a relation that they are."""
        self.made_of: dict[int, int] = {}
        """By attributes that are made of one event time alone, as parts of cumulative windows are: that time."""
        self.version_mentions: list[VersionMention] = []
        self.as_of_joins: list[AsOfJoin] = []

    def visit(self, plan: Jvm) -> TimedNode:
        """A plan with the policy in it, and what is known of its times."""
        return self._timed_by(kind(plan))(self, plan)

    def expire(self, node: str, attribute: Jvm, topics: Iterable[str], slack: int) -> None:
        """Note that state of a kind of node can go once watermarks of topics are past an attribute."""
        slack += self.policy.options.correct_for_us or 0
        for place in self.places(node, attribute):
            self.expiring[place] = Expiring(tuple(topics), slack)

    def places(self, node: str, attribute: Jvm) -> set[Place]:
        """What an attribute is known by at a kind of node; the optimizer takes renamings back."""
        number = identity(attribute)
        return {(node, number), (node, self.renamed.get(number, number))}


NodeTiming = Callable[[TimingContext, Jvm], TimedNode]
"""Puts the policy into a plan node of one kind."""
