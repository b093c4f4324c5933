"""The published status of a running sink, for readers, listeners and waiting threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from headwater.sinks.base.sink_status import State, Status


class SinkReport:
    """The status of one sink. Thread-safe; listeners are called with every new status."""

    def __init__(self, sink: str) -> None:
        self.status = Status(sink)
        self._changed = threading.Condition()
        self._listeners: list[Callable[[Status], None]] = []

    def listen(self, listener: Callable[[Status], None]) -> None:
        """Call `listener` with every new status from now on."""
        self._listeners.append(listener)

    def note(self, state: State, reason: str | None = None, *, attempts: int = 0) -> None:
        """Set the state of the sink."""
        self.put(replace(self.status, state=state, reason=reason, attempts=attempts))

    def advanced(self, tick: int, rows: int, *, rejected: int | None = None) -> None:
        """Record that the target has everything up to a tick, and that `rows` were applied just now."""
        status = self.status
        self.put(
            replace(
                status,
                state="following",
                reason=None,
                attempts=0,
                tick=tick,
                withheld=status.withheld if rejected is None else rejected,
                applied_rows=status.applied_rows + rows,
                applied_changes=status.applied_changes + bool(rows),
            )
        )

    def put(self, status: Status) -> None:
        """Publish a status, unless it equals the current one."""
        if status != self.status:
            with self._changed:
                self.status = status
                self._changed.notify_all()
            for listener in self._listeners:
                listener(status)

    def wait(self, tick: int, timeout_ms: float) -> bool:
        """Wait until the target has everything up to a tick, or the sink is stopped or closed, or the timeout passes; return
        whether the target has the tick."""

        def done() -> bool:
            return self._has(tick) or self.status.state in ("stopped", "closed")

        with self._changed:
            self._changed.wait_for(done, timeout_ms / 1_000)
        return self._has(tick)

    def _has(self, tick: int) -> bool:
        return self.status.tick is not None and self.status.tick >= tick
