"""Atoms: the distinct conditions of query leaves, shared by all queries. An atom is a number; its properties are columns.

Words and patterns are found in documents by their atoms; ranges are evaluated on demand. The number of documents with
each atom is counted, so that queries are indexed by rare atoms: this affects the cost of matching, never its result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headwater.operators.percolator.fields import Fields
from headwater.operators.percolator.query_nodes import (
    HIGHEST,
    LOWEST,
    Everything,
    Holds,
    Leaf,
    Phrase,
    Present,
    RangeQuery,
    Term,
)
from headwater.operators.percolator.term_patterns import Patterns

EVERYTHING, PRESENT, TERM, PATTERN, PHRASE, RANGE = range(6)
COUNTED_MAX = 1_000_000
ALWAYS = 0
"""Atom of `Everything`."""


class Atoms:
    """The atoms of an index."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._places = {column.name: place for place, column in enumerate(fields.columns)}
        count = len(fields.columns)
        self.kind = np.zeros(1024, dtype=np.int8)
        self.field = np.zeros(1024, dtype=np.int16)
        self.low = np.zeros(1024, dtype=np.int64)
        self.high = np.zeros(1024, dtype=np.int64)
        self.met = np.zeros(1024, dtype=np.float64)
        """Number of documents in which a word or pattern was found, initially an estimate; for other kinds, an
        estimated share of documents."""
        self.documents = 1
        """Number of documents counted, plus one."""
        self.patterns = Patterns()
        self.generation = 0
        """Counter of changes after which a term may have another atom."""
        self.terms: list[dict[str, int]] = [{} for _ in range(count)]
        self.points: list[dict[int, int]] = [{} for _ in range(count)]
        self.by_pattern: list[dict[int, int]] = [{} for _ in range(count)]
        self.phrases: dict[int, tuple[tuple[int, ...], tuple[int, ...], int]] = {}
        """Atoms of the terms of each phrase, their positions in the phrase, and the slop."""
        self._others: dict[tuple[Any, ...], int] = {}
        self._where: list[dict[Any, int] | None] = []
        self._keys: list[Any] = []
        self._free: list[int] = []
        self._new(self._others, ("everything",), EVERYTHING, 0, 1.0)

    def __len__(self) -> int:
        """One more than the largest atom."""
        return len(self._keys)

    def of(self, leaf: Leaf) -> int:
        """Return the atom of a leaf, creating it if necessary."""
        if isinstance(leaf, Term):
            place = self._places[leaf.field]
            known = self.terms[place]
            found = known.get(leaf.term)
            return self._new(known, leaf.term, TERM, place, _rarity(leaf.term)) if found is None else found
        if isinstance(leaf, Everything):
            return ALWAYS
        assert not isinstance(leaf, Holds)
        place = self._places[leaf.field]
        if isinstance(leaf, RangeQuery):
            return self._range(place, leaf.low, leaf.high)
        if isinstance(leaf, Phrase):
            return self._phrase(place, leaf)
        if isinstance(leaf, Present):
            key = (PRESENT, place)
            found = self._others.get(key)
            return self._new(self._others, key, PRESENT, place, 1.0) if found is None else found
        number, patterns = self.patterns.add(leaf), self.by_pattern[place]
        found = patterns.get(number)
        return self._new(patterns, number, PATTERN, place, 0.05) if found is None else found

    def _range(self, place: int, low: int, high: int) -> int:
        if low == high:
            where: dict[Any, int] = self.points[place]
            key: Any = low
            guess = 0.02
        else:
            where, key = self._others, (RANGE, place, low, high)
            guess = 0.5 if low == LOWEST or high == HIGHEST else 0.2
        found = where.get(key)
        if found is None:
            found = self._new(where, key, RANGE, place, guess)
            self.low[found], self.high[found] = low, high
        return found

    def _phrase(self, place: int, leaf: Phrase) -> int:
        key = (PHRASE, place, leaf.terms, leaf.places, leaf.slop)
        found = self._others.get(key)
        if found is None:
            terms = tuple(self.of(Term(leaf.field, term)) for term in leaf.terms)
            found = self._new(self._others, key, PHRASE, place, 0.001)
            self.phrases[found] = terms, leaf.places, leaf.slop
        return found

    def _new(self, where: dict[Any, int], key: Any, kind: int, place: int, guess: float) -> int:
        if self._free:
            atom = self._free.pop()
            self._where[atom], self._keys[atom] = where, key
        else:
            atom = len(self._keys)
            self._where.append(where)
            self._keys.append(key)
            if atom == len(self.kind):
                for name in ("kind", "field", "low", "high", "met"):
                    column = getattr(self, name)
                    setattr(self, name, np.append(column, np.zeros_like(column)))
        where[key] = atom
        self.generation += kind == TERM
        self.kind[atom], self.field[atom] = kind, place
        self.met[atom] = guess * self.documents if kind in (TERM, PATTERN) else guess
        return atom

    def costs(self) -> npt.NDArray[np.float64]:
        """Return the expected share of documents that have each atom."""
        kind, met = self.kind[: len(self)], self.met[: len(self)]
        return np.where((kind == TERM) | (kind == PATTERN), met / self.documents, met)

    def cost(self, atom: int) -> float:
        """Return the expected share of documents that have one atom."""
        met = float(self.met[atom])
        return met / self.documents if self.kind[atom] in (TERM, PATTERN) else met

    def count(self, active: npt.NDArray[np.int64], found: npt.NDArray[np.int64], documents: int) -> None:
        """Count the documents in which each active atom was found; older counts decay."""
        self.met[active] += found
        self.documents += documents
        if self.documents > COUNTED_MAX:
            words = (self.kind == TERM) | (self.kind == PATTERN)
            self.met[words] /= 2
            self.documents //= 2

    def keep(self, used: npt.NDArray[np.bool_]) -> None:
        """Remove the atoms that are not in use; a phrase uses its terms."""
        used[ALWAYS] = True
        self.generation += 1
        for atom, (terms, _, _) in self.phrases.items():
            if used[atom]:
                used[list(terms)] = True
        for atom in np.flatnonzero(~used).tolist():
            where = self._where[atom]
            if where is None:
                continue
            del where[self._keys[atom]]
            if self.kind[atom] == PATTERN:
                self._drop_pattern(self._keys[atom])
            self.phrases.pop(atom, None)
            self._where[atom] = self._keys[atom] = None
            self._free.append(atom)

    def _drop_pattern(self, number: int) -> None:
        if not any(number in numbers for numbers in self.by_pattern):
            self.patterns.drop(number)


def _rarity(term: str) -> float:
    """Return the assumed share of documents with a word before any document is counted: longer words are rarer."""
    return _RARITY[min(len(term), 12)]


_RARITY = [0.5**length for length in range(13)]
