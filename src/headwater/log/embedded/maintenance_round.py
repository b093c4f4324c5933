"""A maintenance round as a list of pieces of work: a failed piece is reported as a fault, and the others still run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from headwater.core.errors import CorruptionError, DiskFullError, HeadwaterError
from headwater.core.faults import Faults
from headwater.log.protocol import FailedWork, MaintenanceReport

KIND: Final = "background"
RETRY_MAX_MS = 60_000.0
"""Longest wait before a repeatedly failing piece is retried. The wait starts at one round and doubles."""
HINT = "`headwater maintain` tries again at once and prints the error"
DAMAGED_HINT = (
    "`headwater verify` lists all damage; restore the file from a backup, then run `headwater maintain`"
)

FULL_HINT = "free some space; maintenance tries again by itself"


@dataclass(frozen=True)
class Partly:
    """Outcome of a piece that was partly done: the report of that part, and the error of the remainder."""

    done: MaintenanceReport
    error: Exception


Work = Callable[[], MaintenanceReport | Partly | None]
"""Does a piece of work. None means that the piece was not due, so that its earlier failure is still current."""


@dataclass
class _Failing:
    """State of a piece whose last attempt failed."""

    wait_ms: float
    again_at_ms: float
    failed: FailedWork


@dataclass
class Pieces:
    """The pieces of a workspace's maintenance, and the state of those that fail."""

    faults: Faults
    clock_ms: Callable[[], float]
    every_ms: float
    stopping: threading.Event
    _failing: dict[str, _Failing] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)

    def begin(self) -> None:
        """Read the faults that exist at the start of a round, reported by any process."""
        self._known = {fault.name for fault in self.faults.current() if fault.kind == KIND}

    def attempt(self, name: str, work: Work, *, force: bool) -> MaintenanceReport:
        """Run one piece and report its outcome. Without `force`, a failed piece waits for its next attempt."""
        failing = self._failing.get(name)
        if failing is not None and not force and self.clock_ms() < failing.again_at_ms:
            return MaintenanceReport(failed=(failing.failed,))
        try:
            done = work()
        except Exception as error:  # noqa: BLE001 - a full disk, a damaged file, a defect: the other pieces still run
            return MaintenanceReport(failed=(self.fail(name, error),))
        if isinstance(done, Partly):
            return replace(done.done, failed=(self.fail(name, done.error),))
        if done is not None:
            self.succeed(name)
        return done or MaintenanceReport()

    def fail(self, name: str, error: Exception) -> FailedWork:
        """Report a failed piece."""
        hint = _hint(error)
        failed = FailedWork.of(name, error, hint)
        if self.stopping.is_set():  # the log is closing its files: this is no fault of the workspace
            return failed
        before = self._failing.get(name)
        wait_ms = self.every_ms if before is None else min(before.wait_ms * 2, RETRY_MAX_MS)
        self._failing[name] = _Failing(wait_ms, self.clock_ms() + wait_ms, failed)
        self.faults.report(KIND, name, error, hint)
        return failed

    def succeed(self, name: str) -> None:
        """Clear the fault of a piece that works again."""
        if self._failing.pop(name, None) is not None or name in self._known:
            self._known.discard(name)
            self.faults.clear(KIND, name)

    def clear_others(self, verbs: Iterable[str], present: set[str]) -> None:
        """Clear the faults of pieces that begin with one of `verbs` and are not `present`: their topic was dropped."""
        begins = tuple(f"{verb} of " for verb in verbs)
        for name in [n for n in {*self._known, *self._failing} if n.startswith(begins) and n not in present]:
            self.succeed(name)


def _hint(error: Exception) -> str | None:
    """Return the remedy for an error of maintenance; None if the error has its own hint."""
    match error:
        case CorruptionError():
            return DAMAGED_HINT
        case DiskFullError():
            return FULL_HINT
        case HeadwaterError(hint=str()):
            return None
    return HINT
