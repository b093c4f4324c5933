"""Aggregation: what the steps emit adds up to the aggregation of what is there, exactly where SQL is exact."""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from datetime import datetime
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headwater.core.errors import ArithmeticOverflowError
from headwater.operators.aggregate import aggregate as a
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.zset.delta import Delta, concat
from headwater.operators.zset.ordered_runs import merge_ordered
from headwater.operators.zset.runs import Run, contents_latest, merge_latest
from tests.operators.zsets import (
    KEYS,
    Row,
    changes_of,
    counted,
    delta,
    hashing,
    identity,
    is_consolidated,
    key_identity,
    schema_of,
    tuples,
)
from tests.raising import raises

__all__ = ["hashing"]

shared_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

BIG, SMALL, WIDE, MONEY, REAL, TEXT, FLAG = range(7)
ARGUMENTS = [
    pa.int64(),
    pa.int8(),
    pa.decimal128(38, 2),
    pa.decimal128(10, 2),
    pa.float64(),
    pa.string(),
    pa.bool_(),
]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[pa.DataType], list[Any], list[bool]]:
    """Types of the key columns, changes step by step, and where to merge."""
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=2))
    steps = draw(st.lists(changes_of([*keys, *_plain(ARGUMENTS)], max_size=6), min_size=1, max_size=4))
    return keys, steps, [draw(st.booleans()) for _ in steps]


def choices(number: int = 4) -> st.SearchStrategy[list[int]]:
    """Some of the functions, by number."""
    return st.lists(st.integers(0, 20), min_size=1, max_size=number, unique=True)


def _plain(kinds: Sequence[pa.DataType]) -> list[pa.DataType]:
    """Decimals of every precision take the values of decimal(38, 2) that the small ones can hold."""
    return [pa.decimal128(38, 2) if pa.types.is_decimal(kind) else kind for kind in kinds]


class Table:
    """The input as plain Python has it: changes that would take away what is not there are left out."""

    def __init__(self) -> None:
        self.rows: Counter[Hashable] = Counter()
        self.values: dict[Hashable, Row] = {}

    def apply(self, changes: list[tuple[Row, int]], keys: list[pa.DataType]) -> Delta:
        money = len(keys) + MONEY
        small = [((*row[:money], _cents(row[money]), *row[money + 1 :]), w) for row, w in changes]
        whole = delta(small, [*keys, *ARGUMENTS])
        kept = []
        for i, row in enumerate(tuples(whole.rows)):
            if self.rows[identity(row)] + small[i][1] >= 0:
                self.rows[identity(row)] += small[i][1]
                self.values[identity(row)] = row
                kept.append(i)
        return whole.take(np.array(kept, dtype=np.int64))

    def groups(self, width: int) -> dict[Hashable, list[Row]]:
        """The rows of each group, each as often as it is there."""
        groups: dict[Hashable, list[Row]] = {} if width else {(): []}
        for name, weight in self.rows.items():
            if weight:
                row = self.values[name]
                groups.setdefault(key_identity(row[:width]), []).extend([row] * weight)
        return groups


def _cents(value: Decimal | None) -> Decimal | None:
    return None if value is None else value % Decimal(1000) if abs(value) < 10**20 else Decimal("-999.99")


