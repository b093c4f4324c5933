"""What a script has done to the source, as far as it decides whether the source can go on.

The rows of a table are not modelled: the table itself says what they are. The model keeps the gaps: what happened that the replication
stream does not tell of, so that a source with `on_gap = 'stop'` may stop, naming the table, instead of reading on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

SOURCE = "shop"
TABLES = ("orders", "parts")
"""The captured tables: one plain, one partitioned."""
NO_IDENTITY = "its replica identity was NOTHING"
RENAMED = "it was renamed"
UNLOGGED = "it was unlogged"
UNPUBLISHED = "it was not published"
KINDS_UNPUBLISHED = "not all kinds of changes were published"


@dataclass(frozen=True)
class Gap:
    """Something that the replication stream does not tell of."""

    reason: str
    by_hand: bool = False
    """A snapshot does not mend it: the table is not there, or its topic cannot have its rows. Somebody has to change the table back,
    and, where it was found so, to tell the source to take it up again."""
    is_mended: bool = False
    """The table was changed back."""

    @property
    def is_open(self) -> bool:
        """Whether no snapshot can be taken."""
        return self.by_hand and not self.is_mended


@dataclass
class Model:
    """The gaps of each table, since the source was last told to restart."""

    on_gap: str = "stop"
    gaps: dict[str, list[Gap]] = field(default_factory=dict)
    may_fail: bool = False
    """There was a transaction that Postgres itself may fail to decode: it undid a change of a table's columns or files."""
    copied: dict[str, list[Gap]] = field(default_factory=dict)
    """The gaps when the server's data directory was copied."""

    def lose(self, reason: str, tables: Iterable[str] = TABLES, *, by_hand: bool = False) -> None:
        """Note a gap of some tables."""
        for table in tables:
            self.gaps.setdefault(table, []).append(Gap(reason, by_hand))

    def mend(self, table: str, *reasons: str) -> None:
        """Note that what a snapshot could not mend was changed back."""
        self.gaps[table] = [
            replace(gap, is_mended=True) if gap.reason in reasons else gap for gap in self.gaps.get(table, [])
        ]

    def is_open(self, table: str) -> bool:
        """Whether no snapshot of a table can be taken as it is."""
        return any(gap.is_open for gap in self.gaps.get(table, []))

    def may_stop(self, table: str) -> bool:
        """Whether continuing is impossible, so that stopping is right."""
        found = self.gaps.get(table, [])
        return any(gap.by_hand or self.on_gap == "stop" for gap in found)

    def restarted(self, tables: Iterable[str] = TABLES) -> None:
        """Note that the source was told to copy these tables again: what a snapshot mends is mended."""
        for table in tables:
            self.gaps[table] = [gap for gap in self.gaps.get(table, []) if gap.is_open]

    def copy(self) -> None:
        """The server's data directory was copied."""
        self.copied = {table: list(gaps) for table, gaps in self.gaps.items()}

    def set_back(self) -> None:
        """The copy took the place of the data directory: the tables are as they were then."""
        by_hand = {table: [gap for gap in gaps if gap.is_open] for table, gaps in self.copied.items()}
        for table in TABLES:
            since = [replace(gap, is_mended=True) for gap in self.gaps.get(table, [])]
            self.gaps[table] = [*since, *by_hand.get(table, [])]
        self.lose("the server was set back")
