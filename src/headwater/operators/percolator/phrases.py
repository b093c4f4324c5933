"""Phrase matching in one document: positions at which the terms are close enough."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence


def occurrences(
    where: Sequence[Sequence[tuple[int, int]]], terms: Sequence[int], places: Sequence[int], slop: int
) -> tuple[int, list[int]]:
    """Return how often a phrase occurs, and the words involved. `where` has the positions and the words of each term.

    A choice of one word per term is an occurrence if the differences of the positions and `places` vary by at most
    `slop` and no word is used twice. A choice is characterized by a window of differences that contains it and begins
    at one of them.
    """
    away = [
        sorted((position - place, word) for position, word in its)
        for its, place in zip(where, places, strict=True)
    ]
    firsts: set[int] = set()
    taking_part: set[int] = set()
    repeated = [i for i, term in enumerate(terms) if terms.count(term) > 1]
    for begin in sorted({distance for its in away for distance, _ in its}):
        inside = []
        for its in away:
            low, high = bisect_left(its, (begin, -1)), bisect_right(its, (begin + slop, 1 << 62))
            inside.append([word for _, word in its[low:high]])
            if low == high:
                break
        if len(inside) < len(away) or not inside[-1]:
            continue
        if repeated:
            inside = _each_its_own(inside, repeated)
        firsts |= set(inside[0])
        taking_part |= {word for its in inside for word in its}
    return len(firsts), sorted(taking_part)


def _each_its_own(inside: list[list[int]], repeated: Sequence[int]) -> list[list[int]]:
    """Restrict each term's words to those usable if no word is used twice; empty if there is no such choice."""
    kept = []
    for term, words in enumerate(inside):
        if term not in repeated:
            kept.append(words)
            continue
        others = [inside[other] for other in repeated if other != term]
        kept.append([word for word in words if _assigned([[w for w in its if w != word] for its in others])])
    return kept if all(kept) else [[] for _ in inside]


def _assigned(wanted: list[list[int]]) -> bool:
    """Whether every term can be assigned a word of its own (bipartite matching by augmenting paths)."""
    owner: dict[int, int] = {}

    def given(one: int, tried: set[int]) -> bool:
        for word in wanted[one]:
            if word not in tried:
                tried.add(word)
                if word not in owner or given(owner[word], tried):
                    owner[word] = one
                    return True
        return False

    return all(given(one, set()) for one in range(len(wanted)))
