"""Rebuild of a sink: a staging version is filled, catches up, is compared with the view, and becomes active in one step.

Until the switch the previous version stays active and is kept up to date, here or in another process; afterwards the new one
is active. A crash leaves a staging version: the next attempt continues with it or, if it no longer fits, starts with an
empty one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from headwater.core.clock import Clock
from headwater.core.errors import LogTimeoutError, UsageError
from headwater.sinks.base.applier import Applier
from headwater.sinks.base.blue_green import TargetVersions, Version, refuse_kept, versions_of
from headwater.sinks.base.sink_status import Letters, OnError
from headwater.sinks.base.sink_verify import check
from headwater.sinks.base.target import (
    CheckpointConflictError,
    SinkCheckpoint,
    SinkError,
    Target,
    TargetDownError,
    TargetShape,
)
from headwater.sinks.base.view_feed import SinkFeed

Step = Literal["filling", "verifying", "switching", "switched"]
"""The step of a rebuild that is done next."""

SWITCH_TRIES = 50
"""Number of attempts to switch while the active version stays ahead, or while readers keep it from being renamed."""
_PAUSE_MS = 200.0


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild: the number of rows that are active now, and their tick; `old` is the name under which the
    previous version is kept. Unless `verified`, the rows were not compared with the view."""

    sink: str
    rows: int
    tick: int
    seconds: float
    verified: bool
    old: str


class Rebuilding:
    """Builds and switches the versions of one sink. `target` is the active version. It is kept up to date meanwhile, here or
    in another process, and that applier reports rejected rows; rows that a staging version rejects are reported once it is
    active. `on_step` is called with each step."""

    def __init__(
        self,
        shape: TargetShape,
        target: Target,
        feed: SinkFeed,
        clock: Clock,
        *,
        on_error: OnError = "stop",
        on_step: Callable[[Step], None] = lambda step: None,
    ) -> None:
        self._shape = shape
        self._target = target
        self._feed = feed
        self._clock = clock
        self._on_error = on_error
        self._on_step = on_step

    def old(self) -> str | None:
        """Return the name of the previous version that is kept; None if none is."""
        versions = self._versions()
        return versions.named("old") if "old" in versions.existing() else None

    def build(self, *, verify: bool = True) -> Rebuilt:
        """Build a staging version and make it active. UsageError while a previous version is kept."""
        versions = self._versions()
        if "old" in versions.existing():
            refuse_kept(self._shape.sink, versions.named("old"))
        left = "new" in versions.existing()
        try:
            return self._put(versions, "new", verify)
        except (TargetDownError, CheckpointConflictError):
            raise
        except SinkError:
            if not left:
                raise
        # the staging version left by a crash has other columns, or is of a view that is gone
        versions.drop("new")
        return self._put(versions, "new", verify)

    def back(self, *, verify: bool = True) -> Rebuilt:
        """Make the previous version active again, after it caught up; the version that was active is kept as the previous
        one."""
        versions = self._versions()
        if "old" not in versions.existing():
            raise self._none()
        return self._put(versions, "old", verify)

    def drop_old(self) -> str:
        """Remove the previous version and return its name."""
        versions = self._versions()
        if "old" not in versions.existing():
            raise self._none()
        versions.drop("old")
        return versions.named("old")

    def _versions(self) -> TargetVersions:
        self._target.prepare(self._shape)
        return versions_of(self._target, self._shape.sink)

    def _put(self, versions: TargetVersions, version: Version, verify: bool) -> Rebuilt:
        began_ms = self._clock.steady_ms()
        staged = versions.target(version)
        applier = Applier(
            self._shape, staged, self._feed, self._clock, on_error=self._on_error, letters=_discard
        )
        try:
            self._on_step("filling")
            self._follow(applier)
            if verify:
                self._on_step("verifying")
                self._verify(applier, versions, version)
            self._on_step("switching")
            checkpoint = self._switch(applier, versions, version)
        finally:
            applier.close()
        self._on_step("switched")
        seconds = (self._clock.steady_ms() - began_ms) / 1_000
        old = versions.named("old")
        return Rebuilt(self._shape.sink, checkpoint.rows, checkpoint.tick, seconds, verify, old)

    def _follow(self, applier: Applier) -> SinkCheckpoint:
        for left in reversed(range(SWITCH_TRIES)):
            try:
                while applier.step():
                    pass
                checkpoint = applier.mark()
                break
            except CheckpointConflictError:
                # the active version was written at the same time, and both share one location
                applier.forget()
                if not left:
                    raise
        if checkpoint is None:
            raise UsageError(
                f"sink {self._shape.sink!r} cannot be rebuilt: view {self._shape.view!r} is not part of any tick yet",
                hint="run a tick with `headwater run --once` or ws.run()",
                sink=self._shape.sink,
                view=self._shape.view,
            )
        return checkpoint

    def _verify(self, applier: Applier, versions: TargetVersions, version: Version) -> None:
        found = check(applier, self._feed)
        if found.ok:
            return
        applier.close()
        if version == "new":
            versions.drop("new")
        raise SinkError(
            f"the {version} version of sink {self._shape.sink!r} differs from view {self._shape.view!r} at tick "
            f"{found.tick}; the active version stays",
            detail=found.detail,
            hint="try again; if it fails again, the target changes the values that are written to it",
            sink=self._shape.sink,
            view=self._shape.view,
            tick=found.tick,
            reason="verification-failed",
        )

    def _switch(self, applier: Applier, versions: TargetVersions, version: Version) -> SinkCheckpoint:
        """Switch to a version after it caught up, and return its checkpoint. The comparison stays valid a few ticks later,
        because only changes are applied after it."""
        for _ in range(SWITCH_TRIES):
            checkpoint = self._follow(applier)
            try:
                versions.switch(version, checkpoint)
                return checkpoint
            except CheckpointConflictError:
                applier.forget()
            except TargetDownError as error:
                # the outcome is unknown: both versions may be at the same tick
                if version == "old":
                    raise
                reason = error.message
                self._feed.wait(_PAUSE_MS)
                if self._is_switched(versions):
                    return checkpoint
                applier.forget()
                continue
            reason = "the active version was ahead at every attempt"
        raise LogTimeoutError(
            f"sink {self._shape.sink!r} could not be switched to its {version} version: {reason}",
            hint="the active version is still updated; try again: the version that was built is used",
            sink=self._shape.sink,
        )

    def _is_switched(self, versions: TargetVersions) -> bool:
        """Whether the staging version became active, after the connection was lost during the switch."""
        there = versions.existing()
        return "old" in there or "new" not in there

    def _none(self) -> UsageError:
        sink = self._shape.sink
        return UsageError(
            f"sink {sink!r} has no previous version",
            hint=f"`headwater rebuild {sink}` builds a new version",
            sink=sink,
        )


def _discard(letters: Letters) -> None:
    """Report nothing: if two appliers reported rejected rows of one sink at the same time, each would take the other's
    letters for its own."""
