"""Sliding frames, step by step, give what they are defined to be over everything, however far apart changes are."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.core.errors import ArithmeticOverflowError
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.window.sliding_aggregate import SlideSpec, SlidingFunction, near, step
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.ordered_runs import merge_ordered
from headwater.operators.zset.runs import Run
from tests.operators.zsets import (
    Row,
    batch,
    count,
    counted,
    delta,
    hashing,
    is_consolidated,
    key_identity,
    ordinal,
    present,
    schema_of,
    tuples,
    values,
)
from tests.raising import raises

__all__ = ["hashing"]

INTEGER = pa.int64()
STAMP = pa.timestamp("us", tz="UTC")
TIMES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.one_of(st.integers(-9, 9), st.sampled_from([-(2**62), 2**62, 1000])),
    pa.int32(): st.integers(-5, 20),
    pa.date32(): st.integers(-3, 12).map(lambda n: date(1970, 1, 1) + timedelta(days=n)),
    STAMP: st.integers(-5, 12).map(lambda n: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=n)),
}
DECIMAL = pa.decimal128(38, 2)
SMALL = pa.decimal128(10, 2)
ARGUMENTS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.one_of(st.integers(-9, 9), st.sampled_from([2**40, -(2**40)])),
    pa.int8(): st.integers(-128, 127),
    pa.float64(): st.one_of(
        st.sampled_from([0.1, 0.2, 0.3, -0.0, 1e300, -1e300, 1e-300, 5e-324, math.nan, math.inf, -math.inf]),
        st.floats(-1e6, 1e6),
    ),
    pa.float32(): st.sampled_from([0.5, -1.25, math.nan, 3e38]),
    DECIMAL: st.integers(-(10**30), 10**30).map(lambda n: Decimal(n).scaleb(-2)),
    SMALL: st.integers(-(10**9), 10**9).map(lambda n: Decimal(n).scaleb(-2)),
}
KINDS = ("count", "sum", "avg", "min", "max")


def fields(kind: str, argument: pa.DataType) -> list[pa.DataType]:
    summed: pa.DataType = pa.int64()
    if pa.types.is_decimal(argument):
        summed = pa.decimal128(min(38, argument.precision + 10), argument.scale)
    elif pa.types.is_floating(argument):
        summed = pa.float64()
    match kind:
        case "count":
            return [pa.int64()]
        case "sum":
            return [summed, pa.bool_()] if pa.types.is_decimal(argument) else [summed]
        case "avg":
            return [summed if pa.types.is_decimal(argument) else pa.float64(), pa.int64()]
    return [argument]


def number(value: Any) -> int:
    """A time as the number of its units."""
    if isinstance(value, datetime):
        return (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return (value - date(1970, 1, 1)).days if isinstance(value, date) else int(value)


def added(numbers: list[Any]) -> Any:
    """A sum that is rounded once, if at all."""
    if not numbers or not isinstance(numbers[0], float):
        return sum(numbers)
    if any(map(math.isnan, numbers)) or (math.inf in numbers and -math.inf in numbers):
        return math.nan
    infinite = [n for n in numbers if math.isinf(n)]
    return infinite[0] if infinite else float(sum(map(Fraction, numbers)))


def defined(kind: str, found: list[Any], argument: pa.DataType) -> list[Any]:
    """The buffer of a function over some values, by its plain definition."""
    floats = pa.types.is_floating(argument)
    decimals = pa.types.is_decimal(argument)
    match kind:
        case "count":
            return [len(found)]
        case "sum":
            total = added(found) if found else None
            return [total or Decimal(0), not found] if decimals else [total]
        case "avg":
            total = added(found) if found else 0
            return [total if decimals or floats else float(total), len(found)]
    best = min if kind == "min" else max
    return [best(found, key=ordinal) if found else None]


def whole(spec: SlideSpec, rows: list[Row]) -> list[Row]:
    """The output over all rows, by its plain definition."""
    groups: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(key_identity(row[i]) for i in spec.key)].append(row)
    made = []
    for group in groups.values():
        for row in group:
            shown: list[Any] = list(row)
            for framed in spec.framed:
                function = framed.function
                found = []
                for other in group:
                    here, there = row[spec.time], other[spec.time]
                    if here is None or there is None:
                        inside = here is there
                    else:
                        inside = framed.low <= number(there) - number(here) <= framed.high
                    chosen = function.filter is None or other[function.filter] is True
                    if inside and chosen and all(other[a] is not None for a in function.args):
                        found.append(other[function.args[0]] if function.args else 1)
                argument = spec.schema.field(function.args[0]).type if function.args else pa.int64()
                shown += defined(function.kind, found, argument)
            made.append(tuple(shown))
    return made


def close(one: Row, two: Row) -> bool:
    for a, b in zip(one, two, strict=True):
        if isinstance(a, float) and isinstance(b, float):
            if not (math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-322) or (math.isnan(a) and math.isnan(b))):
                return False
        elif a != b:
            return False
    return True


def in_any_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: tuple(ordinal(value) for value in row))


@st.composite
def histories(draw: st.DrawFn) -> Any:
    time, argument = draw(st.sampled_from(list(TIMES))), draw(st.sampled_from(list(ARGUMENTS)))
    kinds = [draw(st.sampled_from([pa.int64(), pa.float64(), pa.string()])), time, argument, pa.bool_()]
    framed = []
    for _ in range(draw(st.integers(1, 3))):
        low, high = sorted(draw(st.tuples(st.integers(-4, 4), st.integers(-4, 4))))
        kind = draw(st.sampled_from(KINDS))
        chosen = draw(st.sampled_from([None, None, 3]))
        args = () if kind == "count" and draw(st.booleans()) else (2,)
        framed.append(SlidingFunction(AggregateFunction(kind, args, chosen), low, high))  # type: ignore[arg-type]
    key = draw(st.sampled_from([(0,), (0, 3), ()]))
    preceding = max(0, *(-f.low for f in framed)) + draw(st.sampled_from([0, 0, 2]))
    following = max(0, *(f.high for f in framed))
    spec = SlideSpec(schema_of(kinds), key, 1, preceding, following, tuple(framed))
    row = st.tuples(
        values(kinds[0]),
        st.one_of(st.none(), TIMES[time]),
        st.one_of(st.none(), ARGUMENTS[argument]),
        values(kinds[3]),
    )
    steps = draw(st.lists(st.lists(st.tuples(row, st.integers(-2, 3)), max_size=12), max_size=4))
    return spec, kinds, steps, [draw(st.booleans()) for _ in steps]


def output_of(spec: SlideSpec, kinds: list[pa.DataType]) -> list[pa.DataType]:
    return [*kinds, *(t for f in spec.framed for t in fields(f.function.kind, kinds[2]))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(histories())
def test_every_step_leaves_what_the_frames_are_defined_to_be(hashing: str, history: Any) -> None:
    spec, kinds, steps, merges = history
    schema = schema_of(output_of(spec, kinds))
    runs: list[Run] = []
    every: list[tuple[Row, int]] = []
    shown: Counter[Hashable] = Counter()
    for changes, merged in zip(steps, merges, strict=True):
        every += changes
        result, run = step(spec, runs, delta(changes, kinds), schema)
        assert is_consolidated(result)
        shown.update(counted(result))
        runs = [merge_ordered([*runs, run], spec.key, spec.order)] if merged else [*runs, run]
        left = present(every)
        anew, _ = step(spec, [], delta(left, kinds), schema)
        assert Counter({row: n for row, n in shown.items() if n}) == counted(anew)  # to the last bit
        rows = [row for row, weight in left for _ in range(weight)]
        actual = [
            row for row, n in zip(tuples(anew.rows), anew.weights.tolist(), strict=True) for _ in range(n)
        ]
        pairs = zip(in_any_order(actual), in_any_order(whole(spec, rows)), strict=True)
        assert all(close(one, two) for one, two in pairs)


def count_in_frame(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A function of all rows: how many of the key are at the row's time or the one before."""
    given = tuples(rows)
    made = [
        (
            k,
            t,
            sum(
                1
                for k2, t2 in given
                if k2 == k and ((t is None and t2 is None) or (t and t2 and 0 <= t - t2 <= 1))
            ),
        )
        for k, t in given
    ]
    return batch(made, [pa.int64(), pa.int64(), pa.int64()])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.tuples(st.sampled_from([1, 2]), st.one_of(st.none(), st.integers(1, 30))),
                st.integers(-1, 2),
            ),
            max_size=6,
        ),
        max_size=4,
    )
)
def test_a_function_of_all_rows_stands_in_for_those_that_have_no_form_here(hashing: str, steps: Any) -> None:
    kinds = [pa.int64(), pa.int64()]
    spec = SlideSpec(schema_of(kinds), (0,), 1, 1, 0)
    schema = schema_of([*kinds, pa.int64()])
    runs: list[Run] = []
    every: list[tuple[Row, int]] = []
    shown: Counter[Hashable] = Counter()
    for changes in steps:
        every += changes
        result, run = step(spec, runs, delta(changes, kinds), schema, count_in_frame)
        runs.append(run)
        shown.update(counted(result))
        rows = [row for row, weight in present(every) for _ in range(weight)]
        wanted = count((row, 1) for row in tuples(count_in_frame(batch(rows, kinds)))) if rows else Counter()
        assert Counter({row: n for row, n in shown.items() if n}) == wanted


