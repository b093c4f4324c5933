"""The key by which a sink upserts: named by the user or derived, and provably unique in the view."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.core.errors import StatementError
from headwater.sinks.base.target import TargetShape

Key = tuple[str, ...]


def check_key(shape: TargetShape, declared: Key, unique: Sequence[Key]) -> Key:
    """Return the key to upsert by, spelled as the view spells its columns.

    `declared` is the key that the user named, () if none. `unique` are the keys that are unique in the view by its
    definition: the columns of its GROUP BY, the primary key of a topic that it passes on, the partition of a top-1; () means
    that the view has at most one row. StatementError if nothing proves that the key is unique.
    """
    by_lower = {name.lower(): name for name in shape.schema.names}
    missing = [name for name in declared if name.lower() not in by_lower]
    if missing:
        raise StatementError(
            f"view {shape.view!r} has no column {missing[0]!r}, which the key of sink {shape.sink!r} names",
            hint=f"its columns are {', '.join(shape.schema.names)}",
            view=shape.view,
            sink=shape.sink,
            column=missing[0],
        )
    key = tuple(dict.fromkeys(by_lower[name.lower()] for name in declared))
    known = [one for one in unique if all(name in shape.schema.names for name in one)]
    if key and any(set(one) <= set(key) for one in known):
        return key
    named = [one for one in known if one]
    if not key and named:
        return min(named, key=len)
    raise StatementError(
        f"{_columns(key)} {'is' if len(key) == 1 else 'are'} not known to be unique in view {shape.view!r}"
        if key
        else f"view {shape.view!r} has no unique key by which sink {shape.sink!r} could update and delete rows",
        detail="rows with the same key would overwrite each other in the target, in no particular order",
        hint=_hint(named, known),
        view=shape.view,
        sink=shape.sink,
        key=tuple(key),
    )


def _hint(named: Sequence[Key], known: Sequence[Key]) -> str:
    if named:
        return "use key = " + " or ".join(f"'{', '.join(one)}'" for one in named)
    if known:
        return "the view has one row: name any of its columns, as in key = '...'"
    return (
        "group the view by the key, select the primary key of a topic, or select the first row of each key with "
        "ROW_NUMBER() ... = 1"
    )


def _columns(key: Key) -> str:
    return ", ".join(repr(name) for name in key)
