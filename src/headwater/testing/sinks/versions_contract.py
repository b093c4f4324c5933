"""The contract of targets that can be rebuilt in a staging version next to the active one, as tests; for growing views too.

Targets that are not `Versioned` pass: they promise nothing here.
"""

from __future__ import annotations

from typing import Any, cast, get_args

from headwater.core.errors import HeadwaterError, UsageError
from headwater.operators.zset.delta import concat, consolidate
from headwater.sinks.base.blue_green import Version, Versioned
from headwater.sinks.base.sink_rebuild import Rebuilding, Step
from headwater.sinks.base.target import Freezing, Placed, SinkError, Target, TargetChange, TargetDownError
from headwater.testing.faults import Crash
from headwater.testing.sinks.sink_bench import Row, SinkBench, row


class _Recorded:
    """A target that records the version it created last."""

    made: Target

    def __init__(self, target: Target) -> None:
        self._target = target
        # isinstance looks for this attribute, and does not call __getattr__ in every Python version
        if isinstance(target, Placed):
            self.place = target.place
        if isinstance(target, Freezing):
            self.frozen = target.frozen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def versions(self) -> Any:
        """Return the target's versions, wrapped so that the last version created is recorded."""
        versions = self._target.versions()  # type: ignore[attr-defined]
        recorded = _Recorded(versions)
        recorded.target = lambda version: self._note(versions.target(version))  # type: ignore[attr-defined]
        return recorded

    def _note(self, made: Target) -> Target:
        self.made = made
        return made


