"""Approximate distinct counts: any cut into parts gives the same registers, and answers are within their bound."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.operators.aggregate.aggregate import AggregateSpec, combine, step, step_combined
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.aggregate.distinct_count import DistinctCount
from headwater.operators.zset.delta import Delta, concat_rows
from headwater.operators.zset.runs import Run

NUMBERS = st.integers(0, 2**32 - 1)


def plain(precision: int) -> DistinctCount:
    """Without Spark's tables of biases, which are read from Spark: answers are then raw, or counted."""
    return DistinctCount(precision, 0.0, (), ())


def registers(hashes: list[int], precision: int) -> dict[int, int]:
    """What each register holds, one value after the other."""
    found: dict[int, int] = {}
    for number in hashes:
        bits = f"{number:064b}"
        rest = bits[precision:] + "1"
        found[int(bits[:precision], 2)] = max(
            found.get(int(bits[:precision], 2), 0), len(rest) - len(rest.lstrip("0")) + 1
        )
    return found


def kept(sketch: DistinctCount, cell: bytes) -> dict[int, int]:
    if len(cell) == sketch.registers:
        return {place: zeros for place, zeros in enumerate(cell) if zeros}
    numbers = np.frombuffer(cell, dtype=np.uint16 if sketch.precision <= 10 else np.uint32)
    return {int(n) >> 6: int(n) & 63 for n in numbers}


def hashed(numbers: np.ndarray) -> np.ndarray:
    words = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return (words ^ (words >> np.uint64(31))).view(np.int64)


def column(hashes: np.ndarray | list[int]) -> pa.Array:
    return pa.array(np.array(hashes, dtype=np.uint64).view(np.int64))


