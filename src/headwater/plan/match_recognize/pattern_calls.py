"""Aggregates in MATCH_RECOGNIZE as inputs of the expressions that call them: their rows and their argument."""

from __future__ import annotations

from headwater.operators.match_recognize import spec as k
from headwater.plan.match_recognize.pattern_aggregates import AggregateCall, arguments_of
from headwater.plan.match_recognize.pattern_inputs import PatternInputs
from headwater.plan.match_recognize.pattern_scope import PatternScope, depends_on_row
from headwater.spark.catalyst import Jvm, items, kind, module, option

_KERNELS: dict[str, k.AggregateKind] = {
    "count": "count",
    "sum": "sum",
    "avg": "avg",
    "mean": "avg",
    "min": "min",
    "max": "max",
}
"""Functions that the operator computes itself, by their SQL names."""


class PatternAggregates:
    """Reads the aggregates of one clause."""

    def __init__(self, scope: PatternScope, inputs: PatternInputs) -> None:
        self._scope = scope
        self._inputs = inputs

    def aggregate(self, e: Jvm, called: str, is_final: bool) -> k.Input:
        """Return the input for an aggregate; an aggregate without a kernel takes a list of its arguments."""
        arguments = arguments_of(e)
        plain = kind(e) == "UnresolvedFunction"
        if plain and items(e.orderingWithinGroup()):
            self._scope.refuse(
                e,
                "WITHIN GROUP is not supported in patterns",
                hint="rows are in the order of the ORDER BY of MATCH_RECOGNIZE",
                reason="within-group",
            )
        is_distinct = plain and e.isDistinct()
        condition = option(e.filter()) if plain else None
        if any(kind(of) == "UnresolvedStar" for of in arguments):
            return self._count_rows(e, called, is_final, is_distinct=is_distinct, condition=condition)
        expressions = [*arguments, *([] if condition is None else [condition])]
        variables = self._scope.variables_of(expressions, e)
        if called in _KERNELS and len(arguments) == 1 and not is_distinct:
            of = arguments[0]
            if (
                _KERNELS[called] == "count"
                and condition is None
                and kind(of) == "Literal"
                and of.value() is not None
            ):
                return k.PatternAggregate("count", None, None, is_final)
            number = self._inputs.argument(self._scope.where(condition, of))
            return k.PatternAggregate(_KERNELS[called], variables, number, is_final)
        own = [place for place, of in enumerate(arguments) if depends_on_row(of)]
        literal = module(self._scope.catalyst.expressions, "Literal")
        fields = [arguments[place] for place in own] or [literal.apply(1)]
        element = fields[0]
        is_plain = len(own) == 1 and condition is None
        if not is_plain:
            named = [part for i, of in enumerate(fields) for part in (literal.apply(f"a{i}"), of)]
            element = self._scope.where(
                condition, self._scope.catalyst.expressions.CreateNamedStruct(self._scope.catalyst.seq(named))
            )
        made = k.PatternAggregate("list", variables, self._inputs.argument(element), is_final, str(e.sql()))
        self._inputs.calls[made] = AggregateCall(e, tuple(own), is_plain, is_distinct, condition is not None)
        return made

    def _count_rows(
        self, e: Jvm, called: str, is_final: bool, *, is_distinct: bool, condition: Jvm | None
    ) -> k.Input:
        """Return the input for count(*) or count(A.*)."""
        arguments = arguments_of(e)
        if called != "count" or is_distinct or len(arguments) != 1:
            self._scope.refuse(e, "only count() takes a whole row", hint="count(A.*)", reason="whole-row")
        target = option(arguments[0].target())
        variables = None
        if target is not None:
            variables = self._scope.clause.variables(items(target)[0])
            if variables is None:
                self._scope.refuse(
                    e,
                    f"the pattern has no variable {items(target)[0]!r}",
                    hint="count(A.*)",
                    reason="unknown-variable",
                    variable=items(target)[0],
                )
        if condition is None:
            return k.PatternAggregate("count", variables, None, is_final)
        if any(met != variables for met in self._scope.met([condition])):
            self._scope.differ(e)
        one = module(self._scope.catalyst.expressions, "Literal").apply(1)
        return k.PatternAggregate(
            "count", variables, self._inputs.argument(self._scope.where(condition, one)), is_final
        )
