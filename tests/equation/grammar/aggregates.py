"""Random aggregate functions that depend on the multiset of rows alone, not on their order."""

from __future__ import annotations

from dataclasses import replace

from tests.equation.grammar.choice import Chooser, DeadEndError, Option
from tests.equation.grammar.expressions import INTEGERS, LIMITS, Expression, Expressions, Scope

ROWS_MAX = 10**6
"""More rows than any generated relation has: a sum is made only if so many of the largest value fit."""
EXACT_DOUBLE = 2**53
DECIMAL_DIGITS_MAX = 38


class Aggregates:
    """Makes aggregates over a scope; `expressions` makes their arguments."""

    def __init__(self, chooser: Chooser, scope: Scope) -> None:
        self.chooser = chooser
        self.scope = scope
        self.expressions = Expressions(chooser, scope)

    def any(self) -> Expression:
        """One aggregate, perhaps with FILTER (WHERE ...)."""
        made = self.chooser.make(self._options())
        if "{}" not in made.sql:
            return made
        condition = ""
        if self.chooser.on("filter_clause", 0.2):
            condition = f" FILTER (WHERE {self.expressions.predicate(1)})"
        return replace(made, sql=made.sql.replace("{}", condition))

    def summed(self, over: str = "{}") -> Expression:
        """A sum that can neither overflow nor depend on the order of its rows."""
        argument = self.chooser.one(self._numbers())
        if argument.kind in INTEGERS:
            if argument.bound * ROWS_MAX > LIMITS["BIGINT"]:
                argument = replace(argument, sql=f"({argument.sql} % 100)", bound=99)
            return Expression(f"sum({argument.sql}){over}", "BIGINT", argument.bound * ROWS_MAX)
        if argument.kind == "DOUBLE":
            return Expression(f"sum({argument.sql}){over}", "DOUBLE", exact=False)
        precision, scale = _digits(argument.kind)
        bound = argument.bound * ROWS_MAX
        if bound >= 10 ** (min(DECIMAL_DIGITS_MAX, precision + 10) - scale):
            raise DeadEndError
        kind = f"DECIMAL({min(DECIMAL_DIGITS_MAX, precision + 10)},{scale})"
        return Expression(f"sum({argument.sql}){over}", kind, bound)

    def averaged(self, over: str = "{}") -> Expression:
        """An average; of decimals it is exact."""
        argument = self.chooser.one(self._numbers())
        if argument.kind in INTEGERS and argument.bound * ROWS_MAX > EXACT_DOUBLE:
            argument = replace(argument, sql=f"({argument.sql} % 100)", bound=99)
        if not argument.kind.startswith("DECIMAL"):
            return Expression(f"avg({argument.sql}){over}", "DOUBLE", exact=False)
        precision, scale = _digits(argument.kind)
        if precision > 20:
            raise DeadEndError
        return Expression(
            f"avg({argument.sql}){over}", f"DECIMAL({precision + 4},{scale + 4})", argument.bound
        )

    def _numbers(self) -> list[Expression]:
        numbers = [
            e for e in self.scope.exact if e.kind in INTEGERS or e.kind.startswith("DECIMAL") or e.floats
        ]
        if self.chooser.rng.random() < 0.25:
            made = self.expressions.of(self.chooser.one(("BIGINT", "INT", "DECIMAL(10,2)", "DOUBLE")), 1)
            numbers = [made] if made.kind != "DOUBLE" or made.floats else numbers
        return numbers

    def _options(self) -> list[Option[Expression]]:
        one = self.chooser.one
        return [
            ("count", 2, lambda: Expression("count(*){}", "BIGINT", ROWS_MAX)),
            (
                "count",
                1,
                lambda: Expression(f"count({one(self.scope.references).sql}){{}}", "BIGINT", ROWS_MAX),
            ),
            ("sum", 2, self.summed),
            ("avg", 1.5, self.averaged),
            ("min_max", 2, self._extreme),
            ("count_distinct", 1, self._distinct_count),
            ("sum_distinct", 0.5, lambda: self._distinct_sum()),
            ("bool_and_or", 1, self._bool),
            ("variance", 1, self._variance),
            ("min_by_max_by", 1, self._by),
            ("collect_set", 1, self._set),
            ("array_agg", 1, self._list),
            ("percentile", 1, self._percentile),
        ]

    def _extreme(self) -> Expression:
        argument = self.chooser.one(self.scope.references)
        return replace(argument, sql=f"{self.chooser.one(('min', 'max'))}({argument.sql}){{}}", floats="")

    def _distinct_count(self) -> Expression:
        arguments = ", ".join(e.sql for e in self.chooser.some(self.scope.exact, 1, 2))
        return Expression(f"count(DISTINCT {arguments}){{}}", "BIGINT", ROWS_MAX)

    def _distinct_sum(self) -> Expression:
        argument = self.chooser.one([e for e in self.scope.of_kind(*INTEGERS) if e.bound < 10**9])
        return Expression(f"sum(DISTINCT {argument.sql}){{}}", "BIGINT", argument.bound * ROWS_MAX)

    def _bool(self) -> Expression:
        name = self.chooser.one(("bool_and", "bool_or", "every", "some"))
        return Expression(f"{name}({self.expressions.predicate(1)}){{}}", "BOOLEAN")

    def _variance(self) -> Expression:
        # Large values or grains finer than 1/4 would leave only rounding errors of a small variance.
        small = [e for e in self.scope.of_kind(*INTEGERS, "DECIMAL(10,2)") if e.bound <= 1000]
        argument = self.chooser.one([*small, *(e for e in self.scope.exact if e.floats == "dyadic")])
        name = self.chooser.one(("stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop"))
        return Expression(f"{name}({argument.sql}){{}}", "DOUBLE", exact=False)

    def _by(self) -> Expression:
        value = self.chooser.one(self.scope.exact)
        order = self.chooser.some(self.scope.exact, 1, 2)
        # The value itself comes last in the order, so that ties are ties of equal values.
        keys = ", ".join(f"{e.sql} AS o{i}" for i, e in enumerate([*order, value]))
        name = self.chooser.one(("min_by", "max_by"))
        return replace(value, sql=f"{name}({value.sql}, struct({keys})){{}}", floats="")

    def _set(self) -> Expression:
        argument = self.chooser.one([e for e in self.scope.exact if "DOUBLE" not in e.kind])
        return Expression(f"collect_set({argument.sql}){{}}", f"ARRAY<{argument.kind}>", argument.bound)

    def _list(self) -> Expression:
        argument = self.chooser.one(self.scope.references)
        kind = f"ARRAY<{argument.kind}>"
        return Expression(f"sort_array(array_agg({argument.sql}){{}})", kind, argument.bound, argument.exact)

    def _percentile(self) -> Expression:
        number = self.chooser.one(self.scope.of_kind(*INTEGERS, "DOUBLE", "DECIMAL(10,2)")).sql
        shape = self.chooser.one(("median({n})", "percentile({n}, 0.25)", "percentile({n}, array(0.5, 0.9))"))
        kind = "ARRAY<DOUBLE>" if "array" in shape else "DOUBLE"
        return Expression(shape.format(n=number) + "{}", kind, exact=False)


def _digits(kind: str) -> tuple[int, int]:
    precision, scale = kind[len("DECIMAL(") : -1].split(",")
    return int(precision), int(scale)
