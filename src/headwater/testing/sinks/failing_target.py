"""A target around another one that breaks where a test says: the process dies, or the connection does."""

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
    """Does what `target` does, and counts its changes. `break_at` raises once, before or after a change is applied."""

    guarantee: ClassVar[str] = "as steady as what it is around"

    def __init__(self, target: Target) -> None:
        self.target = target
        self.applied: list[TargetChange] = []
        self._fault: tuple[When, BaseException] | None = None
        self.place = target.place if isinstance(target, Placed) else ""
        if isinstance(target, Delivering):
            self.handed = target.handed
        if isinstance(target, Versioned):
            self.versions = target.versions
        if isinstance(target, Freezing):
            self.frozen = target.frozen

    def break_at(self, when: When, error: BaseException) -> None:
        """Raise an error before, or after, the next change is applied."""
        self._fault = (when, error)

    def be_steady(self) -> None:
        """Break no more."""
        self._fault = None

    @property
    def key(self) -> tuple[str, ...]:
        """See `Target`."""
        return self.target.key

    def prepare(self, shape: TargetShape) -> None:
        """See `Target`."""
        self.target.prepare(shape)

    def held(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """See `Target`."""
        return self.target.held(rows)

    def stand(self) -> SinkCheckpoint | None:
        """See `Target`."""
        return self.target.stand()

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """See `Target`."""
        self._break("before")
        self.target.apply(change, before, after)
        self.applied.append(change)
        self._break("after")

    def contents(self) -> Iterator[pa.RecordBatch]:
        """See `Target`."""
        return self.target.contents()

    def close(self) -> None:
        """See `Target`."""
        self.target.close()

    def _break(self, now: When) -> None:
        if self._fault is not None and self._fault[0] == now:
            error = self._fault[1]
            self._fault = None
            raise error