def expected(function: AggregateFunction, rows: list[Row], kinds: Sequence[pa.DataType]) -> list[Any]:
    """Spark's aggregation buffer by its definition, exact: numbers are fractions unless they are not finite."""
    if function.filter is not None:
        rows = [row for row in rows if row[function.filter]]
    args = [tuple(row[i] for i in function.args) for row in rows]
    kind = function.kind
    if kind in ("min_by", "max_by"):
        return [_by(args, greatest=kind == "max_by")]
    args = [values for values in args if None not in values]
    n = len(args)
    if kind == "count":
        return [n]
    if kind in ("min", "max"):
        ranked = sorted((values[0] for values in args), key=_rank)
        return [None] if not ranked else [ranked[0 if kind == "min" else -1]]
    if kind in ("sum", "avg"):
        total = _total([values[0] for values in args])
        if kind == "avg":
            return [total, n]
        if pa.types.is_decimal(kinds[function.args[0]]):
            return [total, n == 0]
        return [total if n else None]
    if not all(math.isfinite(x) for values in args for x in values):
        return [n] + [math.nan] * {"moments": function.order, "covar": 3, "corr": 5}[kind]
    columns = [[Fraction(values[i]) for values in args] for i in range(len(function.args))]
    means = [sum(column) / n if n else Fraction(0) for column in columns]
    shifted = [[x - mean for x in column] for column, mean in zip(columns, means, strict=True)]
    if kind == "moments":
        return [n, means[0], *(sum(x**k for x in shifted[0]) for k in range(2, function.order + 1))]
    cross = sum(x * y for x, y in zip(*shifted, strict=True))
    return [n, *means, cross, *([sum(x * x for x in side) for side in shifted] if kind == "corr" else [])]


def _rank(value: Any) -> tuple[Any, ...]:
    """As SQL orders values: NULL first, NaN last; -0.0 just below 0.0, where the choice is ours."""
    if value is None:
        return (0,)
    if isinstance(value, float):
        return (1, math.isnan(value), 0 if math.isnan(value) else value, math.copysign(1, value))
    return (1, value.encode() if isinstance(value, str) else value)


def _by(args: list[tuple[Any, ...]], *, greatest: bool) -> Any:
    known = [(value, ordering) for value, ordering in args if ordering is not None]
    if not known:
        return None
    best = sorted((_rank(ordering)[:3] for _, ordering in known))[-1 if greatest else 0]
    tied = (value for value, ordering in known if _rank(ordering)[:3] == best)
    return max(tied, key=_rank) if greatest else min(tied, key=_rank)


def _total(values: list[Any]) -> Any:
    unfit = [x for x in values if isinstance(x, float) and not math.isfinite(x)]
    return (
        math.fsum(unfit) if _agree(unfit) else math.nan if unfit else sum(map(Fraction, values), Fraction(0))
    )


def _agree(values: list[float]) -> bool:
    return bool(values) and not any(map(math.isnan, values)) and len(set(values)) == 1


def is_close(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, bool) or wanted is None or isinstance(found, str | bool) or found is None:
        return found is wanted or (isinstance(found, str) and found == wanted)
    if isinstance(found, float):
        if not math.isfinite(wanted):
            return identity(found) == identity(float(wanted))
        return math.isclose(found, wanted, rel_tol=1e-9, abs_tol=1e-12)
    return Fraction(found) == Fraction(wanted)


class View:
    """An aggregation as the engine runs it: runs that are merged now and then, and the output put together."""

    def __init__(self, spec: a.AggregateSpec) -> None:
        self.spec = spec
        self.state: list[Run] = []
        self.ordered: list[list[Run]] = [[] for _ in spec.arrangements]
        self.shown: dict[Hashable, Row] = {}
        self._show(a.initial(spec))

    def apply(self, changes: Delta, *, merged: bool = False, combined: int = 0) -> Delta:
        """A step; if `combined`, of a delta that was combined in so many parts."""
        spec = self.spec
        if combined:
            parts = np.arange(len(changes)) % combined
            batches = [a.combine(spec, changes.filter(parts == i)) for i in range(combined)]
            step = a.step_combined(spec, self.state, concat([Delta.of(b) for b in batches], spec.state).rows)
        else:
            step = a.step(spec, self.state, self.ordered, changes)
        self.state.append(step.state)
        for runs, run in zip(self.ordered, step.ordered, strict=True):
            runs.append(run)
        if merged:
            self.state = [merge_latest(self.state, range(spec.width), bottom=True)]
            for arrangement, runs in zip(spec.arrangements, self.ordered, strict=True):
                runs[:] = [merge_ordered(runs, arrangement.key, arrangement.order)]
        assert is_consolidated(step.output)
        assert step.output.rows.schema == spec.output
        self._show(step.output)
        said = a.shown(spec, self.state)
        assert said.weights.tolist() == [1] * len(self.shown)
        assert {identity(row) for row in tuples(said.rows)} == self.shown.keys()
        return step.output

    def _show(self, output: Delta) -> None:
        changes = list(zip(tuples(output.rows), output.weights.tolist(), strict=True))
        for row, weight in sorted(changes, key=lambda change: change[1]):
            if weight == -1:
                del self.shown[identity(row)]
            else:
                assert weight == 1
                assert identity(row) not in self.shown
                self.shown[identity(row)] = row

    def is_empty(self) -> bool:
        return len(contents_latest(self.state, self.spec.state, range(self.spec.width))) == 0


