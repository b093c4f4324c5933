"""Seeded choices that remember which features they used, and take them back when they led nowhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
Option = tuple[str | None, float, Callable[[], T]]
"""A feature or None (always allowed), a weight, and what makes it."""

FAVOURED, FAVOUR = 5, 8


class DeadEndError(Exception):
    """What was being made cannot be made from the columns at hand; another option is tried."""


class Chooser:
    """Draws among what is allowed, a few features far more often, so that none stays rare.

    `used` and `reads` grow as things are made.
    """

    def __init__(self, rng: random.Random, allowed: frozenset[str]) -> None:
        self.rng = rng
        self.allowed = allowed
        self._favoured = frozenset(rng.sample(sorted(allowed), min(FAVOURED, len(allowed))))
        self.used: set[str] = set()
        self.reads: set[str] = set()
        self._names = 0

    def name(self, prefix: str) -> str:
        """A name that was not given before."""
        self._names += 1
        return f"{prefix}{self._names}"

    def on(self, feature: str, probability: float = 0.5) -> bool:
        """Whether to use a feature now; a yes counts as used."""
        if feature not in self.allowed or self.rng.random() >= probability:
            return False
        self.used.add(feature)
        return True

    def require(self, *features: str) -> None:
        """Use these features, or give up."""
        if not set(features) <= self.allowed:
            raise DeadEndError
        self.used |= set(features)

    def one(self, values: Sequence[T]) -> T:
        """One of the values; none is a dead end."""
        if not values:
            raise DeadEndError
        return self.rng.choice(values)

    def some(self, values: Sequence[T], low: int, high: int) -> list[T]:
        """Between `low` and `high` of the values, none twice, in a random order; too few is a dead end."""
        if len(values) < low:
            raise DeadEndError
        return self.rng.sample(list(values), self.rng.randint(low, min(high, len(values))))

    def make(self, options: Sequence[Option[T]]) -> T:
        """What one of the options makes; those that lead to a dead end are passed over."""
        left = [option for option in options if option[0] is None or option[0] in self.allowed]
        while left:
            weights = [weight * (FAVOUR if feature in self._favoured else 1) for feature, weight, _ in left]
            chosen = self.rng.choices(left, weights)[0]
            used, reads = set(self.used), set(self.reads)
            try:
                if chosen[0] is not None:
                    self.used.add(chosen[0])
                return chosen[2]()
            except DeadEndError:
                self.used, self.reads = used, reads
                left = [option for option in left if option is not chosen]
        raise DeadEndError
