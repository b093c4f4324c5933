"""Mapping from words to atoms, cached for each word of a lexicon until queries or the lexicon change."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headwater.core.text_analysis import Lexicon
from headwater.operators.percolator.terms import Atoms

Ints = npt.NDArray[np.int64]
_UNKNOWN, _NONE = -2, -1


class Lookup:
    """The atoms of the words of a lexicon, for text fields or for keyword fields."""

    def __init__(self, atoms: Atoms, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self._atoms = atoms
        self._terms: dict[int, tuple[tuple[int, int], npt.NDArray[np.int32]]] = {}
        self._fit: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._fits: list[tuple[int, ...]] = []
        self._fit_of = (-1, -1)

    def terms(self, place: int, lexemes: Ints) -> Ints:
        """Return the atom of each word's term in a field; negative if no query uses the term."""
        stamp = (self.lexicon.generation, self._atoms.generation)
        known = self._terms.get(place)
        column = known[1] if known is not None and known[0] == stamp else np.zeros(0, dtype=np.int32)
        column = self._long_enough(column)
        missing = lexemes[column[lexemes] == _UNKNOWN]
        if len(missing):
            atoms, terms = self._atoms.terms[place], self.lexicon.terms
            column[missing] = [atoms.get(terms[lexeme], _NONE) for lexeme in missing.tolist()]
        self._terms[place] = stamp, column
        return column[lexemes].astype(np.int64)

    def patterns(self, lexemes: Ints) -> list[tuple[int, tuple[int, ...]]]:
        """Return the words that match patterns, as indices into `lexemes`, with the numbers of these patterns."""
        patterns = self._atoms.patterns
        stamp = (self.lexicon.generation, patterns.generation)
        if stamp != self._fit_of:
            self._fit, self._fits, self._fit_of = np.zeros(0, dtype=np.int32), [], stamp
        self._fit = self._long_enough(self._fit)
        missing = lexemes[self._fit[lexemes] == _UNKNOWN]
        if len(missing):
            words = self.lexicon.words
            for lexeme, numbers in zip(
                missing.tolist(),
                patterns.fitting([words[lexeme] for lexeme in missing.tolist()]),
                strict=True,
            ):
                self._fit[lexeme] = len(self._fits) if numbers else _NONE
                if numbers:
                    self._fits.append(numbers)
        fit = self._fit[lexemes]
        some = np.flatnonzero(fit >= 0)
        return [(code, self._fits[at]) for code, at in zip(some.tolist(), fit[some].tolist(), strict=True)]

    def _long_enough(self, column: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        size = len(self.lexicon.words)
        if len(column) >= size:
            return column
        more = np.full(max(size, 2 * len(column)) - len(column), _UNKNOWN, dtype=np.int32)
        return np.append(column, more)
