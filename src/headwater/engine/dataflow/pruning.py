"""Output that no reader needs, so that it need not be computed: ranks that only filter rows, and the ends of versions.

`QUALIFY row_number() ... <= 50` without an output column for the number only filters rows. A row that is inserted first
changes the ranks of all rows behind it, but no reader sees that. Such ranks are not computed, and a change of ranks alone is
not emitted. A version ends when the next one begins: the row without an end is retracted, and the same row with an end is
inserted. If no reader uses the end, the matches of earlier times do not change, and the join need not look at them.
"""

from __future__ import annotations

from headwater.engine.dataflow.operators.registry import kind_of
from headwater.operators import graph as g


def unread(root: g.Node) -> frozenset[int]:
    """Return the IDs of the nodes of a graph that output ranks, or ends of versions, on which no node above depends."""
    ignored: set[int] = set()
    read = {id(root)}
    for node in g.walk(root):
        for child in node.inputs:
            is_ignored = isinstance(node, g.Map) and kind_of(child).is_unread(child, node)
            (ignored if is_ignored else read).add(id(child))
    return frozenset(ignored - read)
