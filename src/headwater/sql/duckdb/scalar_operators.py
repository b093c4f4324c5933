"""Literals, operators and CASE of Spark SQL as DuckDB SQL, where both agree on types, NULLs, overflow and order.

Every rewriter takes a function that binds operands, and the node. Guards raise an error in DuckDB at run time where the
engines differ, and any error in DuckDB makes Spark answer the query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from headwater.core.types import TIMESTAMP
from headwater.sql.duckdb.typed_sql import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    STRING,
    VOID,
    Declined,
    Value,
    converted,
    decimal_of,
    decimal_type,
    decline,
    duck_type,
    fits,
    is_atomic,
    is_decimal,
    is_float,
    is_integer,
    is_numeric,
    literal,
    number_literal,
    unified,
)

Bind = Callable[[exp.Expr], Value]
Rewriter = Callable[[Bind, exp.Expr], Value]

GIVE_UP = "error('left to Spark')"
"""Raises an error in DuckDB; Spark then answers the query."""
WANDERING_LIKE = "~~"
"""DuckDB's operator for LIKE, generated for patterns with `_` and several `%`: DuckDB backtracks over all positions without
checking for interrupts. Before release 2.0 a text of 1,000 characters took minutes; newer releases are slow for longer
texts."""

_COMPARISONS: Mapping[type[exp.Expr], tuple[str, str | None]] = {
    exp.EQ: ("=", "="),
    exp.NEQ: ("<>", None),
    exp.LT: ("<", "<"),
    exp.LTE: ("<=", "<="),
    exp.GT: (">", ">"),
    exp.GTE: (">=", ">="),
    exp.NullSafeEQ: ("IS NOT DISTINCT FROM", None),
    exp.NullSafeNEQ: ("IS DISTINCT FROM", None),
}
_ARITHMETIC: Mapping[type[exp.Expr], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
_DIVISIONS: Mapping[type[exp.Expr], str] = {exp.Div: "/", exp.IntDiv: "div", exp.Mod: "%"}
_UNITS = {
    unit + plural: (unit, unit in ("DAY", "MONTH", "YEAR"))
    for unit in ("SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR")
    for plural in ("", "S")
}
_INTERVAL_MAX = 1_000_000


def only(node: exp.Expr, *allowed: str) -> None:
    """Decline a node with arguments outside of the allowed names."""
    for name, argument in node.args.items():
        if argument and name not in allowed:
            decline(f"{type(node).__name__.upper()} with {name.strip('_').replace('_', ' ')}")


def fails(*values: Value) -> bool:
    """Whether one of the values can raise an error."""
    return any(v.fallible for v in values)


def composed(*names: str | None) -> str | None:
    """Return the concatenation of name parts; None if one is unknown."""
    return "".join(n for n in names if n is not None) if None not in names else None


def boolean(value: Value) -> Value:
    """Return a value that must be a condition; an untyped NULL is not one in Spark."""
    if value.kind != BOOLEAN:
        decline(f"{value.kind} as a condition")
    return value


def _literal(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "is_string")
    return literal(node.this, STRING, node.this) if node.args["is_string"] else number_literal(node.this)


def _boolean(bind: Bind, node: exp.Expr) -> Value:
    return literal(bool(node.this), BOOLEAN, "true" if node.this else "false")


def _null(bind: Bind, node: exp.Expr) -> Value:
    return literal(None, VOID, "NULL")


def _paren(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this")
    value = bind(node.this)
    return replace(value, sql=f"({value.sql})")


def _operand(bind: Bind, node: exp.Expr) -> Value:
    """Bind a side of an operator; a bare comparison is declined, because Spark's grammar and the parser disagree on it."""
    if isinstance(node, exp.Predicate | exp.Not | exp.Connector):
        decline("a condition inside a comparison, without parentheses")
    return bind(node)


def compared(left: Value, right: Value, operator: str) -> str:
    """Return the SQL of a comparison in the common type of both sides."""
    if left.kind == right.kind == VOID:
        decline("NULL compared with NULL")
    left, right = unified([left, right], compared=True)
    if not is_atomic(left.kind):
        decline(f"a comparison of {left.kind}")
    return f"({left.sql} {operator} {right.sql})"


def _comparison(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "expression")
    operator, spelt = _COMPARISONS[type(node)]
    left, right = _operand(bind, node.this), _operand(bind, node.expression)
    name = composed("(", left.name, f" {spelt} ", right.name, ")") if spelt else None
    return Value(compared(left, right, operator), BOOLEAN, name, fallible=fails(left, right))