@given(
    st.integers(4, 12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2**64 - 1)), max_size=200),
    st.lists(st.integers(0, 200), max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_registers_are_maxima_however_the_values_were_cut(
    precision: int, rows: list[tuple[int, int]], cuts: list[int]
) -> None:
    sketch = plain(precision)
    parts, owners = [], []
    for start, stop in pairwise(sorted({0, len(rows), *(c for c in cuts if c < len(rows))})):
        part = sorted(rows[start:stop], key=lambda row: row[0])
        groups = np.array([g for g, _ in part], dtype=np.int64)
        parts += sketch.collect(column([h for _, h in part]), np.ones(len(part), dtype=np.int64), groups, 3)
        owners += [0, 1, 2]
    if not parts:
        return
    order = np.argsort(owners, kind="stable")
    (cells,) = sketch.merge([pa.concat_arrays(parts).take(pa.array(order))], np.array(owners)[order], 3)
    for group in range(3):
        own = [h for g, h in rows if g == group]
        assert kept(sketch, cells[group].as_py() or b"") == registers(own, precision)
        assert cells[group].is_valid == bool(own)


@pytest.mark.parametrize("precision", [9, 12])
def test_few_values_are_counted_and_many_are_within_the_error(precision: int) -> None:
    sketch = plain(precision)
    error = 1.04 / math.sqrt(sketch.registers)
    sizes = np.array([0, 1, 2, 10, 100, 2_000, 60_000, 300_000])
    owners = np.repeat(np.arange(len(sizes)), sizes)
    values = hashed(np.arange(len(owners)))
    states = sketch.collect(pa.array(values), np.ones(len(owners), dtype=np.int64), owners, len(sizes))
    answers = np.array(sketch.finish(states))
    assert answers[:3].tolist() == [0, 1, 2]
    # without the correction of biases the error is larger where raw estimates take over from counting
    assert (np.abs(answers - sizes) <= 5 * error * sizes + 3).all()
    assert states[0].nbytes < len(sizes) * (sketch.registers + 8)


def test_a_group_never_takes_more_than_a_byte_for_each_register() -> None:
    sketch = plain(9)
    for size in (1, 255, 256, 257, 5_000):
        (cells,) = sketch.collect(
            pa.array(hashed(np.arange(size))),
            np.ones(size, dtype=np.int64),
            np.zeros(size, dtype=np.int64),
            1,
        )
        assert len(cells[0].as_py()) <= min(512, 2 * size)


SCHEMA = pa.schema([("key", pa.int64()), ("hash", pa.int64()), ("chosen", pa.bool_())])


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 3), st.one_of(st.none(), NUMBERS), st.sampled_from([True, False, None])),
            max_size=30,
        ),
        max_size=5,
    )
)
@settings(max_examples=40, deadline=None)
def test_ticks_combined_or_not_give_what_one_tick_gives(
    ticks: list[list[tuple[int, int | None, bool | None]]],
) -> None:
    functions = (
        AggregateFunction("count"),
        AggregateFunction("sketch", (1,), append_only=True, sketch=plain(5)),
        AggregateFunction("sketch", (1,), 2, append_only=True, sketch=plain(5)),
    )
    spec = AggregateSpec(SCHEMA, 1, functions)

    def delta(rows: list[tuple[int, int | None, bool | None]]) -> Delta:
        numbers = [None if n is None else int(hashed(np.array([n]))[0]) for _, n, _ in rows]
        columns = [pa.array([k for k, _, _ in rows], pa.int64()), pa.array(numbers, pa.int64())]
        chosen = pa.array([c for _, _, c in rows], pa.bool_())
        return Delta.of(pa.RecordBatch.from_arrays([*columns, chosen], schema=SCHEMA))

    def shown(steps: list[Delta]) -> dict[int, tuple[int, ...]]:
        rows: dict[int, tuple[int, ...]] = {}
        for change in steps:
            for row, weight in zip(change.rows.to_pylist(), change.weights, strict=True):
                key, *values = row.values()
                if weight > 0:
                    rows[key] = tuple(values)
        return rows

    runs: list[Run] = []
    combined_runs: list[Run] = []
    one_by_one, combined = [], []
    for rows in ticks:
        done = step(spec, runs, (), delta(rows))
        runs.append(done.state)
        one_by_one.append(done.output)
        halves = [combine(spec, delta(rows[: len(rows) // 2])), combine(spec, delta(rows[len(rows) // 2 :]))]
        other = step_combined(spec, combined_runs, concat_rows(halves, spec.state))
        combined_runs.append(other.state)
        combined.append(other.output)
    at_once = step(spec, (), (), delta([row for rows in ticks for row in rows])).output
    assert shown(one_by_one) == shown(combined) == shown([at_once])


def answered(sketch: DistinctCount, found: dict[int, int]) -> int:
    """The answer over registers by the definition: the mean bias of the six tabulated estimates that are nearest."""
    count = sketch.registers
    raw = 0.673 * count * count / (count - len(found) + sum(2.0**-zeros for zeros in found.values()))
    nearest = sorted(range(len(sketch.estimates)), key=lambda at: (raw - sketch.estimates[at]) ** 2)[:6]
    mean = sum(sketch.biases[at] for at in nearest) / len(nearest)
    corrected = raw - mean if raw < 5 * count else raw
    if unseen := count - len(found):
        counted = count * math.log(count / unseen)
        if counted <= sketch.threshold or raw <= 2.5 * count:
            return math.floor(counted + 0.5)
    return math.floor(corrected + 0.5)


@given(
    st.lists(st.integers(0, 2**64 - 1), max_size=400), st.lists(st.floats(-9, 9), min_size=30, max_size=30)
)
@settings(max_examples=200)
def test_answers_are_corrected_by_the_bias_of_the_nearest_estimates(
    hashes: list[int], biases: list[float]
) -> None:
    estimates = tuple(11.0 + 2.37 * at + (at % 7) / 10 for at in range(30))
    sketch = DistinctCount(4, 10.0, estimates, tuple(biases))
    ones, owners = np.ones(len(hashes), dtype=np.int64), np.zeros(len(hashes), dtype=np.int64)
    states = sketch.collect(column(hashes), ones, owners, 1)
    answer = sketch.finish(states)[0].as_py()
    # a mean of floats in another order may round to the neighbour
    assert abs(answer - answered(sketch, registers(hashes, 4))) <= (1 if len(set(hashes)) > 10 else 0)


def test_registers_of_many_groups_are_merged_whether_they_are_few_or_all() -> None:
    sketch, chance = plain(6), np.random.default_rng(5)
    sizes = [0, 3, 500, 1, 700]
    parts = [[hashed(chance.integers(0, 2**40, size)) for size in sizes] for _ in range(3)]
    states = []
    for part in parts:
        owners = np.repeat(np.arange(len(sizes)), sizes)
        states.append(
            sketch.collect(
                column(np.concatenate(part)), np.ones(len(owners), dtype=np.int64), owners, len(sizes)
            )
        )
    cells = pa.concat_arrays([state[0] for state in states])
    owners = np.tile(np.arange(len(sizes)), len(parts))
    order = np.argsort(owners, kind="stable")
    merged = sketch.merge([cells.take(pa.array(order))], owners[order], len(sizes))
    for number, cell in enumerate(merged[0].to_pylist()):
        every = [int(n) for part in parts for n in part[number].view(np.uint64)]
        assert kept(sketch, cell or b"") == registers(every, 6)


def test_a_sketch_says_its_bound_and_refuses_other_precisions() -> None:
    assert "13 %" in plain(6).bound
    assert repr(plain(6)) == "DistinctCount(precision=6)"
    for precision in (3, 25):
        with pytest.raises(ValueError):
            plain(precision)
