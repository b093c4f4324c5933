"""A row pattern as a tree: variables, and how they follow one another.

Preference goes from left to right: of alternatives the first that leads to a match, of a quantifier the most rows if it
is greedy and the fewest if it is reluctant. A quantifier is the nested options that it stands for: `A{1,3}` is
`A (A A?)?`. One without an upper bound goes on until an iteration takes no row: such a one is the last.
How a tree becomes an automaton is in `automaton`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations


@dataclass(frozen=True)
class Variable:
    """One row that fulfils the condition of a variable; any row, if it has none."""

    name: str


@dataclass(frozen=True)
class Empty:
    """No row: `()`."""


@dataclass(frozen=True)
class Start:
    """No row, before the first of the partition: `^`."""


@dataclass(frozen=True)
class End:
    """No row, after the last of the partition: `$`."""


@dataclass(frozen=True)
class Concat:
    """One part after the other."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Alternate:
    """One of the parts, the first that leads to a match."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Permute:
    """All parts, in any order; the orders are preferred as they are listed in a dictionary of the parts."""

    parts: tuple[Pattern, ...]

    def expanded(self) -> Pattern:
        """The alternation that it stands for."""
        return Alternate(tuple(Concat(order) for order in permutations(self.parts)))


@dataclass(frozen=True)
class Quantified:
    """A part `low` times at least, and at most `high` times; any number of times if that is None."""

    part: Pattern
    low: int
    high: int | None
    greedy: bool = True

    def __post_init__(self) -> None:
        if self.low < 0 or (self.high is not None and self.high < max(self.low, 1)):
            raise ValueError(f"a quantifier from {self.low} to {self.high} times")


@dataclass(frozen=True)
class Exclude:
    """A part whose rows belong to the match, but are not shown: `{- A -}`."""

    part: Pattern


Pattern = Variable | Empty | Start | End | Concat | Alternate | Permute | Quantified | Exclude


def variables(pattern: Pattern) -> tuple[str, ...]:
    """The names of all variables, each once, in the order in which they appear."""
    return tuple(dict.fromkeys(_names(pattern)))


def has_start(pattern: Pattern) -> bool:
    """Whether it asks where its partition starts."""
    match pattern:
        case Start():
            return True
        case Concat(parts) | Alternate(parts) | Permute(parts):
            return any(has_start(part) for part in parts)
        case Quantified(part=part) | Exclude(part):
            return has_start(part)
    return False


def _names(pattern: Pattern) -> Iterator[str]:
    match pattern:
        case Variable(name):
            yield name
        case Concat(parts) | Alternate(parts) | Permute(parts):
            for part in parts:
                yield from _names(part)
        case Quantified(part=part) | Exclude(part):
            yield from _names(part)
