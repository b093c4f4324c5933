"""A circuit breaker for receivers that do not answer: it opens after consecutive failures, and lets one attempt through
after a pause. It does no I/O; the caller makes the attempts."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from headwater.core.clock import Clock
from headwater.core.errors import TargetDownError

CircuitState = Literal["closed", "open", "half-open"]
HOLD_MAX_S = 3_600.0
"""Longest pause, in seconds, that a receiver can impose with `Retry-After`."""


@dataclass(frozen=True)
class CircuitOptions:
    """Thresholds of a circuit breaker: it opens after `opens_after` consecutive failures, and stays open for about `open_s`
    seconds."""

    opens_after: int = 5
    open_s: float = 30.0


def jittered(pause: float, chance: random.Random | None = None) -> float:
    """Return a pause shortened at random by up to half, so that clients which failed together do not all retry together."""
    return pause * (chance or _CHANCE).uniform(0.5, 1.0)


class Circuit:
    """A circuit breaker. *closed*: attempts are made. *open*: none is made. *half-open*: one attempt is made, which closes
    or opens the circuit."""

    def __init__(
        self, clock: Clock, options: CircuitOptions | None = None, chance: random.Random | None = None
    ) -> None:
        self._clock = clock
        self._options = options or CircuitOptions()
        self._chance = chance
        self._guard = threading.Lock()
        self._failures = 0
        self._until_ms: float | None = None
        """Time on the steady clock, in milliseconds, until which no attempt is admitted; None if attempts are admitted."""
        self._reason = ""

    @property
    def state(self) -> CircuitState:
        """State of the circuit, which says whether an attempt would be admitted now."""
        with self._guard:
            return self._state()

    def admit(self, whom: str) -> None:
        """Raise TargetDownError, with `whom` as the receiver's name, if no attempt is admitted now."""
        with self._guard:
            until_ms = self._until_ms
            left_s = 0.0 if until_ms is None else (until_ms - self._clock.steady_ms()) / 1_000
            if left_s > 0:
                why = (
                    f"after {self._failures} failures in a row"
                    if self._failures >= self._options.opens_after
                    else "as its Retry-After header asks"
                )
                raise TargetDownError(
                    f"the circuit breaker of {whom} stays open for another {left_s:.0f} s, {why}",
                    detail=self._reason or None,
                    left_s=round(left_s),
                    failures=self._failures,
                )

    def worked(self) -> None:
        """Record that an attempt was answered."""
        with self._guard:
            self._failures, self._until_ms, self._reason = 0, None, ""

    def failed(self, reason: str, after_s: float | None = None) -> None:
        """Record a failed attempt; `after_s` is the pause in seconds that the receiver asked for."""
        with self._guard:
            self._failures += 1
            self._reason = reason
            pause_s = 0.0 if after_s is None else min(after_s, HOLD_MAX_S)
            if self._failures >= self._options.opens_after:
                pause_s = max(pause_s, jittered(self._options.open_s, self._chance))
            self._until_ms = self._clock.steady_ms() + pause_s * 1_000 if pause_s else None

    def reset(self) -> None:
        """Let the next attempt through: an operator expects it to succeed."""
        with self._guard:
            self._until_ms = None

    def _state(self) -> CircuitState:
        if self._failures < self._options.opens_after:
            return "closed"
        waits = self._until_ms is not None and self._clock.steady_ms() < self._until_ms
        return "open" if waits else "half-open"


_CHANCE = random.Random()


@runtime_checkable
class Guarded(Protocol):
    """A target with a circuit breaker."""

    @property
    def circuit(self) -> Circuit:
        """The circuit breaker of the target."""
        ...
