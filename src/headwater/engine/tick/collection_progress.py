"""The progress of a collection in a tick under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.core.positions import Ends
from headwater.engine.collections.arrangements import Added
from headwater.engine.collections.row_ledger import Ledger
from headwater.operators.zset.delta import Delta
from headwater.state.manifest import Manifest, ViewState


@dataclass
class CollectionProgress:
    """Position, status and other progress of a collection, before and after a tick."""

    state: ViewState | None
    change: Delta | None = None
    """Change of the contents in this tick; None unless the collection is live in the tick."""
    joined: bool = False
    """Whether the collection becomes live in this tick; readers then get the whole contents."""
    status: str = "backfilling"
    reason: str | None = None
    sequence: int = 0
    positions: Ends = field(default_factory=dict)
    begun: bool = False
    """Whether the first step has run, in which constants and aggregates over no rows are emitted."""
    built: int = 0
    """The tick at which the build of the collection began."""
    begins: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """topic -> first offsets of its partitions when the build began; records that were removed since cannot be read again."""
    base: Manifest | None = None
    """During a rebuild from a base: that base, whose contents of other collections have been read; else None."""
    ledger: Ledger = field(default_factory=dict)
    """By topic, counts of the rows that were read so far, and of those that were not used, by reason."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """Watermarks of the topics that the collection waits for, at its positions."""
    derived: dict[str, Delta] = field(default_factory=dict)
    """Changes of the derived relations (late rows, rejected rows) in this tick, by arrangement."""
    derived_refs: dict[str, Added] = field(default_factory=dict)
    """The runs with the changes of the derived relations, by arrangement."""
    is_blocked: bool = False
    """Whether the collection is stopped only because it cannot go on without something else: a collection that it
    reads, or keys."""
    key: tuple[int, ...] | None = None
    """Columns by which the contents are arranged; None if these are the columns that the collection defines."""
    old: int | None = None
    """For a rebuilt view that has replaced an earlier version: the last tick that has that version."""
