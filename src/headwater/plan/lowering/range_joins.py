"""Recognizes joins whose condition places a point of the left row in a range of the right row.

`r.at BETWEEN l.at - INTERVAL 10 MINUTES AND l.at + INTERVAL 1 HOUR` implies that l.at is between r.at - 1 hour and r.at +
10 minutes; a row version that is valid at o.at has o.at between its begin and its end. The operator then searches partners
in that range only. The range is an index bound and nothing else: the whole condition is evaluated on the pairs found.

Points and ends of ranges are integers: microseconds, days, or the number itself. An end that would overflow BIGINT is
clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headwater.operators import graph as g
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.relations.metadata_columns import is_versions, table_topic
from headwater.plan.relations.relations import Lowered
from headwater.spark.catalyst import Jvm, Numbers, children_of, conjuncts, identity, items, kind

_COMPARISONS = {
    "LessThanOrEqual": (1, 0),
    "LessThan": (1, 1),
    "GreaterThanOrEqual": (-1, 0),
    "GreaterThan": (-1, 1),
}
"""Whether a comparison bounds its left side from above (1) or from below (-1), and the extra distance of a strict
comparison."""
_TIMES = ("timestamp", "timestamp_ntz")
_NUMBERS = ("tinyint", "smallint", "int", "bigint")
_LEAST, _MOST = -(2**63), 2**63 - 1


class Band(NamedTuple):
    """The range of a join as BIGINT expressions: the point over the left attributes, both ends of the range over the right
    attributes."""

    point: Jvm
    low: Jvm
    high: Jvm
    width: int | None
    """The distance between the two ends; None if the ranges of one key do not overlap."""
    end: Jvm | None = None
    """The column from which the high end is computed, if the condition does not use the column otherwise."""


class _Shifted(NamedTuple):
    """An expression equal to `base` plus a constant."""

    base: Jvm
    by: int


class _Bound(NamedTuple):
    """The inequality left <= right + by (sign 1), or left >= right + by (sign -1)."""

    left: Jvm
    right: Jvm
    sign: int
    by: int


def range_in(
    context: LoweringContext, condition: Jvm | None, left: Lowered, right: Lowered, right_keys: Sequence[Jvm]
) -> Band | None:
    """Return the range that a condition implies for the pairs it accepts, or None."""
    if condition is None:
        return None
    terms = list(conjuncts(condition))
    return _version(context, terms, left, right, right_keys) or _interval(context, terms, left, right)


def _interval(context: LoweringContext, terms: Sequence[Jvm], left: Lowered, right: Lowered) -> Band | None:
    sides = ({identity(a) for a in left.attributes}, {identity(a) for a in right.attributes})
    pairs: dict[tuple[int, int], list[_Bound]] = {}
    numbers = Numbers()
    for term in terms:
        if (bound := _bound(term, *sides)) is not None:
            pairs.setdefault((numbers.of(bound.left), numbers.of(bound.right)), []).append(bound)
    found: list[tuple[int, _Bound, int, int]] = []
    for bounds in pairs.values():
        above = min((b.by for b in bounds if b.sign > 0), default=None)
        below = max((b.by for b in bounds if b.sign < 0), default=None)
        if above is not None and below is not None and 0 <= above - below <= _MOST:
            found.append((above - below, bounds[0], below, above))
    if not found:
        return None
    width, bound, below, above = min(found, key=lambda one: one[0])
    point, near = _units(context, bound.left), _units(context, bound.right)
    return Band(point, _plus(context, near, below), _plus(context, near, above), width)


def _units(context: LoweringContext, e: Jvm) -> Jvm:
    """Convert a time or an integer to BIGINT."""
    c, name = context.catalyst, e.dataType().simpleString()
    if name in _TIMES:
        return c.expressions.PreciseTimestampConversion(e, e.dataType(), context.bigint())
    return c.cast(c.expressions.UnixDate(e) if name == "date" else e, context.bigint())


def _plus(context: LoweringContext, e: Jvm, by: int) -> Jvm:
    """Add a constant to a BIGINT, clamped to the range of BIGINT."""
    x = context.catalyst.expressions
    if not by:
        return e
    end = _bigint_literal(context, _MOST - by if by > 0 else _LEAST - by)
    beyond = x.GreaterThan(e, end) if by > 0 else x.LessThan(e, end)
    return x.Add(x.If(beyond, end, e), _bigint_literal(context, by))


def _bigint_literal(context: LoweringContext, value: int) -> Jvm:
    # Spark would turn a Python int that fits into an INT literal
    return context.catalyst.session.sessionState().sqlParser().parseExpression(f"{value}L")


def _version(
    context: LoweringContext, terms: Sequence[Jvm], left: Lowered, right: Lowered, right_keys: Sequence[Jvm]
) -> Band | None:
    """Return the validity range of a row version, if the join key includes the table's key: validities of one key do not
    overlap."""
    begins = {n: a for a in right.attributes if (n := _of_versions(right, a)) is not None}
    if not {"_valid_from", "_valid_to"} <= begins.keys() or not _is_table_key(context, right, right_keys):
        return None
    own = {identity(a) for a in left.attributes}
    for term in terms:
        if kind(term) not in _COMPARISONS:
            continue
        one, other = children_of(term)
        at = other if kind(term) == "LessThanOrEqual" else one
        since = one if at is other else other
        if kind(term) not in ("LessThanOrEqual", "GreaterThanOrEqual") or not _is_of(at, own):
            continue
        if _is_same(since, begins["_valid_from"]) and _is_safe(at):
            return _valid(context, at, begins["_valid_from"], begins["_valid_to"], terms)
    return None


def _valid(context: LoweringContext, at: Jvm, begin: Jvm, end: Jvm, terms: Sequence[Jvm]) -> Band | None:
    x = context.catalyst.expressions
    asked = [term for term in terms if kind(term) == "Or" and _is_open_or_after(term, end, at)]
    if not asked:
        return None
    others = {identity(a) for t in terms if t is not asked[0] for a in items(t.references().toSeq())}
    last = _plus(context, _units(context, end), -1)
    high = x.If(x.IsNull(end), _bigint_literal(context, _MOST), last)
    alone = end if identity(end) not in others else None
    return Band(_units(context, at), _units(context, begin), high, None, alone)


def _is_table_key(context: LoweringContext, right: Lowered, keys: Sequence[Jvm]) -> bool:
    """Whether the keys of a join include the key of the table whose versions are on its right side."""
    found = [_origin(right.node, _place(right, key)) for key in keys if kind(key) == "AttributeReference"]
    source = next((source for source, _ in filter(None, found)), None)
    if isinstance(source, g.VersionsNode):
        return set(source.key) <= {at for _, at in filter(None, found)}
    if source is None:
        return False
    columns = {source.columns[at] for _, at in filter(None, found) if at < len(source.columns)}
    versions = context.relations[table_topic(source.name)].versions
    return versions is not None and set(versions.key) <= columns


def _bound(term: Jvm, left: set[int], right: set[int]) -> _Bound | None:
    """Return the inequality that a comparison implies between an expression of the left side and one of the right side, or
    None."""
    if kind(term) not in _COMPARISONS:
        return None
    sign, strict = _COMPARISONS[kind(term)]
    one, other = children_of(term)
    if kind(one) in ("SubtractTimestamps", "Subtract") and (more := _constant(other)) is not None:
        first, second = map(_shifted, children_of(one))
        second = _Shifted(second.base, second.by + more)
    elif kind(other) in ("SubtractTimestamps", "Subtract") and (more := _constant(one)) is not None:
        second, first = map(_shifted, children_of(other))
        first = _Shifted(first.base, first.by + more)
    else:
        first, second = _shifted(one), _shifted(other)
    if first.base.dataType().simpleString() != second.base.dataType().simpleString():
        return None
    if first.base.dataType().simpleString() not in (*_TIMES, "date", *_NUMBERS):
        return None
    if not _is_safe(first.base) or not _is_safe(second.base):
        return None
    if _is_of(first.base, left) and _is_of(second.base, right):
        return _Bound(first.base, second.base, sign, second.by - first.by - sign * strict)
    if _is_of(first.base, right) and _is_of(second.base, left):
        return _Bound(second.base, first.base, -sign, first.by - second.by + sign * strict)
    return None


def _shifted(e: Jvm) -> _Shifted:
    name, children = kind(e), children_of(e)
    if name in ("TimestampAddInterval", "Add", "DateAdd") and (by := _constant(children[1])) is not None:
        below = _shifted(children[0])
        return _Shifted(below.base, below.by + by)
    if name in ("Subtract", "DateSub") and (by := _constant(children[1])) is not None:
        below = _shifted(children[0])
        return _Shifted(below.base, below.by - by)
    if name == "Add" and (by := _constant(children[0])) is not None:
        below = _shifted(children[1])
        return _Shifted(below.base, below.by + by)
    return _Shifted(e, 0)


def _constant(e: Jvm) -> int | None:
    """Return a constant integer, or a constant interval of days or smaller units in microseconds; None for any other
    expression."""
    name = e.dataType().typeName()
    if not e.foldable() or not (name in ("byte", "short", "integer", "long") or _is_span(name)):
        return None
    value = e.eval(None)
    return value if isinstance(value, int) else None


def _is_span(name: str) -> bool:
    return name.startswith("interval") and "month" not in name and "year" not in name


def _is_safe(e: Jvm) -> bool:
    """Whether an expression can be evaluated on every row without failing, including rows that the join would never have
    paired."""
    if kind(e) == "AttributeReference":
        return True
    children = children_of(e)
    if kind(e) == "Cast":
        given, made = children[0].dataType().simpleString(), e.dataType().simpleString()
        times = (*_TIMES, "date")
        widens = given in _NUMBERS and made in _NUMBERS and _NUMBERS.index(given) <= _NUMBERS.index(made)
        return (widens or (given in times and made in times)) and _is_safe(children[0])
    return kind(e) in ("Coalesce", "KnownNotNull") and all(map(_is_safe, children))


def _is_of(e: Jvm, attributes: set[int]) -> bool:
    """Whether an expression reads at least one of these attributes, and no others."""
    read = {identity(a) for a in items(e.references().toSeq())}
    return bool(read) and read <= attributes


def _is_same(one: Jvm, other: Jvm) -> bool:
    same: bool = one.semanticEquals(other)
    return same


def _is_open_or_after(term: Jvm, end: Jvm, at: Jvm) -> bool:
    """Whether a condition is `end IS NULL OR at < end`."""
    children = children_of(term)
    is_open = any(kind(c) == "IsNull" and _is_same(c.child(), end) for c in children)
    less = (children_of(c) for c in children if kind(c) == "LessThan")
    more = (children_of(c)[::-1] for c in children if kind(c) == "GreaterThan")
    return is_open and any(_is_same(a, at) and _is_same(b, end) for a, b in (*less, *more))


def _of_versions(lowered: Lowered, attribute: Jvm) -> str | None:
    """Return the name of the metadata column of row versions that an attribute comes from, or None."""
    found = _origin(lowered.node, _place(lowered, attribute))
    if found is None:
        return None
    source, at = found
    if isinstance(source, g.VersionsNode):
        return {source.begin: "_valid_from", len(source.schema) - 1: "_valid_to"}.get(at)
    return source.schema.field(at).name if at >= len(source.columns) else None


def _place(lowered: Lowered, attribute: Jvm) -> int:
    return [identity(a) for a in lowered.attributes].index(identity(attribute))


def _origin(node: g.Node, column: int) -> tuple[g.SourceNode | g.VersionsNode, int] | None:
    """Return the source of row versions and the column in it that a column comes from, through projections and filters
    only; else None."""
    if isinstance(node, g.VersionsNode):
        return node, column
    if isinstance(node, g.SourceNode):
        return (node, column) if is_versions(node.name) else None
    if not isinstance(node, g.Map):
        return None
    for step in reversed(node.steps):
        if isinstance(step, g.Project):
            place = step.expressions[column].column
            if place is None:
                return None
            column = place
        elif not isinstance(step, g.Filter):
            return None
    return _origin(node.input, column)
