"""Unique keys: sets of columns on which no two rows agree, whatever the data.

A key is a set of column indices; the empty set means that there is at most one row. Only keys that follow from the
operators are found, so there may be others.
"""

from __future__ import annotations

from collections.abc import Iterable

Keys = frozenset[frozenset[int]]
"""Minimal keys: no key contains another."""
NONE: Keys = frozenset()


def least(keys: Iterable[frozenset[int]]) -> Keys:
    """Return the minimal keys: those without another key as a subset."""
    known = frozenset(keys)
    return frozenset(key for key in known if not any(other < key for other in known))