@given(
    *(
        st.lists(st.tuples(st.sampled_from([1, 2, None]), st.one_of(st.none(), st.integers(0, 12))))
        for _ in range(2)
    ),
    st.sampled_from([(0,), ()]),
)
def test_near_are_the_rows_in_the_frames_of_others(rows: list[Row], wanted: list[Row], key: Any) -> None:
    kinds = [pa.int64(), pa.int64()]

    def inside(row: Row, other: Row) -> bool:
        if any(row[i] != other[i] for i in key):
            return False
        if row[1] is None or other[1] is None:
            return row[1] is other[1]
        return bool(-2 <= row[1] - other[1] <= 1)

    found = near(batch(rows, kinds), batch(wanted, kinds), key, 1, 2, 1)
    assert found.tolist() == [any(inside(row, other) for other in wanted) for row in rows]


def sums(low: int, high: int, kind: pa.DataType = INTEGER) -> tuple[SlideSpec, pa.Schema]:
    schema = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("x", kind)])
    spec = SlideSpec(
        schema,
        (0,),
        1,
        max(0, -low),
        max(0, high),
        (SlidingFunction(AggregateFunction("sum", (2,)), low, high),),
    )
    return spec, pa.schema([*schema, ("sum", kind)])


def rows_of(spec: SlideSpec, at: Any, x: Any) -> pa.RecordBatch:
    columns = [pa.array(np.zeros(len(at), dtype=np.int64)), pa.array(at), pa.array(x)]
    return pa.RecordBatch.from_arrays(columns, schema=spec.schema)


