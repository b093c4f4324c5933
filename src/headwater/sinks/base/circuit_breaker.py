"""When somebody who does not answer is left alone: a circuit that opens after failures in a row, and lets one attempt through
after a while. Pure but for its clock; whoever asks does the attempts."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from headwater.core.clock import Clock
from headwater.core.errors import TargetDownError

CircuitState = Literal["closed", "open", "half-open"]
HOLD_MAX_S = 3_600.0
"""So long at most is somebody left alone who asks for it (`Retry-After`)."""


@dataclass(frozen=True)
class CircuitOptions:
    """The circuit opens after `opens_after` failed attempts in a row, and stays so for about `open_s`."""

    opens_after: int = 5
    open_s: float = 30.0


def jittered(pause: float, chance: random.Random | None = None) -> float:
    """A pause, or down to half of it: those who failed together do not all come back together."""
    return pause * (chance or _CHANCE).uniform(0.5, 1.0)


class Circuit:
    """Whether to try. *closed*: yes. *open*: not now. *half-open*: one attempt, which closes or opens it."""

    def __init__(
        self, clock: Clock, options: CircuitOptions | None = None, chance: random.Random | None = None
    ) -> None:
        self._clock = clock
        self._options = options or CircuitOptions()
        self._chance = chance
        self._guard = threading.Lock()
        self._failures = 0
        self._until_ms: float | None = None
        """Until when nothing is tried; None where nothing forbids it."""
        self._reason = ""

    @property
    def state(self) -> CircuitState:
        """Whether an attempt would be let through now."""
        with self._guard:
            return self._state()

    def admit(self, whom: str) -> None:
        """TargetDownError if they are to be left alone for now."""
        with self._guard:
            until_ms = self._until_ms
            left_s = 0.0 if until_ms is None else (until_ms - self._clock.steady_ms()) / 1_000
            if left_s > 0:
                why = (
                    f"after {self._failures} failures in a row"
                    if self._failures >= self._options.opens_after
                    else "as it asks for"
                )
                raise TargetDownError(
                    f"{whom} is left alone for another {left_s:.0f} s, {why}", detail=self._reason or None
                )

    def worked(self) -> None:
        """An attempt was answered."""
        with self._guard:
            self._failures, self._until_ms, self._reason = 0, None, ""

    def failed(self, reason: str, after_s: float | None = None) -> None:
        """An attempt was not; `after_s`: they ask to be left alone for so long."""
        with self._guard:
            self._failures += 1
            self._reason = reason
            pause_s = 0.0 if after_s is None else min(after_s, HOLD_MAX_S)
            if self._failures >= self._options.opens_after:
                pause_s = max(pause_s, jittered(self._options.open_s, self._chance))
            self._until_ms = self._clock.steady_ms() + pause_s * 1_000 if pause_s else None

    def reset(self) -> None:
        """Let the next attempt through: somebody says that it will work."""
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
    """A target that is left alone for a while after failures in a row."""

    @property
    def circuit(self) -> Circuit:
        """What says whether it is tried."""
        ...
