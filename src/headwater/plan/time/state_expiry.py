"""State expiry: where late rows of topics are dropped, no row will come that needs older state.

Input are the plan columns by which late rows were dropped, each with the topics whose watermarks decide; output are the
columns of the operators' arrangements that correspond to them.
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
    """The expiry of rows: they are not needed once the least watermark of the topics has reached their time, or the end of
    their window, plus the slack."""

    topics: tuple[str, ...]
    slack_us: int


Place = tuple[str, int]
"""A kind of plan node and an attribute ID: the expiry holds at that node only, since above it the attribute bounds no new
rows."""


@dataclass(frozen=True)
class Expiry:
    """The expiry of an arrangement: `column` has the time, in microseconds, as a timestamp or as a window."""

    column: int
    topics: tuple[str, ...]
    slack_us: int
    op: int | None = None
    """Column that marks tombstones, for records that end each other: of the expiring records of a key, the newest is kept,
    because the next record ends it, unless it is a tombstone."""


Expiries = Mapping[int, tuple[Expiry, ...]]
"""Expiry of each arrangement of a node, by the node's ID; the last entry applies to all following arrangements too."""


def expiring_as(expiring: Mapping[Place, Expiring], renamed: Mapping[int, int]) -> Mapping[Place, Expiring]:
    """Return expiries that also cover attributes with new IDs; `renamed` maps each new ID to the old one."""
    known = {
        (name, new): (name, old) for new, old in renamed.items() for name, number in expiring if number == old
    }
    return {**expiring, **{place: expiring[old] for place, old in known.items()}}


def expiries(
    origins: Mapping[int, tuple[g.Node, Jvm]], expiring: Mapping[Place, Expiring]
) -> dict[int, tuple[Expiry, ...]]:
    """Return the state expiry of operators, given the part of the plan that each was made from."""
    found: dict[int, tuple[Expiry, ...]] = {}
    for number, (node, plan) in origins.items() if expiring else ():
        here = {number: by for (name, number), by in expiring.items() if name == kind(plan)}
        columns = _columns(node, plan, here)
        if columns:
            op = node.op if isinstance(node, g.VersionsNode) else None
            found[number] = tuple(Expiry(column, by.topics, by.slack_us, op) for column, by in columns)
    return found


def _columns(node: g.Node, plan: Jvm, expiring: Mapping[int, Expiring]) -> list[tuple[int, Expiring]]:
    """Return, for each arrangement of a node, the column by which it expires and the expiry."""
    if not any(_is_of_one(each) for each in node.inputs):
        return []
    match node:
        case g.AggregateNode() | g.Regroup() | g.SessionAggregate() | g.Sessions() if (
            kind(plan) == "Aggregate"
        ):
            keys = _expiring_columns(items(plan.groupingExpressions()), expiring)
            if not keys:
                return []
            place, by = keys[0]
            return [(column, by) for column in _key_columns(node, place)]
        case g.Regroup(evaluate=g.RowPattern(spec=spec)) if is_match(plan) and spec.time is not None:
            known = _expiring_columns([columns_matched(plan)[spec.time]], expiring)
            at = cuts_schema(spec).get_field_index("at")
            return [(column, known[0][1]) for column in (spec.time, at)] if known else []
        case g.VersionsNode() if kind(plan) == "Window":
            order = _expiring_columns([o.child() for o in items(plan.orderSpec())], expiring)
            return [(node.begin, order[0][1])] if order else []
        case g.Slide() if kind(plan) == "Window":
            order = _expiring_columns([o.child() for o in items(plan.orderSpec())], expiring)
            return [(node.time, order[0][1])] if order else []
        case g.Join() if kind(plan) == "Join":
            sides = [_side(s, p, expiring) for s, p in ((node.left, plan.left()), (node.right, plan.right()))]
            found = [side for side in sides if side is not None]
            return found if len(found) == len(sides) else []
    return []


def _is_of_one(node: g.Node) -> bool:
    """Whether no node below joins or unites rows. Otherwise other inputs can change the rows too, and one watermark does
    not bound them, even if late rows were dropped by the same attribute further down."""
    return all(len(each.inputs) <= 1 for each in g.walk(node))


def _side(node: g.Node, plan: Jvm, expiring: Mapping[int, Expiring]) -> tuple[int, Expiring] | None:
    """Return the expiring column of one side of a join; columns computed for the join follow the columns of the side's
    plan."""
    for place, by in _expiring_columns(output_of(plan), expiring):
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
            return [node.keys]  # the session end, after the other keys and the start
        case g.Sessions():
            spec = SessionSpec(node.input.schema, node.key, node.column)
            return [len(spec.flat), spec.sessions_start + 1]  # both are the session end
    return []


def _expiring_columns(expressions: list[Jvm], expiring: Mapping[int, Expiring]) -> list[tuple[int, Expiring]]:
    return [
        (place, expiring[identity(e)])
        for place, e in enumerate(expressions)
        if kind(e) == "AttributeReference" and identity(e) in expiring
    ]
