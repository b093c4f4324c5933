"""Where the time of a tick goes, by phase."""

from __future__ import annotations

import time
from collections.abc import Mapping

PLAN = "plan"
"""Determining the current views, and planning new ones."""
READ = "read"
"""Reading the new records of the log."""
COMPUTE = "compute"
"""The operators, with their probes of the state."""
WRITE = "write"
"""Encoding the new runs, and passing them to the files."""
MERGE = "merge"
"""Merging runs of arrangements with too many runs."""
COMMIT = "commit"
"""Making runs and manifest durable."""
TIDY = "tidy"
"""Removing files that no tick needs any more, and releasing records of the log."""


class Phases:
    """A stopwatch for one phase at a time: a phase that is entered within another interrupts it."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._spans: dict[str, tuple[float, float]] = {}
        self._under_way: list[str] = []
        self._next = ""
        self._made = self._since = time.perf_counter()

    def __call__(self, phase: str) -> Phases:
        """Set the phase of the next `with` block over this object."""
        self._next = phase
        return self

    def __enter__(self) -> None:
        self._count()
        self._under_way.append(self._next)

    def __exit__(self, *_: object) -> None:
        self._count()
        self._under_way.pop()

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds spent per phase until now."""
        return dict(self._seconds)

    @property
    def spans(self) -> Mapping[str, tuple[float, float]]:
        """When each phase was first entered and last left, in seconds since the stopwatch was created. The spans may
        overlap."""
        return dict(self._spans)

    def _count(self) -> None:
        now = time.perf_counter()
        if self._under_way:
            phase = self._under_way[-1]
            self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
            first, _ = self._spans.get(phase, (self._since - self._made, 0.0))
            self._spans[phase] = (first, now - self._made)
        self._since = now
