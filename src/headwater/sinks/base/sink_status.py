"""What a sink tells of itself: how it is doing, how far it is behind, and of which rows its target wants to know nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from headwater.sinks.base.circuit_breaker import CircuitState

OnError = Literal["stop", "divert"]
"""What becomes of rows that the target refuses: the sink stops before them, or they are told of and left out."""
State = Literal["new", "following", "waiting", "levelling", "retrying", "stopped", "closed"]
"""'waiting': the view is part of no tick yet. 'retrying': the target is not there; it is tried again. 'stopped': somebody has to
do something, then `resume`."""


@dataclass(frozen=True)
class Letters:
    """Rows of the view that were refused at a tick, and why. The same `serial` is told of again after a crash, and means the
    same letters; serials of a sink rise."""

    sink: str
    serial: int
    tick: int
    rows: pa.RecordBatch
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Status:
    """How a sink is doing. `tick` is the last whose changes the target has, None if that is not known; `attempts` counts
    what failed since something worked; `withheld` are the rows of the view that the target refused; `circuit` says of targets that
    are left alone after failures whether this one is."""

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
    """How far a target is behind its view; `rows` is None if that is not known any more."""

    ticks: int
    rows: int | None
    seconds: float