def functions(
    width: int, chosen: Sequence[int], *, append_only: bool = False
) -> tuple[AggregateFunction, ...]:
    """Some of a list that has one of each kind, half of them with a filter."""

    def over(kind: Any, *args: int, filtered: bool = False, order: int = 2) -> AggregateFunction:
        condition = width + FLAG if filtered else None
        return AggregateFunction(kind, tuple(width + i for i in args), condition, append_only, order)

    every = (
        over("count"),
        over("count", TEXT, REAL, filtered=True),
        over("avg", BIG),
        over("sum", SMALL, filtered=True),
        over("sum", MONEY),
        over("sum", WIDE, filtered=True),
        over("avg", MONEY, filtered=True),
        over("avg", SMALL),
        over("sum", REAL),
        over("avg", REAL, filtered=True),
        over("moments", SMALL, order=4),
        over("moments", REAL, filtered=True),
        over("corr", SMALL, REAL),
        over("covar", SMALL, SMALL, filtered=True),
        over("min", REAL),
        over("max", REAL),
        over("max", TEXT, filtered=True),
        over("min", WIDE),
        over("min_by", TEXT, SMALL),
        over("max_by", REAL, SMALL, filtered=True),
        over("max_by", SMALL, REAL),
    )
    return tuple(every[i] for i in chosen)


def check(view: View, table: Table) -> None:
    """What the view shows is what the definition says, group by group."""
    spec = view.spec
    groups = table.groups(spec.width)
    assert len(view.shown) == len(groups)
    shown = {key_identity(row[: spec.width]): row[spec.width :] for row in view.shown.values()}
    assert shown.keys() == groups.keys()
    for key, rows in groups.items():
        at = 0
        for function in spec.functions:
            wanted = expected(function, rows, spec.schema.types)
            found = shown[key][at : at + len(wanted)]
            at += len(wanted)
            assert all(map(is_close, found, wanted)), (function, found, wanted)


def input_schema(keys: Sequence[pa.DataType]) -> pa.Schema:
    return schema_of([*keys, *ARGUMENTS])


@shared_fixture
@given(history=histories(), chosen=choices())
def test_steps_add_up_to_the_aggregation_of_what_is_there(
    hashing: str, history: Any, chosen: list[int]
) -> None:
    keys, steps, merges = history
    width = len(keys)
    view = View(a.AggregateSpec(input_schema(keys), width, functions(width, chosen)))
    table = Table()
    for changes, merged in zip(steps, merges, strict=True):
        view.apply(table.apply(changes, keys), merged=merged)
        check(view, table)


@given(history=histories(), chosen=choices(), parts=st.integers(0, 3))
def test_inputs_that_only_grow_need_no_ordered_state(history: Any, chosen: list[int], parts: int) -> None:
    keys, steps, merges = history
    width = len(keys)
    view = View(a.AggregateSpec(input_schema(keys), width, functions(width, chosen, append_only=True)))
    assert view.spec.combinable
    assert not view.ordered
    table = Table()
    for changes, merged in zip(steps, merges, strict=True):
        growing = [(row, abs(weight)) for row, weight in changes]
        view.apply(table.apply(growing, keys), merged=merged, combined=parts)
        check(view, table)


