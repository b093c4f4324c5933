"""Scalar functions of Spark SQL as DuckDB SQL; only functions that were tested to agree are supported.

Names and parameters are Spark's: the parser is configured to leave calls as written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
from sqlglot import exp

from headwater.core.types import TIMESTAMP
from headwater.sql.duckdb.scalar_operators import GIVE_UP, Bind, Rewriter, compared, fails, only
from headwater.sql.duckdb.typed_sql import (
    BIGINT,
    BOOLEAN,
    DATE,
    INT,
    STRING,
    VOID,
    Value,
    converted,
    decimal_type,
    decline,
    duck_type,
    is_atomic,
    is_decimal,
    is_float,
    is_integer,
    is_numeric,
    unified,
)

Arguments = Sequence[exp.Expr]
Function = Callable[[Bind, str, Arguments], Value]

_DATE_PARTS = {
    "year": "year({})",
    "quarter": "quarter({})",
    "month": "month({})",
    "day": "day({})",
    "dayofmonth": "day({})",
    "dayofweek": "dayofweek({}) + 1",
    "dayofyear": "dayofyear({})",
    "weekofyear": "weekofyear({})",
}
_TIME_PARTS = ("hour", "minute", "second")
_SEARCHES = {"startswith": "starts_with", "endswith": "ends_with", "contains": "contains"}
_TRUNCATIONS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second")


def call(bind: Bind, node: exp.Expr) -> Value:
    """Bind a call by name, with the number of arguments that Spark's function accepts."""
    only(node, "this", "expressions")
    name = node.this.lower() if isinstance(node.this, str) else ""
    if name not in _FUNCTIONS:
        decline(f"the function {node.name}")
    low, high, function = _FUNCTIONS[name]
    if not low <= len(node.expressions) <= high:
        decline(f"{name} of {len(node.expressions)} arguments")
    return function(bind, name, node.expressions)


def _string(bind: Bind, node: exp.Expr) -> Value:
    value = bind(node)
    if value.kind != STRING:
        decline(f"a text function of {value.kind}")
    return value


def _count(bind: Bind, node: exp.Expr, low: int) -> int:
    """Return the value of an integer literal that is at least `low`; Declined otherwise."""
    value = bind(node)
    if value.kind != INT or not value.literal or value.constant is None or value.constant < low:
        decline("a position or length that is not a literal, or is negative")
    return int(value.constant)


def _case_mapping(bind: Bind, name: str, of: Arguments) -> Value:
    value = _string(bind, of[0])
    # Beyond ASCII the engines use different case rules, such as for ß and İ.
    sql = (
        f"(CASE WHEN strlen({value.sql}) <> length({value.sql}) THEN {GIVE_UP} ELSE {name}({value.sql}) END)"
    )
    return Value(sql, STRING, fallible=True)


def _length(bind: Bind, name: str, of: Arguments) -> Value:
    value = _string(bind, of[0])
    return Value(f"CAST(length({value.sql}) AS INTEGER)", INT, fallible=value.fallible)


def _trim(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "position")
    value = _string(bind, node.this)
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(node.args.get("position") or "", "trim")
    return Value(f"{name}({value.sql}, ' ')", STRING, fallible=value.fallible)


def _trim_side(bind: Bind, name: str, of: Arguments) -> Value:
    value = _string(bind, of[0])
    return Value(f"{name}({value.sql}, ' ')", STRING, fallible=value.fallible)


def _concatenated(bind: Bind, parts: Arguments) -> Value:
    values = [_string(bind, part) for part in parts]
    return Value(f"({' || '.join(v.sql for v in values)})", STRING, fallible=fails(*values))


def _concat(bind: Bind, name: str, of: Arguments) -> Value:
    return _concatenated(bind, of)


def _pipes(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "expression", "safe")
    return _concatenated(bind, [node.this, node.expression])


def _substring(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "start", "length")
    value = _string(bind, node.this)
    if node.args.get("start") is None:
        decline("substring without a position")
    arguments = [str(max(1, _count(bind, node.args["start"], 0)))]
    if node.args.get("length"):
        arguments.append(str(_count(bind, node.args["length"], 0)))
    return Value(f"substring({value.sql}, {', '.join(arguments)})", STRING, fallible=value.fallible)


