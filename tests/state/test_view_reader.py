"""Views are read from committed ticks: contents, keys, changes, and why not."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.clock import ManualClock
from headwater.core.errors import CorruptionError, TickNotKeptError, ViewUnavailableError
from headwater.core.storage import Storage
from headwater.state.manifest import ViewState, encode_schema
from headwater.state.store import StateStore
from headwater.state.view_reader import view_changes, view_contents, view_lookup
from headwater.testing import FaultyStorage
from tests.raising import raises
from tests.state.ticks import CONTENTS, SCHEMA, VIEW, Engine, run_of


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(Storage(tmp_path))


def keys(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64())], names=["k"])


def test_a_row_is_there_as_often_as_its_weights_say(engine: Engine) -> None:
    engine.tick({1: 1, 2: 3, 3: 1})
    latest = engine.tick({2: -1, 3: -1, 4: 1})
    table = view_contents(engine.store, latest, VIEW)
    assert table.schema == SCHEMA
    assert sorted(table.column("n").to_pylist()) == [1, 2, 2, 4]
    earlier = view_contents(engine.store, engine.store.manifest(1), VIEW)
    assert sorted(earlier.column("n").to_pylist()) == [1, 2, 2, 2, 3]


def test_columns_have_the_names_of_the_view(engine: Engine) -> None:
    renamed = pa.schema([("a", pa.int64()), ("b", pa.string())])
    latest = engine.tick({1: 1})
    view = dataclasses.replace(latest.views[VIEW], schema=encode_schema(renamed))
    latest = dataclasses.replace(latest, views={VIEW: view})
    assert view_contents(engine.store, latest, VIEW).schema == renamed
    assert view_lookup(engine.store, latest, VIEW, [0], keys(1)).schema == renamed


def test_a_view_that_became_empty_has_its_columns(engine: Engine) -> None:
    engine.tick({1: 1})
    latest = engine.tick({1: -1})
    for table in (
        view_contents(engine.store, latest, VIEW),
        view_lookup(engine.store, latest, VIEW, [0], keys(1, 9)),
    ):
        assert (table.num_rows, table.schema) == (0, SCHEMA)
    none = dataclasses.replace(latest, arrangements={CONTENTS: ()})
    for table in (
        view_contents(engine.store, none, VIEW),
        view_lookup(engine.store, none, VIEW, [0], keys(1)),
    ):
        assert (table.num_rows, table.schema) == (0, SCHEMA)


def test_rows_are_found_by_key(engine: Engine) -> None:
    engine.tick(dict.fromkeys(range(100), 1))
    latest = engine.tick({7: -1, 8: 2, 200: 1})
    table = view_lookup(engine.store, latest, VIEW, [0], keys(7, 8, 200, 300))
    assert table.sort_by("n").to_pylist() == [
        {"n": 8, "name": "row 8"},
        {"n": 8, "name": "row 8"},
        {"n": 8, "name": "row 8"},
        {"n": 200, "name": "row 200"},
    ]


def test_a_lookup_opens_only_runs_that_may_have_the_key(engine: Engine) -> None:
    one, two = (n for n in (1, 2))
    engine.tick({one: 1})
    latest = engine.tick({two: 1})
    (first, _) = latest.arrangements[CONTENTS]
    engine.storage.remove(f"state/runs/{first.file}")
    reader = StateStore(engine.storage, ManualClock())
    assert view_lookup(reader, latest, VIEW, [0], keys(two)).num_rows == 1


def test_changes_are_those_after_a_tick(engine: Engine) -> None:
    engine.tick({1: 1})
    engine.tick({2: 2})
    engine.tick({}, views={VIEW: ViewState(VIEW, 1, "live", CONTENTS, encode_schema(SCHEMA))})
    engine.tick({1: -1, 3: 1})
    table = view_changes(engine.store, VIEW, 1)
    assert table.schema.names == ["n", "name", "_weight", "_tick"]
    assert sorted(zip(*(table.column(c).to_pylist() for c in ("_tick", "n", "_weight")), strict=True)) == [
        (2, 2, 2),
        (4, 1, -1),
        (4, 3, 1),
    ]
    assert view_changes(engine.store, VIEW, 0).num_rows == 4
    assert view_changes(engine.store, VIEW, 4).num_rows == 0


@given(st.lists(st.dictionaries(st.integers(0, 5), st.integers(1, 3), max_size=4), min_size=1, max_size=4))
def test_contents_are_the_sum_of_the_changes(
    tmp_path_factory: pytest.TempPathFactory, ticks: list[dict[int, int]]
) -> None:
    engine = Engine(FaultyStorage(tmp_path_factory.mktemp("ws")))
    held: Counter[int] = Counter()
    for change in ticks:
        weights = {n: -held[n] if held[n] and w == 3 else w for n, w in change.items()}
        latest = engine.tick(weights)
        held.update(weights)
        rows = view_contents(engine.store, latest, VIEW).column("n").to_pylist()
        assert Counter(rows) == +held
    table = view_changes(engine.store, VIEW, 0)
    summed: Counter[int] = Counter()
    for n, weight in zip(table.column("n").to_pylist(), table.column("_weight").to_pylist(), strict=True):
        summed[n] += weight
    assert +summed == +held


def test_changes_that_are_no_longer_kept_are_refused_with_the_first_that_is(engine: Engine) -> None:
    engine.ticks(6)
    engine.store.collect(3, protect=[2])
    assert engine.store.ticks() == [2, 4, 5, 6]
    with raises(TickNotKeptError, tick=2, first_available=4):
        view_changes(engine.store, VIEW, 1)
    assert view_changes(engine.store, VIEW, 3).num_rows == 3


def test_changes_of_another_history_are_refused(engine: Engine) -> None:
    engine.ticks(2)
    for n in (3, 4):
        manifest = engine.prepare({n: 1})
        rebuilt = dataclasses.replace(manifest.views[VIEW], incarnation=2)
        engine.store.commit(dataclasses.replace(manifest, views={VIEW: rebuilt}))
    with raises(TickNotKeptError, tick=0, rebuilt_at=3):
        view_changes(engine.store, VIEW, 0)
    with raises(TickNotKeptError, tick=2, rebuilt_at=3):
        view_changes(engine.store, VIEW, 2)  # what a follower has of tick 2 is of the other history
    assert view_changes(engine.store, VIEW, 3).num_rows == 1


def test_a_view_that_is_no_part_of_the_tick_says_why(engine: Engine) -> None:
    def state(**facts: Any) -> dict[str, ViewState]:
        return {VIEW: ViewState(VIEW, 1, contents=CONTENTS, schema=encode_schema(SCHEMA), **facts)}

    engine.tick({1: 1})
    stopped = engine.tick({}, views=state(status="stopped", reason="division by zero", last_tick=1))
    with raises(ViewUnavailableError, view=VIEW, status="stopped", tick=2, last_tick=1) as caught:
        view_contents(engine.store, stopped, VIEW)
    assert caught.value.detail == "division by zero"
    assert "as_of=1" in str(caught.value.hint)
    young = engine.tick({}, views=state(status="backfilling"))
    with raises(ViewUnavailableError, view=VIEW, status="backfilling", last_tick=None):
        view_contents(engine.store, young, VIEW)
    with raises(ViewUnavailableError, view="other", status="missing", tick=3):
        view_changes(engine.store, "other", 2)


def test_without_a_tick_there_is_nothing_to_follow(engine: Engine) -> None:
    with raises(TickNotKeptError, first_available=None, last_available=None):
        view_changes(engine.store, VIEW, 0)


def test_a_row_that_is_there_less_than_never_is_damage(engine: Engine) -> None:
    latest = engine.tick({1: -1})
    with raises(CorruptionError, view=VIEW, reason="negative-count"):
        view_contents(engine.store, latest, VIEW)


def test_a_tick_that_goes_while_it_is_read_is_told(engine: Engine) -> None:
    slow = engine.tick({1: 1})
    writer = engine.store.begin(2, 1)
    ref = writer.add(run_of({1: 1}), ticks=(1, 2))
    engine.store.commit(dataclasses.replace(slow, tick=2, arrangements={CONTENTS: (ref,)}, views={}))
    engine.store.collect(1)
    with raises(TickNotKeptError, tick=1, first_available=2):
        view_contents(StateStore(engine.storage, ManualClock()), slow, VIEW)
