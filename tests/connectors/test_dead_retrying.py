"""Rows that a target has refused are tried again by choice, as they are or as they were edited: on a target in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.connectors.dead_letter_store.letter_store import packed
from headwater.connectors.dead_letter_store.sink_letters import chosen, letter_ids
from headwater.core.clock import ManualClock
from headwater.sinks.base.applier import Applier
from headwater.sinks.base.at_least_once import one_tick_at_a_time
from headwater.sinks.base.rejected_rows import RejectedSinkRows
from headwater.sinks.base.sink_verify import check
from headwater.sinks.base.target import Mode, TargetDownError, TargetShape
from headwater.sinks.python.target import PythonTarget, RefusedRowError
from headwater.testing.sinks import MemoryPlace, MemoryTarget, ScriptedFeed
from headwater.views.dead_letter_actions import LetterAction, LetterActions
from tests.sinks.keeping import Kept

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


class Bench:
    """A follower that takes only what is small."""

    def __init__(self, mode: Mode = "upsert") -> None:
        self.shape = TargetShape("s", "view", SCHEMA, ("k",) if mode == "upsert" else (), mode)
        self.place = MemoryPlace()
        self.most = 10
        self.place.refuses = lambda row: f"{row['v']} is too much" if row["v"] >= self.most else None
        self.feed = ScriptedFeed(SCHEMA, ManualClock())
        self.told: list[Any] = []
        self.applier = self.start()

    def start(self) -> Applier:
        letters = self.told.append
        target = MemoryTarget(self.place)
        return Applier(self.shape, target, self.feed, ManualClock(), on_error="divert", letters=letters)

    def tick(self, *values: tuple[int, int]) -> None:
        self.feed.tick([{"k": k, "v": v} for k, v in values])
        while self.applier.step():
            pass

    def letters(self) -> dict[int, str]:
        withheld = self.applier.rejected()
        return dict(zip(withheld.rows.column("k").to_pylist(), letter_ids("s", withheld), strict=True))

    def rows(self) -> list[tuple[int, int]]:
        return sorted((row["k"], row["v"]) for row in (*self.place.rows.values(), *self.place.records))

    def is_right(self) -> bool:
        return check(self.applier, self.feed).ok is True


def edit(letter: str, k: int, v: int) -> LetterAction:
    row = pa.RecordBatch.from_pylist([{"k": k, "v": v}], schema=SCHEMA)
    return LetterAction(letter, "sink", "s", "edit", "anna", edited_arrow=packed(row))


def test_only_those_that_are_chosen_are_tried() -> None:
    bench = Bench()
    bench.tick((1, 1), (2, 20), (3, 30), (4, 40))
    found = bench.letters()
    assert sorted(found) == [2, 3, 4]
    bench.most = 35
    assert bench.applier.retry(chosen("s", LetterActions(), [found[3], found[4]])) == 1
    assert bench.rows() == [(1, 1), (3, 30)]
    assert sorted(bench.letters()) == [2, 4]
    assert bench.is_right()
    assert bench.applier.retry() == 1
    assert bench.rows() == [(1, 1), (2, 20), (3, 30)]
    assert bench.is_right()
    assert (
        len({one.serial for one in bench.told}) == 1
    )  # told of when they were refused first, and known by that


def test_names_are_those_of_rows_whoever_looks() -> None:
    bench = Bench()
    bench.tick((2, 20), (3, 30))
    found = bench.letters()
    assert found[2].startswith("s/")
    assert len(found[2]) == 12
    bench.applier = bench.start()
    assert bench.letters() == found
    bench.tick((2, 21), (3, 30))
    assert bench.letters()[3] == found[3]
    assert bench.letters()[2] != found[2]  # another row
    bench.tick((2, 20), (3, 30))
    assert bench.letters() == found


def test_what_was_dropped_is_left_alone() -> None:
    bench = Bench()
    bench.tick((2, 20), (3, 30))
    found = bench.letters()
    drop = LetterAction(found[2], "sink", "s", "drop", "anna")
    bench.most = 100
    assert bench.applier.retry(chosen("s", LetterActions([drop]), None)) == 1
    assert bench.rows() == [(3, 30)]
    assert bench.is_right()
    asked = LetterAction(found[2], "sink", "s", "replay", "ben")
    assert bench.applier.retry(chosen("s", LetterActions([drop, asked]), None)) == 1


def test_an_edited_row_that_is_refused_too_leaves_the_row_itself() -> None:
    bench = Bench()
    bench.tick((2, 20), (3, 30))
    found = bench.letters()
    actions = LetterActions([edit(found[2], 2, 15), edit(found[3], 3, 3)])
    assert bench.applier.retry(chosen("s", actions, list(found.values()))) == 1
    assert bench.rows() == [(3, 3)]
    withheld = bench.applier.rejected()
    assert withheld.rows.to_pylist() == [{"k": 2, "v": 20}]
    assert withheld.reasons == ("15 is too much",)
    assert bench.letters() == {2: found[2]}


def test_an_edit_of_other_columns_than_the_view_has_now_is_void() -> None:
    bench = Bench()
    bench.tick((2, 20))
    (name,) = bench.letters().values()
    other = pa.RecordBatch.from_pylist([{"k": 2, "w": 1}])
    actions = LetterActions([LetterAction(name, "sink", "s", "edit", "anna", edited_arrow=packed(other))])
    bench.most = 100
    assert bench.applier.retry(chosen("s", actions, None)) == 1
    assert bench.rows() == [(2, 20)]


def test_a_retry_sees_what_another_process_did() -> None:
    bench = Bench()
    bench.tick((1, 1), (2, 20), (3, 30))
    other = bench.start()
    other.rejected()
    bench.most = 25
    assert bench.applier.retry() == 1
    bench.most = 100
    assert other.retry() == 1  # from where the first one left it
    assert bench.rows() == [(1, 1), (2, 20), (3, 30)]
    assert bench.applier.retry() == 0
    assert bench.is_right()


@pytest.mark.parametrize("most", [10, 25, 100])
def test_rows_that_are_alike_are_put_back_as_often_as_they_were_refused(most: int) -> None:
    bench = Bench("append")
    bench.tick((1, 1), (2, 20), (2, 20), (3, 30))
    assert len(bench.applier.rejected()) == 3
    bench.most = most
    taken = {10: 0, 25: 2, 100: 3}[most]
    assert bench.applier.retry() == taken
    assert len(bench.applier.rejected()) == 3 - taken
    assert bench.rows() == sorted([(1, 1), (2, 20), (2, 20), (3, 30)])[: 1 + taken]
    assert bench.is_right()


def test_records_of_a_changelog_that_come_and_go_are_two_letters_and_net_out() -> None:
    bench = Bench("changelog")
    bench.tick((1, 1), (2, 20))
    bench.tick((1, 1))
    withheld = bench.applier.rejected()
    assert withheld.weights.tolist() == [1, -1]
    one, two = letter_ids("s", withheld)
    assert two == f"{one}-gone"
    assert bench.applier.retry(chosen("s", LetterActions(), [one])) == 0
    assert bench.applier.rejected().weights.tolist() == [-1, 1]
    assert bench.applier.retry() == 2  # there is nothing to be told
    assert len(bench.applier.rejected()) == 0
    assert bench.is_right()


def test_what_is_put_back_adds_up_in_a_changelog() -> None:
    rows = pa.RecordBatch.from_pylist([{"k": 1, "v": 50}] * 3, schema=SCHEMA)
    numbers = np.array([-1, 1, 1], dtype=np.int64)
    bench = Bench("changelog")
    bench.tick((1, 1))
    tried = RejectedSinkRows(rows, numbers, np.array([1, 2, 3]), ("a", "b", "c"))
    from headwater.operators.zset.delta import Delta
    from headwater.sinks.base.net_changes import net
    from headwater.sinks.base.target import RefusedRow

    target = MemoryTarget(bench.place)
    target.prepare(bench.shape)
    netted = net([(1, Delta(rows, numbers))], bench.shape, target)
    again = RejectedSinkRows.none(SCHEMA).and_again(
        tried, rows, netted.rows, netted.change, [RefusedRow(0, "no")]
    )
    assert again.weights.sum() == numbers.sum()
    assert set(again.reasons) == {"no"}


@pytest.mark.parametrize("history", ["changed", "broken"])
def test_a_target_that_is_of_no_tick_is_completed_first(history: str) -> None:
    bench = Bench()
    bench.tick((1, 1), (2, 20))
    bench.most = 100
    if history == "broken":
        bench.feed.tick([{"k": k, "v": k} for k in (1, 3, 4)] + [{"k": 2, "v": 20}])
        checkpoint = bench.place.checkpoint
        assert checkpoint is not None
        bench.place.checkpoint = replace(checkpoint, tick=2).under_way()
    else:
        bench.feed.rebuild([{"k": 2, "v": 20}, {"k": 3, "v": 3}])
    assert bench.start().retry() == 1
    while bench.applier.step():
        pass
    assert len(bench.rows()) == (4 if history == "broken" else 2)
    assert bench.is_right()


@pytest.mark.parametrize("mode", ["upsert", "append", "changelog"])
def test_a_row_is_tried_again_under_one_key_at_whichever_tick(mode: Mode) -> None:
    """Its answer was lost, and ticks passed before it was tried again: whoever remembers keys does it once."""
    feed, keeper, given = ScriptedFeed(SCHEMA, ManualClock()), Kept(), []
    most, lost = 10, False

    def send(change: pa.Table, key: str) -> None:
        for at, value in enumerate(change.column("v").to_pylist()):
            if value is not None and value >= most:  # NULL of a row that is gone
                raise RefusedRowError("too much", row=at)
        given.append((key, change.column("v").to_pylist()))
        if lost:
            raise ConnectionError("the answer was lost")

    shape = TargetShape("s", "view", SCHEMA, ("k",) if mode == "upsert" else (), mode)
    told: list[Any] = []
    one_by_one, target = one_tick_at_a_time(feed), PythonTarget(send, keeper)
    applier = Applier(shape, target, one_by_one, ManualClock(), on_error="divert", letters=told.append)
    rows = [{"k": k, "v": v} for k, v in [(1, 1), (2, 20), (3, 30)]]
    twice = rows[1:2] if mode == "append" else []
    feed.tick([*rows, *twice])
    while applier.step():
        pass
    given.clear()
    most, lost = 100, True
    with pytest.raises(TargetDownError):
        applier.retry()
    lost = False
    feed.tick([*rows, *twice, {"k": 4, "v": 4}])
    while applier.step():
        pass
    applier = Applier(
        shape, PythonTarget(send, keeper), one_by_one, ManualClock(), on_error="divert", letters=told.append
    )
    assert applier.retry() == 2 + len(twice)
    again = [one for one in given if one[1] != [4]]
    assert len(again) == 3 + len(twice)
    assert len({key for key, _ in again}) == 2 + len(twice), "one of them was given twice, under one key"