@given(history=histories(), chosen=choices(), parts=st.integers(1, 3))
def test_combined_deltas_give_the_same(history: Any, chosen: list[int], parts: int) -> None:
    keys, steps, _ = history
    width = len(keys)
    additive = [function for function in functions(width, chosen) if not function.extreme]
    view = View(a.AggregateSpec(input_schema(keys), width, (AggregateFunction("count"), *additive)))
    table = Table()
    for changes in steps:
        view.apply(table.apply(changes, keys), combined=parts)
        check(view, table)


@given(history=histories(), chosen=choices())
def test_taking_everything_back_leaves_nothing(history: Any, chosen: list[int]) -> None:
    keys, steps, _ = history
    width = len(keys)
    view = View(a.AggregateSpec(input_schema(keys), width, functions(width, chosen)))
    start = dict(view.shown)
    table = Table()
    deltas = [table.apply(changes, keys) for changes in steps]
    for changes in deltas:
        view.apply(changes)
    for changes in deltas:
        view.apply(changes.negated())
    assert view.shown.keys() == start.keys()
    assert view.is_empty()
    for arrangement, runs in zip(view.spec.arrangements, view.ordered, strict=True):
        assert len(merge_ordered(runs, arrangement.key, arrangement.order)) == 0


@given(history=histories(), chosen=choices())
def test_all_but_floats_are_independent_of_how_changes_are_cut_into_steps(
    history: Any, chosen: list[int]
) -> None:
    keys, steps, merges = history
    width = len(keys)
    exact = tuple(
        f for f in functions(width, chosen) if f.extreme or f.kind == "count" or width + REAL not in f.args
    )
    assume(width or exact)  # an aggregation with neither has no columns to compare
    spec = a.AggregateSpec(input_schema(keys), width, exact)
    table = Table()
    deltas = [table.apply(changes, keys) for changes in steps]
    cut, whole = View(spec), View(spec)
    for changes, merged in zip(deltas, merges, strict=True):
        cut.apply(changes, merged=merged)
    whole.apply(concat(deltas, spec.schema))
    assert cut.shown.keys() == whole.shown.keys()


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(-(2**63), 2**63 - 1), st.integers(1, 3)), min_size=1),
    st.booleans(),
)
def test_a_sum_that_does_not_fit_names_its_group(rows: list[tuple[int, int, int]], decimal: bool) -> None:
    kind = pa.decimal128(38, 0) if decimal else pa.int64()
    factor = Decimal(10**19) if decimal else 1
    with localcontext(prec=50):
        changes = delta([((k, v * factor), w) for k, v, w in rows], [pa.int64(), kind])
    spec = a.AggregateSpec(changes.rows.schema, 1, (AggregateFunction("sum", (1,)),))
    low, high = (1 - 10**38, 10**38) if decimal else (-(2**63), 2**63)
    sums = {k: sum(v * int(factor) * w for key, v, w in rows if key == k) for k, _, _ in rows}
    over = {k for k, total in sums.items() if not low <= total < high}
    if not over:
        a.step(spec, (), (), changes)
        return
    with raises(ArithmeticOverflowError, function="sum(c1)") as caught:
        a.step(spec, (), (), changes)
    assert caught.value.facts["key"]["c0"] in over


def test_a_sum_may_overflow_on_the_way_to_one_that_fits() -> None:
    kinds = [pa.int64()]
    top = 2**63 - 1
    view = View(a.AggregateSpec(schema_of(kinds), 0, (AggregateFunction("sum", (0,)),)))
    view.apply(delta([((top,), 3), ((-top,), 2)], kinds))
    assert list(view.shown.values()) == [(top,)]
    view.apply(delta([((top,), 2), ((-top,), 2)], kinds))
    assert list(view.shown.values()) == [(top,)]


