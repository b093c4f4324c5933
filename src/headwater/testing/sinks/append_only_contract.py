"""The contract of append-only sink targets, as tests: the faults of `SinkContract`, for a view that only grows."""

from __future__ import annotations

from typing import Any, ClassVar

from headwater.sinks.base.target import Mode, SinkError, TargetDownError
from headwater.testing.faults import Crash
from headwater.testing.sinks.sink_bench import Row, row
from headwater.testing.sinks.versions_contract import VersionStories


class AppendContract(VersionStories):
    """The tests of an append-only target. Subclass it as `SinkContract`, with `make_target`, `break_within`,
    `take_down` and `bring_up`, `back_up` and `put_back`, `lose_stand`, and `refused_row` unless `takes_all`."""

    mode: ClassVar[Mode] = "append"
    key = ()

    def setup_method(self) -> None:
        """Prepare a test; called by pytest."""
        super().setup_method()
        self.rows: list[Row] = []

    def grow(self, *rows: Row) -> int:
        """Run a tick that adds these rows to the view."""
        self.rows += rows
        return self.feed.tick(self.rows)

    def test_rows_are_added_as_they_come(self) -> None:
        applier = self.start()
        for step in range(4):
            self.grow(*(row(10 * step + i, "abc"[step % 3]) for i in range(step)))
            self.catch_up(applier)
            self.assert_holds()

    def test_the_same_row_may_be_there_several_times(self) -> None:
        self.grow(row(1), row(1), row(2))
        applier = self.run()
        self.assert_holds()
        self.grow(row(1))
        self.catch_up(applier)
        self.assert_holds()

    def test_several_ticks_are_added_as_one(self) -> None:
        self.grow(row(1))
        applier = self.run()
        self.grow(row(2), row(3))
        self.grow(row(4))
        self.catch_up(applier)
        assert len(self.target.applied) == 2
        self.assert_holds()

    def test_a_crash_before_rows_are_added_loses_none(self) -> None:
        self._crash("before")

    def test_a_crash_after_rows_were_added_adds_none_twice(self) -> None:
        self._crash("after")

    def _crash(self, when: Any) -> None:
        self.grow(row(1))
        applier = self.run()
        self.grow(row(2), row(2))
        self.target.break_at(when, Crash())
        with self.crashing():
            applier.step()
        self.grow(row(3))
        self.run()
        self.assert_holds()

    def test_an_addition_that_breaks_off_is_done_again_whole(self) -> None:
        self.grow(row(1))
        applier = self.run()
        self.grow(row(2), row(3))
        with self.break_within(), self.failing(TargetDownError):
            applier.step()
        self.grow(row(4))
        self.catch_up(applier)
        self.assert_holds()

    def test_a_target_that_is_down_for_a_while_catches_up(self) -> None:
        self.grow(row(1))
        applier = self.run()
        self.take_down()
        try:
            self.grow(row(2))
            with self.failing(TargetDownError):
                applier.step()
        finally:
            self.bring_up()
        self.catch_up(applier)
        self.assert_holds()

    def test_a_target_put_back_from_a_backup_goes_on_from_there(self) -> None:
        self.grow(row(1))
        applier = self.run()
        backup = self.back_up()
        self.grow(row(2))
        self.catch_up(applier)
        self.put_back(backup)
        self.grow(row(3))
        self.catch_up(applier)
        self.assert_holds()
        self.put_back(backup)
        self.feed.forget(self.feed.now)
        self.run()
        self.assert_holds()

    def test_an_older_copy_of_the_workspace_stops_the_sink_if_it_lacks_rows_that_were_added(self) -> None:
        self.grow(row(1))
        applier = self.run()
        self.grow(row(2))
        self.catch_up(applier)
        self.feed.put_back(1)
        self.grow(row(3))  # row 2 is in the view again: no row of the target is missing from it
        self.run()
        self.assert_holds()
        self.feed.put_back(1)
        for at in range(3):
            self.feed.tick([row(1), row(4 + at)])
            with self.failing(SinkError) as found:
                self.start().step()
            assert found[0].facts["reason"] == "extra-rows"

    def test_a_target_that_does_not_know_where_it_stands_gets_what_it_has_not(self) -> None:
        self.grow(row(1), row(1), row(2))
        applier = self.run()
        self.lose_stand()
        self.grow(row(2), row(3))
        self.catch_up(applier)
        self.assert_holds()

    def test_a_view_that_takes_rows_back_stops_the_sink(self) -> None:
        self.grow(row(1), row(2))
        applier = self.run()
        self.feed.tick([row(2)])
        with self.failing(SinkError) as found:
            applier.step()
        assert found[0].facts["reason"] == "retraction"
        self.assert_holds([row(1), row(2)])

    def test_a_target_with_rows_of_others_is_not_emptied(self) -> None:
        self.grow(row(1), row(2))
        self.run()
        self.feed.rebuild([row(2), row(3)])
        applier = self.start()
        with self.failing(SinkError) as found:
            applier.step()
        assert found[0].facts["reason"] == "extra-rows"
        self.assert_holds([row(1), row(2)])

    def test_rows_that_are_refused_are_diverted_and_others_go_on(self) -> None:
        if self.takes_all:
            return
        bad = self.refused_row(5)
        self.grow(row(1))
        applier = self.run(on_error="divert")
        self.feed.tick([row(1), bad, row(2)])
        self.catch_up(applier)
        self.assert_holds([row(1), row(2)])
        assert [one.rows.to_pylist() for one in self.letters.values()] == [[bad]]
        assert self.check(applier).ok
        self.feed.tick([row(1), bad, row(2), row(3)])
        self.catch_up(applier)
        self.assert_holds([row(1), row(2), row(3)])
        assert len(self.letters) == 1
