"""The status of a sink: state, lag, and rows rejected by the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from headwater.sinks.base.circuit_breaker import CircuitState

OnError = Literal["stop", "divert"]
"""Handling of rows that the target rejects: the sink stops before them, or skips and reports them."""
State = Literal["new", "following", "waiting", "levelling", "retrying", "stopped", "closed"]
"""State of a sink. 'waiting': the view is part of no tick yet. 'levelling': the target is being compared with the view.
'retrying': the target is unavailable, and is retried. 'stopped': an operator has to act, then `resume`."""


@dataclass(frozen=True)
class Letters:
    """Rows of the view that were rejected at a tick, and the reasons. After a crash the same `serial` may be reported again,
    with the same letters; serials of a sink increase."""

    sink: str
    serial: int
    tick: int
    rows: pa.RecordBatch
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Status:
    """The status of a sink. `tick` is the last tick whose changes the target has, None if unknown; `attempts` counts
    failures since the last success; `withheld` is the number of rows of the view that the target rejected; `levelled` counts
    reconciliations; `circuit` is the state of the target's circuit breaker, None if the target has none."""

    sink: str
    state: State = "new"
    reason: str | None = None
    tick: int | None = None
    attempts: int = 0
    withheld: int = 0
    applied_rows: int = 0
    applied_changes: int = 0
    levelled: int = 0
    circuit: CircuitState | None = None


@dataclass(frozen=True)
class SinkLag:
    """How far a target is behind its view; `rows` is None if the number can no longer be determined."""

    ticks: int
    rows: int | None
    seconds: float
