"""Session windows, step by step, are those that all rows would make at once."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.core.errors import ArithmeticOverflowError, EvaluationError
from headwater.operators.aggregate import aggregate
from headwater.operators.aggregate.aggregate import AggregateSpec
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.window import session_aggregate, sessions
from headwater.operators.window.session_aggregate import SessionAggregateSpec
from headwater.operators.window.sessions import SessionSpec
from headwater.operators.zset.delta import Delta, concat
from headwater.operators.zset.ordered_runs import merge_ordered
from headwater.operators.zset.runs import Run
from tests.operators.zsets import (
    KEYS,
    Row,
    batch,
    counted,
    delta,
    hashing,
    identity,
    is_consolidated,
    key_identity,
    schema_of,
    tuples,
    values,
)
from tests.raising import raises

__all__ = ["hashing"]

shared_fixture = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

TIME = pa.timestamp("us", tz="UTC")
INTERVAL = pa.struct([("start", TIME), ("end", TIME)])
Interval = dict[str, datetime]
Changes = list[tuple[Row, int]]


def interval(start: int, length: int) -> Interval:
    """In minutes."""
    first = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=start)
    return {"start": first, "end": first + timedelta(minutes=length)}


def intervals() -> st.SearchStrategy[Interval]:
    """Few times, so that rows meet, touch and start together; mostly one gap, as in most queries."""
    return st.builds(interval, st.integers(0, 30), st.one_of(st.just(3), st.integers(0, 9)))


def rows_of(kinds: list[pa.DataType], place: int) -> st.SearchStrategy[Row]:
    return st.tuples(*[intervals() if i == place else values(kind) for i, kind in enumerate(kinds)])


def labelled(rows: Iterable[tuple[Row, int]], key: tuple[int, ...], place: int) -> Changes:
    """The rows with the interval of their session, by the definition."""
    groups: dict[Hashable, Changes] = defaultdict(list)
    for row, weight in rows:
        groups[key_identity(tuple(row[i] for i in key))].append((row, weight))
    made: Changes = []
    for group in groups.values():
        session: Interval | None = None
        for row, weight in sorted(group, key=lambda pair: pair[0][place]["start"]):
            own = row[place]
            if session is None or own["start"] > session["end"]:
                session = dict(own)
            session["end"] = max(session["end"], own["end"])
            made.append(((*row[:place], session, *row[place + 1 :]), weight))
    return made


class Table:
    """The rows that are there; what would take away others is left out of a change."""

    def __init__(self) -> None:
        self.rows: dict[Hashable, tuple[Row, int]] = {}

    def apply(self, changes: Changes) -> Changes:
        kept: Changes = []
        for row, weight in changes:
            name = identity(row)
            total = self.rows.get(name, (row, 0))[1] + weight
            if total >= 0:
                self.rows[name] = (row, total)
                kept.append((row, weight))
        return kept

    @property
    def present(self) -> Changes:
        return [(row, weight) for row, weight in self.rows.values() if weight]


def merged(runs: list[Run], key: Any, start: int, merge: bool) -> list[Run]:
    return [merge_ordered(runs, key, sessions.by_start(start))] if merge and runs else runs


@st.composite
def histories(draw: st.DrawFn) -> Any:
    kinds = [draw(st.sampled_from(KEYS)), pa.int8(), pa.string()]
    place = draw(st.integers(0, 3))
    kinds.insert(place, INTERVAL)
    others = [i for i in range(4) if i != place]
    key = tuple(draw(st.sampled_from([(), (others[0],), (others[1],), (others[1], others[0])])))
    pool = draw(st.lists(rows_of(kinds, place), min_size=1, max_size=12))
    change = st.tuples(st.sampled_from(pool), st.sampled_from([1, 1, 1, 2, -1, -1, -2, 0]))
    steps = draw(st.lists(st.lists(change, max_size=8), min_size=1, max_size=5))
    return kinds, key, place, steps, [draw(st.booleans()) for _ in steps]


@shared_fixture
@given(histories())
def test_rows_have_the_session_that_all_rows_would_give_them(hashing: str, history: Any) -> None:
    kinds, key, place, steps, merges = history
    spec = SessionSpec(schema_of(kinds), key, place)
    table = Table()
    rows: list[Run] = []
    kept: list[Run] = []
    total: Counter[Hashable] = Counter()
    for changes, merge in zip(steps, merges, strict=True):
        done = sessions.step(spec, rows, kept, delta(table.apply(changes), kinds))
        assert done.output.rows.schema.types == kinds
        for row, weight in counted(done.output).items():
            total[row] += weight
        rows = merged([*rows, done.rows], spec.rows_key, spec.rows_start, merge)
        kept = merged([*kept, done.sessions], spec.sessions_key, spec.sessions_start, merge)

        expected = labelled(table.present, key, place)
        wanted: Counter[Hashable] = Counter()
        for made, weight in expected:
            wanted[identity(made)] += weight
        assert {row: weight for row, weight in total.items() if weight} == dict(wanted)
        extents = {(key_identity(tuple(row[i] for i in key)), *row[place].values()) for row, _ in expected}
        held = counted(merge_ordered(kept, spec.sessions_key, sessions.by_start(spec.sessions_start)))
        assert len(held) == len(extents)
        assert set(held.values()) <= {1}
        arranged = merge_ordered(rows, spec.rows_key, sessions.by_start(spec.rows_start))
        until = Counter(row[place]["end"] for row, weight in expected for _ in range(weight))
        times = arranged.rows.column("until").to_pylist()
        assert _added(zip(times, arranged.weights.tolist(), strict=True)) == until


def _added(pairs: Iterable[tuple[Any, int]]) -> dict[Any, int]:
    found: Counter[Any] = Counter()
    for value, weight in pairs:
        found[value] += weight
    return found


NUMBERS = [pa.int64(), pa.int8(), pa.decimal128(10, 2), pa.float64(), pa.string(), pa.bool_()]


def functions(first: int) -> list[AggregateFunction]:
    """Of arguments from a column on; none takes anything back."""
    big, small, money, real, text, flag = range(first, first + 6)
    kept = {"append_only": True}
    return [
        AggregateFunction("count"),
        AggregateFunction("count", (text,)),
        AggregateFunction("sum", (small,)),
        AggregateFunction("sum", (small,), flag),
        AggregateFunction("avg", (money,)),
        AggregateFunction("sum", (real,)),
        AggregateFunction("min", (big,), **kept),
        AggregateFunction("max", (text,), flag, **kept),
        AggregateFunction("max", (real,), **kept),
        AggregateFunction("min_by", (text, small), **kept),
        AggregateFunction("max_by", (big, money), flag, **kept),
    ]


@st.composite
def aggregations(draw: st.DrawFn) -> Any:
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=2))
    place = draw(st.integers(0, len(keys)))
    keys.insert(place, INTERVAL)
    kinds = [*keys, *NUMBERS]
    money = st.sampled_from([None, Decimal("0.01"), Decimal("-7.25"), Decimal("12345678.90")])
    real = st.sampled_from([None, 0.5, -0.25, 3.0])  # their sums are exact in any order
    special = {place: intervals(), len(keys) + 2: money, len(keys) + 3: real}
    row = st.tuples(*[special[i] if i in special else values(kind) for i, kind in enumerate(kinds)])
    chosen = draw(st.lists(st.sampled_from(functions(len(keys))), max_size=4, unique=True))
    steps = draw(st.lists(st.lists(st.tuples(row, st.integers(0, 2)), max_size=8), min_size=1, max_size=5))
    return kinds, len(keys), place, chosen, steps, [draw(st.booleans()) for _ in steps]


@shared_fixture
@given(aggregations())
def test_sessions_that_keep_no_rows_aggregate_as_rows_do(hashing: str, case: Any) -> None:
    kinds, width, place, chosen, steps, merges = case
    spec = SessionAggregateSpec(AggregateSpec(schema_of(kinds), width, tuple(chosen)), place)
    key = tuple(range(len(spec.key)))
    state: list[Run] = []
    every: Changes = []
    total: list[Delta] = []
    for changes, merge in zip(steps, merges, strict=True):
        output, run = session_aggregate.step(spec, state, delta(changes, kinds))
        assert is_consolidated(output)
        assert output.rows.schema.equals(spec.aggregate.output)
        assert run.rows.schema.equals(spec.state)
        if len(output):
            assert output.hashes is not None
            assert (np.diff(output.hashes.astype(object)) >= 0).all()
        total.append(output)
        state = merged([*state, run], key, spec.start, merge)
        every += [change for change in changes if change[1]]
        made = delta(labelled(every, spec.key, place), kinds)
        anew = aggregate.step(spec.aggregate, (), (), made).output
        assert _by_key(concat(total, spec.aggregate.output), width) == _by_key(anew, width)
        assert _by_key(session_aggregate.shown(spec, state), width) == _by_key(anew, width)


def _by_key(change: Delta, width: int) -> Counter[Hashable]:
    """Rows by what they show; a key may be shown by any of those that are equal to it."""
    found: Counter[Hashable] = Counter()
    for row, weight in zip(tuples(change.rows), change.weights.tolist(), strict=True):
        found[(key_identity(row[:width]), identity(row[width:]))] += weight
    return Counter({row: weight for row, weight in found.items() if weight})


KINDS = [pa.int64(), INTERVAL, pa.string()]
SPEC = SessionSpec(schema_of(KINDS), (0,), 1)


def stepped(*changes: Changes) -> sessions.SessionStep:
    """The last of some steps."""
    rows: list[Run] = []
    kept: list[Run] = []
    for change in changes:
        done = sessions.step(SPEC, rows, kept, delta(change, KINDS))
        rows.append(done.rows)
        kept.append(done.sessions)
    return done


LONG = [((1, interval(start, 5), "x"), 1) for start in range(0, 60, 2)]


def test_a_row_inside_a_session_touches_itself_alone() -> None:
    done = stepped(LONG, [((1, interval(31, 5), "late"), 1)])
    assert counted(done.output) == {identity((1, interval(0, 63), "late")): 1}
    assert not len(done.sessions)


def test_a_row_that_goes_and_is_not_missed_touches_itself_alone() -> None:
    done = stepped(LONG, [((1, interval(30, 5), "x"), -1)])
    assert counted(done.output) == {identity((1, interval(0, 63), "x")): -1}
    assert not len(done.sessions)


def test_a_row_that_is_there_twice_can_go_once() -> None:
    row = (1, interval(0, 5), "x")
    done = stepped([(row, 2)], [(row, -1)])
    assert counted(done.output) == {identity(row): -1}


def test_a_late_row_joins_sessions_and_its_going_splits_them() -> None:
    first, last, bridge = ((1, interval(start, 5), "x") for start in (0, 10, 5))
    done = stepped([(first, 1), (last, 1)], [(bridge, 1)])
    whole = (1, interval(0, 15), "x")
    assert counted(done.output) == {identity(first): -1, identity(last): -1, identity(whole): 3}
    done = stepped([(first, 1), (last, 1)], [(bridge, 1)], [(bridge, -1)])
    assert counted(done.output) == {identity(first): 1, identity(last): 1, identity(whole): -3}


def test_a_row_exactly_at_the_end_belongs_to_the_session_and_one_after_it_does_not() -> None:
    ends = interval(0, 5)["end"]
    after = {"start": ends + timedelta(microseconds=1), "end": ends + timedelta(minutes=5)}
    done = stepped([((1, interval(0, 5), "a"), 1)], [((2, interval(0, 5), "b"), 1), ((2, after, "b"), 1)])
    assert len(counted(done.output)) == 2
    done = stepped([((1, interval(0, 5), "a"), 1)], [((1, interval(5, 5), "a"), 1)])
    assert identity((1, interval(0, 10), "a")) in counted(done.output)


def test_sessions_of_other_keys_and_others_of_the_key_are_left_alone() -> None:
    many = [((key, interval(start, 5), "x"), 1) for key in range(5) for start in range(0, 100, 10)]
    done = stepped(many, [((3, interval(53, 5), "x"), 1)])
    assert len(counted(done.output)) == 2
    assert len(done.sessions) == 2


@pytest.mark.parametrize("own", [None, {"start": None, "end": None}, interval(0, -5)])
def test_an_interval_that_is_none_is_refused(own: Interval | None) -> None:
    with raises(EvaluationError, reason="session-interval"):
        stepped([((1, own, "x"), 1)])


def test_retractions_where_no_rows_are_kept_are_refused() -> None:
    spec = SessionAggregateSpec(AggregateSpec(schema_of(KINDS), 2, (AggregateFunction("count"),)), 1)
    with raises(EvaluationError, reason="retraction"):
        session_aggregate.step(spec, [], delta([((1, interval(0, 5), "x"), -1)], KINDS))


def test_a_sum_that_overflows_names_its_session() -> None:
    kinds = [pa.int64(), INTERVAL, pa.int64()]
    spec = SessionAggregateSpec(AggregateSpec(schema_of(kinds), 2, (AggregateFunction("sum", (2,)),)), 1)
    big = [((7, interval(start, 5), 2**62), 1) for start in (0, 1)]
    with pytest.raises(ArithmeticOverflowError) as failed:
        session_aggregate.step(spec, [], delta(big, kinds))
    assert failed.value.facts["key"] == {"c0": 7, "c1": interval(0, 6)}


def test_nothing_changes_without_rows() -> None:
    spec = SessionAggregateSpec(AggregateSpec(schema_of(KINDS), 2, (AggregateFunction("count"),)), 1)
    output, run = session_aggregate.step(spec, [], Delta.of(batch([], KINDS)))
    assert len(output) == len(run) == 0
    assert len(stepped([]).output) == 0
