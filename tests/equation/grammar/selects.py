"""Random SELECTs, nested to a depth; each is a function of the multisets of rows that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tests.equation.grammar.aggregates import ROWS_MAX, Aggregates
from tests.equation.grammar.choice import Chooser, DeadEndError, Option
from tests.equation.grammar.expressions import Expression, Expressions, Scope, direction
from tests.equation.grammar.relations import Outputs, Query, Relation, Source, merged, of_kinds, projection

ROWS_WANTED_MAX = 1500
"""Joins that would give about more rows than this are not made."""
DISTINCT_VALUES = 6
WINDOW_KIND = "STRUCT<start: TIMESTAMP, end: TIMESTAMP>"
SET_OPERATIONS = {
    "union_all": "UNION ALL",
    "union": "UNION",
    "intersect": "INTERSECT",
    "intersect_all": "INTERSECT ALL",
    "except": "EXCEPT",
    "except_all": "EXCEPT ALL",
}
JOINS = {
    "join_inner": "JOIN",
    "join_left": "LEFT JOIN",
    "join_right": "RIGHT JOIN",
    "join_full": "FULL JOIN",
    "join_semi": "LEFT SEMI JOIN",
    "join_anti": "LEFT ANTI JOIN",
}
FRAMES = ("", " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING")
GROUPINGS = ("rollup", "cube", "grouping_sets")
WINDOW_FUNCTIONS = (
    "row_number",
    "rank",
    "dense_rank",
    "lag_lead",
    "window_sum",
    "window_avg",
    "window_min_max",
    "window_count",
)
SUBQUERIES = (
    "in_subquery",
    "not_in_subquery",
    "exists",
    "not_exists",
    "scalar_subquery",
    "correlated_scalar_subquery",
)
GENERATORS = {
    "explode": "LATERAL VIEW explode",
    "explode_outer": "LATERAL VIEW OUTER explode",
    "posexplode": "LATERAL VIEW posexplode",
    "inline": "LATERAL VIEW inline",
}


class Selects:
    """Makes queries over the relations of a workspace."""

    def __init__(self, chooser: Chooser, relations: Sequence[Relation]) -> None:
        self.chooser = chooser
        self.relations = list(relations)

    def view(self, depth: int) -> Query:
        """A query for a view; only here may it begin with WITH."""
        return self.chooser.make(
            [(None, 9, lambda: self.query(depth)), ("cte", 1, lambda: self._common(depth))]
        )

    def query(self, depth: int) -> Query:
        """A query of any form."""
        options: list[Option[Query]] = [
            (None, 1.5, lambda: self._projected(depth)),
            ("distinct", 0.7, lambda: self._distinct(depth)),
            ("group_by", 3, lambda: self._grouped(depth)),
            ("global_aggregate", 0.5, lambda: self._global(depth)),
            ("tumbling_window", 0.7, lambda: self._windowed(depth, "'10 minutes'")),
            ("hopping_window", 0.7, lambda: self._windowed(depth, "'10 minutes', '5 minutes'")),
            ("order_limit", 1.2, lambda: self._limited(depth)),
            ("qualify", 1, lambda: self._qualified(depth)),
        ]
        families = [
            (SET_OPERATIONS, 0.4, self._set),
            (JOINS, 0.6, self._joined),
            (GROUPINGS, 0.4, self._grouped),
            (WINDOW_FUNCTIONS, 0.35, self._over),
            (SUBQUERIES, 0.35, self._subquery),
            (GENERATORS, 0.4, self._exploded),
        ]
        for names, weight, make in families:
            options += [(name, weight, partial(make, depth, name)) for name in names]
        return self.chooser.make(options)

    def source(self, depth: int, rows_max: float = ROWS_WANTED_MAX) -> Source:
        """Something to read: a relation, or a query in parentheses."""
        alias = self.chooser.name("q")
        if depth > 0 and self.chooser.on("derived_table", 0.25):
            inner = self.query(depth - 1)
            if inner.rows > rows_max:
                raise DeadEndError
            return Source(
                f"({inner.sql}) AS {alias}", alias, Scope.of(alias, inner.columns), inner.rows, alias
            )
        fitting = [relation for relation in self.relations if relation.rows <= rows_max]
        if common := [relation for relation in fitting if relation.common]:
            fitting = fitting if self.chooser.rng.random() < 0.3 else common
        elif upper := [relation for relation in fitting if relation.depth > 0]:
            fitting = fitting if self.chooser.rng.random() < 0.5 else upper
        relation = self.chooser.one(fitting)
        return self._read(relation, alias)

    def _read(self, relation: Relation, alias: str) -> Source:
        if not relation.common:
            self.chooser.reads.add(relation.name)
        if relation.depth > 0:
            self.chooser.require("views_over_views")
        return Source(
            f"{relation.name} AS {alias}",
            alias,
            Scope.of(alias, relation.columns),
            relation.rows,
            relation.name,
        )

    def _where(self, scope: Scope, probability: float = 0.3) -> str:
        if not self.chooser.on("filter", probability):
            return ""
        made = Expressions(self.chooser, scope)
        condition = made.predicate(1)
        # A chain of narrow filters leaves nothing to compare.
        return (
            f" WHERE {condition}"
            if self.chooser.rng.random() < 0.4
            else f" WHERE {condition} OR {made.predicate(0)}"
        )

    def _outputs(self, *expressions: Expression) -> Outputs:
        outputs = Outputs(self.chooser)
        outputs.add(*expressions)
        return outputs

    def _common(self, depth: int) -> Query:
        name = self.chooser.name("w")
        first = self.query(depth)
        inner = Selects(
            self.chooser, [*self.relations, Relation(name, first.columns, first.rows, common=True)]
        )
        second = inner.query(depth)
        if name not in second.sql:
            raise DeadEndError
        return Query(f"WITH {name} AS ({first.sql}) {second.sql}", second.columns, second.rows)

    def _projected(self, depth: int) -> Query:
        source = self.source(depth)
        outputs = self._outputs(*projection(self.chooser, source.scope))
        return outputs.query(f"SELECT {{}} FROM {source.sql}{self._where(source.scope, 0.6)}", source.rows)

    def _distinct(self, depth: int) -> Query:
        source = self.source(depth)
        outputs = self._outputs(*projection(self.chooser, source.scope, exact=True, low=1, high=3))
        return outputs.query(
            f"SELECT DISTINCT {{}} FROM {source.sql}{self._where(source.scope)}", source.rows
        )

    def _set(self, depth: int, feature: str) -> Query:
        left, right = self.source(depth), self.source(depth)
        kinds = self.chooser.some(left.scope.kinds(), 1, 3)
        sides = []
        for source in (left, right):
            outputs = self._outputs(*of_kinds(self.chooser, source.scope, kinds))
            where = self._where(source.scope)
            sides.append(outputs.query(f"SELECT {{}} FROM {source.sql}{where}", source.rows))
        sql = f"({sides[0].sql}) {SET_OPERATIONS[feature]} ({sides[1].sql})"
        return Query(sql, merged(sides[0].columns, sides[1].columns), left.rows + right.rows)

    def _grouped(self, depth: int, grouping: str = "") -> Query:
        source = self.source(depth)
        keys = self.chooser.some(source.scope.exact, 1, 2)
        marks: list[Expression] = []
        if grouping:
            listed = self._grouping(grouping, [key.sql for key in keys])
            if self.chooser.rng.random() < 0.5:
                marks = [Expression(f"CAST(grouping({keys[0].sql}) AS INT)", "INT", 1)]
        else:
            listed = self._group_expressions(source, keys)
        aggregates = Aggregates(self.chooser, source.scope)
        made = [aggregates.any() for _ in range(self.chooser.rng.randint(1, 3))]
        where, having = self._where(source.scope, 0.3), self._having(aggregates)
        return self._outputs(*keys, *marks, *made).query(
            f"SELECT {{}} FROM {source.sql}{where} GROUP BY {listed}{having}", max(1.0, source.rows / 2)
        )

    def _grouping(self, grouping: str, keys: Sequence[str]) -> str:
        listed = ", ".join(keys)
        if grouping == "grouping_sets":
            return (
                f"GROUPING SETS (({listed}), ({keys[0]}), ())"
                if len(keys) > 1
                else f"GROUPING SETS (({listed}), ())"
            )
        return f"{grouping.upper()} ({listed})"

    def _group_expressions(self, source: Source, keys: list[Expression]) -> str:
        """Plain grouping; one key may become an expression, in place."""
        if self.chooser.rng.random() < 0.3:
            made = Expressions(self.chooser, source.scope).any(1)
            # A constant or a bare number in GROUP BY would mean something else: an output's position.
            if source.alias + "." in made.sql:
                keys[0] = made
        return ", ".join(key.sql for key in keys)

    def _having(self, aggregates: Aggregates) -> str:
        if not self.chooser.on("having", 0.25):
            return ""
        made = aggregates.any()
        if made.kind == "BOOLEAN" or not made.exact:
            return " HAVING count(*) > 1"
        if made.kind == "BIGINT":
            return f" HAVING {made.sql} >= 2"
        return f" HAVING {made.sql} IS NOT NULL"

    def _global(self, depth: int) -> Query:
        source = self.source(depth)
        aggregates = Aggregates(self.chooser, source.scope)
        outputs = self._outputs(*(aggregates.any() for _ in range(self.chooser.rng.randint(1, 4))))
        return outputs.query(f"SELECT {{}} FROM {source.sql}{self._where(source.scope)}", 1)

    def _windowed(self, depth: int, span: str) -> Query:
        source = self.source(depth)
        at = self.chooser.one(source.scope.of_kind("TIMESTAMP"))
        window = f"window({at.sql}, {span})"
        keys = self.chooser.some(source.scope.exact, 0, 1)
        aggregates = Aggregates(self.chooser, source.scope)
        form = self.chooser.one((Expression(window, WINDOW_KIND), Expression("window.start", "TIMESTAMP")))
        outputs = self._outputs(
            form, *keys, *(aggregates.any() for _ in range(self.chooser.rng.randint(1, 3)))
        )
        listed = ", ".join([window, *(key.sql for key in keys)])
        return outputs.query(f"SELECT {{}} FROM {source.sql} GROUP BY {listed}", source.rows)

    def _limited(self, depth: int) -> Query:
        source = self.source(depth)
        outputs = self._outputs(*projection(self.chooser, source.scope))
        order = Scope([Expression(c.name, c.kind, exact=c.exact) for c in outputs.columns])
        limit = f"LIMIT {self.chooser.rng.randint(1, 6)}"
        if self.chooser.on("offset", 0.4):
            limit += f" OFFSET {self.chooser.rng.randint(1, 3)}"
        where = self._where(source.scope, 0.3)
        return outputs.query(
            f"SELECT {{}} FROM {source.sql}{where} ORDER BY {order.total_order(self.chooser)} {limit}", 6
        )

    def _partition(self, scope: Scope) -> str:
        keys = self.chooser.some(scope.exact, 0 if self.chooser.rng.random() < 0.2 else 1, 2)
        return f"PARTITION BY {', '.join(key.sql for key in keys)} " if keys else ""

    def _qualified(self, depth: int) -> Query:
        source = self.source(depth)
        scope = source.scope
        outputs = self._outputs(*projection(self.chooser, scope))
        order = scope.total_order(self.chooser)
        name = self.chooser.make(
            [
                ("row_number", 3, lambda: "row_number()"),
                ("rank", 1, lambda: "rank()"),
                ("dense_rank", 1, lambda: "dense_rank()"),
            ]
        )
        rank = f"{name} OVER ({self._partition(scope)}ORDER BY {order})"
        where = self._where(scope, 0.3)
        sql = f"SELECT {{}} FROM {source.sql}{where} QUALIFY {rank} <= {self.chooser.rng.randint(1, 3)}"
        return outputs.query(sql, source.rows / 2)

    def _over(self, depth: int, feature: str) -> Query:
        source = self.source(depth)
        outputs = self._outputs(*projection(self.chooser, source.scope, low=1, high=3))
        first = self._window_function(source.scope, feature)
        outputs.add(first)
        if self.chooser.rng.random() < 0.4:
            further = [
                (name, 1.0, partial(self._window_function, source.scope, name)) for name in WINDOW_FUNCTIONS
            ]
            second = self.chooser.make(further)
            # Two that tell equal rows apart leave open which value of one is beside which of the other.
            if not (_tells_equal_rows_apart(first) and _tells_equal_rows_apart(second)):
                outputs.add(second)
        return outputs.query(f"SELECT {{}} FROM {source.sql}{self._where(source.scope, 0.3)}", source.rows)

    def _window_function(self, scope: Scope, feature: str) -> Expression:
        partition, total = self._partition(scope), scope.total_order(self.chooser)
        # Ranks are the same whichever of tied rows comes first; everything else needs a total order.
        some = ", ".join(e.sql + direction(self.chooser) for e in self.chooser.some(scope.exact, 1, 2))
        frame = self.chooser.one(FRAMES)
        over = self.chooser.one(
            (f" OVER ({partition}ORDER BY {total}{frame})", f" OVER ({partition.strip()})")
        )
        value = self.chooser.one(scope.references)
        aggregates = Aggregates(self.chooser, scope)
        match feature:
            case "row_number":
                return Expression(f"row_number() OVER ({partition}ORDER BY {total})", "INT", ROWS_MAX)
            case "rank" | "dense_rank":
                return Expression(f"{feature}() OVER ({partition}ORDER BY {some})", "INT", ROWS_MAX)
            case "lag_lead":
                call = f"{self.chooser.one(('lag', 'lead'))}({value.sql}{self.chooser.one(('', ', 2'))})"
                return replace(value, sql=f"{call} OVER ({partition}ORDER BY {total})", floats="")
            case "window_sum":
                return aggregates.summed(over)
            case "window_avg":
                return aggregates.averaged(over)
            case "window_min_max":
                call = f"{self.chooser.one(('min', 'max'))}({value.sql})"
                return replace(value, sql=f"{call}{over}", floats="")
        return Expression(f"count(*){over}", "BIGINT", ROWS_MAX)

    def _pair(self, left: Scope, right: Scope) -> tuple[Expression, Expression]:
        """A column of each side, of one type."""
        kind = self.chooser.one([kind for kind in left.kinds() if kind in right.kinds()])
        return self.chooser.one(left.of_kind(kind)), self.chooser.one(right.of_kind(kind))

    def _on(self, left: Scope, right: Scope) -> str:
        conditions = []
        for _ in range(self.chooser.rng.choice((1, 1, 1, 2))):
            a, b = self._pair(left, right)
            conditions.append(f"{a.sql} {'<=>' if self.chooser.on('join_null_safe', 0.1) else '='} {b.sql}")
        if self.chooser.on("join_condition", 0.35):
            a, b = self._pair(left, right)
            further = Expressions(self.chooser, left + right).predicate(1)
            conditions.append(self.chooser.one((f"{a.sql} < {b.sql}", f"{a.sql} <> {b.sql}", further)))
        return " AND ".join(conditions)

    def _joined(self, depth: int, feature: str) -> Query:
        left = self.source(depth)
        right = self.source(depth)
        if self.chooser.on("self_join", 0.15):
            names = {relation.name: relation for relation in self.relations}
            if left.name not in names:
                raise DeadEndError
            right = self._read(names[left.name], self.chooser.name("q"))
        rows = left.rows * right.rows / DISTINCT_VALUES
        sql = f"{left.sql} {JOINS[feature]} {right.sql} ON {self._on(left.scope, right.scope)}"
        scope = left.scope + right.scope
        if feature in ("join_semi", "join_anti"):
            scope, rows = left.scope, left.rows
        if self.chooser.on("three_way_join", 0.2):
            third, kind = self.source(depth), self.chooser.one(("JOIN", "LEFT JOIN"))
            sql += f" {kind} {third.sql} ON {self._on(scope, third.scope)}"
            scope, rows = scope + third.scope, rows * third.rows / DISTINCT_VALUES
        if rows > ROWS_WANTED_MAX:
            raise DeadEndError
        outputs = self._outputs(*projection(self.chooser, scope, low=2, high=5))
        return outputs.query(f"SELECT {{}} FROM {sql}{self._where(scope, 0.25)}", max(rows, left.rows))

    def _subquery(self, depth: int, feature: str) -> Query:
        outer = self.source(depth)
        inner = self.source(0)
        a, b = self._pair(outer.scope, inner.scope)
        outputs = self._outputs(*projection(self.chooser, outer.scope, low=1, high=3))
        negated = "NOT " if feature.startswith("not_") else ""
        correlated = f"FROM {inner.sql} WHERE {a.sql} = {b.sql}"
        match feature:
            case "in_subquery" | "not_in_subquery":
                where = self._where(inner.scope, 0.4)
                # One NULL among them, and NOT IN is never true: worth a test, but not each time.
                if negated and self.chooser.rng.random() < 0.7:
                    test = Expressions(self.chooser, inner.scope).predicate(0)
                    where = f" WHERE {b.sql} IS NOT NULL AND {test}"
                condition = f"{a.sql} {negated}IN (SELECT {b.sql} FROM {inner.sql}{where})"
            case "exists" | "not_exists":
                if self.chooser.rng.random() < 0.4:
                    both = Expressions(self.chooser, outer.scope + inner.scope)
                    correlated += f" AND {both.predicate(1)}"
                condition = f"{negated}EXISTS (SELECT 1 {correlated})"
            case "scalar_subquery":
                condition = self._scalar(outputs, a, b, f"FROM {inner.sql}{self._where(inner.scope, 0.4)}")
            case _:
                condition = self._scalar(outputs, *self._pair(outer.scope, inner.scope), correlated)
        where = f" WHERE {condition}" if condition else ""
        return outputs.query(f"SELECT {{}} FROM {outer.sql}{where}", outer.rows)

    def _scalar(self, outputs: Outputs, a: Expression, b: Expression, rest: str) -> str:
        """A subquery of one value, as an output or as a side of a comparison."""
        name = self.chooser.one(("min", "max"))
        if self.chooser.rng.random() < 0.4:
            return f"{a.sql} {self.chooser.one(('<', '>=', '='))} (SELECT {name}({b.sql}) {rest})"
        count = Expression(f"(SELECT count(*) {rest})", "BIGINT", ROWS_MAX)
        extreme = Expression(f"(SELECT {name}({b.sql}) {rest})", b.kind, b.bound)
        outputs.add(self.chooser.one((count, extreme)))
        return ""

    def _exploded(self, depth: int, feature: str) -> Query:
        source = self.source(depth)
        alias = self.chooser.name("e")
        call, fields = self._inlined(source, alias) if feature == "inline" else self._elements(source, alias)
        if feature == "posexplode":
            fields = [Expression(f"{alias}.p", "INT", 1000), *fields]
        names = ", ".join(field.sql.removeprefix(f"{alias}.") for field in fields)
        lateral = f"{GENERATORS[feature]}({call}) {alias} AS {names}"
        scope = Scope([*source.scope.references, *fields])
        outputs = self._outputs(*fields, *projection(self.chooser, scope, low=1, high=2))
        where = self._where(scope, 0.3)
        return outputs.query(f"SELECT {{}} FROM {source.sql} {lateral}{where}", source.rows * 1.7)

    def _elements(self, source: Source, alias: str) -> tuple[str, list[Expression]]:
        made = Expressions(self.chooser, source.scope)
        values = made.of(self.chooser.one(("ARRAY<STRING>", "ARRAY<BIGINT>")), 1)
        inner = values.kind[len("ARRAY<") : -1]
        return values.sql, [Expression(f"{alias}.x", inner, max(values.bound, 5))]

    def _inlined(self, source: Source, alias: str) -> tuple[str, list[Expression]]:
        made = Expressions(self.chooser, source.scope)
        columns = self.chooser.some(source.scope.exact, 1, 2)
        others = [made.of(column.kind, 0) for column in columns]
        first = ", ".join(f"'f{i}', {column.sql}" for i, column in enumerate(columns))
        second = ", ".join(f"'f{i}', {other.sql}" for i, other in enumerate(others))
        fields = [
            Expression(f"{alias}.f{i}", a.kind, max(a.bound, b.bound))
            for i, (a, b) in enumerate(zip(columns, others, strict=True))
        ]
        return f"array(named_struct({first}), named_struct({second}))", fields


def _tells_equal_rows_apart(window: Expression) -> bool:
    return window.sql.startswith(("row_number(", "lag(", "lead(")) or " ROWS " in window.sql
