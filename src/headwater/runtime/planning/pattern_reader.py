"""MATCH_RECOGNIZE of a plan, as an operator: a function of whole partitions. What becomes of the clause is in `patterns`."""

from __future__ import annotations

from headwater.operators.patterns.spec import CLOSES
from headwater.queries import graph as g
from headwater.runtime.planning.catalyst import Jvm, module, output_of
from headwater.runtime.planning.handles import Lowered
from headwater.runtime.planning.patterns import columns_matched, matched_by
from headwater.runtime.planning.policy import CLOSE, DOMAIN
from headwater.runtime.planning.reader import Reader


class PatternReader(Reader):
    """Reads the node that stands for MATCH_RECOGNIZE."""

    def _flatmapgroupsinarrow(self, plan: Jvm) -> Lowered:
        found = matched_by(plan, self._c)
        below = self._narrowed(self.lower(plan.child()), columns_matched(plan))
        attributes = output_of(plan)
        text = f"{found.text} with {', '.join(e.text for e in found.expressions)}"
        if found.waits is None:
            schema = self._c.arrow_schema(attributes)
            return Lowered(g.Regroup(below.node, found.spec.partition, text, found, schema), attributes)
        return self._waiting(below, found, found.waits, text, attributes)

    def _waiting(
        self, below: Lowered, found: g.RowPattern, waits: g.Waits, text: str, attributes: list[Jvm]
    ) -> Lowered:
        """Matches, which are shown at once, and those that ran out of time, once the watermark says so."""
        c = self._c
        closes = c.alias(self._long_number(0), CLOSES).toAttribute()
        whole = [*attributes, closes]
        node = g.Regroup(below.node, found.spec.partition, text, found, c.arrow_schema(whole))
        is_over = next(a for a, s in zip(attributes, found.spec.shown, strict=True) if s.what == "timed out")
        when = c.expressions.Add(closes, self._long_number(waits.slack_us)) if waits.slack_us else closes
        at = c.expressions.If(is_over, when, self._null(closes.dataType()))
        told = [*attributes, c.alias(at, CLOSE), c.alias(self._literal(0), DOMAIN)]
        waiting = self._projected(Lowered(node, whole), told)
        return Lowered(g.Close(waiting.node, (waits.topics,), c.arrow_schema(attributes)), attributes)

    def _long_number(self, value: int) -> Jvm:
        return self._c.cast(self._literal(value), module(self._c.jvm.org.apache.spark.sql.types, "LongType"))
