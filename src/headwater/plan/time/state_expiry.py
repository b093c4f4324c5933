"""When state can be let go: where rows of topics are left out because they are late, no row will come for what is older.

Known are the columns of a plan by which rows were left out, each with the topics whose watermarks decide; found is which
columns of the arrangements of its operators these are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headwater.operators import graph as g
from headwater.operators.match_recognize.match_operator import cuts_schema
from headwater.operators.window.sessions import SessionSpec
from headwater.plan.match_recognize.clause import columns_matched, is_match
from headwater.spark.catalyst import Jvm, identity, items, kind, output_of


@dataclass(frozen=True)
class Expiring:
    """Rows are of no use any more once the least watermark of some topics has reached their time, or the end of their
    window, and the slack."""

    topics: tuple[str, ...]
    slack_us: int


Place = tuple[str, int]
"""A kind of plan node, and the identity of an attribute there: above it the same attribute says nothing of what comes."""


@dataclass(frozen=True)
class Expiry:
    """The same of an arrangement: `column` has the time in microseconds, as a timestamp, or as a window."""

    column: int
    topics: tuple[str, ...]
    slack_us: int
    op: int | None = None
    """Of records that end each other: which column says that one is a tombstone. Then the newest of each key that would
    expire stays, since the next one ends it, unless it is a tombstone."""


Expiries = Mapping[int, tuple[Expiry, ...]]
"""By the identity of a node: when rows of its arrangements expire, the last one also of all that follow."""


def expiring_as(expiring: Mapping[Place, Expiring], renamed: Mapping[int, int]) -> Mapping[Place, Expiring]:
    """The same with attributes that have other identities in a plan; `renamed`: by these, those that they are known by."""
    known = {
        (name, new): (name, old) for new, old in renamed.items() for name, number in expiring if number == old
    }
    return {**expiring, **{place: expiring[old] for place, old in known.items()}}


def expiries(
    origins: Mapping[int, tuple[g.Node, Jvm]], expiring: Mapping[Place, Expiring]
) -> dict[int, tuple[Expiry, ...]]:
    """When the state of operators expires, given of which part of the plan each was made."""
    found: dict[int, tuple[Expiry, ...]] = {}
    for number, (node, plan) in origins.items() if expiring else ():
        here = {number: by for (name, number), by in expiring.items() if name == kind(plan)}
        columns = _columns(node, plan, here)
        if columns:
            op = node.op if isinstance(node, g.VersionsNode) else None
            found[number] = tuple(Expiry(column, by.topics, by.slack_us, op) for column, by in columns)
    return found


def _columns(node: g.Node, plan: Jvm, expiring: Mapping[int, Expiring]) -> list[tuple[int, Expiring]]:
    """For each arrangement of a node the column by which it expires, and when."""
    if not any(_is_of_one(each) for each in node.inputs):
        return []
    match node:
        case g.AggregateNode() | g.Regroup() | g.SessionAggregate() | g.Sessions() if (
            kind(plan) == "Aggregate"
        ):
            keys = _known(items(plan.groupingExpressions()), expiring)
            if not keys:
                return []
            place, by = keys[0]
            return [(column, by) for column in _key_columns(node, place)]
        case g.Regroup(evaluate=g.RowPattern(spec=spec)) if is_match(plan) and spec.time is not None:
            known = _known([columns_matched(plan)[spec.time]], expiring)
            at = cuts_schema(spec).get_field_index("at")
            return [(column, known[0][1]) for column in (spec.time, at)] if known else []
        case g.VersionsNode() if kind(plan) == "Window":
            order = _known([o.child() for o in items(plan.orderSpec())], expiring)
            return [(node.begin, order[0][1])] if order else []
        case g.Slide() if kind(plan) == "Window":
            order = _known([o.child() for o in items(plan.orderSpec())], expiring)
            return [(node.time, order[0][1])] if order else []
        case g.Join() if kind(plan) == "Join":
            sides = [_side(s, p, expiring) for s, p in ((node.left, plan.left()), (node.right, plan.right()))]
            found = [side for side in sides if side is not None]
            return found if len(found) == len(sides) else []
    return []


def _is_of_one(node: g.Node) -> bool:
    """Whether nothing below joins or unites rows: what others change as well, one watermark says nothing of, though the
    same attribute was one by which rows were left out further down."""
    return all(len(each.inputs) <= 1 for each in g.walk(node))


def _side(node: g.Node, plan: Jvm, expiring: Mapping[int, Expiring]) -> tuple[int, Expiring] | None:
    """The column of one side of a join: what is computed for the join comes after the columns of its plan."""
    for place, by in _known(output_of(plan), expiring):
        if node.schema.field(place).name == plan.output().apply(place).name():
            return place, by
    return None


def _key_columns(node: g.Node, place: int) -> list[int]:
    match node:
        case g.AggregateNode():
            return [place] if place < node.keys else []
        case g.Regroup():
            return [node.key[place]]
        case g.SessionAggregate():
            return [node.keys]  # the end, behind the other keys and the start
        case g.Sessions():
            spec = SessionSpec(node.input.schema, node.key, node.column)
            return [len(spec.flat), spec.sessions_start + 1]  # both are the end of the session
    return []


def _known(expressions: list[Jvm], expiring: Mapping[int, Expiring]) -> list[tuple[int, Expiring]]:
    return [
        (place, expiring[identity(e)])
        for place, e in enumerate(expressions)
        if kind(e) == "AttributeReference" and identity(e) in expiring
    ]
