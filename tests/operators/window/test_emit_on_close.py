"""Rows that wait until they are final: what is shown is at every step what a look at all rows finds to be final."""

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.operators.window.emit_on_close import EARLIEST, close, waiting_key, waiting_order
from headwater.operators.zset.ordered_runs import merge_ordered
from headwater.operators.zset.runs import Run
from tests.operators.zsets import Row, count, counted, delta, hashing, identity, is_consolidated, schema_of

__all__ = ["hashing"]

KINDS = [pa.string(), pa.int64(), pa.int64(), pa.int32()]
"""Two columns that are shown, then when a row is final, and by which watermark."""
SHOWN = schema_of(KINDS[:2])
WIDTH = len(KINDS)
LATEST = 2**63 - 1
DOMAINS = 2

times = st.none() | st.integers(0, 9) | st.sampled_from([EARLIEST + 1, LATEST])
rows = st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 1), times, st.integers(0, DOMAINS - 1))
levels = st.sampled_from([EARLIEST, 0, 3, 5, 9, LATEST])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[tuple[Row, int]], list[int], bool]]:
    """Changes that never take away what is not there, watermarks that never fall, and when to merge."""
    held: Counter[Row] = Counter()
    reached = [EARLIEST] * DOMAINS
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        changes = []
        for row, weight in draw(st.lists(st.tuples(rows, st.integers(-2, 2)), max_size=8)):
            weight = max(weight, -held[row])
            held[row] += weight
            changes.append((row, weight))
        reached = [max(now, draw(levels)) for now in reached]
        steps.append((changes, list(reached), draw(st.booleans())))
    return steps


def is_final(row: Row, reached: list[int]) -> bool:
    return row[2] is None or row[2] <= reached[row[3]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(histories())
def test_what_is_shown_is_what_is_final_and_the_rest_waits(hashing: str, history: Any) -> None:
    runs: list[Run] = []
    came: list[tuple[Row, int]] = []
    shown: Counter[Any] = Counter()
    for changes, reached, merges in history:
        came += changes
        change, run = close(runs, delta(changes, KINDS), reached, SHOWN)
        assert is_consolidated(change)
        assert change.rows.schema.equals(SHOWN)
        shown.update(counted(change))
        assert not -shown
        assert +shown == count([(row[:2], weight) for row, weight in came if is_final(row, reached)])
        runs.append(run)
        if merges:
            runs = [merge_ordered(runs, waiting_key(WIDTH), waiting_order(WIDTH))]
        waits: Counter[Any] = Counter()
        for each in runs:
            waits.update(counted(each))
        expected = count([(row, weight) for row, weight in came if not is_final(row, reached)])
        assert {row: weight for row, weight in waits.items() if weight} == expected


def test_a_row_that_comes_and_goes_while_it_waits_is_never_shown() -> None:
    row, other = ("a", 1, 5, 0), ("b", 1, 5, 0)
    _, first = close([], delta([(row, 1), (other, 1)], KINDS), [4, EARLIEST], SHOWN)
    nothing, second = close([first], delta([(row, -1)], KINDS), [4, EARLIEST], SHOWN)
    change, third = close([first, second], delta([], KINDS), [5, EARLIEST], SHOWN)
    assert not len(nothing)
    assert counted(change) == {identity(("b", 1)): 1}
    assert not len(close([first, second, third], delta([], KINDS), [6, 6], SHOWN)[0])


def test_a_row_that_is_replaced_in_the_step_that_closes_it_is_shown_as_it_is_then() -> None:
    _, waits = close([], delta([(("a", 1, 5, 1), 1)], KINDS), [EARLIEST, 4], SHOWN)
    change, run = close([waits], delta([(("a", 1, 5, 1), -1), (("a", 2, 5, 1), 1)], KINDS), [4, 5], SHOWN)
    assert counted(change) == {identity(("a", 2)): 1}
    assert not len(merge_ordered([waits, run], waiting_key(WIDTH), waiting_order(WIDTH)))


def test_before_there_is_a_watermark_only_what_is_final_at_once_is_shown() -> None:
    change, run = close(
        [],
        delta([(("now", 1, None, 0), 1), (("early", 1, EARLIEST + 1, 0), 1)], KINDS),
        [EARLIEST, LATEST],
        SHOWN,
    )
    assert counted(change) == {identity(("now", 1)): 1}
    assert len(run) == 1
