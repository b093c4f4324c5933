"""The clock of a log: the wall clock, as long as the monotonic clock confirms it.

The wall clock of a machine may jump: it is set by hand, a battery is empty, a virtual machine resumes after a pause. A log
cannot undo what it does by the time: records are removed by age, and append times never decrease. So a reading counts only if
it agrees with the last good reading plus the monotonic time since then, within what clocks drift and are corrected by. Any
other reading is a *jump*: it is not used, time continues from the last good reading by the monotonic clock, and the jump is
reported.

A persistent jump becomes the time without manual action: after ten minutes, or a day if it is more than a year, if no process
of the workspace has read the old time meanwhile. Time then advances to it at once if it is ahead. If it is behind, time never
decreases: it continues at half speed until the wall clock has caught up.

Nothing is removed by age while the clock is in doubt, nor after a jump ahead has become the time, until the new time has lasted
as long as the jump was far, a day at most. After a boot no monotonic clock reaches back to the last commit: the wall clock
counts if it is not behind the last commit, however long the machine was off, and nothing is removed by age for ten minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from headwater.core.clock import Clock, Microseconds, SystemClock, format_span, from_us, parse_span_us

TOLERANCE_US: Microseconds = parse_span_us("1 minute")
"""Maximum distance of a good reading from the extrapolation of the previous one: a step that time servers correct at once."""
DRIFT = 1_000
"""Additional tolerance: one part in this number of the time since the previous reading."""
HOLDS_US: Microseconds = parse_span_us("10 minutes")
"""Time after which a persistent jump becomes the time."""
FAR_US: Microseconds = parse_span_us("366 days")
"""A jump further than this has to persist for a day."""
DAY_US: Microseconds = parse_span_us("1 day")
KEPT_EVERY_US: Microseconds = parse_span_us("1 minute")
"""Interval at which a process shares its current reading with the other processes."""


@dataclass(frozen=True)
class Anchor:
    """A good reading: the time, and the monotonic clock at that moment, both in microseconds."""

    now_us: Microseconds
    elapsed_us: Microseconds
    settles_us: Microseconds = 0
    """Nothing is removed by age before this value of the monotonic clock."""

    def at(self, elapsed_us: Microseconds) -> Microseconds:
        """Return the time at a later value of the monotonic clock."""
        return self.now_us + elapsed_us - self.elapsed_us

    def bears_out(self, now_us: Microseconds, elapsed_us: Microseconds) -> bool:
        """Whether a reading agrees with the extrapolated time."""
        tolerance = TOLERANCE_US + abs(elapsed_us - self.elapsed_us) // DRIFT
        return abs(now_us - self.at(elapsed_us)) <= tolerance


class Anchors(Protocol):
    """Storage for the last good reading of any process of a workspace, until the machine reboots."""

    def read(self) -> Anchor | None:
        """Return the last reading stored since the machine booted; None if there is none."""
        ...

    def keep(self, anchor: Anchor) -> None:
        """Store a reading in place of the last one."""
        ...


@dataclass(frozen=True)
class Jump:
    """A jump of the wall clock: its distance from the expected time, and the moment at which it was found."""

    by_us: Microseconds
    since_us: Microseconds
    """On the monotonic clock."""

    @property
    def text(self) -> str:
        """The distance in words."""
        return f"{_rounded(abs(self.by_us))} {'ahead' if self.by_us > 0 else 'back'}"

    @property
    def holds_us(self) -> Microseconds:
        """Time for which the jump has to persist until it becomes the time."""
        return HOLDS_US if abs(self.by_us) <= FAR_US else DAY_US


@dataclass(frozen=True)
class Doubt:
    """Reason why nothing is removed by age now."""

    reason: str
    hint: str


class TrustedClock:
    """A clock with reliable readings of the clock `base`. Safe to use from several threads."""

    def __init__(self, base: Clock, anchors: Anchors | None = None) -> None:
        self.base: Clock = base.base if isinstance(base, TrustedClock) else base
        self._anchors = anchors if isinstance(self.base, SystemClock) else None
        self._guard = threading.RLock()
        self._anchor: Anchor | None = None
        self._jump: Jump | None = None
        self._kept_us: Microseconds | None = None
        self._doubt: Doubt | None = None
        self._report: Callable[[Doubt | None], None] | None = None
        self._reported_us: Microseconds = 0

    def begin(self, last_us: Microseconds) -> None:
        """Start from the time of the last commit; 0 if there is none. Readings before this call are not checked."""
        with self._guard:
            now, elapsed = self.base.now_us(), self._elapsed_us()
            known = self._anchors.read() if self._anchors is not None else None
            ahead = known is not None and last_us > known.at(elapsed) + TOLERANCE_US
            if known is not None and known.elapsed_us <= elapsed and not ahead:
                self._anchor = known
            elif now >= last_us - TOLERANCE_US:
                waits = self._anchors is not None and now - last_us > HOLDS_US and last_us > 0
                self._anchor = Anchor(now, elapsed, elapsed + HOLDS_US if waits else 0)
            else:
                self._anchor = Anchor(last_us, elapsed)
        self.now_us()

    def listen(self, report: Callable[[Doubt | None], None]) -> None:
        """Report every change of `doubt`, and its present value."""
        self._report = report
        report(self.doubt)

    def now_us(self) -> Microseconds:
        """Return the time: that of the wall clock, or if it has jumped, the last good reading plus the monotonic time since."""
        now, elapsed, anchor = self.base.now_us(), self._elapsed_us(), self._anchor
        if anchor is None:
            return now
        if not anchor.bears_out(now, elapsed):
            return self._doubtful(now, elapsed)
        if self._doubt is not None or elapsed < anchor.settles_us or self._is_time_to_keep(elapsed):
            self._good(now, elapsed)
        else:
            self._anchor = Anchor(now, elapsed, anchor.settles_us)
        return now

    def steady_ms(self) -> float:
        """Return the monotonic clock, for waits."""
        return self.base.steady_ms()

    @property
    def doubt(self) -> Doubt | None:
        """Reason why nothing may be removed by age now; None if removal is allowed."""
        self.now_us()
        return self._doubt

    def old_enough_us(self) -> Microseconds:
        """Return the time for age checks before irreversible removals: 0, at which nothing is old, while the clock is in
        doubt."""
        now = self.now_us()
        return now if self._doubt is None else 0

    # --- good readings -------------------------------------------------------------------------------------------------

    def _good(self, now: Microseconds, elapsed: Microseconds) -> None:
        with self._guard:
            assert self._anchor is not None
            self._anchor = Anchor(now, elapsed, self._anchor.settles_us)
            self._jump = None
            if self._is_time_to_keep(elapsed):
                self._keep(self._anchor)
            left = self._anchor.settles_us - elapsed
            if left <= 0:
                self._report_change(None, elapsed)
            else:
                self._report_change(_settling(left), elapsed)

    def _is_time_to_keep(self, elapsed: Microseconds) -> bool:
        return self._anchors is not None and (
            self._kept_us is None or elapsed - self._kept_us >= KEPT_EVERY_US
        )

    def _keep(self, anchor: Anchor) -> None:
        if self._anchors is not None:
            self._kept_us = anchor.elapsed_us
            self._anchors.keep(anchor)

    # --- jumps ---------------------------------------------------------------------------------------------------------

    def _doubtful(self, now: Microseconds, elapsed: Microseconds) -> Microseconds:
        with self._guard:
            anchor = self._anchor
            assert anchor is not None
            others = self._anchors.read() if self._anchors is not None else None
            if anchor.bears_out(now, elapsed) or (
                others is not None and others.elapsed_us <= elapsed and others.bears_out(now, elapsed)
            ):
                # another thread or process has accepted the new time
                self._anchor = anchor if others is None or anchor.bears_out(now, elapsed) else others
                self._good(now, elapsed)
                return now
            expected = anchor.at(elapsed)
            jump = self._jump
            if jump is None or not _is_even(jump, now - expected, elapsed):
                jump = self._jump = Jump(now - expected, elapsed)
            held = elapsed - jump.since_us >= jump.holds_us
            if (
                held
                and others is not None
                and others.elapsed_us > jump.since_us
                and self._kept_us != others.elapsed_us
            ):
                held = False  # another process still reads the old time: this clock is the wrong one
                self._jump = replace(jump, since_us=elapsed)
            if held and jump.by_us > 0:
                self._anchor = Anchor(now, elapsed, elapsed + min(jump.by_us, DAY_US))
                self._keep(self._anchor)
                self._good(now, elapsed)
                return now
            if held:
                slow = anchor.now_us + (elapsed - anchor.elapsed_us) // 2
                self._anchor = Anchor(slow, elapsed, anchor.settles_us)
                self._jump = replace(jump, by_us=now - slow)
                expected = slow
            self._report_change(self._doubt_of(jump, expected, held), elapsed)
            return expected

    def _doubt_of(self, jump: Jump, expected: Microseconds, held: bool) -> Doubt:
        reason = f"the wall clock of this machine jumped {jump.text}, so its readings are not used"
        if held:
            reason = (
                f"the wall clock of this machine is {_rounded(abs(jump.by_us))} behind the last commit of the log, "
                "whose time runs at half speed until both agree"
            )
        return Doubt(
            f"{reason}; commits continue at {from_us(expected):%Y-%m-%d %H:%M} UTC, and nothing is removed by age",
            f"correct the clock and synchronise it with NTP; a jump that lasts {format_span(jump.holds_us)} is taken as the time",
        )

    def _report_change(self, doubt: Doubt | None, elapsed: Microseconds) -> None:
        """Report a change, and a continuing doubt every minute, because another process may have cleared it."""
        is_new = (doubt is None) != (self._doubt is None)
        self._doubt = doubt
        if is_new or (doubt is not None and elapsed - self._reported_us >= KEPT_EVERY_US):
            self._reported_us = elapsed
            if self._report is not None:
                self._report(doubt)

    def _elapsed_us(self) -> Microseconds:
        base = self.base
        return round((base.elapsed_ms() if isinstance(base, SystemClock) else base.steady_ms()) * 1_000)


def _settling(left_us: Microseconds) -> Doubt:
    return Doubt(
        "the clock of this machine was set, or the machine was restarted: nothing is removed by age until the clock has run for "
        f"another {_rounded(left_us)} without a jump",
        "no action is needed if the time is correct",
    )


def _is_even(jump: Jump, by_us: Microseconds, elapsed: Microseconds) -> bool:
    """Whether the wall clock is as far off as it was when the jump was found."""
    return abs(by_us - jump.by_us) <= TOLERANCE_US + (elapsed - jump.since_us) // DRIFT


def _rounded(span_us: Microseconds) -> str:
    """Return a span in its largest unit, for users."""
    for name, size in (
        ("years", 365 * DAY_US),
        ("days", DAY_US),
        ("hours", DAY_US // 24),
        ("minutes", 60_000_000),
    ):
        if span_us >= 2 * size:
            return f"{span_us / size:.0f} {name}"
    return f"{max(1, span_us // 1_000_000)} seconds"
