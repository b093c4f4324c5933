"""What a view does not look at, so that it need not be computed: ranks by which it picks rows, and the ends of versions.

`QUALIFY row_number() ... <= 50` without a column for the number only has rows picked: a row that comes first changes the
ranks of all behind it, and none of that is seen. Such ranks are not computed, and a change of theirs is no change. A
version ends when the next one begins: the row with no end goes, and the same with one comes. Where nobody reads the end, that
changes nothing for the rows of the time between, and the join need not look at them.
"""

from __future__ import annotations

from headwater.queries import graph as g
from headwater.runtime.linear import columns_of
from headwater.runtime.planning.catalyst import Jvm, children_of, conjuncts, identity, items, kind
from headwater.runtime.planning.handles import Bound


def unread(root: g.Node) -> frozenset[int]:
    """The identities of the nodes of a graph that show ranks, or ends of versions, which nothing above them depends on."""
    ignored: set[int] = set()
    read = {id(root)}
    for node in g.walk(root):
        for child in node.inputs:
            is_ignored = isinstance(node, g.Map) and (
                _ignores_rank(node, child) or _ignores_ends(node, child)
            )
            (ignored if is_ignored else read).add(id(child))
    return frozenset(ignored - read)


def _ignores_rank(node: g.Map, ranked: g.Node) -> bool:
    if not isinstance(ranked, g.Rank) or not ranked.shows_rank:
        return False
    column = len(ranked.schema) - 1
    for step in node.steps:
        match step:
            case g.Filter(condition):
                if column in columns_of([condition]) and not _bounds(condition, column, ranked.limit):
                    return False
            case g.Project(expressions):
                return column not in columns_of(expressions)
            case _:
                return False
    return False


def _ignores_ends(node: g.Map, join: g.Node) -> bool:
    if not isinstance(join, g.Join) or join.kind not in ("inner", "left"):
        return False
    if join.range is None or not join.range.ends:
        return False
    ends = {len(join.left.schema) + column for column in join.range.ends}
    for step in node.steps:
        match step:
            case g.Filter(condition):
                if ends & columns_of([condition]):
                    return False
            case g.Project(expressions):
                if ends & columns_of([e for e in expressions if e.column is None]):
                    return False
                ends = {place for place, e in enumerate(expressions) if e.column in ends}
            case _:
                return False
    return not ends


def _bounds(condition: g.Expression, column: int, limit: int) -> bool:
    """Whether a condition asks no more of the rank than that it is at most some number, which all up to `limit` are."""
    if not isinstance(condition.handle, Bound):
        return False
    rank = identity(condition.handle.attributes[column])
    for term in conjuncts(condition.handle.expression):
        read = (identity(a) for a in items(term.references().toSeq()))
        if rank in read and not limit <= _greatest(term, rank):
            return False
    return True


def _greatest(term: Jvm, rank: int) -> int:
    """The k of `rank <= k` or `rank < k + 1`; below all ranks if it is another condition."""
    if kind(term) not in ("LessThanOrEqual", "LessThan"):
        return -1
    left, right = children_of(term)
    if kind(left) != "AttributeReference" or identity(left) != rank or kind(right) != "Literal":
        return -1
    value = right.value()
    if not isinstance(value, int):
        return -1
    return value - 1 if kind(term) == "LessThan" else value
