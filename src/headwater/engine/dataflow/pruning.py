"""What a view does not look at, so that it need not be computed: ranks by which it picks rows, and the ends of versions.

`QUALIFY row_number() ... <= 50` without a column for the number only has rows picked: a row that comes first changes the
ranks of all behind it, and none of that is seen. Such ranks are not computed, and a change of theirs is no change. A
version ends when the next one begins: the row with no end goes, and the same with one comes. Where nobody reads the end, that
changes nothing for the rows of the time between, and the join need not look at them.
"""

from __future__ import annotations

from headwater.engine.dataflow.operators.registry import kind_of
from headwater.operators import graph as g


def unread(root: g.Node) -> frozenset[int]:
    """The identities of the nodes of a graph that show ranks, or ends of versions, which nothing above them depends on."""
    ignored: set[int] = set()
    read = {id(root)}
    for node in g.walk(root):
        for child in node.inputs:
            is_ignored = isinstance(node, g.Map) and kind_of(child).is_unread(child, node)
            (ignored if is_ignored else read).add(id(child))
    return frozenset(ignored - read)