def _left(bind: Bind, name: str, of: Arguments) -> Value:
    value = _string(bind, of[0])
    return Value(f"left({value.sql}, {_count(bind, of[1], 0)})", STRING, fallible=value.fallible)


def _search(bind: Bind, name: str, of: Arguments) -> Value:
    value, part = _string(bind, of[0]), _string(bind, of[1])
    return Value(f"{_SEARCHES[name]}({value.sql}, {part.sql})", BOOLEAN, fallible=fails(value, part))


def _replace(bind: Bind, name: str, of: Arguments) -> Value:
    value, part, new = (_string(bind, argument) for argument in of)
    if not part.literal or not part.constant:
        decline("replace without a literal to look for")
    return Value(f"replace({value.sql}, {part.sql}, {new.sql})", STRING, fallible=fails(value, new))


def _coalesce(bind: Bind, name: str, of: Arguments) -> Value:
    values = unified([bind(argument) for argument in of])
    return Value(f"coalesce({', '.join(v.sql for v in values)})", values[0].kind, fallible=fails(*values))


def _nullif(bind: Bind, name: str, of: Arguments) -> Value:
    left, right = bind(of[0]), bind(of[1])
    if left.kind == VOID:
        decline("nullif of NULL")
    sql = f"(CASE WHEN {compared(left, right, '=')} THEN NULL ELSE {left.sql} END)"
    return Value(sql, left.kind, fallible=fails(left, right))


def _extreme(bind: Bind, name: str, of: Arguments) -> Value:
    values = unified([bind(argument) for argument in of])
    if not is_atomic(values[0].kind):
        decline(f"{name} of {values[0].kind}")
    return Value(f"{name}({', '.join(v.sql for v in values)})", values[0].kind, fallible=fails(*values))


def _abs(bind: Bind, name: str, of: Arguments) -> Value:
    value = bind(of[0])
    if not is_numeric(value.kind):
        decline(f"abs of {value.kind}")
    raises = is_integer(value.kind) or value.fallible
    return Value(f"abs({value.sql})", value.kind, fallible=raises)


def _whole(bind: Bind, name: str, of: Arguments) -> Value:
    value = bind(of[0])
    if is_integer(value.kind):
        return replace(converted(value, BIGINT), name=None, title=None)
    if not is_float(value.kind):
        decline(f"{name} of {value.kind}")
    name = "floor" if name == "floor" else "ceil"
    return Value(f"CAST({name}({value.sql}) AS BIGINT)", BIGINT, fallible=True)


def _round(bind: Bind, name: str, of: Arguments) -> Value:
    value = bind(of[0])
    places = _count(bind, of[1], 0) if len(of) > 1 else 0
    if is_integer(value.kind):
        return Value(value.sql, value.kind, fallible=value.fallible)
    if not is_decimal(value.kind):
        decline(f"round of {value.kind}")  # Spark rounds the decimal digits of a double, DuckDB its bits
    scale = min(places, value.kind.scale)
    kind = decimal_type(value.kind.precision - value.kind.scale + 1 + scale, scale)
    return Value(f"CAST({value.sql} AS {duck_type(kind)})", kind, fallible=value.fallible)


def _is_nan(bind: Bind, name: str, of: Arguments) -> Value:
    value = bind(of[0])
    if not is_float(value.kind):
        decline(f"isnan of {value.kind}")
    return Value(f"coalesce(isnan({value.sql}), FALSE)", BOOLEAN, fallible=value.fallible)


def _size(bind: Bind, name: str, of: Arguments) -> Value:
    value = bind(of[0])
    if not pa.types.is_list(value.kind):
        decline(f"{name} of {value.kind}")
    return Value(f"CAST(len({value.sql}) AS INTEGER)", INT, fallible=value.fallible)


def _element(bind: Bind, node: exp.Expr) -> Value:
    only(node, "this", "expressions")
    value = bind(node.this)
    if not pa.types.is_list(value.kind) or len(node.expressions) != 1:
        decline(f"an element of {value.kind}")
    at = _count(bind, node.expressions[0], 0)
    sql = f"(CASE WHEN len({value.sql}) <= {at} THEN {GIVE_UP} ELSE {value.sql}[{at + 1}] END)"
    return Value(sql, value.kind.value_type, fallible=True)


