"""The number of rows of an operator, its state, and what bounds the state.

State is bounded by tables, or unbounded if it grows with a topic that only grows. A topic without a key has a history
and no current rows, so state per row or per key of such a topic is kept forever, unless late rows are excluded: then
the state can be dropped once the watermark has passed it. All other state is bounded: a table by the number of its
keys, a single group by being one group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwater.operators import graph as g


@dataclass(frozen=True)
class Extent:
    """The bound of a number of rows."""

    topics: frozenset[str] = frozenset()
    """Topics without a key: the number of rows grows with every record of these topics."""
    tables: frozenset[str] = frozenset()
    """Topics with a key: the number of rows is bounded by the sizes of these tables."""
    passing: frozenset[str] = frozenset()
    """Topics without a key whose watermarks bound the rows: rows are dropped once the watermark has passed them."""

    def __or__(self, other: Extent) -> Extent:
        return Extent(self.topics | other.topics, self.tables | other.tables, self.passing | other.passing)

    @property
    def bounded(self) -> bool:
        """Whether the number of rows does not grow with the history of a topic."""
        return not self.topics


@dataclass(frozen=True)
class KeptState:
    """The state of one operator."""

    node: g.Node
    what: str
    """Description of the state, as it reads after "it keeps"."""
    instead: str
    """The closest alternative that keeps less state."""
    extent: Extent


ONE = Extent()
"""A number of rows that is bounded by the query alone."""


def together(extents: Iterable[Extent]) -> Extent:
    """Return the bound of rows that are combined from several inputs."""
    found = ONE
    for extent in extents:
        found |= extent
    return found