def test_floats_come_back_after_larger_ones_are_gone() -> None:
    kinds = [pa.float64()]
    spec = a.AggregateSpec(
        schema_of(kinds), 0, (AggregateFunction("sum", (0,)), AggregateFunction("avg", (0,)))
    )
    view = View(spec)
    view.apply(delta([((0.1,), 1), ((1e20,), 1)], kinds))
    for odd in (math.nan, math.inf, -math.inf, 1.7e308, 1e20):
        view.apply(delta([((odd,), 3)], kinds))
        view.apply(delta([((odd,), -3)], kinds))
    view.apply(delta([((1e20,), -1)], kinds))
    [(total, average, n)] = view.shown.values()
    assert total == pytest.approx(0.1, rel=1e-9)
    assert (average, n) == (total, 1)


def test_sums_beyond_the_largest_double_are_infinite_and_come_back() -> None:
    kinds = [pa.float64()]
    view = View(a.AggregateSpec(schema_of(kinds), 0, (AggregateFunction("sum", (0,)),)))
    view.apply(delta([((1.7e308,), 5)], kinds))
    assert list(view.shown.values()) == [(math.inf,)]
    view.apply(delta([((1.7e308,), -4)], kinds))
    assert list(view.shown.values()) == [(1.7e308,)]


@pytest.mark.parametrize("mean", [0.0, 1.0, 1e6, 1.7e9])
def test_moments_hold_after_many_rows_were_retracted(mean: float) -> None:
    random = np.random.default_rng(11)
    kept = random.normal(mean, 1.0, 500)
    gone = random.normal(mean * 2 + 5, 100.0, 5_000)
    spec = a.AggregateSpec(
        schema_of([pa.float64()]), 0, (AggregateFunction("moments", (0,)), AggregateFunction("corr", (0, 0)))
    )
    view = View(spec)

    def rows(values: Any) -> Delta:
        return Delta.of(pa.RecordBatch.from_arrays([pa.array(values)], schema=spec.schema))

    view.apply(rows(np.concatenate((kept, gone))))
    for part in np.split(gone, 10):
        view.apply(rows(part).negated())
    exact = [Fraction(x) for x in kept.tolist()]
    average = sum(exact) / len(exact)
    m2 = float(sum((x - average) ** 2 for x in exact))
    [found] = view.shown.values()
    n, avg = 500.0, float(average)
    assert found == pytest.approx((n, avg, m2, n, avg, avg, m2, m2, m2), rel=1e-9)


def test_equal_values_have_no_variance_at_all() -> None:
    kinds = [pa.float64()]
    view = View(
        a.AggregateSpec(
            schema_of(kinds),
            0,
            (AggregateFunction("moments", (0,), order=4), AggregateFunction("corr", (0, 0))),
        )
    )
    view.apply(delta([((0.1,), 7), ((5.3,), 2)], kinds))
    view.apply(delta([((5.3,), -2)], kinds))
    [row] = view.shown.values()
    assert row[2:5] == (0.0, 0.0, 0.0)
    assert row[8:] == (0.0, 0.0, 0.0)


def test_without_functions_it_is_distinct() -> None:
    kinds = [pa.string(), pa.float64()]
    view = View(a.AggregateSpec(schema_of(kinds), 2, ()))
    assert counted(view.apply(delta([(("a", 0.0), 2), (("a", -0.0), 1), ((None, math.nan), 1)], kinds))) == {
        identity(("a", 0.0)): 1,
        identity((None, math.nan)): 1,
    }
    assert len(view.apply(delta([(("a", 0.0), -2)], kinds))) == 0
    assert counted(view.apply(delta([(("a", -0.0), -1)], kinds))) == {identity(("a", 0.0)): -1}