def _time(bind: Bind, node: exp.Expr, *kinds: pa.DataType) -> Value:
    value = bind(node)
    if value.kind not in kinds:
        decline(f"a part of {value.kind} as of a time")
    return value


def _date_part(bind: Bind, name: str, of: Arguments) -> Value:
    value = _time(bind, of[0], DATE, TIMESTAMP)
    return Value(f"CAST({_DATE_PARTS[name].format(value.sql)} AS INTEGER)", INT, fallible=value.fallible)


def _time_part(bind: Bind, name: str, of: Arguments) -> Value:
    value = _time(bind, of[0], TIMESTAMP)
    return Value(f"CAST({name}({value.sql}) AS INTEGER)", INT, fallible=value.fallible)


def _truncate(bind: Bind, name: str, of: Arguments) -> Value:
    unit = _string(bind, of[0])
    if not unit.literal or unit.constant.lower() not in _TRUNCATIONS:
        decline("date_trunc to this unit")
    value = converted(_time(bind, of[1], DATE, TIMESTAMP), TIMESTAMP)
    return Value(f"date_trunc('{unit.constant.lower()}', {value.sql})", TIMESTAMP, fallible=value.fallible)


def _days_between(bind: Bind, name: str, of: Arguments) -> Value:
    end, start = (_time(bind, argument, DATE, TIMESTAMP) for argument in of)
    sql = f"CAST(date_diff('day', CAST({start.sql} AS DATE), CAST({end.sql} AS DATE)) AS INTEGER)"
    return Value(sql, INT, fallible=fails(start, end))


def _days_added(bind: Bind, name: str, of: Arguments) -> Value:
    value, days = _time(bind, of[0], DATE, TIMESTAMP), bind(of[1])
    if not is_integer(days.kind) or days.kind == BIGINT:
        decline(f"{name} of {days.kind} days")
    sign = "-" if name == "date_sub" else "+"
    return Value(f"(CAST({value.sql} AS DATE) {sign} CAST({days.sql} AS INTEGER))", DATE, fallible=True)


_ANY = 100
_FUNCTIONS: Mapping[str, tuple[int, int, Function]] = {
    **dict.fromkeys(("upper", "lower"), (1, 1, _case_mapping)),
    **dict.fromkeys(("length", "len", "char_length", "character_length"), (1, 1, _length)),
    **dict.fromkeys(("ltrim", "rtrim"), (1, 1, _trim_side)),
    **dict.fromkeys(_SEARCHES, (2, 2, _search)),
    "concat": (1, _ANY, _concat),
    "left": (2, 2, _left),
    "replace": (3, 3, _replace),
    "coalesce": (1, _ANY, _coalesce),
    **dict.fromkeys(("ifnull", "nvl"), (2, 2, _coalesce)),
    "nullif": (2, 2, _nullif),
    **dict.fromkeys(("greatest", "least"), (2, _ANY, _extreme)),
    "abs": (1, 1, _abs),
    **dict.fromkeys(("ceil", "ceiling", "floor"), (1, 1, _whole)),
    "round": (1, 2, _round),
    "isnan": (1, 1, _is_nan),
    **dict.fromkeys(("size", "array_size", "cardinality"), (1, 1, _size)),
    **dict.fromkeys(_DATE_PARTS, (1, 1, _date_part)),
    **dict.fromkeys(_TIME_PARTS, (1, 1, _time_part)),
    "date_trunc": (2, 2, _truncate),
    **dict.fromkeys(("datediff", "date_diff"), (2, 2, _days_between)),
    **dict.fromkeys(("date_add", "date_sub"), (2, 2, _days_added)),
}
"""By function name: minimum and maximum number of arguments, and the function that binds a call."""

FUNCTIONS: Mapping[type[exp.Expr], Rewriter] = {
    exp.Anonymous: call,
    exp.Trim: _trim,
    exp.Substring: _substring,
    exp.DPipe: _pipes,
    exp.Bracket: _element,
}
"""Calls, and functions with a grammar of their own."""
