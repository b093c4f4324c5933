"""How many rows an operator has, what it keeps, and what bounds that: tables, or nothing, because it grows with a topic that only grows.

A topic without a key has a history and no current rows, so whatever is kept of each of its rows, or of each of their
keys, is kept forever, unless rows that come too late are left out: then it can be let go of once the watermark has passed.
Everything else is bounded: a table by the number of its keys, a single group by being one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwater.operators import graph as g


@dataclass(frozen=True)
class Extent:
    """How many rows something can have."""

    topics: frozenset[str] = frozenset()
    """Topics without a key: it has more rows with every record of them."""
    tables: frozenset[str] = frozenset()
    """Topics with a key: it has no more rows than they and each other have together."""
    passing: frozenset[str] = frozenset()
    """Topics without a key whose watermarks pass what it has, after which it is let go of."""

    def __or__(self, other: Extent) -> Extent:
        return Extent(self.topics | other.topics, self.tables | other.tables, self.passing | other.passing)

    @property
    def bounded(self) -> bool:
        """Whether no history lets it grow."""
        return not self.topics


@dataclass(frozen=True)
class KeptState:
    """What one operator keeps."""

    node: g.Node
    what: str
    """In words, after "it keeps"."""
    instead: str
    """The nearest thing that keeps less."""
    extent: Extent


ONE = Extent()
"""No more rows than the query itself says."""


def together(extents: Iterable[Extent]) -> Extent:
    """No more rows than all of these have."""
    found = ONE
    for extent in extents:
        found |= extent
    return found
