"""Which columns are a key: no two rows agree on them, whatever the data.

A key is a set of columns, by position; the empty set says that there is one row at most. What is not found here may be a key
all the same: only what follows from the operators counts.
"""

from __future__ import annotations

from collections.abc import Iterable

Keys = frozenset[frozenset[int]]
"""Keys, none of which holds another."""
NONE: Keys = frozenset()


def least(keys: Iterable[frozenset[int]]) -> Keys:
    """The keys that hold no other."""
    known = frozenset(keys)
    return frozenset(key for key in known if not any(other < key for other in known))
