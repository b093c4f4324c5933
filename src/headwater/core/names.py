"""Names of topics, views and other objects: stored as they are spelled, found in any case."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


def canonical_name(names: Collection[str], name: str) -> str | None:
    """Return the spelling among `names` of a name in any case: the exact name if there is one, else the only name that differs
    by case alone. None if there is none, or several, as only old workspaces have."""
    if name in names:
        return name
    alike = names_alike(names, name)
    return alike[0] if len(alike) == 1 else None


def names_alike(names: Collection[str], name: str) -> list[str]:
    """Return the names that differ from `name` at most by case."""
    folded = name.lower()
    return [other for other in names if other.lower() == folded]


class Named(Mapping[str, T]):
    """A read-only mapping by name, listed as spelled and found in any case."""

    def __init__(self, things: Mapping[str, T]) -> None:
        self._things = dict(things)

    def __getitem__(self, name: str) -> T:
        stored = canonical_name(self._things, name)
        return self._things[name if stored is None else stored]

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def __repr__(self) -> str:
        return repr(self._things)
