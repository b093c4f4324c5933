"""Index of patterns, fuzzy words and keyword ranges: a word is looked up instead of being tested against every pattern.

A pattern is indexed by a prefix or suffix of its words, or by three characters that they contain; a fuzzy word by its
deletion neighbourhood: two words within k edits become equal after at most k deletions from each. Candidates are then
verified. Callers may cache results as long as `generation` is unchanged.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from headwater.operators.percolator.query_nodes import Fuzzy, KeywordRange, Pattern
from headwater.operators.percolator.query_reference import fitting

RECENT_MAX = 4_096
"""Number of fuzzy words buffered in a dictionary before they are merged into sorted arrays, which use far less memory."""
GRAM = 3

Shape = Pattern | Fuzzy | KeywordRange


class Patterns:
    """Distinct patterns by number, regardless of field and boost."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._shapes: dict[int, Shape] = {}
        self._fits: dict[int, Callable[[str], bool]] = {}
        self._free: list[int] = []
        self._prefixes: _Pieces = _Pieces()
        self._starts: _Pieces = _Pieces()
        self._ends: _Pieces = _Pieces()
        self._grams: dict[str, set[int]] = defaultdict(set)
        self._loose: set[int] = set()
        self._fuzzy = _Neighbours()
        self._spans: list[tuple[str, int]] = []
        self.generation = 0

    def add(self, shape: Shape) -> int:
        """Add a pattern if it is new; return its number."""
        key = _key(shape)
        number = self._numbers.get(key)
        if number is None:
            number = self._free.pop() if self._free else len(self._numbers)
            self._numbers[key] = number
            self._shapes[number] = shape
            self._file(number, shape, adds=True)
            self.generation += 1
        return number

    def drop(self, number: int) -> None:
        """Remove a pattern; its number may be reused."""
        shape = self._shapes.pop(number)
        del self._numbers[_key(shape)]
        self._fits.pop(number, None)
        self._file(number, shape, adds=False)
        self._free.append(number)
        self.generation += 1

    def fitting(self, words: list[str]) -> list[tuple[int, ...]]:
        """Return the numbers of the patterns that match each word."""
        self._fuzzy.settle()
        return [tuple(sorted(self._matching(word))) for word in words]

    def _matching(self, word: str) -> set[int]:
        found = set(self._prefixes.of(word))
        candidates = itertools.chain(self._starts.of(word), self._ends.of(word[::-1]), self._loose)
        found.update(number for number in candidates if self._matches(number, word))
        if self._grams:
            grams = {word[i : i + GRAM] for i in range(len(word) - GRAM + 1)}
            for gram in grams & self._grams.keys():
                found.update(number for number in self._grams[gram] if self._matches(number, word))
        found.update(number for number in self._fuzzy.of(word) if self._matches(number, word))
        for _, number in self._spans[: bisect_right(self._spans, word, key=lambda span: span[0])]:
            if self._matches(number, word):
                found.add(number)
        return found

    def _matches(self, number: int, word: str) -> bool:
        fits = self._fits.get(number)
        if fits is None:
            fits = self._fits[number] = fitting(self._shapes[number])
        return fits(word)

    def _file(self, number: int, shape: Shape, *, adds: bool) -> None:
        match shape:
            case Fuzzy():
                self._fuzzy.add(number, shape) if adds else self._fuzzy.drop(number, shape)
            case KeywordRange():
                entry = (shape.low or "", number)
                insort(self._spans, entry) if adds else self._spans.remove(entry)
            case Pattern():
                self._file_pattern(number, shape, adds=adds)

    def _file_pattern(self, number: int, shape: Pattern, *, adds: bool) -> None:
        prefix = shape.prefix
        if prefix is not None:
            self._prefixes.change(prefix, number, adds=adds)
            return
        pieces = shape.pieces()
        start, end = pieces[0] or "", pieces[-1] or ""
        if start and len(start) >= len(end):
            self._starts.change(start, number, adds=adds)
        elif end:
            self._ends.change(end[::-1], number, adds=adds)
        else:
            longest = max((piece for piece in pieces if piece), key=len, default="")
            where = self._grams[longest[:GRAM]] if len(longest) >= GRAM else self._loose
            where.add(number) if adds else where.discard(number)
            if len(longest) >= GRAM and not where:
                del self._grams[longest[:GRAM]]