@pytest.mark.parametrize(
    ("kind", "shown", "stored"),
    [
        (pa.float32(), -0.0, 0.0),
        (pa.struct([("x", pa.float64())]), {"x": -0.0}, {"x": 0.0}),
        (pa.list_(pa.float64()), [1.0, None, -0.0], [1.0, None, 0.0]),
    ],
)
def test_keys_are_shown_as_sql_shows_them(kind: pa.DataType, shown: Any, stored: Any) -> None:
    changes = delta([((None,), 1), ((shown,), 1)], [kind])
    step = a.step(a.AggregateSpec(changes.rows.schema, 1, ()), (), (), changes)
    assert counted(step.output) == {identity((None,)): 1, identity((stored,)): 1}


def test_without_a_key_there_is_a_row_over_nothing() -> None:
    kinds = [pa.int64(), pa.decimal128(10, 2), pa.string()]
    wanted = (
        AggregateFunction("count"),
        AggregateFunction("sum", (0,)),
        AggregateFunction("sum", (1,)),
        AggregateFunction("avg", (1,)),
        AggregateFunction("max", (2,)),
    )
    spec = a.AggregateSpec(schema_of(kinds), 0, wanted)
    empty = {(0, None, Decimal(0), True, Decimal(0), 0, None): 1}
    assert counted(a.initial(spec)) == empty
    view = View(spec)
    one = delta([((5, Decimal("1.50"), "x"), 1)], kinds)
    full = (1, 5, Decimal("1.50"), False, Decimal("1.50"), 1, "x")
    assert counted(view.apply(one)) == {**dict.fromkeys(empty, -1), full: 1}
    assert counted(view.apply(one.negated())) == {full: -1, **empty}
    assert view.is_empty()


def test_rows_without_columns_are_counted() -> None:
    nothing = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    view = View(a.AggregateSpec(nothing.schema, 0, (AggregateFunction("count"),)))
    view.apply(Delta(nothing, np.array([2, 3, -1])))
    assert list(view.shown.values()) == [(4,)]


def test_without_a_key_and_functions_there_is_a_row_without_columns() -> None:
    spec = a.AggregateSpec(schema_of([pa.int64()]), 0, ())
    assert list(a.initial(spec).weights) == [1]
    step = a.step(spec, (), (), delta([((5,), 1)], [pa.int64()]))
    assert len(step.output) == 0


def test_groups_whose_output_stays_are_not_mentioned() -> None:
    kinds = [pa.int64(), pa.int64()]
    view = View(a.AggregateSpec(schema_of(kinds), 1, (AggregateFunction("max", (1,)),)))
    assert len(view.apply(delta([((1, 5), 1), ((2, 7), 1)], kinds))) == 2
    assert len(view.apply(delta([((1, 4), 1), ((2, 7), 1)], kinds))) == 0
    assert len(view.apply(delta([((2, 7), -1)], kinds))) == 0
    assert counted(view.apply(delta([((2, 7), -1), ((2, 3), 1), ((1, 5), -1)], kinds))) == {
        (2, 7): -1,
        (2, 3): 1,
        (1, 5): -1,
        (1, 4): 1,
    }


def test_functions_share_what_they_have_in_common() -> None:
    schema = schema_of([pa.int64(), pa.int64()])
    wanted = (
        AggregateFunction("count", (1,)),
        AggregateFunction("sum", (1,)),
        AggregateFunction("avg", (1,)),
        AggregateFunction("min", (1,)),
        AggregateFunction("max", (1,)),
    )
    spec = a.AggregateSpec(schema, 1, wanted)
    assert len(spec.state) == 1 + 1 + 1 + 2 + 2
    assert len(spec.arrangements) == 1


def test_an_empty_delta_changes_nothing() -> None:
    kinds = [pa.int64(), pa.int64()]
    spec = a.AggregateSpec(
        schema_of(kinds), 1, (AggregateFunction("sum", (1,)), AggregateFunction("max", (1,)))
    )
    step = a.step(spec, (), ((),), Delta.empty(spec.schema))
    assert (len(step.output), len(step.state), len(step.ordered[0])) == (0, 0, 0)
    growing = a.AggregateSpec(schema_of(kinds), 1, (AggregateFunction("sum", (1,)),))
    assert len(a.step_combined(growing, (), a.combine(growing, Delta.empty(spec.schema))).state) == 0


