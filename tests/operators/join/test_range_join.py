"""Joins on ranges: what the steps emit adds up to the join of what both sides hold."""

from collections import Counter
from collections.abc import Callable, Hashable
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.operators.join import range_join as rj
from headwater.operators.join.join import JoinStep, Kind
from headwater.operators.join.range_join import RangeJoinSpec
from headwater.operators.zset.delta import Delta, concat
from headwater.operators.zset.ordered_runs import merge_ordered
from headwater.operators.zset.runs import Run, contents
from tests.operators.zsets import (
    KEYS,
    Row,
    count,
    counted,
    delta,
    hashing,
    identity,
    is_consolidated,
    key_identity,
    rows_of,
    schema_of,
    tuples,
)

__all__ = ["hashing"]

shared_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
JOINS: tuple[Kind, ...] = get_args(Kind)
LEAST, GREATEST = -(2**63), 2**63 - 1
TIMES = st.integers(-2, 4)
EXTRA = st.none() | st.integers(0, 1)
Changes = list[tuple[Row, int]]


@st.composite
def histories(draw: st.DrawFn, versions: bool) -> Any:
    """Types of the key columns, the width, changes of both sides step by step, and where to merge."""
    kinds = draw(st.lists(st.sampled_from(KEYS), max_size=2))
    keys = st.sampled_from(draw(st.lists(rows_of(kinds), min_size=1, max_size=2)))
    point = st.none() | TIMES | st.sampled_from([LEAST, GREATEST])
    weights = st.sampled_from([1, 1, 2, -1, -1, -2, 0])
    left = st.lists(st.tuples(st.builds(_row, keys, point, EXTRA), weights), max_size=6)
    many = draw(st.integers(1, 4))
    width = None if versions else draw(st.sampled_from([-1, 0, 1, 3, 2**62]))
    if versions:
        entries = st.tuples(keys, TIMES, st.none() | st.integers(0, 2), st.booleans())
        rights: list[Changes] = _versions([draw(st.lists(entries, max_size=5)) for _ in range(many)])
    else:
        row = st.builds(lambda k, r, e: (*k, *r, e), keys, _ranges(width), EXTRA)
        rights = [draw(st.lists(st.tuples(row, weights), max_size=6)) for _ in range(many)]
    steps = [(draw(left | st.just([])), right) for right in rights]
    return kinds, width, steps, [draw(st.booleans()) for _ in steps]


def _row(key: Row, point: int | None, extra: int | None) -> Row:
    return (*key, point, extra)


def _ranges(width: Any) -> st.SearchStrategy[Row]:
    """Ranges that are at most so wide, most of them just that, and some with an end unknown."""
    begin = TIMES | st.sampled_from([LEAST, GREATEST - max(width, 0)])
    exact = st.builds(lambda low: (low, low + width), begin.filter(lambda low: low + width >= LEAST))
    narrow = st.builds(lambda low, less: (low, max(low + width - less, low - 5)), TIMES, st.integers(0, 3))
    return exact | exact | narrow | st.sampled_from([(None, 1), (-2, None), (None, None)])


def _versions(steps: list[list[Any]]) -> list[Changes]:
    """Versions of rows, each until the next one begins, as entries (key, begin, value, comes) come and go.

    An entry without a value ends the row; of those that begin together, all but the last are valid at no time.
    """
    entries: dict[Hashable, list[Any]] = {}
    before: list[Row] = []
    changes = []
    for step in steps:
        for key, begin, value, comes in step:
            of_key = entries.setdefault(key_identity(key), [])
            known = [entry for entry in of_key if entry[1:] == (begin, value)]
            if comes and len(known) < 2:
                of_key.append((key, begin, value))
            elif known:
                of_key.remove(known[0])
        after = []
        for of_key in entries.values():
            ascending = sorted(of_key, key=lambda entry: entry[1])
            for i, (key, begin, value) in enumerate(ascending):
                end = ascending[i + 1][1] - 1 if i + 1 < len(ascending) else GREATEST
                if value is not None:
                    after.append((*key, begin, end, value))
        changes.append([(row, -1) for row in before] + [(row, 1) for row in after])
        before = after
    return changes


class Table:
    """One side as plain Python has it: changes that would take away what is not there are left out."""

    def __init__(self, kinds: list[pa.DataType]) -> None:
        self.kinds = kinds
        self.rows: Counter[Hashable] = Counter()
        self.values: dict[Hashable, Row] = {}

    def apply(self, changes: Changes) -> Delta:
        whole = delta(changes, self.kinds)
        kept = []
        for i, row in enumerate(tuples(whole.rows)):
            weight = changes[i][1]
            name = identity(row)
            if self.rows[name] + weight >= 0:
                self.rows[name] += weight
                self.values[name] = row
                kept.append(i)
        return whole.take(np.array(kept, dtype=np.int64))

    def items(self) -> Changes:
        return [(self.values[name], weight) for name, weight in self.rows.items() if weight]


