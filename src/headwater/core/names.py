"""Names of topics, views and the rest: kept as they are spelled, found in any case."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


def spelling(names: Collection[str], name: str) -> str | None:
    """How a name that is written in any case is spelled among `names`: just so if it is there, else as the only one
    that differs by case alone. None if there is none, or there are several, as only old workspaces have them.
    """
    if name in names:
        return name
    alike = spellings(names, name)
    return alike[0] if len(alike) == 1 else None


def spellings(names: Collection[str], name: str) -> list[str]:
    """The names that are the same but for case."""
    folded = name.lower()
    return [other for other in names if other.lower() == folded]


class Named(Mapping[str, T]):
    """Things by name, listed as they are spelled and found in any case; read only."""

    def __init__(self, things: Mapping[str, T]) -> None:
        self._things = dict(things)

    def __getitem__(self, name: str) -> T:
        spelled = spelling(self._things, name)
        return self._things[name if spelled is None else spelled]

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def __repr__(self) -> str:
        return repr(self._things)