def test_what_cannot_be_aggregated_is_refused() -> None:
    schema = schema_of([pa.int64(), pa.string()])
    with pytest.raises(TypeError):
        _ = a.AggregateSpec(schema, 1, (AggregateFunction("sum", (1,)),)).state
    with pytest.raises(ValueError):
        AggregateFunction("min_by", (1,))
    with pytest.raises(ValueError):
        AggregateFunction("moments", (1,), order=5)
    with pytest.raises(ValueError):
        a.combine(a.AggregateSpec(schema, 1, (AggregateFunction("min", (1,)),)), Delta.empty(schema))


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        (pa.struct([("x", pa.int64()), ("y", pa.string())]), {"x": 1, "y": None}, {"x": 1, "y": "a"}),
        (pa.list_(pa.float64()), [1.0], [1.0, 0.5]),
        (pa.binary(), b"\x00", b"\xff"),
        (pa.bool_(), False, True),
        (pa.float64(), -0.0, 0.0),
        (pa.timestamp("us"), datetime(1969, 1, 1), datetime(2026, 1, 1)),
    ],
)
@pytest.mark.parametrize("append_only", [False, True])
def test_values_of_every_ordered_type_have_a_least_and_a_greatest(
    kind: pa.DataType, low: Any, high: Any, append_only: bool
) -> None:
    wanted = tuple(AggregateFunction(name, (0,), append_only=append_only) for name in ("min", "max"))
    for first, second in ((low, high), (high, low)):
        view = View(a.AggregateSpec(schema_of([kind]), 0, wanted))
        view.apply(delta([((first,), 1), ((None,), 1)], [kind]))
        view.apply(delta([((second,), 1)], [kind]))
        assert list(view.shown) == [identity((low, high))]
        if not append_only:
            view.apply(delta([((low,), -1)], [kind]))
            assert list(view.shown) == [identity((high, high))]
            view.apply(delta([((low,), 2), ((high,), -1)], [kind]))
            assert list(view.shown) == [identity((low, low))]


def test_a_large_change_of_few_groups_is_combined_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [pa.int64(), pa.int64(), pa.float64()]
    wanted = (
        AggregateFunction("count", ()),
        AggregateFunction("sum", (1,)),
        AggregateFunction("avg", (2,)),
        AggregateFunction("max", (1,), append_only=True),
    )
    rows = [((n % 7, n * n % 101, n / 3), 1) for n in range(2_000)]
    monkeypatch.setattr(a, "PIECE_ROWS", 300)
    calls: list[int] = []
    combine = a.combine
    monkeypatch.setattr(a, "combine", lambda spec, piece: calls.append(len(piece)) or combine(spec, piece))
    view = View(a.AggregateSpec(schema_of(kinds), 1, wanted))
    view.apply(delta(rows[:1_000], kinds))
    view.apply(delta(rows[1_000:], kinds))
    assert calls == [300, 300, 300, 100] * 2
    monkeypatch.setattr(a, "PIECE_ROWS", 1 << 18)
    whole = View(a.AggregateSpec(schema_of(kinds), 1, wanted))
    whole.apply(delta(rows, kinds))
    for found, wanted_row in zip(sorted(view.shown.values()), sorted(whole.shown.values()), strict=True):
        assert all(map(is_close, found, wanted_row))


def test_a_large_change_of_many_groups_is_not_combined_first(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [pa.int64(), pa.int64()]
    monkeypatch.setattr(a, "PIECE_ROWS", 300)
    monkeypatch.setattr(a, "combine", None)
    view = View(a.AggregateSpec(schema_of(kinds), 1, (AggregateFunction("sum", (1,)),)))
    assert len(view.apply(delta([((n, n), 1) for n in range(2_000)], kinds))) == 2_000