def _is(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "expression")
    value = _operand(bind, node.this)
    match node.expression:
        case exp.Null():
            return Value(f"({value.sql} IS NULL)", BOOLEAN, fallible=value.fallible)
        case exp.Boolean():
            truth = "TRUE" if node.expression.this else "FALSE"
            return Value(
                f"({boolean(value).sql} IS NOT DISTINCT FROM {truth})", BOOLEAN, fallible=value.fallible
            )
    raise Declined("IS with an operand other than NULL, TRUE or FALSE")


def _not(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this")
    value = boolean(bind(node.this))
    return Value(f"(NOT {value.sql})", BOOLEAN, composed("(NOT ", value.name, ")"), fallible=value.fallible)


def _connector(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "expression")
    values = [boolean(bind(part)) for part in node.flatten(unnest=False)]
    return _connected(values, "AND" if isinstance(node, exp.And) else "OR")


def _connected(values: Sequence[Value], word: str) -> Value:
    if not fails(*values):
        return Value(f"({f' {word} '.join(v.sql for v in values)})", BOOLEAN)
    # Spark evaluates from left to right and stops once the answer is known; DuckDB would choose its own order.
    known, rest = ("FALSE", "TRUE") if word == "AND" else ("TRUE", "FALSE")
    steps = "".join(f" WHEN {v.sql} IS NOT DISTINCT FROM {known} THEN {known}" for v in values)
    nulls = " OR ".join(f"{v.sql} IS NULL" for v in values)
    return Value(f"(CASE{steps} WHEN {nulls} THEN NULL ELSE {rest} END)", BOOLEAN, fallible=True)


def _between(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "low", "high")
    value = _operand(bind, node.this)
    low, high = _operand(bind, node.args["low"]), _operand(bind, node.args["high"])
    sides = [(low, ">="), (high, "<=")]
    return _connected(
        [Value(compared(value, end, sign), BOOLEAN, fallible=fails(value, end)) for end, sign in sides], "AND"
    )


def _in(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "expressions")
    value, *members = unified(
        [_operand(bind, node.this), *(bind(m) for m in node.expressions)], compared=True
    )
    if not is_atomic(value.kind):
        decline(f"{value.kind} in a list")
    if not members or fails(*members):
        decline("IN of a list whose members can raise")
    listed = ", ".join(m.sql for m in members)
    return Value(f"({value.sql} IN ({listed}))", BOOLEAN, fallible=value.fallible)


def _like(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "expression", "negate")
    value, pattern = _operand(bind, node.this), bind(node.expression)
    if value.kind != STRING or pattern.kind != STRING or not pattern.literal:
        decline("LIKE with a pattern that is not a string literal")
    wanders = "_" in pattern.constant and pattern.constant.count("%") > 1
    word = WANDERING_LIKE if wanders else "LIKE"
    if node.args.get("negate"):
        word = f"!{word}" if wanders else f"NOT {word}"
    return Value(f"({value.sql} {word} {pattern.sql})", BOOLEAN, fallible=value.fallible)


def _arithmetic(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "expression")
    sign = _ARITHMETIC[type(node)]
    if isinstance(node.expression, exp.Interval):
        return _shifted(_operand(bind, node.this), node.expression, sign)
    left, right = _operand(bind, node.this), _operand(bind, node.expression)
    name = composed("(", left.name, f" {sign} ", right.name, ")")
    if not is_numeric(left.kind) or not is_numeric(right.kind):
        decline(f"{left.kind} {sign} {right.kind}")
    if is_float(left.kind) or is_float(right.kind) or (is_integer(left.kind) and is_integer(right.kind)):
        left, right = unified([left, right])
        raises = is_integer(left.kind) or fails(left, right)
        return Value(f"({left.sql} {sign} {right.sql})", left.kind, name, fallible=raises)
    return replace(_decimal(_as_decimal(left), _as_decimal(right), sign), name=name)


def _as_decimal(value: Value) -> Value:
    if is_integer(value.kind) and value.literal:
        if value.suffixed:
            decline("a typed literal beside a decimal")
        return converted(value, pa.decimal128(len(str(abs(value.constant))), 0))
    return converted(value, decimal_of(value.kind))


def _decimal(left: Value, right: Value, sign: str) -> Value:
    a, b = left.kind, right.kind
    if sign == "*":
        kind = decimal_type(a.precision + b.precision + 1, a.scale + b.scale)
        # DuckDB computes in 64 bits if both sides fit, whatever the product needs.
        wide = pa.decimal128(max(a.precision, 19), a.scale)
        if a.precision + b.precision > 18 and wide.precision + b.precision <= 38:
            left = converted(left, wide)
    else:
        scale = max(a.scale, b.scale)
        kind = decimal_type(max(a.precision - a.scale, b.precision - b.scale) + scale + 1, scale)
        left, right = converted(left, kind), converted(right, kind)
    return Value(
        f"CAST(({left.sql} {sign} {right.sql}) AS {duck_type(kind)})", kind, fallible=fails(left, right)
    )


def _shifted(value: Value, node: exp.Interval, sign: str) -> Value:
    only(node, "this", "unit")
    amount, unit = node.this, node.args.get("unit")
    known = _UNITS.get(unit.name.upper()) if isinstance(unit, exp.Var) else None
    if known is None or not isinstance(amount, exp.Literal) or not amount.name.isdecimal() or sign == "*":
        decline("this form of interval")
    if value.kind not in (DATE, TIMESTAMP) or int(amount.name) > _INTERVAL_MAX:
        decline(f"an interval beside {value.kind}")
    kind = DATE if value.kind == DATE and known[1] else TIMESTAMP
    sql = f"({value.sql} {sign} INTERVAL {int(amount.name)} {known[0]})"
    return Value(f"CAST({sql} AS {duck_type(kind)})", kind, fallible=True)


def _divisor(sql: str, left: Value, right: Value) -> str:
    """Return the quotient; it raises an error, as in Spark, if the divisor is zero."""
    if right.literal and right.constant:
        return f"({sql})"
    return f"(CASE WHEN {right.sql} = 0 AND {left.sql} IS NOT NULL THEN {GIVE_UP} ELSE {sql} END)"


def _division(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "expression", "typed", "safe")
    left, right = _operand(bind, node.this), _operand(bind, node.expression)
    sign = _DIVISIONS[type(node)]
    name = composed("(", left.name, f" {sign} ", right.name, ")")
    kinds = (left.kind, right.kind)
    if not all(is_numeric(k) for k in kinds) or (
        any(is_decimal(k) for k in kinds) and not any(is_float(k) for k in kinds)
    ):
        decline(f"{left.kind} {sign} {right.kind}")
    if sign == "/":
        left, right = converted(left, DOUBLE), converted(right, DOUBLE)
    elif sign == "div":
        if not all(is_integer(k) for k in kinds):
            decline("DIV of values that are not integers")
        left, right = converted(left, BIGINT), converted(right, BIGINT)
    else:
        left, right = unified([left, right])
    duck_sign = "//" if sign == "div" else sign
    sql = _divisor(f"{left.sql} {duck_sign} {right.sql}", left, right)
    return Value(sql, left.kind, name, fallible=True)


def _negative(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this")
    if isinstance(node.this, exp.Literal) and not node.this.is_string:
        return number_literal("-" + node.this.name)
    value = _operand(bind, node.this)
    if not is_numeric(value.kind):
        decline(f"- {value.kind}")
    if value.literal and value.suffixed and fits(-value.constant, value.kind):
        return replace(literal(-value.constant, value.kind), suffixed=True)
    raises = is_integer(value.kind) or value.fallible
    return Value(f"(- {value.sql})", value.kind, composed("(- ", value.name, ")"), fallible=raises)


def _case(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "ifs", "default")
    subject = bind(node.this) if node.this else None
    conditions, results = [], []
    for branch in node.args["ifs"]:
        only(branch, "this", "true")
        when = bind(branch.this)
        if subject is not None:
            when = Value(compared(subject, when, "="), BOOLEAN, fallible=fails(subject, when))
        conditions.append(boolean(when))
        results.append(bind(branch.args["true"]))
    default = node.args.get("default")
    results.append(bind(default) if default else literal(None, VOID))
    results = unified(results)
    whens = " ".join(f"WHEN {c.sql} THEN {r.sql}" for c, r in zip(conditions, results[:-1], strict=True))
    raises = fails(*conditions, *results)
    return Value(f"(CASE {whens} ELSE {results[-1].sql} END)", results[0].kind, fallible=raises)


def _if(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "true", "false")
    condition = boolean(bind(node.this))
    if node.args.get("false") is None:
        decline("if without a value for false")
    yes, no = unified([bind(node.args["true"]), bind(node.args["false"])])
    sql = f"(CASE WHEN {condition.sql} THEN {yes.sql} ELSE {no.sql} END)"
    return Value(sql, yes.kind, fallible=fails(condition, yes, no))


OPERATORS: Mapping[type[exp.Expr], Rewriter] = {
    exp.Literal: _literal,
    exp.Boolean: _boolean,
    exp.Null: _null,
    exp.Paren: _paren,
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    **dict.fromkeys(_DIVISIONS, _division),
    exp.Is: _is,
    exp.Not: _not,
    exp.And: _connector,
    exp.Or: _connector,
    exp.Between: _between,
    exp.In: _in,
    exp.Like: _like,
    exp.Neg: _negative,
    exp.Case: _case,
    exp.If: _if,
}
