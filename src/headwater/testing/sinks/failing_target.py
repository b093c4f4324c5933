"""A sink target that wraps another one and fails where a test says: the process dies, or the connection is lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

import pyarrow as pa

from headwater.sinks.base.blue_green import Versioned
from headwater.sinks.base.target import (
    Delivering,
    Freezing,
    Placed,
    SinkCheckpoint,
    Target,
    TargetChange,
    TargetShape,
)

When = Literal["before", "after"]


class UnsteadyTarget:
    """Delegates to `target`, and records the changes applied. `break_at` makes it raise once, before or after a change
    is applied."""

    guarantee: ClassVar[str] = "that of the target that it wraps"

    def __init__(self, target: Target) -> None:
        self.target = target
        self.applied: list[TargetChange] = []
        self._fault: tuple[When, BaseException] | None = None
        self.place = target.place if isinstance(target, Placed) else ""
        if isinstance(target, Delivering):
            self.last_delivered = target.last_delivered
        if isinstance(target, Versioned):
            self.versions = target.versions
        if isinstance(target, Freezing):
            self.frozen = target.frozen

    def break_at(self, when: When, error: BaseException) -> None:
        """Raise an error before, or after, the next change is applied."""
        self._fault = (when, error)

    def be_steady(self) -> None:
        """Cancel a fault that was not raised yet."""
        self._fault = None

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns of `target`; see `Target`."""
        return self.target.key

    def prepare(self, shape: TargetShape) -> None:
        """Prepare `target`; see `Target`."""
        self.target.prepare(shape)

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the stored form of `target`; see `Target`."""
        return self.target.stored_form(rows)

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the checkpoint of `target`; see `Target`."""
        return self.target.checkpoint()

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """Apply a change to `target`, unless a fault is raised before; see `Target`."""
        self._break("before")
        self.target.apply(change, before, after)
        self.applied.append(change)
        self._break("after")

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Return the contents of `target`; see `Target`."""
        return self.target.contents()

    def close(self) -> None:
        """Close `target`; see `Target`."""
        self.target.close()

    def _break(self, now: When) -> None:
        if self._fault is not None and self._fault[0] == now:
            error = self._fault[1]
            self._fault = None
            raise error
