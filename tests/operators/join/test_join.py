"""Joins: what the steps emit adds up to the join of what both sides hold."""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headwater.operators.join import join as j
from headwater.operators.join import pairs
from headwater.operators.zset.delta import Delta, concat
from headwater.operators.zset.runs import Run, arrange, contents, merge
from tests.operators.zsets import (
    KEYS,
    Row,
    changes_of,
    count,
    counted,
    delta,
    hashing,
    is_consolidated,
    key_identity,
    schema_of,
    tuples,
)

__all__ = ["hashing"]

shared_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
KINDS: tuple[j.Kind, ...] = get_args(j.Kind)
SMALL = pa.int8()


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[pa.DataType], list[Any], list[bool]]:
    """Types of the key columns, changes of both sides step by step, and where to merge."""
    kinds = draw(st.lists(st.sampled_from(KEYS), max_size=2))
    sides = [*kinds, SMALL]
    one_sided = changes_of(sides, max_size=4) | st.just([])
    steps = draw(st.lists(st.tuples(one_sided, one_sided), min_size=1, max_size=4))
    return kinds, steps, [draw(st.booleans()) for _ in steps]


class Table:
    """One side as plain Python has it: changes that would take away what is not there are left out."""

    def __init__(self) -> None:
        self.rows: Counter[Hashable] = Counter()
        self.values: dict[Hashable, Row] = {}

    def apply(self, changes: list[tuple[Row, int]], kinds: list[pa.DataType]) -> Delta:
        whole = delta(changes, kinds)
        kept = []
        for i, row in enumerate(tuples(whole.rows)):
            weight = changes[i][1]
            name = next(iter(count([(row, 1)])))
            if self.rows[name] + weight >= 0:
                self.rows[name] += weight
                self.values[name] = row
                kept.append(i)
        return whole.take(np.array(kept, dtype=np.int64))

    def items(self) -> list[tuple[Row, int]]:
        return [(self.values[name], weight) for name, weight in self.rows.items() if weight]


def smaller(left: Row, right: Row) -> bool:
    return left[-1] is not None and right[-1] is not None and left[-1] <= right[-1]


