"""Cumulative cost of the ticks of a workspace, stored in the manifests.

Any process can read it from the newest manifest, and counting continues after an engine restart. The duration of a
tick's commit is known only after the commit, so it is included from the next manifest of the same engine on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.state.manifest import Manifest

NAME = "figures"
"""Key of the totals in a manifest's `extra`."""
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the duration histogram; longer ticks have a bucket of their own."""
_DIGITS = 6


@dataclass(frozen=True)
class TickCost:
    """The cost of one tick: records read, duration, and seconds per phase."""

    tick: int
    rows: int
    seconds: float
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TickTotals:
    """The cumulative cost of all ticks so far, with the cost of the last one."""

    ticks: int = 0
    rows: int = 0
    seconds: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    """Number of ticks per bucket: durations up to each of `BOUNDS_S` and above the bound before; the last bucket has
    the longer ones."""
    last: TickCost | None = None

    def and_then(self, tick: TickCost) -> TickTotals:
        """Return the totals with one more tick."""
        counts = list(self.counts)
        counts[bisect_left(BOUNDS_S, tick.seconds)] += 1
        phases = dict(self.phases)
        for name, seconds in tick.phases.items():
            phases[name] = round(phases.get(name, 0.0) + seconds, _DIGITS)
        return TickTotals(
            self.ticks + 1,
            self.rows + tick.rows,
            round(self.seconds + tick.seconds, _DIGITS),
            phases,
            tuple(counts),
            tick,
        )

    def document(self) -> dict[str, Any]:
        """Return the totals as a document for a manifest."""
        plain: dict[str, Any] = {
            "ticks": self.ticks,
            "rows": self.rows,
            "seconds": self.seconds,
            "phases": self.phases,
            "counts": self.counts,
        }
        if self.last is not None:
            rounded = {name: round(seconds, _DIGITS) for name, seconds in self.last.phases.items()}
            plain["last"] = [self.last.tick, self.last.rows, round(self.last.seconds, _DIGITS), rounded]
        return plain


def totals_of(manifest: Manifest | None) -> TickTotals:
    """Return the totals in a manifest; all zero if there is no manifest, or its version stored none."""
    plain = manifest.extra.get(NAME) if manifest is not None else None
    if plain is None:
        return TickTotals()
    counts = tuple(plain["counts"])
    return TickTotals(
        plain["ticks"],
        plain["rows"],
        plain["seconds"],
        plain["phases"],
        counts if len(counts) == len(BOUNDS_S) + 1 else TickTotals.counts,
        TickCost(*plain["last"]) if "last" in plain else None,
    )
