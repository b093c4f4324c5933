"""The loop of a sink, over the simplest target; and that target against the contract."""

import copy
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headwater.sinks.base.target import Target, TargetDownError
from headwater.testing.sinks import AppendContract, MemoryPlace, MemoryTarget, SinkContract
from headwater.testing.sinks.sink_bench import row
from tests.sinks.changelogs import ChangelogContract


class TestMemoryTarget(SinkContract):
    def setup_method(self) -> None:
        super().setup_method()
        self.place = MemoryPlace(refuses=lambda row: "too bad" if row["name"] == "bad" else None)

    def make_target(self) -> Target:
        return MemoryTarget(self.place)

    def test_a_stand_of_an_earlier_version_is_taken_as_it_is_and_gets_an_id(self) -> None:
        self.feed.tick([row(1)])
        self.run()
        assert self.place.checkpoint is not None
        assert self.place.checkpoint.id
        self.place.checkpoint = dataclasses.replace(self.place.checkpoint, id="")
        applier = self.start()
        self.feed.tick([row(1, "b")])
        self.catch_up(applier)
        assert applier.status().levelled == 0
        assert self.place.checkpoint.id == self.feed.latest().id  # type: ignore[union-attr]
        self.assert_holds()

    @contextmanager
    def break_within(self) -> Iterator[None]:
        class Breaking(dict[Any, Any]):
            def __iter__(self) -> Any:
                raise TargetDownError("gone")

            keys = __iter__

        self.place.rows = Breaking(self.place.rows)
        yield
        self.place.rows = dict(self.place.rows.items())
        self.place.others.clear()

    def take_down(self) -> None:
        self.place.is_down = True

    def bring_up(self) -> None:
        self.place.is_down = False

    def back_up(self) -> Any:
        return copy.deepcopy((self.place.rows, self.place.checkpoint))

    def put_back(self, backup: Any) -> None:
        self.place.rows, self.place.checkpoint = copy.deepcopy(backup)

    def tamper(self) -> None:
        self.place.rows[("ch", 1)]["name"] = "tampered"
        del self.place.rows[("ch", 2)]
        self.place.rows[("xx", 9)] = {"region": "xx", "id": 9, "name": "foreign", "score": 0.0}

    def lose_stand(self) -> None:
        self.place.checkpoint = None

    def refused_row(self, at: int) -> dict[str, Any]:
        return {"region": "bad", "id": at, "name": "bad", "score": 1.0}


class MemoryRecords(TestMemoryTarget):
    """Records in place of rows."""

    __test__ = False

    @contextmanager
    def break_within(self) -> Iterator[None]:
        class Breaking(list[Any]):
            def __add__(self, other: Any) -> Any:
                raise TargetDownError("gone")

        self.place.records = Breaking(self.place.records)
        yield
        self.place.records = list(self.place.records)
        self.place.others.clear()

    def back_up(self) -> Any:
        return copy.deepcopy((self.place.records, self.place.checkpoint))

    def put_back(self, backup: Any) -> None:
        self.place.records, self.place.checkpoint = copy.deepcopy(backup)

    def tamper(self) -> None:
        del self.place.records[0]


class TestMemoryChangelog(MemoryRecords, ChangelogContract):
    __test__ = True


class TestMemoryAppends(AppendContract):
    """The place is that of the changelog."""

    make_target, take_down, bring_up = (
        MemoryRecords.make_target,
        MemoryRecords.take_down,
        MemoryRecords.bring_up,
    )
    back_up, put_back, lose_stand = MemoryRecords.back_up, MemoryRecords.put_back, MemoryRecords.lose_stand
    break_within, refused_row = MemoryRecords.break_within, MemoryRecords.refused_row

    def setup_method(self) -> None:
        super().setup_method()
        self.place = MemoryPlace(refuses=lambda row: "too bad" if row["name"] == "bad" else None)
