"""Where a unit is in a tick under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.core.positions import Ends
from headwater.engine.collections.arrangements import Added
from headwater.engine.collections.collections import Ledger
from headwater.operators.zset.delta import Delta
from headwater.state.manifest import Manifest, ViewState


@dataclass
class CollectionProgress:
    """Where a unit is before and after a tick."""

    state: ViewState | None
    change: Delta | None = None
    """Of this tick; None unless the unit is live in it."""
    joined: bool = False
    """Live from this tick on: who reads it gets its whole contents."""
    status: str = "backfilling"
    reason: str | None = None
    sequence: int = 0
    positions: Ends = field(default_factory=dict)
    begun: bool = False
    """Whether it has made its first step, in which constants and empty aggregates come in."""
    built: int = 0
    """The tick at which it began."""
    begins: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """topic -> its partitions' first offsets then: what was removed since cannot be read again."""
    base: Manifest | None = None
    """While it is built on a base: that base, whose contents of other units it has read."""
    ledger: Ledger = field(default_factory=dict)
    """By topic, what became of the rows that it has read so far."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """Of the topics that it waits for, at its positions."""
    beside: dict[str, Delta] = field(default_factory=dict)
    """By arrangement, what this tick changes in what it gives beside its rows."""
    beside_refs: dict[str, Added] = field(default_factory=dict)
    """The runs that have it."""
    is_blocked: bool = False
    """Stopped for no other reason than that one below it is."""
    key: tuple[int, ...] | None = None
    """The columns that its contents are arranged by; None if these are the ones that its unit says."""
    old: int | None = None
    """The tick that has the version which it has taken the place of, when it was built anew."""