def smaller(left: Row, right: Row) -> bool:
    return left[-1] is not None and right[-1] is not None and left[-1] <= right[-1]


def batched(width: int) -> Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]:
    """`smaller` as a condition on pairs, which insists on being asked something, and not too much."""

    def condition(pairs: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        assert 0 < pairs.num_rows <= rj._PAIRS_MAX
        return np.array([smaller(row[:width], row[width:]) for row in tuples(pairs)], dtype=bool)

    return condition


def joined(kind: str, left: Table, right: Table, width: int, condition: bool) -> Counter[Hashable]:
    """The join by its definition."""

    def matches(a: Row, b: Row) -> bool:
        if None in a[: width + 1] or None in b[: width + 2]:
            return False
        if key_identity(a[:width]) != key_identity(b[:width]):
            return False
        return b[width] <= a[width] <= b[width + 1] and (not condition or smaller(a, b))

    out: Changes = []
    for a, many in left.items():
        partners = [(b, more) for b, more in right.items() if matches(a, b)]
        if kind in ("inner", "left", "right", "full"):
            out += [((*a, *b), many * more) for b, more in partners]
        if kind in ("left", "full") and not partners:
            out.append(((*a, *[None] * (width + 3)), many))
        if (kind == "semi" and partners) or (kind == "anti" and not partners):
            out.append((a, many))
        if kind == "existence":
            out.append(((*a, bool(partners)), many))
    if kind in ("right", "full"):
        out += [
            ((*[None] * (width + 2), *b), many)
            for b, many in right.items()
            if not any(matches(a, b) for a, _ in left.items())
        ]
    return count(out)


def check(history: Any, kind: Kind, condition: bool) -> None:
    keys, width, steps, merges = history
    many = len(keys)
    spec = RangeJoinSpec(kind, tuple(range(many)), tuple(range(many)), many, many, many + 1, width)
    left = Table([*keys, pa.int64(), pa.int8()])
    right = Table([*keys, pa.int64(), pa.int64(), pa.int8()])
    runs: tuple[list[Run], list[Run]] = ([], [])
    before: Counter[Hashable] = Counter()
    for (changes_left, changes_right), merged in zip(steps, merges, strict=True):
        d_left, d_right = left.apply(changes_left), right.apply(changes_right)
        done = rj.step(spec, *runs, d_left, d_right, batched(many + 2) if condition else None)
        after = joined(kind, left, right, many, condition)
        change = Counter(after)
        change.subtract(before)
        assert counted(done.output) == Counter({row: n for row, n in change.items() if n})
        assert is_consolidated(done.output)
        assert done.output.rows.schema == spec.join.output(d_left.rows.schema, d_right.rows.schema)
        before = after
        sides = ((done.left, spec.left_order), (done.right, spec.right_order))
        for side, (run, order) in zip(runs, sides, strict=True):
            side.append(run)
            if merged:
                side[:] = [merge_ordered(side, spec.left_key, order)]
    for side, table in zip(runs, (left, right), strict=True):
        assert counted(contents(side, schema_of(table.kinds))) == count(table.items())


@pytest.mark.parametrize("pairs_max", [3, rj._PAIRS_MAX])
@shared_fixture
@given(history=histories(versions=False), kind=st.sampled_from(JOINS), condition=st.booleans())
def test_steps_add_up_to_the_join_of_points_with_ranges(
    hashing: str, pairs_max: int, history: Any, kind: Kind, condition: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rj, "_PAIRS_MAX", pairs_max)
        check(history, kind, condition)


@shared_fixture
@given(history=histories(versions=True), kind=st.sampled_from(JOINS), condition=st.booleans())
def test_steps_add_up_to_the_join_with_the_version_valid_at_a_time(
    hashing: str, history: Any, kind: Kind, condition: bool
) -> None:
    check(history, kind, condition)


@shared_fixture
@given(history=histories(versions=True), kind=st.sampled_from(("inner", "left")), condition=st.booleans())
def test_where_nobody_sees_the_ends_of_versions_the_rest_adds_up(
    hashing: str, history: Any, kind: Kind, condition: bool
) -> None:
    keys, width, steps, merges = history
    many = len(keys)
    key = tuple(range(many))
    spec = RangeJoinSpec(kind, key, key, many, many, many + 1, width, (many + 1,))
    left = Table([*keys, pa.int64(), pa.int8()])
    right = Table([*keys, pa.int64(), pa.int64(), pa.int8()])
    runs: tuple[list[Run], list[Run]] = ([], [])
    shown: Counter[Hashable] = Counter()
    for (changes_left, changes_right), merged in zip(steps, merges, strict=True):
        d_left, d_right = left.apply(changes_left), right.apply(changes_right)
        done = rj.step(spec, *runs, d_left, d_right, batched(many + 2) if condition else None)
        shown.update(_without(counted(done.output), 2 * many + 3))
        expected = _without(joined(kind, left, right, many, condition), 2 * many + 3)
        assert Counter({row: n for row, n in shown.items() if n}) == expected
        sides = ((done.left, spec.left_order), (done.right, spec.right_order))
        for side, (run, order) in zip(runs, sides, strict=True):
            side.append(run)
            if merged:
                side[:] = [merge_ordered(side, spec.left_key, order)]


def _without(rows: Counter[Any], column: int) -> Counter[Hashable]:
    """Rows, of which a column is not seen."""
    seen: Counter[Hashable] = Counter()
    for row, n in rows.items():
        seen[(*row[:column], *row[column + 1 :])] += n
    return seen


def test_a_version_that_ends_is_not_joined_again_with_the_rows_before() -> None:
    spec = RangeJoinSpec("inner", (), (), 0, 0, 1, None, (1,))
    until = [(row, -1) for row in [(0, GREATEST)]] + [((0, 49), 1), ((50, GREATEST), 1)]
    kinds = [pa.int64(), pa.int64()]
    before, held = points(np.arange(100)), delta([((0, GREATEST), 1)], kinds)
    none = points(np.zeros(0, dtype=np.int64))
    begun = rj.step(spec, [], [], before, held)
    done = rj.step(spec, [begun.left], [begun.right], none, delta(until, kinds))
    assert len(begun.output) == 100
    assert len(done.output) == 2 * 50  # those from 50 on go from one version to the next


def near(kind: Kind = "inner", width: int | None = 10) -> RangeJoinSpec:
    return RangeJoinSpec(kind, (), (), 0, 0, 1, width)


def points(values: Any) -> Delta:
    return Delta.of(pa.RecordBatch.from_arrays([pa.array(values)], names=["at"]))


def spread_out(starts: Any, width: int = 10) -> Delta:
    lows = np.asarray(starts)
    return Delta.of(pa.RecordBatch.from_arrays([pa.array(lows), pa.array(lows + width)], names=["lo", "hi"]))


@pytest.mark.parametrize("kind", JOINS)
@pytest.mark.parametrize("condition", [False, True])
def test_a_row_meets_only_what_lies_in_its_range(
    kind: Kind, condition: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counting(pairs: rj._Pairs, mask: Any) -> rj._Pairs:
        asked.append(len(pairs))
        return filtered(pairs, mask)

    filtered = rj._Pairs.filtered
    both = np.arange(20_000) * 5
    rule = (lambda pairs: np.ones(pairs.num_rows, dtype=bool)) if condition else None
    state = rj.step(near(kind), (), (), points(both), spread_out(both), rule)
    monkeypatch.setattr(rj._Pairs, "filtered", counting)
    done = rj.step(
        near(kind), [state.left], [state.right], points([50_002]), spread_out([70_001]), rule
    ).output
    shown = {"inner": 4, "left": 4, "right": 4, "full": 4, "semi": 1, "anti": 0, "existence": 1}
    assert len(done) == shown[kind]
    assert sum(asked) < 50


def test_a_first_match_shows_and_a_last_one_hides_a_row() -> None:
    nothing = (points(np.zeros(0, dtype=np.int64)), spread_out(np.zeros(0, dtype=np.int64)))
    first = rj.step(near("left"), (), (), points([5, 50]), nothing[1])
    assert counted(first.output) == {(5, None, None): 1, (50, None, None): 1}
    second = rj.step(near("left"), [first.left], (), nothing[0], spread_out([0, 1]))
    assert counted(second.output) == {(5, None, None): -1, (5, 0, 10): 1, (5, 1, 11): 1}
    runs = [first.left], [second.right]
    third = rj.step(near("left"), *runs, nothing[0], spread_out([0]).negated())
    assert counted(third.output) == {(5, 0, 10): -1}
    runs = [first.left], [second.right, third.right]
    fourth = rj.step(near("left"), *runs, nothing[0], spread_out([1]).negated())
    assert counted(fourth.output) == {(5, 1, 11): -1, (5, None, None): 1}


def test_a_range_without_an_end_has_no_points() -> None:
    ranges = delta([((-5, None), 1), ((None, 5), 1), ((-5, 5), 1)], [pa.int64()] * 2)
    for width in (10, None):
        done = rj.step(near("right", width), (), (), Delta.empty(points([0]).rows.schema), ranges)
        pairs = rj.step(near("right", width), (), [done.right], points([0]), Delta.empty(ranges.rows.schema))
        assert counted(pairs.output) == {(0, -5, 5): 1, (None, -5, 5): -1}


@pytest.mark.parametrize("low", [LEAST, GREATEST - 10])
def test_ranges_may_lie_where_numbers_end(low: int) -> None:
    right = rj.step(near(), (), (), points(np.zeros(0, dtype=np.int64)), spread_out([low])).right
    done = rj.step(near(), (), [right], points([low, low + 10]), spread_out(np.zeros(0, dtype=np.int64)))
    assert counted(done.output) == {(low, low, low + 10): 1, (low + 10, low, low + 10): 1}


@pytest.mark.parametrize("kind", JOINS)
def test_a_row_in_two_runs_is_shown_once(kind: Kind) -> None:
    nothing = (points(np.zeros(0, dtype=np.int64)), spread_out(np.zeros(0, dtype=np.int64)))
    first = rj.step(near(kind), (), (), points([5]), spread_out([40]))
    second = rj.step(near(kind), [first.left], [first.right], points([5]), spread_out([40]))
    runs = [first.left, second.left], [first.right, second.right]
    by_left = rj.step(near(kind), *runs, points([45]), nothing[1]).output
    by_right = rj.step(near(kind), *runs, nothing[0], spread_out([0])).output
    assert is_consolidated(by_left)
    assert is_consolidated(by_right)


def test_a_new_version_takes_over_from_its_beginning() -> None:
    kinds = [pa.string(), pa.timestamp("us", "UTC")]
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    at = [begin + timedelta(hours=n) for n in range(6)]
    spec = RangeJoinSpec("left", (0,), (0,), 1, 1, 2, None)
    orders = delta([(("a", at[n]), 1) for n in (0, 2, 4)], kinds)
    end = datetime(9999, 1, 1, tzinfo=UTC)
    just_before = at[3] - timedelta(microseconds=1)
    prices = [*kinds, kinds[1], pa.int64()]
    first = rj.step(spec, (), (), orders, delta([(("a", at[1], end, 10), 1)], prices))
    assert counted(first.output) == {
        ("a", at[0], None, None, None, None): 1,
        ("a", at[2], "a", at[1], end, 10): 1,
        ("a", at[4], "a", at[1], end, 10): 1,
    }
    changed = [(("a", at[1], end, 10), -1), (("a", at[1], just_before, 10), 1), (("a", at[3], end, 12), 1)]
    late = delta([(("a", at[3]), 1)], kinds)
    second = rj.step(spec, [first.left], [first.right], late, delta(changed, prices))
    assert counted(second.output) == {
        ("a", at[2], "a", at[1], end, 10): -1,
        ("a", at[2], "a", at[1], just_before, 10): 1,
        ("a", at[4], "a", at[1], end, 10): -1,
        ("a", at[4], "a", at[3], end, 12): 1,
        ("a", at[3], "a", at[3], end, 12): 1,
    }


@pytest.mark.parametrize("pairs_max", [7, rj._PAIRS_MAX])
def test_the_result_does_not_depend_on_how_changes_are_cut_into_steps(
    pairs_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(7)
    kinds = [pa.int64(), pa.int64()]
    wide = [*kinds, pa.int64()]

    def some(size: int, ranges: bool) -> Delta:
        drawn = random.integers(0, 40, (size, 2)).tolist()
        rows = [(k, v, v + 6) if ranges else (k % 3, v) for k, v in drawn]
        return delta([((row[0] % 3, *row[1:]), 1) for row in rows], wide if ranges else kinds)

    lefts, rights = [some(50, False) for _ in range(6)], [some(20, True) for _ in range(6)]
    for kind in JOINS:
        spec = RangeJoinSpec(kind, (0,), (0,), 1, 1, 2, 6)
        whole = rj.step(spec, (), (), concat(lefts, schema_of(kinds)), concat(rights, schema_of(wide)))
        monkeypatch.setattr(rj, "_PAIRS_MAX", pairs_max)
        state: tuple[list[Run], list[Run]] = ([], [])
        total: Counter[Hashable] = Counter()
        for d_left, d_right in zip(lefts, rights, strict=True):
            done: JoinStep = rj.step(spec, *state, d_left, d_right)
            state[0].append(done.left)
            state[1].append(done.right)
            for row, weight in counted(done.output).items():
                total[row] += weight
        assert Counter({row: n for row, n in total.items() if n}) == counted(whole.output)
        monkeypatch.undo()


def test_keys_of_different_width_are_refused() -> None:
    with pytest.raises(ValueError):
        RangeJoinSpec("inner", (0, 1), (0,), 2, 2, 3, 1)
