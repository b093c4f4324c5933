"""What the ticks of a workspace have cost so far, kept in the ticks themselves.

Whoever reads the newest manifest can tell them, in whichever process, and they go on counting where an engine was restarted.
What it takes to commit a tick is known only afterwards: it is in the manifests that come after, of the same engine.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.state.manifest import Manifest

NAME = "figures"
"""Under which a manifest has them, in `extra`."""
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the durations that ticks are counted by; what is longer has a count of its own."""
_DIGITS = 6


@dataclass(frozen=True)
class TickFigures:
    """One tick: the records that it took in, how long it took, and the seconds of each phase."""

    tick: int
    rows: int
    seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """All ticks up to one, and that one."""

    ticks: int = 0
    rows: int = 0
    seconds: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    """How many ticks took at most as long as each of `BOUNDS_S`, and no less than the one before; then the rest."""
    last: TickFigures | None = None

    def and_then(self, tick: TickFigures) -> Figures:
        """With one more tick."""
        counts = list(self.counts)
        counts[bisect_left(BOUNDS_S, tick.seconds)] += 1
        phases = dict(self.phases)
        for name, seconds in tick.phases.items():
            phases[name] = round(phases.get(name, 0.0) + seconds, _DIGITS)
        return Figures(
            self.ticks + 1,
            self.rows + tick.rows,
            round(self.seconds + tick.seconds, _DIGITS),
            phases,
            tuple(counts),
            tick,
        )

    def document(self) -> dict[str, Any]:
        """For a manifest."""
        told: dict[str, Any] = {
            "ticks": self.ticks,
            "rows": self.rows,
            "seconds": self.seconds,
            "phases": self.phases,
            "counts": self.counts,
        }
        if self.last is not None:
            rounded = {name: round(seconds, _DIGITS) for name, seconds in self.last.phases.items()}
            told["last"] = [self.last.tick, self.last.rows, round(self.last.seconds, _DIGITS), rounded]
        return told


def figures_of(manifest: Manifest | None) -> Figures:
    """What a manifest has of the ticks up to it; nothing if it is of a version that kept none."""
    told = manifest.extra.get(NAME) if manifest is not None else None
    if told is None:
        return Figures()
    counts = tuple(told["counts"])
    return Figures(
        told["ticks"],
        told["rows"],
        told["seconds"],
        told["phases"],
        counts if len(counts) == len(BOUNDS_S) + 1 else Figures.counts,
        TickFigures(*told["last"]) if "last" in told else None,
    )
