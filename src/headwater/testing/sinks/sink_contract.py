"""The contract of sink targets, as tests. Each test has a view, its target, and a fault."""

from __future__ import annotations

import random

from headwater.sinks.base.applier import CHECKPOINT_TICKS
from headwater.sinks.base.sink_runner import SinkRunner
from headwater.sinks.base.target import CheckpointConflictError, SinkCheckpoint, SinkError, TargetDownError
from headwater.testing.faults import Crash
from headwater.testing.sinks.scripted_feed import ScriptedFeed
from headwater.testing.sinks.sink_bench import Row, row
from headwater.testing.sinks.versions_contract import VersionStories


class SinkContract(VersionStories):
    """The tests of a sink target. Subclass it as `class TestMyTarget(SinkContract)`, with `make_target` and the methods
    that change the external system: `break_within`, `take_down` and `bring_up`, `back_up` and `put_back`, `tamper`,
    `lose_stand`, and `refused_row`."""

    # --- following -------------------------------------------------------------------------------------------------

    def test_a_fresh_sink_begins_with_what_the_view_has(self) -> None:
        self.feed.tick([row(1)])
        self.feed.tick([row(1), row(2, "b"), row(3, None)])
        self.feed.forget(2)
        self.run()
        self.assert_holds()
        assert len(self.target.applied) == 1

    def test_a_fresh_sink_of_an_empty_view_stands_at_its_tick(self) -> None:
        self.feed.tick([])
        self.run()
        self.assert_holds([])
        assert self.target.checkpoint() is not None

    def test_changes_follow_tick_by_tick(self) -> None:
        applier = self.start()
        for rows in ([row(1), row(2)], [row(1, "b"), row(3)], [row(3, "c", -0.25), row(1, "b")], []):
            self.feed.tick(rows)
            self.catch_up(applier)
            self.assert_holds()

    def test_a_row_whose_key_moves_is_deleted_and_comes_anew_in_one_change(self) -> None:
        self.feed.tick([row(1), row(2)])
        applier = self.run()
        self.feed.tick([row(9), row(2, "z")])
        self.catch_up(applier)
        self.assert_holds()
        assert len(self.target.applied) == 2

    def test_keys_with_null_are_keys(self) -> None:
        self.feed.tick([row(1, region=None), row(1, region=""), row(2, region=None)])
        applier = self.run()
        self.assert_holds()
        self.feed.tick([row(1, "b", region=None), row(1, region="")])
        self.catch_up(applier)
        self.assert_holds()

    def test_null_is_not_a_value(self) -> None:
        if not self.takes_null:
            return
        nothing = {"region": "ch", "id": 1, "name": None, "score": None}
        self.feed.tick([nothing, row(2, "")])
        applier = self.run()
        self.assert_holds()
        self.feed.tick([row(1, ""), {**nothing, "id": 2}])
        self.catch_up(applier)
        self.assert_holds()

    def test_several_ticks_are_taken_as_one_net_change(self) -> None:
        self.feed.tick([row(1), row(2)])
        applier = self.run()
        self.feed.tick([row(1, "b"), row(2), row(5)])
        self.feed.tick([row(1, "c"), row(2), row(5)])
        self.feed.tick([row(1, "d"), row(2)])
        self.catch_up(applier)
        self.assert_holds()
        assert len(self.target.applied) == 2
        if self.mode == "upsert":
            (upserts, deletes) = (self.target.applied[1].upserts, self.target.applied[1].deletes)
            assert (upserts.num_rows, deletes.num_rows) == (1, 0)

    def test_ticks_that_change_nothing_are_passed_on_once_in_a_while(self) -> None:
        rows = [row(1)]
        self.feed.tick(rows)
        applier = self.run()
        for _ in range(CHECKPOINT_TICKS - 1):
            self.feed.tick(rows)
            self.catch_up(applier)
        assert len(self.target.applied) == 1
        assert applier.status().tick == self.feed.now
        self.feed.tick(rows)
        self.catch_up(applier)
        checkpoint = self.target.checkpoint()
        assert checkpoint is not None
        assert checkpoint.tick == self.feed.now
        self.assert_holds()

    def test_many_rows_and_few_rows_end_in_the_same(self) -> None:
        count = self.many
        rows = [row(i, f"name {i}", i / 4) for i in range(count)]
        self.feed.tick(rows)
        applier = self.run()
        self.assert_holds()
        others = [row(i, "new", i / 8) for i in range(count // 4)]
        self.feed.tick([*rows[count // 2 :], *others, row(-1, 'quote "\n, \\x', 0.1)])
        self.catch_up(applier)
        self.assert_holds()
        self.feed.tick(rows[:5])
        self.catch_up(applier)
        self.assert_holds()

    def test_text_is_kept_to_the_letter(self) -> None:
        odd = [
            "",
            " ",
            "NULL",
            "\\N",
            "a,b",
            'a"b',
            "'",
            "line\nline\r\n",
            "\t",
            "ü€😀",
            "{}",
            "%",
            ":",
            "\\.",
            "\x01",
        ]
        self.feed.tick([row(i, text, region=text) for i, text in enumerate(odd)])
        self.run()
        self.assert_holds()

    # --- crashes ---------------------------------------------------------------------------------------------------

    def test_a_crash_before_a_change_leaves_the_one_before(self) -> None:
        self.feed.tick([row(1)])
        applier = self.run()
        self.feed.tick([row(1, "b"), row(2)])
        self.target.break_at("before", Crash())
        with self.crashing():
            applier.step()
        self.assert_holds([row(1)])
        self.run()
        self.assert_holds()

    def test_a_crash_after_a_change_does_not_repeat_it(self) -> None:
        self.feed.tick([row(1)])
        applier = self.run()
        self.feed.tick([row(1, "b"), row(2)])
        self.target.break_at("after", Crash())
        with self.crashing():
            applier.step()
        self.assert_holds()
        self.run()
        assert self.target.applied == []
        self.assert_holds()

    def test_a_change_that_breaks_off_is_done_again_whole(self) -> None:
        self.feed.tick([row(1), row(2)])
        applier = self.run()
        self.feed.tick([row(1, "b"), row(3)])
        with self.break_within(), self.failing(TargetDownError):
            applier.step()
        # the same rows as at first: anything that the failed change left behind shows
        self.feed.tick([row(1), row(2)])
        self.run()
        self.assert_holds()

    def test_a_first_change_that_breaks_off_is_done_again_whole(self) -> None:
        self.feed.tick([row(1), row(2)])
        applier = self.start()
        with self.break_within(), self.failing(TargetDownError):
            applier.step()
        self.feed.tick([row(2, "b")])
        self.catch_up(applier)
        self.assert_holds()

    def test_a_change_given_twice_is_refused_the_second_time(self) -> None:
        self.feed.tick([row(1)])
        self.run()
        before = self.target.checkpoint()
        assert before is not None
        after = SinkCheckpoint(before.tick + 1, before.history, before.checksum, before.rows)
        empty = self.target.applied[0]
        nothing = type(empty)(empty.deletes.slice(0, 0), empty.upserts.slice(0, 0), empty.records.slice(0, 0))
        self.target.apply(nothing, before, after)
        with self.failing(CheckpointConflictError) as found:
            self.target.apply(nothing, before, after)
        assert found[0].found == after
        with self.failing(CheckpointConflictError):
            self.target.apply(nothing, None, after)
        self.assert_holds()

    def test_two_processes_never_both_apply_a_change(self) -> None:
        self.feed.tick([row(1)])
        one = self.run()
        first = self.target
        two = self.run()
        second = self.target
        for step in range(2, 8):
            self.feed.tick([row(i, str(step)) for i in range(1, step)])
            for applier in (one, two) if step % 2 else (two, one):
                self.catch_up(applier)
            self.assert_holds()
        applied = sum(len(change) for target in (first, second) for change in target.applied)
        assert applied == 1 + sum(range(1, 7))

    def test_who_looked_at_the_view_before_another_went_on_takes_nothing_back(self) -> None:
        self.feed.tick([row(1)])
        one = self.run()
        two = self.start()
        ask = self.target.checkpoint

        def late() -> SinkCheckpoint | None:
            if self.feed.now == 1:
                self.feed.tick([row(1), row(2)])
                self.catch_up(one)
            return ask()

        self.target.checkpoint = late  # type: ignore[method-assign]
        two.step()
        assert two.status().levelled == 0
        assert not self.target.applied
        self.assert_holds()

    def test_whatever_happens_in_between_the_end_is_the_view(self) -> None:
        for seed in range(3):
            self._play(random.Random(seed))

    def _play(self, dice: random.Random) -> None:
        applier = self.start()
        rows: dict[int, Row] = {}
        for _ in range(12):
            for _ in range(dice.randrange(4)):
                at = dice.randrange(6)
                if at in rows and dice.random() < 0.4:
                    del rows[at]
                else:
                    rows[at] = row(at, dice.choice("abc"), dice.randrange(3) / 2)
            self.feed.tick(list(rows.values()))
            event = dice.randrange(6)
            if event in (0, 1):
                self.target.break_at("before" if event else "after", Crash())
                try:
                    applier.step()
                except Crash:
                    applier = self.start()
                self.target.be_steady()
            elif event == 2:
                with self.break_within():
                    try:
                        applier.step()
                    except TargetDownError:
                        pass
            elif event == 3:
                self.feed.forget(self.feed.now - 1)
            elif event == 4:
                self.catch_up(applier)
                self.assert_holds()
        self.catch_up(applier)
        self.assert_holds()

    # --- outages, backups and rebuilds -----------------------------------------------------------------------------

    def test_a_target_that_is_down_for_a_while_catches_up(self) -> None:
        self.feed.tick([row(1)])
        applier = self.run()
        self.take_down()
        try:
            self.feed.tick([row(1, "b")])
            with self.failing(TargetDownError):
                applier.step()
            self.feed.tick([row(1, "b"), row(2)])
            with self.failing(TargetDownError):
                applier.step()
        finally:
            self.bring_up()
        self.catch_up(applier)
        self.assert_holds()

    def test_a_sink_whose_target_is_down_says_so_and_goes_on_by_itself(self) -> None:
        self.feed.tick([row(1)])
        runner = SinkRunner(self.start(), self.feed, self.clock)
        runner.start()
        try:
            assert runner.applier.report.wait(1, 30_000)
            self.take_down()
            try:
                self.feed.tick([row(1, "b")])
                assert not runner.applier.report.wait(2, 300)
                status = runner.applier.status()
                assert status.state == "retrying", status
                assert status.reason
                assert status.attempts >= 1
            finally:
                self.bring_up()
            assert runner.applier.report.wait(2, 60_000)
            assert runner.applier.status().state == "following"
            self.assert_holds()
        finally:
            runner.stop()

    def test_a_target_put_back_from_a_backup_goes_on_from_there(self) -> None:
        self.feed.tick([row(1), row(2)])
        applier = self.run()
        backup = self.back_up()
        self.feed.tick([row(1, "b"), row(3)])
        self.catch_up(applier)
        self.put_back(backup)
        self.feed.tick([row(1, "b"), row(3), row(4)])
        self.catch_up(applier)
        self.assert_holds()
        self.put_back(backup)
        self.run()
        self.assert_holds()

    def test_a_backup_from_before_the_ticks_that_are_kept_is_brought_level(self) -> None:
        self.feed.tick([row(1), row(2), row(7)])
        self.run()
        backup = self.back_up()
        applier = self.run()
        self.feed.tick([row(1, "b"), row(3), row(7)])
        self.feed.tick([row(1, "b"), row(3), row(4), row(7)])
        self.catch_up(applier)
        self.put_back(backup)
        self.feed.forget(3)
        applier = self.run()
        self.assert_holds()
        assert applier.status().levelled == 1
        if self.mode == "upsert":
            assert self.target.applied[0].upserts.num_rows == 3  # not the row that is right already

    def test_a_target_from_the_future_is_brought_level(self) -> None:
        self.feed.tick([row(1), row(2)])
        self.feed.tick([row(1), row(3)])
        self.run()
        again = ScriptedFeed(self.schema, self.clock)
        again.tick([row(1), row(2)])
        self.feed = again
        self.run()
        self.assert_holds()

    def test_an_older_copy_of_the_workspace_is_compared_whichever_tick_it_has_come_to(self) -> None:
        applier = self.start()
        for rows in ([row(1), row(2)], [row(1, "b"), row(3)], [row(1, "b"), row(3), row(4)]):
            self.feed.tick(rows)
            self.catch_up(applier)
        # to the tick number that the target has reached, to a lower and to a higher one
        for ticks in (2, 1, 5):
            self.feed.put_back(1)
            for at in range(ticks):
                self.feed.tick([row(1, "c"), row(2), row(10 * ticks + at)])
            if ticks == 5:  # a process that has applied the other history continues, too
                self.catch_up(applier)
            else:
                applier = self.run()
            self.assert_holds()
            self.feed.tick([row(1, "c"), row(3, "d")])
            self.catch_up(applier)
            self.assert_holds()

    def test_a_view_that_was_built_anew_is_compared(self) -> None:
        self.feed.tick([row(1), row(2)])
        applier = self.run()
        self.feed.rebuild([row(2), row(3)])
        self.catch_up(applier)
        self.assert_holds()
        self.feed.tick([row(3)])
        self.catch_up(applier)
        self.assert_holds()

    def test_a_target_that_does_not_know_where_it_stands_is_compared(self) -> None:
        self.feed.tick([row(1), row(2), row(3)])
        applier = self.run()
        self.lose_stand()
        assert self.target.checkpoint() is None
        self.feed.tick([row(1), row(3, "b")])
        self.catch_up(applier)
        self.assert_holds()

    # --- drift -----------------------------------------------------------------------------------------------------

    def test_a_target_as_it_should_be_is_found_so(self) -> None:
        self.feed.tick([row(1), row(2)])
        applier = self.run()
        found = self.check(applier)
        assert (found.ok, found.tick, found.rows, found.differences) == (True, 1, 2, None)
        self.feed.tick([row(1, "b"), row(3), row(4)])
        assert self.check(applier).ok  # compared at the target's own tick
        self.catch_up(applier)
        self.feed.forget(2)
        assert self.check(applier).ok

    def test_what_was_changed_behind_our_back_is_found_and_repaired(self) -> None:
        self.feed.tick([row(1), row(2), row(3)])
        applier = self.run()
        self.tamper()
        found = self.check(applier)
        assert found.ok is False
        assert found.differences is not None
        assert found.detail
        if self.key:
            differences = found.differences
            assert (differences.missing.num_rows, differences.extra.num_rows, differences.found.num_rows) == (
                1,
                1,
                1,
            )
        repaired = self.check(applier, repair=True)
        assert repaired.repaired
        assert repaired.ok
        self.assert_holds()
        assert self.check(applier).ok

    # --- rejected rows ---------------------------------------------------------------------------------------------

    def test_a_row_that_is_refused_stops_the_sink_before_it(self) -> None:
        if self.takes_all:
            return
        bad = self.refused_row(5)
        self.feed.tick([row(1)])
        applier = self.run()
        self.feed.tick([row(1, "b"), row(2), bad])
        with self.failing(SinkError) as found:
            applier.step()
        assert found[0].facts["reason"] == "rejected-row"
        self.assert_holds([row(1)])
        if self.mode == "upsert":  # a changelog has both the row and its deletion
            self.feed.tick([row(1, "b"), row(2)])
            self.catch_up(applier)
            self.assert_holds()

    def test_rows_that_are_refused_are_diverted_and_others_go_on(self) -> None:
        if self.takes_all:
            return
        bad, worse = self.refused_row(5), self.refused_row(6)
        good = [row(i) for i in range(20)]
        self.feed.tick([*good, bad])
        applier = self.run(on_error="divert")
        self.assert_holds(good)
        self.feed.tick([*good[1:], bad, worse, row(30)])
        self.catch_up(applier)
        self.assert_holds([*good[1:], row(30)])
        rejected = [one.rows.to_pylist() for one in self.letters.values()]
        assert rejected == [[bad], [worse]]
        assert all(reason for letters in self.letters.values() for reason in letters.reasons)
        assert applier.status().withheld == 2
        assert self.check(applier).ok
        applier = self.run(on_error="divert")
        assert [one.rows.to_pylist() for one in self.letters.values()] == rejected
        if self.mode != "upsert":
            return
        self.take_again(5)
        self.feed.tick([*good, worse, row(5, "good now", region="bad")])
        self.catch_up(applier)
        self.assert_holds([*good, row(5, "good now", region="bad")])
        self.feed.tick(good)
        self.catch_up(applier)
        self.assert_holds(good)
        assert applier.status().withheld == 0

    def test_a_row_that_becomes_one_that_is_refused_is_taken_out(self) -> None:
        if self.takes_all:
            return
        self.feed.tick([row(1), row(5, region="bad")])
        applier = self.run(on_error="divert")
        self.assert_holds()
        bad = self.refused_row(5)
        self.feed.tick([row(1), bad])
        self.catch_up(applier)
        self.assert_holds([row(1)])
        self.lose_stand()
        self.run(on_error="divert")
        self.assert_holds([row(1)])

    def test_a_refused_row_is_tried_again_when_asked(self) -> None:
        if self.takes_all:
            return
        bad = self.refused_row(5)
        self.feed.tick([row(1), bad])
        applier = self.run(on_error="divert")
        assert applier.retry() == 0
        assert applier.status().withheld == 1
        self.assert_holds([row(1)])
        assert len(self.letters) == 1
        self.take_again(5)
        took = applier.retry()
        self.assert_holds([row(1), bad] if took else [row(1)])
        assert applier.status().withheld == 1 - took

    def test_what_was_not_written_to_its_end_is_completed_before_a_refused_row_is_tried_again(self) -> None:
        if self.takes_all:
            return
        bad = self.refused_row(5)
        self.feed.tick([row(1), bad])
        self.run(on_error="divert")
        rows = [row(1), bad, *(row(at) for at in range(100, 100 + self.many))]
        self.feed.tick(rows)
        with self.break_within(), self.failing(TargetDownError):
            self.start(on_error="divert").step()
        self.take_again(5)
        applier = self.start(on_error="divert")
        took = applier.retry()
        self.catch_up(applier)
        self.assert_holds(rows if took else [row(1), *rows[2:]])

    def test_letters_are_told_of_again_after_a_crash(self) -> None:
        if self.takes_all:
            return
        bad = self.refused_row(5)
        self.feed.tick([row(1), bad])
        applier = self.start(on_error="divert")
        self.target.break_at("after", Crash())
        with self.crashing():
            applier.step()
        assert not self.letters
        self.run(on_error="divert")
        assert [one.rows.to_pylist() for one in self.letters.values()] == [[bad]]
        self.assert_holds([row(1)])
