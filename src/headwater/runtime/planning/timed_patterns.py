"""Row patterns in time: rows that come too late are left out, and matches are final once no row can change them.

When that is, is found with the matches (`closes` of their kernel): once the watermark has passed all rows that were looked at
to decide on a match and on those before it; where more rows could still go on with it, once WITHIN is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headwater.clock import to_us
from headwater.log.topic import END_OF_TIME
from headwater.operators.patterns.spec import CLOSES, Classify, MatchSpec, Navigate
from headwater.operators.patterns.step import kept
from headwater.queries import graph as g
from headwater.runtime.planning.catalyst import Jvm, identity, items, kind, output_of
from headwater.runtime.planning.handles import Times
from headwater.runtime.planning.patterns import NODE, columns_matched, matched_by, numbered_anew
from headwater.runtime.planning.timed_joins import TimedJoins
from headwater.runtime.planning.timed_plans import Seen

_ENDED = to_us(END_OF_TIME)


class TimedMatches(TimedJoins):
    """Puts a policy into matches."""

    def _matched(self, plan: Jvm, below: Seen) -> Seen:
        """A match over a plan that was looked at."""
        found = matched_by(plan, self._c)
        spec = found.spec
        attribute = None if spec.time is None else columns_matched(plan)[spec.time]
        known = None if attribute is None else below.times.get(identity(attribute))
        if known is None or known.window:
            return self._untimed_match(plan, below, spec)
        if below.stream is not None:
            if (span := kept(spec)) is not None:
                for known_as in (attribute, *_renamed(plan.child(), attribute)):
                    self._expire(NODE, known_as, [below.stream.name], span + 1)
            below = self._admitted(below, attribute)
        child = self._narrowed(plan.child(), below)
        times = _times(spec, known, output_of(plan))
        if self._policy.emits:
            closing = replace(found, spec=replace(spec, closing=True))
            closes = self._c.alias(self._long(0), CLOSES).toAttribute()
            made = numbered_anew(self._c, plan, closing, [*output_of(plan), closes], child)
            # what waits for a row that is not there yet is final when no more will come
            last = self._c.expressions.Least(self._c.seq([closes, self._long(_ENDED - known.slack_us)]))
            return self._closed(Seen(made, times), (self._plus(last, known.slack_us), known.domain))
        if spec.timeouts:
            waits = g.Waits(tuple(sorted(known.domain)), known.slack_us)
            waiting = replace(found, spec=replace(spec, closing=True), waits=waits)
            return Seen(numbered_anew(self._c, plan, waiting, output_of(plan), child), times)
        return Seen(plan.withNewChildren(self._c.seq([child])), times)

    def _untimed_match(self, plan: Jvm, below: Seen, spec: MatchSpec) -> Seen:
        hint = "ORDER BY the topic's WATERMARK column first, ascending"
        if below.stream is not None:
            reason = (
                "is for rows that come too late, and these are not matched in the order of their event time"
            )
            self._refuse(plan, f"{self._policy.told} {reason}", hint=f"{hint}; or leave the option out")
        if spec.timeouts:
            reason = "watermarks say that a time is over, and these rows are not matched in the order of their event time"
            self._refuse(plan, f"EMIT TIMEOUTS: {reason}", hint=hint)
        return Seen(plan.withNewChildren(self._c.seq([self._narrowed(plan.child(), below)])))


def _renamed(plan: Jvm, attribute: Jvm) -> list[Jvm]:
    """The column that an attribute of a projection is another name of, which the optimizer takes back."""
    given = items(plan.projectList()) if kind(plan) == "Project" else []
    own = [e for e in given if identity(e) == identity(attribute) and kind(e) == "Alias"]
    return [e.child() for e in own if kind(e.child()) == "AttributeReference"]


def _times(spec: MatchSpec, known: Times, output: Sequence[Jvm]) -> dict[int, Times]:
    """The columns that have event times of rows of a match, which is decided on at most WITHIN after each."""
    if spec.within is None or any(_looks_ahead(spec, number) for number in range(len(spec.expressions))):
        return {}
    later = replace(known, slack_us=known.slack_us + spec.within)
    return {
        identity(attribute): later
        for attribute, shown in zip(output, spec.shown, strict=True)
        if _is_time(spec, shown.what, shown.number)
    }


def _looks_ahead(spec: MatchSpec, number: int) -> bool:
    inputs = spec.expressions[number].inputs
    return any(isinstance(each, Navigate | Classify) and each.offset > 0 for each in inputs)


def _is_time(spec: MatchSpec, what: str, number: int) -> bool:
    if what == "column":
        return number == spec.time and spec.rows != "one"
    if what != "measure":
        return False
    measure = spec.expressions[spec.measures[number]]
    is_plain = len(measure.inputs) == 1 and measure.type == spec.schema.field(spec.time or 0).type
    first = measure.inputs[0] if is_plain else None
    return isinstance(first, Navigate) and first.column == spec.time and first.offset == 0
