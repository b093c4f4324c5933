"""Checkpoints that become due during commits. A commit does not depend on them: a failed one is a fault of background work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from headwater.core.errors import DiskFullError, HeadwaterError
from headwater.core.faults import Component, Faults

NAME = "checkpoint of the journal"
RETRY_MIN_MS = 1_000.0
RETRY_MAX_MS = 60_000.0
"""Bounds of the wait before a failed checkpoint is retried; the wait doubles from the lower to the upper."""


class Checkpointing:
    """Checkpoint attempts of one process. Used under the lock of the journal."""

    def __init__(self, faults: Faults, clock_ms: Callable[[], float]) -> None:
        self._faults = faults
        self._component = Component(faults, "background", NAME)
        self._failed = False
        self._clock_ms = clock_ms
        self._wait_ms = 0.0
        self._again_at_ms = 0.0

    @property
    def fails(self) -> bool:
        """Whether the last checkpoint of this process or of another one failed."""
        return self._failed or any(fault.name == NAME for fault in self._faults.current())

    def attempt(self, checkpoint: Callable[[], None]) -> None:
        """Make a checkpoint, unless one has just failed. A failure is reported as a fault, not raised."""
        if self._wait_ms and self._clock_ms() < self._again_at_ms:
            return
        with contextlib.suppress(HeadwaterError, OSError):
            checkpoint()

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """Report whether the enclosed checkpoint succeeds."""
        try:
            yield
        except (HeadwaterError, OSError) as error:
            self._failed = True
            self._wait_ms = min(max(RETRY_MIN_MS, self._wait_ms * 2), RETRY_MAX_MS)
            self._again_at_ms = self._clock_ms() + self._wait_ms
            self._component.failed(error, _hint(error))
            raise
        self._failed, self._wait_ms = False, 0.0
        self._component.works()


def _hint(error: Exception) -> str:
    first = "free some space; " if isinstance(error, DiskFullError) else ""
    return f"{first}appends continue, and a later one tries again; until then the journal grows and opening takes longer"
