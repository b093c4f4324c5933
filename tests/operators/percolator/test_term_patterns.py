"""Patterns and fuzzy words are found by the words that they mean, and by no others."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.operators.percolator import term_patterns as module
from headwater.operators.percolator.query_nodes import Fuzzy, KeywordRange, Pattern
from headwater.operators.percolator.query_reference import edits, expression, fitting
from headwater.operators.percolator.term_patterns import Patterns, Shape, without

words = st.text(alphabet="abc", max_size=6)
shapes: st.SearchStrategy[Shape] = st.one_of(
    st.builds(Pattern, st.just("t"), st.text(alphabet="ab*?", min_size=1, max_size=6)),
    st.builds(Fuzzy, st.just("t"), words, st.integers(0, 2)),
    st.builds(KeywordRange, st.just("t"), st.none() | words, st.none() | words, st.booleans(), st.booleans()),
)


def slow_edits(one: str, other: str) -> int:
    """The distance by its definition, without any table."""

    @cache
    def between(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        costs = [
            between(i - 1, j) + 1,
            between(i, j - 1) + 1,
            between(i - 1, j - 1) + (one[i - 1] != other[j - 1]),
        ]
        if i > 1 and j > 1 and one[i - 2 : i] == other[j - 2 : j][::-1]:
            costs.append(between(i - 2, j - 2) + 1)
        return min(costs)

    return between(len(one), len(other))


def slow_fit(pattern: str, word: str) -> bool:
    if not pattern:
        return not word
    if pattern[0] == "*":
        return any(slow_fit(pattern[1:], word[i:]) for i in range(len(word) + 1))
    return bool(word) and pattern[0] in ("?", word[0]) and slow_fit(pattern[1:], word[1:])


@given(words, words)
def test_edits_are_counted_as_they_are_defined(one: str, other: str) -> None:
    assert edits(one, other) == slow_edits(one, other)


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [("spark", "spork", 1), ("spark", "psark", 1), ("kitten", "sitting", 3), ("", "ab", 2), ("ca", "abc", 3)],
)
def test_distances_that_everybody_knows(one: str, other: str, distance: int) -> None:
    assert edits(one, other) == distance


@given(words, words, st.integers(0, 2))
def test_words_within_a_distance_share_what_is_left_of_them(one: str, other: str, distance: int) -> None:
    if edits(one, other) <= distance:
        assert without(one, distance) & without(other, distance)


@given(st.text(alphabet="ab*?", max_size=7), words)
def test_a_pattern_means_what_its_signs_say(pattern: str, word: str) -> None:
    assert (expression(Pattern("t", pattern)).fullmatch(word) is not None) == slow_fit(pattern, word)


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    assert expression(Pattern("t", "a*" * 30 + "b")).fullmatch("a" * 5_000) is None


@given(
    st.lists(st.tuples(st.booleans(), shapes), max_size=12), st.lists(words, max_size=8), st.integers(0, 4)
)
def test_words_find_the_patterns_that_they_fit(
    changes: list[tuple[bool, Shape]], looked_up: list[str], recent: int
) -> None:
    before, module.RECENT_MAX = module.RECENT_MAX, recent
    try:
        found, numbers = Patterns(), {}
        for adds, shape in changes:
            if adds or shape not in numbers:
                numbers[shape] = found.add(shape)
            else:
                found.drop(numbers.pop(shape))
            expected = [
                tuple(sorted(n for s, n in numbers.items() if fitting(s)(word))) for word in looked_up
            ]
            assert found.fitting(looked_up) == expected
    finally:
        module.RECENT_MAX = before