class VersionStories(SinkBench):
    """The tests of versions that `SinkContract` and `AppendContract` share."""

    def setup_method(self) -> None:
        """Prepare a test; called by pytest."""
        super().setup_method()
        self._targets: list[Target] = []

    def teardown_method(self) -> None:
        """Close the targets of a test; called by pytest."""
        for target in self._targets:
            target.close()
        super().teardown_method()

    def rebuilding(self, *steps: tuple[Step, object]) -> Rebuilding:
        """Return a process that builds a new version; before each step given it calls the action, or raises it if it is
        an error."""
        actions = dict(steps)

        def on_step(step: Step) -> None:
            action = actions.get(step)
            if isinstance(action, BaseException):
                raise action
            if callable(action):
                action()

        self._targets.append(self.make_target())
        self.staging = _Recorded(self._targets[-1])
        return Rebuilding(self.shape, cast(Target, self.staging), self.feed, self.clock, on_step=on_step)

    @property
    def has_versions(self) -> bool:
        """Whether this kind of target has versions."""
        return isinstance(self.make_target(), Versioned)

    def version(self, version: Version = "old") -> Target:
        """Return a version as a prepared target."""
        target: Target = self.target.versions().target(version)
        self._targets.append(target)
        target.prepare(self.shape)
        return target

    def assert_version_holds(self, target: Target, rows: list[Row]) -> None:
        """Assert that the rows of a version are as given."""
        whole, self.target.target = self.target.target, target
        try:
            expected, there = self.held(rows), self.there()
        finally:
            self.target.target = whole
        rest = consolidate(concat([expected, there.negated()], expected.rows.schema))
        assert not len(rest), rest

    def test_a_new_version_takes_the_place_and_the_old_one_stays_until_told(self) -> None:
        if not self.has_versions:
            return
        first, second = [row(1), row(2)], [row(1), row(2), row(3)]
        self.feed.tick(first)
        applier = self.run()
        rebuilt = self.rebuilding().build()
        assert (rebuilt.rows, rebuilt.tick, rebuilt.verified) == (2, 1, True)
        assert rebuilt.old
        self.assert_holds()
        self.feed.tick(second)
        self.catch_up(applier)  # the process that writes to the active version continues with the new one
        self.assert_holds()
        self.assert_version_holds(self.version(), first)
        assert self.check(applier).ok
        with self.failing(UsageError) as refused:
            self.rebuilding().build()
        assert refused[0].facts["reason"] == "previous-version-kept"
        again = self.rebuilding().back()
        assert (again.rows, again.tick) == (3, 2)
        third = [*second, row(4)]
        self.feed.tick(third)
        self.catch_up(applier)
        self.assert_holds()
        self.assert_version_holds(self.version(), second)
        self.rebuilding().drop_old()
        assert self.rebuilding().old() is None
        with self.failing(UsageError):
            self.rebuilding().drop_old()
        self.assert_holds()
        self.rebuilding().build(verify=False)
        self.assert_holds()
        self.run()
        self.assert_holds()

    def test_a_crash_at_any_step_leaves_one_version_in_force(self) -> None:
        if not self.has_versions:
            return
        rows = [row(1), row(2)]
        self.feed.tick(rows)
        applier = self.run()
        for step in get_args(Step):
            with self.crashing():
                self.rebuilding((step, Crash())).build()
            self.assert_holds()
            rows = [*rows, row(10 + len(rows), "b")]
            self.feed.tick(rows)
            self.catch_up(applier)
            self.assert_holds()
        assert self.rebuilding().old() is not None  # the last crash was after the switch
        self.rebuilding().drop_old()
        with self.break_within(), self.failing(TargetDownError):
            self.rebuilding().build()
        self.run()  # the failure may have ended all connections
        self.assert_holds()
        self.feed.tick([*rows, row(30)])
        self.feed.forget(self.feed.now)  # the unfinished version is older than the kept ticks
        self.rebuilding().build()
        assert self.check(self.run()).ok
        self.assert_holds()

    def test_the_version_in_force_goes_on_while_another_is_built(self) -> None:
        if not self.has_versions:
            return
        rows = [row(1), row(2)]
        self.feed.tick(rows)
        applier = self.run()

        def more() -> None:
            rows.append(row(10 + len(rows), "c"))
            self.feed.tick(rows)
            self.catch_up(applier)
            self.assert_holds()

        rebuilt = self.rebuilding(("filling", more), ("verifying", more), ("switching", more)).build()
        assert rebuilt.tick == self.feed.now
        self.assert_holds()
        self.assert_version_holds(self.version(), rows)
        more()

    def test_of_two_who_build_it_anew_at_the_same_time_one_is_refused(self) -> None:
        if not self.has_versions:
            return
        first, second = [row(1), row(2)], [row(1), row(2), row(3)]
        self.feed.tick(first)
        applier = self.run()
        faster = self.rebuilding()
        steps: tuple[Step, ...] = ("filling", "verifying", "switching")
        for step in steps:

            def build() -> None:
                faster.build()
                self.feed.tick(second)
                self.catch_up(applier)

            with self.failing(HeadwaterError):
                self.rebuilding((step, build)).build()
            self.assert_holds(second)
            assert "old" in self.target.versions().existing()
            self.rebuilding().drop_old()
            self.rebuilding().build()
            self.rebuilding().back()
            self.assert_holds(second)
            self.rebuilding().drop_old()

    def test_a_new_version_that_is_not_the_view_is_not_put_in_force(self) -> None:
        if not self.has_versions:
            return
        self.feed.tick([row(1), row(2)])
        self.run()

        def spoil() -> None:
            target = self.staging.made
            wrong = target.stored_form(self.delta([row(77, "spoiled")]).rows)
            checkpoint = target.checkpoint()
            assert checkpoint is not None
            nothing = wrong.slice(0, 0)
            if self.mode == "upsert":
                change = TargetChange.of_keys(nothing.select(list(target.key)), wrong)
            else:
                change = self.target.applied[0]
                change = TargetChange(change.deletes, change.upserts, change.records.slice(0, 1))
            target.apply(change, checkpoint, checkpoint)

        with self.failing(SinkError) as found:
            self.rebuilding(("verifying", spoil)).build()
        assert found[0].facts["reason"] == "verification-failed"
        self.assert_holds()
        assert self.rebuilding().old() is None
        self.rebuilding().build()
        self.assert_holds()