class _Pieces:
    """Patterns indexed by a prefix of the words that they match."""

    def __init__(self) -> None:
        self._numbers: dict[str, set[int]] = {}
        self._lengths: dict[int, int] = {}

    def change(self, piece: str, number: int, *, adds: bool) -> None:
        if adds:
            if piece not in self._numbers:
                self._numbers[piece] = set()
                self._lengths[len(piece)] = self._lengths.get(len(piece), 0) + 1
            self._numbers[piece].add(number)
            return
        self._numbers[piece].discard(number)
        if not self._numbers[piece]:
            del self._numbers[piece]
            self._lengths[len(piece)] -= 1
            if not self._lengths[len(piece)]:
                del self._lengths[len(piece)]

    def of(self, word: str) -> Iterator[int]:
        for length in self._lengths:
            if length <= len(word):
                yield from self._numbers.get(word[:length], ())


class _Neighbours:
    """Fuzzy words indexed by hashes of what remains of them after deletions; collisions are resolved by the caller."""

    def __init__(self) -> None:
        self._recent: dict[int, set[int]] = defaultdict(set)
        self._recent_words = 0
        self._hashes: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._numbers: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        self._dropped: set[int] = set()
        self._distances = [0, 0, 0]
        self._longest = 0

    def add(self, number: int, shape: Fuzzy) -> None:
        if number in self._dropped:
            self._purge()
        self._distances[shape.distance] += 1
        self._recent_words += 1
        self._longest = max(self._longest, len(shape.word) + shape.distance)
        for left in without(shape.word, shape.distance):
            self._recent[hash(left)].add(number)

    def drop(self, number: int, shape: Fuzzy) -> None:
        self._distances[shape.distance] -= 1
        self._dropped.add(number)

    def settle(self) -> None:
        """Merge buffered words into the sorted arrays if there are many."""
        if self._recent_words > RECENT_MAX:
            self._sort_in()

    def of(self, word: str) -> set[int]:
        distance = 2 if self._distances[2] else 1 if self._distances[1] else 0
        if not any(self._distances) or len(word) > self._longest:
            return set()
        hashes = np.array([hash(left) for left in without(word, distance)], dtype=np.int64)
        found: set[int] = set()
        for one in hashes.tolist():
            found |= self._recent.get(one, set())
        if len(self._hashes):
            low = np.searchsorted(self._hashes, hashes, side="left")
            high = np.searchsorted(self._hashes, hashes, side="right")
            for first, last in zip(low[high > low].tolist(), high[high > low].tolist(), strict=True):
                found.update(self._numbers[first:last].tolist())
        return found - self._dropped

    def _sort_in(self) -> None:
        counts = [len(numbers) for numbers in self._recent.values()]
        hashes = np.repeat(np.fromiter(self._recent.keys(), dtype=np.int64, count=len(counts)), counts)
        numbers = np.fromiter(itertools.chain.from_iterable(self._recent.values()), dtype=np.int32)
        hashes, numbers = np.append(self._hashes, hashes), np.append(self._numbers, numbers)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._numbers = hashes[order], numbers[order]
        self._recent.clear()
        self._recent_words = 0

    def _purge(self) -> None:
        """Remove dropped words from the arrays, so that their numbers can be reused."""
        kept = ~np.isin(self._numbers, np.fromiter(self._dropped, dtype=np.int32))
        self._hashes, self._numbers = self._hashes[kept], self._numbers[kept]
        for numbers in self._recent.values():
            numbers -= self._dropped
        self._dropped.clear()


def without(word: str, deletions: int) -> set[str]:
    """Return the word and everything that remains of it after at most that many deletions."""
    found = {word}
    last = found
    for _ in range(deletions):
        last = {left[:i] + left[i + 1 :] for left in last for i in range(len(left))}
        found = found | last
    return found


def _key(shape: Shape) -> tuple[object, ...]:
    match shape:
        case Pattern():
            return (shape.pattern,)
        case Fuzzy():
            return shape.word, shape.distance
        case KeywordRange():
            return shape.low, shape.high, shape.low_in, shape.high_in
