"""Random scalar expressions and predicates: well typed, and never an ANSI error on the values that are generated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.equation.grammar.choice import Chooser, DeadEndError, Option
from tests.equation.grammar.model import Column

LIMITS = {"INT": 2**31 - 1, "BIGINT": 2**63 - 1}
LITERALS = {
    "BIGINT": ("0L", "1L", "2L", "-1L", "5L"),
    "INT": ("0", "1", "2", "3"),
    "STRING": ("''", "'a'", "'b'", "'é'", "'10'", "'日本'"),
    "DOUBLE": ("0.5D", "0.0D", "2.0D", "-1.25D"),
    "DECIMAL(10,2)": ("CAST(1.00 AS DECIMAL(10,2))", "CAST(-1.50 AS DECIMAL(10,2))"),
    "DATE": ("DATE '2024-02-29'", "DATE '2024-03-01'"),
    "TIMESTAMP": ("TIMESTAMP '2024-03-01 12:05:00'", "TIMESTAMP '2024-03-01 13:00:00'"),
    "BOOLEAN": ("true", "false"),
    "ARRAY<STRING>": ("array('a', 'b')",),
    "ARRAY<BIGINT>": ("array(1L, 2L)", "array(3L)"),
}
INTEGERS = ("INT", "BIGINT")


@dataclass(frozen=True)
class Expression:
    """Text in Spark SQL, its type, and what `Column` says of its values."""

    sql: str
    kind: str
    bound: int = 0
    exact: bool = True
    floats: str = ""

    def named(self, name: str) -> Column:
        """The column that it is under a name."""
        return Column(name, self.kind, self.bound, self.exact, self.floats)


class Scope:
    """The columns that an expression may use, as references."""

    def __init__(self, references: Sequence[Expression]) -> None:
        self.references = tuple(references)
        self.exact = tuple(e for e in references if e.exact)

    @classmethod
    def of(cls, alias: str, columns: Sequence[Column]) -> Scope:
        """The columns of one table under its alias."""
        return cls([Expression(f"{alias}.{c.name}", c.kind, c.bound, c.exact, c.floats) for c in columns])

    def __add__(self, other: Scope) -> Scope:
        return Scope([*self.references, *other.references])

    def kinds(self) -> list[str]:
        """The types at hand whose values are exact."""
        return sorted({e.kind for e in self.exact})

    def of_kind(self, *kinds: str) -> list[Expression]:
        """The exact columns of these types."""
        return [e for e in self.exact if e.kind in kinds]

    def total_order(self, chooser: Chooser) -> str:
        """All columns, so that only equal rows tie; those with a tolerance last, where they decide nothing else."""
        exact = chooser.some(self.exact, len(self.exact), len(self.exact))
        return ", ".join(
            e.sql + direction(chooser) for e in [*exact, *(e for e in self.references if not e.exact)]
        )


def direction(chooser: Chooser) -> str:
    """ASC or DESC, and where NULLs go."""
    return chooser.rng.choice(("", "", " DESC", " ASC NULLS LAST", " DESC NULLS FIRST"))


class Expressions:
    """Makes expressions over a scope. `depth` bounds how far operators nest."""

    def __init__(self, chooser: Chooser, scope: Scope) -> None:
        self.chooser = chooser
        self.scope = scope

    def any(self, depth: int) -> Expression:
        """An expression of a random type that the grammar can make; one without a column is a dead end."""
        made = self.of(self.chooser.one([*LITERALS, *self.scope.kinds() * 3]), depth)
        if not any(reference.sql in made.sql for reference in self.scope.references):
            raise DeadEndError
        return made

    def of(self, kind: str, depth: int) -> Expression:
        """An exact expression of the type."""
        columns = self.scope.of_kind(kind)
        options: list[Option[Expression]] = [(None, 0.6, lambda: self.literal(kind))]
        if columns:
            options.append((None, 4, lambda: self.chooser.one(columns)))
        if depth > 0:
            options += self._generic(kind, depth - 1)
            options += self._special(kind, depth - 1)
        return self.chooser.make(options)

    def literal(self, kind: str) -> Expression:
        """A constant; a typed NULL for what has no literals, and sometimes for what has."""
        floats = "dyadic" if kind == "DOUBLE" else ""
        if kind not in LITERALS or self.chooser.on("nulls", 0.1):
            return Expression(f"CAST(NULL AS {kind})", kind, floats=floats)
        return Expression(self.chooser.one(LITERALS[kind]), kind, 5 if kind in LIMITS else 2, floats=floats)

    def predicate(self, depth: int) -> str:
        """A condition in three-valued logic."""
        chooser = self.chooser
        options: list[Option[str]] = [
            (None, 4, lambda: self._comparison(depth)),
            (None, 1, lambda: self._null_test()),
            (None, 1, lambda: self._membership(depth)),
            (None, 1, lambda: chooser.one(self.scope.of_kind("BOOLEAN")).sql),
            ("string_functions", 1, lambda: self._text_test()),
            ("special_floats", 0.5, lambda: f"isnan({chooser.one(self.scope.of_kind('DOUBLE')).sql})"),
            ("nested_functions", 1, lambda: self._array_test(depth)),
        ]
        if depth > 0:
            options.append((None, 3, lambda: self._logic(depth - 1)))
        return chooser.make(options)

    def _comparison(self, depth: int) -> str:
        kind = self.chooser.one(self.scope.kinds())
        left, right = self._two(kind, min(depth, 1), self.chooser.one(self.scope.of_kind(kind)))
        operator = self.chooser.one(("=", "<", "<=", ">", ">=", "<>", "<>", "<=>"))
        return f"{left.sql} {operator} {right.sql}"

    def _two(self, kind: str, depth: int, left: Expression) -> tuple[Expression, Expression]:
        """An expression beside another; not the same again, or the result is foregone."""
        right = self.of(kind, depth)
        return left, right if right.sql != left.sql else self.literal(kind)

    def _null_test(self) -> str:
        return f"{self.chooser.one(self.scope.references).sql} IS {self.chooser.one(('', 'NOT '))}NULL"

    def _membership(self, depth: int) -> str:
        kind = self.chooser.one([kind for kind in self.scope.kinds() if kind in LITERALS and "<" not in kind])
        value = self.of(kind, min(depth, 1)).sql
        low, high = self.literal(kind).sql, self.literal(kind).sql
        return self.chooser.one(
            (
                f"{value} IN ({low}, {high})",
                f"{value} NOT IN ({low}, {high})",
                f"{value} BETWEEN {low} AND {high}",
            )
        )

    def _text_test(self) -> str:
        text = self.chooser.one(self.scope.of_kind("STRING")).sql
        return self.chooser.one(
            (
                f"{text} LIKE 'a%'",
                f"{text} NOT LIKE '%b'",
                f"startswith({text}, 'a')",
                f"{text} RLIKE '^[a-z ]+$'",
            )
        )

    def _array_test(self, depth: int) -> str:
        array = self.chooser.one(self.scope.of_kind("ARRAY<STRING>", "ARRAY<BIGINT>"))
        inner = array.kind[len("ARRAY<") : -1]
        return f"array_contains({array.sql}, {self.of(inner, min(depth, 1)).sql})"

    def _logic(self, depth: int) -> str:
        left, right = self.predicate(depth), self.predicate(depth)
        return self.chooser.one((f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"))

    def _generic(self, kind: str, depth: int) -> list[Option[Expression]]:
        """What works for every type."""

        def pair(template: str) -> Expression:
            left, right = self._two(kind, depth, self.of(kind, depth))
            sql = template.format(left=left.sql, right=right.sql, when=self.predicate(depth))
            floats = left.floats if left.floats == right.floats else ""
            return replace(left, sql=sql, bound=max(left.bound, right.bound), floats=floats)

        options: list[Option[Expression]] = [
            ("conditional", 0.7, lambda: pair("CASE WHEN {when} THEN {left} ELSE {right} END")),
            ("conditional", 0.3, lambda: pair("CASE WHEN {when} THEN {left} END")),
            ("conditional", 0.6, lambda: pair("coalesce({left}, {right})")),
            ("conditional", 0.3, lambda: pair("if({when}, {left}, {right})")),
            ("conditional", 0.4, lambda: pair("nullif({left}, {right})")),
        ]
        if "<" not in kind:
            options.append(("conditional", 0.3, lambda: pair("greatest({left}, {right})")))
            options.append(("conditional", 0.3, lambda: pair("least({left}, {right})")))
        return options

    def _special(self, kind: str, depth: int) -> list[Option[Expression]]:
        match kind:
            case "INT" | "BIGINT":
                return self._integers(kind, depth)
            case "DOUBLE":
                return self._doubles(depth)
            case "STRING":
                return self._strings(depth)
            case "DATE" | "TIMESTAMP":
                return self._times(kind, depth)
            case "BOOLEAN":
                return [(None, 2, lambda: Expression(f"({self.predicate(depth)})", "BOOLEAN"))]
            case "ARRAY<STRING>" | "ARRAY<BIGINT>" | "STRUCT<x: BIGINT, y: STRING>":
                return self._nested(kind, depth)
        if kind.startswith("DECIMAL"):
            return [("arithmetic", 2, lambda: self._decimal(kind, depth))]
        return []

    def _integers(self, kind: str, depth: int) -> list[Option[Expression]]:
        def bounded(sql: str, bound: int) -> Expression:
            if bound > LIMITS[kind]:
                raise DeadEndError
            return Expression(sql, kind, bound)

        def arithmetic() -> Expression:
            a, b = self.of(kind, depth), self.of(kind, depth)
            return self.chooser.make(
                [
                    (None, 2, lambda: bounded(f"({a.sql} + {b.sql})", a.bound + b.bound)),
                    (None, 2, lambda: bounded(f"({a.sql} - {b.sql})", a.bound + b.bound)),
                    (None, 1, lambda: bounded(f"({a.sql} * {b.sql})", a.bound * b.bound)),
                    (None, 1, lambda: bounded(f"({a.sql} % 3)", 2)),
                    (None, 1, lambda: bounded(f"({a.sql} % nullif({b.sql}, 0))", max(b.bound, 1))),
                    (None, 1, lambda: bounded(f"pmod({a.sql}, 4)", 3)),
                    (None, 1, lambda: bounded(f"abs({a.sql})", a.bound)),
                    (None, 1, lambda: bounded(f"(- {a.sql})", a.bound)),
                ]
            )

        options: list[Option[Expression]] = [("arithmetic", 3, arithmetic)]
        if kind == "BIGINT":
            options += [
                (
                    None,
                    0.5,
                    lambda: replace(
                        i := self.of("INT", depth), sql=f"CAST({i.sql} AS BIGINT)", kind="BIGINT"
                    ),
                ),
                ("arithmetic", 0.5, lambda: self._divided(depth)),
                (
                    "try",
                    0.4,
                    lambda: bounded(f"try_cast({self.of('STRING', depth).sql} AS BIGINT)", LIMITS[kind]),
                ),
                ("nested_functions", 0.7, lambda: self._element("ARRAY<BIGINT>", "BIGINT")),
                ("nested_functions", 0.5, lambda: self._field("x", "BIGINT")),
            ]
        else:
            date, text = lambda: self.of("DATE", depth).sql, lambda: self.of("STRING", depth).sql
            options += [
                (
                    "date_functions",
                    0.6,
                    lambda: bounded(f"{self.chooser.one(('year', 'month', 'dayofweek'))}({date()})", 3000),
                ),
                ("date_functions", 0.4, lambda: bounded(f"datediff({date()}, {date()})", 10**6)),
                ("string_functions", 0.6, lambda: bounded(f"length({text()})", 1000)),
                ("string_functions", 0.3, lambda: bounded(f"instr({text()}, 'a')", 1000)),
                ("nested_functions", 0.6, lambda: bounded(f"size({self._array()})", 100)),
            ]
        return options

    def _divided(self, depth: int) -> Expression:
        a, b = self.of("BIGINT", depth), self.of("BIGINT", depth)
        return Expression(f"({a.sql} div nullif({b.sql}, 0))", "BIGINT", a.bound)

    def _array(self) -> str:
        return self.chooser.one(self.scope.of_kind("ARRAY<STRING>", "ARRAY<BIGINT>")).sql

    def _element(self, array: str, kind: str) -> Expression:
        chosen = self.chooser.one(self.scope.of_kind(array))
        form = self.chooser.one(("get({}, 0)", "try_element_at({}, -1)", "array_max({})"))
        return Expression(form.format(chosen.sql), kind, max(chosen.bound, 5))

    def _field(self, name: str, kind: str) -> Expression:
        struct = self.chooser.one(self.scope.of_kind("STRUCT<x: BIGINT, y: STRING>"))
        return Expression(f"{struct.sql}.{name}", kind, max(struct.bound, 5))

    def _doubles(self, depth: int) -> list[Option[Expression]]:
        def summed() -> Expression:
            a, b = self.of("DOUBLE", depth), self.of("DOUBLE", depth)
            exact = "dyadic" if a.floats == b.floats == "dyadic" else ""
            return Expression(f"({a.sql} {self.chooser.one('+-')} {b.sql})", "DOUBLE", floats=exact)

        def plain(template: str) -> Expression:
            a, b = self.of("DOUBLE", depth), self.of("DOUBLE", depth)
            return Expression(template.format(a=a.sql, b=b.sql), "DOUBLE")

        def cast() -> Expression:
            number = self.of(self.chooser.one(INTEGERS), depth)
            floats = "dyadic" if number.bound < 10**6 else ""
            return Expression(f"CAST({number.sql} AS DOUBLE)", "DOUBLE", floats=floats)

        return [
            ("arithmetic", 1.5, summed),
            ("arithmetic", 0.7, lambda: plain("({a} * {b})")),
            ("arithmetic", 0.7, lambda: plain("({a} / nullif({b}, 0))")),
            ("arithmetic", 0.3, lambda: plain("sqrt(abs({a}))")),
            ("arithmetic", 0.3, lambda: plain("round({a}, 1)")),
            ("try", 0.5, lambda: plain("try_divide({a}, {b})")),
            (None, 0.7, cast),
        ]

    def _decimal(self, kind: str, depth: int) -> Expression:
        a, b = self.of(kind, depth), self.of(kind, depth)
        bound = a.bound + b.bound
        precision, scale = (int(part) for part in kind[len("DECIMAL(") : -1].split(","))
        if bound >= 10 ** (precision - scale):
            raise DeadEndError
        return Expression(f"CAST({a.sql} {self.chooser.one('+-')} {b.sql} AS {kind})", kind, bound)

    def _strings(self, depth: int) -> list[Option[Expression]]:
        def text(template: str) -> Expression:
            a, b = self.of("STRING", depth), self.of("STRING", depth)
            return Expression(template.format(a=a.sql, b=b.sql), "STRING")

        def cast() -> Expression:
            return Expression(
                f"CAST({self.of(self.chooser.one(('BIGINT', 'INT', 'DATE', 'BOOLEAN')), depth).sql} AS STRING)",
                "STRING",
            )

        shapes = (
            "concat({a}, {b})", "({a} || '-' || {b})", "upper({a})", "lower({a})", "substring({a}, 1, 1)",
            "trim({a})", "replace({a}, 'a', 'é')", "lpad({a}, 3, 'x')", "reverse({a})", "concat_ws('/', {a}, {b})",
        )  # fmt: skip
        return [
            ("string_functions", 2, lambda: text(self.chooser.one(shapes))),
            ("string_functions", 0.5, cast),
            (
                "date_functions",
                0.5,
                lambda: Expression(
                    f"date_format({self.of('TIMESTAMP', depth).sql}, 'yyyy-MM-dd HH')", "STRING"
                ),
            ),
            ("nested_functions", 0.5, lambda: self._element("ARRAY<STRING>", "STRING")),
            ("nested_functions", 0.5, lambda: self._field("y", "STRING")),
        ]

    def _times(self, kind: str, depth: int) -> list[Option[Expression]]:
        shapes = {
            "DATE": ("date_add({date}, 1)", "date_sub({date}, 30)", "CAST({moment} AS DATE)", "trunc({date}, 'MM')", "last_day({date})"),
            "TIMESTAMP": ("({moment} + INTERVAL '5' MINUTE)", "({moment} - INTERVAL '1' DAY)", "date_trunc('HOUR', {moment})", "CAST({date} AS TIMESTAMP)"),
        }  # fmt: skip

        def made() -> Expression:
            shape = self.chooser.one(shapes[kind])
            return Expression(
                shape.format(date=self.of("DATE", depth).sql, moment=self.of("TIMESTAMP", depth).sql), kind
            )

        return [("date_functions", 2, made)]

    def _nested(self, kind: str, depth: int) -> list[Option[Expression]]:
        if kind.startswith("STRUCT"):
            return [("nested_functions", 1.5, lambda: self._struct(kind, depth))]
        inner = kind[len("ARRAY<") : -1]
        templates = (
            "array({a}, {b})",
            "sort_array({array})",
            "array_distinct({array})",
            "slice({array}, 1, 1)",
        )
        lambdas = {
            "STRING": ("transform({array}, x -> upper(x))", "filter({array}, x -> x <> 'a')"),
            "BIGINT": ("transform({array}, x -> x % 2)", "filter({array}, x -> x > 1)"),
        }

        def made(template: str) -> Expression:
            a, b, array = self.of(inner, depth), self.of(inner, depth), self.of(kind, depth)
            sql = template.format(a=a.sql, b=b.sql, array=array.sql)
            return Expression(sql, kind, max(a.bound, b.bound, array.bound))

        return [
            ("nested_functions", 1.5, lambda: made(self.chooser.one(templates))),
            ("lambda", 1, lambda: made(self.chooser.one(lambdas[inner]))),
        ]

    def _struct(self, kind: str, depth: int) -> Expression:
        x, y = self.of("BIGINT", depth), self.of("STRING", depth)
        return Expression(f"named_struct('x', {x.sql}, 'y', {y.sql})", kind, x.bound)
