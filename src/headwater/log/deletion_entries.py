"""Deletions as entries of the log's catalog: what was deleted, and how far derived data has followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headwater.catalog.connectors import DELETION
from headwater.core.clock import Microseconds
from headwater.log.protocol import Entry, Log

_OF_EXCISIONS = ("offsets", "since", "incarnation")
"""Fields that only entries of excisions have; some of them are removed once the excision has finished."""


@dataclass(frozen=True, kw_only=True)
class DeletionEntry:
    """A forgotten subject (crypto-shredding), or records of a topic that were excised (hard delete).

    `name` and `sequence` belong to the catalog entry; the other fields are those of its document, which `document` returns.
    """

    name: str
    sequence: int = 0
    what: Literal["forget", "excise"]
    of: str
    """The subject, or the topic."""
    where: str | None
    """The condition of an excision, without its literal values."""
    at: Microseconds
    who: str | None
    reason: str | None
    topics: Mapping[str, int]
    """By topic, the number of records that were deleted, or that had private values of the subject."""
    logged: bool = True
    """Whether reads of the log no longer return the deleted values."""
    tick: int | None = None
    """The first tick without the deleted values."""
    settled_at: Microseconds | None = None
    views: Sequence[str] | None = None
    """Views that contained deleted values; None until a tick has processed the deletion."""
    mended: Sequence[str] = ()
    """Views from which the deleted values were retracted and which need no rebuild."""
    sinks: Mapping[str, Microseconds] = field(default_factory=dict)
    """By sink, the time at which the sink no longer contained any of the deleted values."""
    followed: bool = False
    """Whether every sink has removed the deleted values."""
    offsets: Mapping[str, str] | None = None
    """Packed offsets of the excised records, by partition; None once the excision has finished."""
    since: Microseconds | None = None
    """Append time of the first excised record."""
    incarnation: int | None = None
    """Incarnation of the excision's topic, because earlier or later topics may have the same name."""

    @classmethod
    def read(cls, entry: Entry) -> DeletionEntry:
        """Return the deletion that an entry of the catalog describes."""
        return cls(name=entry.name, sequence=entry.sequence, **entry.document)

    @property
    def forgets(self) -> bool:
        """Whether a subject was forgotten."""
        return self.what == "forget"

    @property
    def excises(self) -> bool:
        """Whether records were removed."""
        return self.what == "excise"

    def document(self) -> dict[str, Any]:
        """Return the document of the catalog entry."""
        written = {n: v for n, v in vars(self).items() if n not in ("name", "sequence")}
        return {n: v for n, v in written.items() if v is not None or n not in _OF_EXCISIONS}


def deletion_entries(log: Log) -> dict[str, DeletionEntry]:
    """Return every deletion, by the name of its entry."""
    return {name: DeletionEntry.read(entry) for name, entry in log.entries(DELETION).items()}


def put_deletion(log: Log, entry: DeletionEntry, expect: int | None) -> DeletionEntry:
    """Store a deletion; ConflictError unless the stored entry has the sequence `expect` (None: there is no entry)."""
    return DeletionEntry.read(log.put_entry(DELETION, entry.name, entry.document(), expect=expect))
