"""Matches kept up to date, step by step, are those that all rows have at once."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.operators.match_recognize import match_operator as stepping
from headwater.operators.match_recognize.match_operator import (
    cuts_key,
    cuts_order,
    cuts_schema,
    retained_us,
    rows_order,
    step,
)
from headwater.operators.match_recognize.pattern import Pattern
from headwater.operators.match_recognize.spec import Navigate, RowsPerMatch, Skip
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.ordered_runs import merge_ordered
from headwater.operators.zset.runs import Run, contents
from tests.conftest import LONG
from tests.operators.match_recognize.kit import (
    KEY,
    NAMES,
    TIME,
    Asked,
    X,
    asked,
    batch,
    concat,
    patterns,
    plain,
)
from tests.operators.match_recognize.oracle import Row
from tests.operators.zsets import is_consolidated

PREVIOUS = [((Navigate(X), Navigate(X, offset=-1)), lambda x, before: before is not None and x > before)]
NEXT = [((Navigate(X), Navigate(X, offset=1)), lambda x, after: after is not None and x < after)]
RISES = [((Navigate(X), Navigate(X, frozenset("A"))), lambda x, first: first is not None and x > first)]
AROUND = [
    ((Navigate(X, side="first", offset=-1),), lambda x: x, asked(concat("A")).spec.schema.field(X).type),
    ((Navigate(X, offset=1),), lambda x: x, asked(concat("A")).spec.schema.field(X).type),
]


class Kept:
    """Matches of rows that change."""

    def __init__(self, question: Asked) -> None:
        self.question = question
        self.rows: list[Run] = []
        self.cuts: list[Run] = []
        self.output: Counter[Row] = Counter()
        self.asked = 0

    def apply(self, changes: list[tuple[Row, int]]) -> None:
        """Some changes in one step."""
        spec = self.question.spec

        def evaluate(number: int, inputs: Any, count: int) -> Any:
            self.asked += count
            return self.question.evaluate(number, inputs, count)

        delta = Delta(batch([row for row, _ in changes]), np.array([w for _, w in changes], dtype=np.int64))
        made = step(spec, self.rows, self.cuts, delta, evaluate)
        assert is_consolidated(made.output)
        for row, weight in zip(plain(made.output.rows), made.output.weights.tolist(), strict=True):
            self.output[row] += weight
        self.output = +self.output if min(self.output.values(), default=0) >= 0 else self.output
        self.rows.append(made.rows)
        self.cuts.append(made.cuts)

    def merge(self) -> None:
        """All runs of an arrangement become one."""
        spec = self.question.spec
        self.rows = [merge_ordered(self.rows, spec.partition, rows_order(spec))]
        self.cuts = [merge_ordered(self.cuts, cuts_key(spec), cuts_order(spec))]


row = st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(0, 7), st.integers(0, 3))
steps = st.lists(st.lists(st.tuples(row, st.booleans()), min_size=1, max_size=8), min_size=1, max_size=8)


@settings(max_examples=500 if LONG else 50, deadline=None)
@given(
    patterns(),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from([PREVIOUS, NEXT, RISES])),
    steps,
    st.sampled_from(["one", "all, with unmatched"]),
    st.sampled_from([Skip("past last row"), Skip("to next row")]),
    st.sampled_from([None, 10]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_any_steps_make_what_all_rows_make_at_once(
    pattern: Pattern,
    conditions: Any,
    changes: list[list[tuple[Row, bool]]],
    per_match: RowsPerMatch,
    skip: Skip,
    within: int | None,
    closing: bool,
    measured: bool,
    merging: bool,
) -> None:
    question = asked(
        pattern,
        conditions=conditions,
        measures=AROUND if measured else [],
        rows=per_match,
        skip=skip,
        within=within,
        closing=closing,
        timeouts=within is not None,
    )
    kept, there = Kept(question), Counter[Row]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stepping, "_CUT_ROWS", 3)
        patch.setattr(stepping, "_LAST_ROWS", 1)
        for some in changes:
            delta = []
            for each, comes in some:
                weight = 1 if comes or not there[each] else -1
                there[each] += weight
                delta.append((each, weight))
            kept.apply(delta)
            if merging:
                kept.merge()
            expected = question.matched(list(there.elements())) if +there else []
            assert kept.output == Counter(expected)


def test_rows_at_the_end_of_a_long_partition_cost_what_is_open() -> None:
    kept = Kept(asked(concat("A B+ C"), conditions={"B": RISES}, within=1_000))
    rng = np.random.default_rng(1)
    for start in range(0, 4_000, 100):
        times = range(start, start + 100)
        kept.apply([((0, 10 * t, int(rng.integers(8)), int(rng.integers(9))), 1) for t in times])
        if start == 2_000:
            kept.merge()
    given_rows = [each for each, w in zip(*_all(kept), strict=True) for _ in range(w)]
    assert sorted(kept.output.elements(), key=repr) == kept.question.matched(given_rows)
    kept.asked = 0
    kept.apply([((0, 40_000, 1, 1), 1)])
    assert kept.asked < 1_500  # of 4,000 rows, each of which is asked about several times


def _all(kept: Kept) -> tuple[list[Row], list[int]]:
    held = contents(kept.rows, kept.question.spec.schema)
    return plain(held.rows), held.weights.tolist()


def test_what_is_forgotten_is_not_missed() -> None:
    question = asked(concat("A B* C?"), within=20)
    assert retained_us(question.spec) is None
    # if matches are not counted, they need not all be known
    spec = replace(question.spec, measures=question.spec.measures[:1], shown=question.spec.shown[:3])
    assert retained_us(spec) == 60
    question = Asked(spec, question.functions)
    rng = np.random.default_rng(7)
    whole, short = Kept(question), Kept(question)
    for tick in range(60):
        changes = [
            ((int(rng.integers(2)), 10 * tick + int(rng.integers(10)), int(rng.integers(8)), 0), 1)
            for _ in range(4)
        ]
        whole.apply(changes)
        short.apply(changes)
        _forget(short, 10 * (tick + 1) - 60)
        assert whole.output == short.output


def _forget(kept: Kept, before: int) -> None:
    kept.merge()
    (rows,), (cuts,) = kept.rows, kept.cuts
    recent = np.flatnonzero(rows.rows.column(TIME).cast("int64").to_numpy() >= before)
    kept.rows = [Run(rows.hashes[recent], rows.rows.take(recent), rows.weights[recent])]
    recent = np.flatnonzero(cuts.rows.column("at").to_numpy() >= before)
    kept.cuts = [Run(cuts.hashes[recent], cuts.rows.take(recent), cuts.weights[recent])]


def test_rows_without_a_time_are_matched_with_their_partition() -> None:
    question = asked(concat("A+"))
    kept = Kept(question)
    first: list[Any] = [((0, t, 1, 0), 1) for t in range(40)]
    kept.apply(first)
    kept.apply([((0, None, 1, 0), 1)])
    kept.apply([((0, 50, 1, 0), 1)])
    kept.apply([((0, None, 1, 0), -1)])
    assert kept.output == Counter(question.matched([*(each for each, _ in first), (0, 50, 1, 0)]))
    assert cuts_schema(question.spec).names[KEY] == "key"
