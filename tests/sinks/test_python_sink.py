"""PYTHON: a user's function that is given changes with their keys."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from headwater.sinks.base.target import CheckpointConflictError, SinkError, Target, TargetDownError
from headwater.sinks.python.target import PythonTarget, RefusedRowError
from tests.raising import raises
from tests.sinks.keeping import AtLeastOnceContract, Kept, Receiver
from tests.sinks.samples import change_at, checkpoint_of, contents_at, follow, records_at, shape, upsert


class TestPythonTarget(AtLeastOnceContract):
    @pytest.fixture(autouse=True)
    def _place(self) -> None:
        self.keeper, self.receiver = Kept(), Receiver(self.key)
        self.down = self.breaks = False
        self.taken_again: set[int] = set()

    def make_target(self) -> Target:
        return PythonTarget(self.take, self.keeper, rows=3)

    def take(self, change: pa.Table, key: str) -> None:
        if self.down:
            raise ConnectionError("nobody there")
        rows = change.to_pylist()
        for number, row in enumerate(rows):
            if row["name"] == "refused" and row["id"] not in self.taken_again:
                raise RefusedRowError("not this one", row=number)
        given = [(row.pop("_op"), row) for row in rows]
        gone, come = ([row for said, row in given if said == op] for op in ("delete", "upsert"))
        snapshot = change.schema.metadata[b"snapshot"] == b"true"
        self.receiver.take(key, gone, come, first_of_snapshot=snapshot)
        if self.breaks:
            raise ConnectionError("broken off")

    @contextmanager
    def break_within(self) -> Iterator[None]:
        self.breaks = True
        yield
        self.breaks = False

    def take_down(self) -> None:
        self.down = True

    def bring_up(self) -> None:
        self.down = False

    def lose_stand(self) -> None:
        self.keeper.text = None

    def refused_row(self, at: int) -> dict[str, Any]:
        return {"region": "bad", "id": at, "name": "refused", "score": 1.0}

    def take_again(self, at: int) -> None:
        self.taken_again.add(at)


def test_a_change_is_a_table_with_deletes_before_upserts() -> None:
    given: list[tuple[pa.Table, str]] = []
    target = PythonTarget(lambda change, key: given.append((change, key)), Kept())
    target.prepare(shape())
    one, two = contents_at(1).slice(0, 1), contents_at(1).slice(1, 1)
    target.apply(upsert(two, ("id",), one), None, checkpoint_of(3, two))
    ((change, key),) = given
    assert change.column_names == ["id", "word", "n", "_op"]
    assert change.to_pylist() == [
        {"id": one["id"][0].as_py(), "word": None, "n": None, "_op": "delete"},
        {**two.to_pylist()[0], "_op": "upsert"},
    ]
    assert key.startswith("s:h:3:0:")


def test_a_changelog_has_weights_and_ticks() -> None:
    given: list[pa.Table] = []
    target = PythonTarget(lambda change, _: given.append(change), Kept())
    target.prepare(shape(mode="changelog"))
    target.apply(records_at(1), None, checkpoint_of(1, contents_at(1)))
    assert given[0].column_names == ["id", "word", "n", "_weight", "_tick"]


def test_large_changes_come_in_pieces_and_only_those_that_failed_come_again() -> None:
    keys: list[str] = []
    fails = {4}

    def take(change: pa.Table, key: str) -> None:
        keys.append(key)
        assert change.num_rows <= 5
        if len(keys) in fails:
            raise OSError("not now")

    kept = Kept()
    target = PythonTarget(take, kept, rows=5)
    target.prepare(shape())
    rows = contents_at(9)
    with raises(TargetDownError, function=take.__qualname__) as caught:
        target.apply(upsert(rows, ("id",)), None, checkpoint_of(9, rows))
    assert isinstance(caught.value.__cause__, OSError)
    assert kept.text is None
    target.apply(upsert(rows, ("id",)), None, checkpoint_of(9, rows))
    assert len(set(keys)) == -(-rows.num_rows // 5)
    assert keys.count(keys[3]) == 2
    assert len(keys) == len(set(keys)) + 1
    assert target.checkpoint() == checkpoint_of(9, rows)


def test_the_same_change_has_the_same_keys_and_another_has_others() -> None:
    def keys(tick: int) -> list[str]:
        found: list[str] = []
        target = PythonTarget(lambda _, key: found.append(key), Kept(), rows=4)
        target.prepare(shape())
        target.apply(change_at(tick), None, checkpoint_of(tick, contents_at(tick)))
        return found

    assert keys(3) == keys(3)
    assert not set(keys(3)) & set(keys(4))


def test_a_target_that_was_overtaken_says_so() -> None:
    kept = Kept()
    target = PythonTarget(lambda *_: None, kept)
    target.prepare(shape())
    follow(target, range(1, 3))
    with pytest.raises(CheckpointConflictError):
        target.apply(change_at(3), None, checkpoint_of(3, contents_at(3)))


def test_a_row_that_is_gone_cannot_be_refused() -> None:
    def take(change: pa.Table, key: str) -> None:
        raise RefusedRowError("no", row=0)

    target = PythonTarget(take, Kept())
    target.prepare(shape())
    nothing = contents_at(1).slice(0, 0)
    with raises(SinkError, function=take.__qualname__, row=0):
        target.apply(upsert(nothing, ("id",), contents_at(1)), None, checkpoint_of(1, nothing))


def test_the_refusal_of_a_row_can_be_sent_between_processes() -> None:
    error = pickle.loads(pickle.dumps(RefusedRowError("too long", row=3)))
    assert (error.message, error.row) == ("too long", 3)