def test_only_rows_within_reach_of_a_change_are_looked_at() -> None:
    spec, output = sums(-10, 0)
    times = np.arange(100_000)
    _, run = step(spec, [], Delta.of(rows_of(spec, times, times)), output)
    seen: list[int] = []

    def record(rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(rows.num_rows)
        return rows_of(spec, [], []).append_column("sum", pa.array([], pa.int64()))

    change = Delta.of(rows_of(spec, np.array([5, 50_000]), np.array([1, 1])))
    changed, _ = step(spec, [run], change, output)
    assert sorted(set(changed.rows.column("at").to_pylist())) == [*range(5, 16), *range(50_000, 50_011)]
    step(spec, [run], change, output, record)
    assert seen == [16 + 21, 16 + 21 + 2]


def test_a_sum_of_floats_does_not_depend_on_other_frames() -> None:
    spec, output = sums(-2, 0, pa.float64())
    small = rows_of(spec, np.arange(5), np.array([0.1, 0.2, 0.3, 0.4, 0.5]))
    alone, run = step(spec, [], Delta.of(small), output)
    huge = Delta.of(rows_of(spec, np.array([5, 6]), np.array([1e300, -1e-300])))
    beside, _ = step(spec, [run], huge, output)
    assert set(beside.rows.column("at").to_pylist()) == {5, 6}
    assert beside.rows.column("sum").to_pylist() == [1e300, 1e300]
    assert alone.rows.column("sum").to_pylist() == [0.1, math.fsum([0.1, 0.2]), 0.6, 0.9, 1.2]


def test_times_so_far_apart_that_they_cannot_be_laid_end_to_end_are_kept_too() -> None:
    schema = pa.schema([("k", pa.int64()), ("at", STAMP), ("x", pa.int64())])
    spec = SlideSpec(
        schema, (0,), 1, 2**62, 2**62, (SlidingFunction(AggregateFunction("count", ()), -(2**62), 2**62),)
    )
    times = pa.array([-(2**63), -(2**62), 0, 2**62, 2**63 - 1]).cast(pa.int64()).view(STAMP)
    rows = pa.RecordBatch.from_arrays([pa.array([0] * 5), times, pa.array([0] * 5)], schema=schema)
    made, _ = step(spec, [], Delta.of(rows), pa.schema([*schema, ("count", pa.int64())]))
    by_time = dict(
        zip(
            made.rows.column("at").cast(pa.int64()).to_pylist(),
            made.rows.column("count").to_pylist(),
            strict=True,
        )
    )
    assert [by_time[t] for t in sorted(by_time)] == [2, 3, 3, 3, 2]


def test_a_sum_that_does_not_fit_names_the_row_whose_frame_it_is_over() -> None:
    spec, output = sums(-1, 0)
    rows = rows_of(spec, np.array([1, 2, 9]), np.array([2**63 - 1, 1, 1]))
    with raises(ArithmeticOverflowError, function="sum(x)", key={"k": 0, "at": 2}):
        step(spec, [], Delta.of(rows), output)


def test_a_frame_that_leaves_the_numbers_of_its_column_is_refused_as_spark_does() -> None:
    spec, output = sums(0, 1)
    with raises(ArithmeticOverflowError, reason="frame-bounds", column="at"):
        step(spec, [], Delta.of(rows_of(spec, np.array([2**63 - 1]), np.array([1]))), output)
