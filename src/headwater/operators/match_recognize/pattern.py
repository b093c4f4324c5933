"""A row pattern as a tree: variables, and how they follow one another.

Preference goes from left to right: the first alternative that leads to a match is preferred, and of a quantifier the
most rows if it is greedy and the fewest if it is reluctant. A quantifier stands for nested options: `A{1,3}` is `A (A
A?)?`. A quantifier without an upper bound ends after an iteration that consumes no row. `automaton` compiles a tree
into an automaton.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations


@dataclass(frozen=True)
class Variable:
    """Matches one row that satisfies the condition of a variable; any row, if the variable has no condition."""

    name: str


@dataclass(frozen=True)
class Empty:
    """Matches no row: `()`."""


@dataclass(frozen=True)
class Start:
    """Matches before the first row of the partition, without consuming a row: `^`."""


@dataclass(frozen=True)
class End:
    """Matches after the last row of the partition, without consuming a row: `$`."""


@dataclass(frozen=True)
class Concat:
    """Matches the parts in sequence."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Alternate:
    """Matches one of several parts, preferably an earlier part."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True)
class Permute:
    """Matches all parts, in any order; orders are preferred lexicographically by the position of their parts."""

    parts: tuple[Pattern, ...]

    def expanded(self) -> Pattern:
        """Return the equivalent alternation."""
        return Alternate(tuple(Concat(order) for order in permutations(self.parts)))


@dataclass(frozen=True)
class Quantified:
    """Matches a part at least `low` and at most `high` times; without an upper bound if `high` is None."""

    part: Pattern
    low: int
    high: int | None
    greedy: bool = True

    def __post_init__(self) -> None:
        if self.low < 0 or (self.high is not None and self.high < max(self.low, 1)):
            raise ValueError(f"a quantifier from {self.low} to {self.high} matches nothing")


@dataclass(frozen=True)
class Exclude:
    """Matches a part whose rows belong to the match, but are not output: `{- A -}`."""

    part: Pattern


Pattern = Variable | Empty | Start | End | Concat | Alternate | Permute | Quantified | Exclude


def variables(pattern: Pattern) -> tuple[str, ...]:
    """Return the distinct names of all variables, in the order in which they first appear."""
    return tuple(dict.fromkeys(_names(pattern)))


def has_start(pattern: Pattern) -> bool:
    """Whether the pattern depends on the start of its partition."""
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