def batched(width: int) -> Callable[[pa.RecordBatch], npt.NDArray[np.bool_]]:
    """`smaller` as a condition on pairs, which insists on being asked something."""

    def condition(pairs: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        assert pairs.num_rows
        return np.array([smaller(row[:width], row[width:]) for row in tuples(pairs)], dtype=bool)

    return condition


def joined(kind: str, left: Table, right: Table, width: int, condition: bool) -> Counter[Hashable]:
    """The join by its definition."""

    def matches(a: Row, b: Row) -> bool:
        if None in a[:width] or None in b[:width]:
            return False
        return key_identity(a[:width]) == key_identity(b[:width]) and (not condition or smaller(a, b))

    out: list[tuple[Row, int]] = []
    nothing = (None,) * (width + 1)
    for a, many in left.items():
        partners = [(b, more) for b, more in right.items() if matches(a, b)]
        if kind in ("inner", "left", "right", "full"):
            out += [((*a, *b), many * more) for b, more in partners]
        if kind in ("left", "full") and not partners:
            out.append(((*a, *nothing), many))
        if (kind == "semi" and partners) or (kind == "anti" and not partners):
            out.append((a, many))
        if kind == "existence":
            out.append(((*a, bool(partners)), many))
    if kind in ("right", "full"):
        out += [
            ((*nothing, *b), many)
            for b, many in right.items()
            if not any(matches(a, b) for a, _ in left.items())
        ]
    return count(out)


NULL_LISTS = ([pa.list_(pa.float64())], [([], [((None, None), 1), ((None, 0), 1)])], [False])


@shared_fixture
@example(history=NULL_LISTS, kind="full", condition=False)
@given(history=histories(), kind=st.sampled_from(KINDS), condition=st.booleans())
def test_steps_add_up_to_the_join_of_what_is_there(
    hashing: str, history: Any, kind: j.Kind, condition: bool
) -> None:
    keys, steps, merges = history
    width, kinds = len(keys), [*keys, SMALL]
    spec = j.JoinSpec(kind, tuple(range(width)), tuple(range(width)))
    left, right = Table(), Table()
    runs: tuple[list[Run], list[Run]] = ([], [])
    before: Counter[Hashable] = Counter()
    for (changes_left, changes_right), merged in zip(steps, merges, strict=True):
        d_left, d_right = left.apply(changes_left, kinds), right.apply(changes_right, kinds)
        step = j.step(spec, *runs, d_left, d_right, batched(width + 1) if condition else None)
        after = joined(kind, left, right, width, condition)
        change = Counter(after)
        change.subtract(before)
        assert counted(step.output) == Counter({row: n for row, n in change.items() if n})
        assert is_consolidated(step.output)
        assert step.output.rows.schema == spec.output(d_left.rows.schema, d_right.rows.schema)
        before = after
        for side, run in zip(runs, (step.left, step.right), strict=True):
            side.append(run)
            if merged:
                side[:] = [merge(side, spec.left_key)]
    for side, table in zip(runs, (left, right), strict=True):
        assert counted(contents(side, schema_of(kinds))) == count(table.items())


def test_key_columns_may_be_anywhere() -> None:
    orders = delta([((10, 1, 5), 1), ((11, 2, 6), 2)], [pa.int64()] * 3)
    customers = delta([(("x", 1), 1), (("y", 3), 1)], [pa.string(), pa.int64()])
    step = j.step(j.JoinSpec("full", (1,), (1,)), (), (), orders, customers)
    assert counted(step.output) == {
        (10, 1, 5, "x", 1): 1,
        (11, 2, 6, None, None): 2,
        (None, None, None, "y", 3): 1,
    }


def test_without_key_columns_every_row_meets_every_row() -> None:
    amounts = delta([((1,), 1), ((2,), 1)], [pa.int64()])
    scalar = delta([((7,), 1)], [pa.int64()])
    spec = j.JoinSpec("left", (), ())
    first = j.step(spec, (), (), amounts, Delta.empty(scalar.rows.schema))
    assert counted(first.output) == {(1, None): 1, (2, None): 1}
    second = j.step(spec, (first.left,), (first.right,), Delta.empty(amounts.rows.schema), scalar)
    assert counted(second.output) == {(1, None): -1, (2, None): -1, (1, 7): 1, (2, 7): 1}
    third = delta([((7,), -1), ((8,), 1)], [pa.int64()])
    runs = (first.left, second.left), (first.right, second.right)
    assert counted(j.step(spec, *runs, Delta.empty(amounts.rows.schema), third).output) == {
        (1, 7): -1,
        (2, 7): -1,
        (1, 8): 1,
        (2, 8): 1,
    }


def test_a_side_may_have_no_columns_at_all() -> None:
    nothing = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    three = Delta(nothing, np.array([1, 1, 1]))
    rows = delta([((1,), 1), ((2,), 2)], [pa.int64()])
    spec = j.JoinSpec("inner", (), ())
    step = j.step(spec, (), (), rows, three)
    assert counted(step.output) == {(1,): 3, (2,): 6}
    gone = j.step(
        spec, (step.left,), (step.right,), Delta.empty(rows.rows.schema), Delta(nothing, np.array([-1]))
    )
    assert counted(gone.output) == {(1,): -1, (2,): -2}


def _customers_and_orders(kind: j.Kind) -> tuple[j.JoinSpec, list[Run], list[Run]]:
    """A customer with a thousand orders, which are the left side."""
    orders = delta([((7, n), 1) for n in range(1000)], [pa.int64()] * 2)
    customer = delta([((7, 0), 1)], [pa.int64()] * 2)
    return j.JoinSpec(kind, (0,), (0,)), [arrange(orders, (0,))], [arrange(customer, (0,))]


@pytest.mark.parametrize("kind", ["inner", "left", "semi", "anti", "existence"])
@pytest.mark.parametrize("condition", [None, batched(2)])
def test_an_order_that_comes_does_not_touch_the_other_orders(
    kind: j.Kind, condition: pairs.Condition | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, orders, customers = _customers_and_orders(kind)
    seen: list[int] = []
    probe = pairs.probe

    def counting(*args: Any, **options: Any) -> Any:
        matches = probe(*args, **options)
        seen.append(len(matches.probe))
        return matches

    monkeypatch.setattr(pairs, "probe", counting)
    new = delta([((7, -5), 1)], [pa.int64()] * 2)
    step = j.step(spec, orders, customers, new, Delta.empty(new.rows.schema), condition)
    assert len(step.output) == (kind != "anti")
    assert sum(seen) == 1


def test_a_condition_is_asked_at_most_twice() -> None:
    asked: list[int] = []

    def condition(pairs: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        asked.append(pairs.num_rows)
        return np.ones(pairs.num_rows, dtype=bool)

    spec, orders, customers = _customers_and_orders("full")
    change = delta([((7, 5), -1), ((7, 2000), 1), ((8, 0), 1)], [pa.int64()] * 2)
    replaced = delta([((7, 0), -1), ((9, 1), 1)], [pa.int64()] * 2)
    step = j.step(spec, orders, customers, change, replaced, condition)
    assert len(asked) == 2
    assert len(step.output) == 1000 + 1000 + 2
    asked.clear()
    far = delta([((1234, 0), 1)], [pa.int64()] * 2)
    j.step(spec, orders, customers, far, Delta.empty(far.rows.schema), condition)
    assert asked == []


def test_the_result_does_not_depend_on_how_changes_are_cut_into_steps() -> None:
    random = np.random.default_rng(7)
    kinds = [pa.int64(), pa.int64()]

    def some(size: int) -> Delta:
        return delta([((int(k), int(v)), 1) for k, v in random.integers(0, 40, (size, 2))], kinds)

    lefts, rights = [some(50) for _ in range(6)], [some(20) for _ in range(6)]
    schema = schema_of(kinds)
    for kind in KINDS:
        spec = j.JoinSpec(kind, (0,), (0,))
        whole = j.step(spec, (), (), concat(lefts, schema), concat(rights, schema)).output
        state: tuple[list[Run], list[Run]] = ([], [])
        total: Counter[Hashable] = Counter()
        for d_left, d_right in zip(lefts, rights, strict=True):
            step = j.step(spec, *state, d_left, d_right)
            state[0].append(step.left)
            state[1].append(step.right)
            for row, weight in counted(step.output).items():
                total[row] += weight
        assert Counter({row: n for row, n in total.items() if n}) == counted(whole)


def test_keys_of_different_width_are_refused() -> None:
    with pytest.raises(ValueError):
        j.JoinSpec("inner", (0, 1), (0,))
