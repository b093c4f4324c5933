"""Deletions as entries of the log's catalog: what was deleted, and how far everything derived from it has followed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headwater.catalog.connectors import DELETION
from headwater.core.clock import Microseconds
from headwater.log.protocol import Entry, Log

_OF_EXCISIONS = ("offsets", "since", "incarnation")
"""Fields that only the documents of excisions have, and of these some only until they are over."""


@dataclass(frozen=True, kw_only=True)
class DeletionEntry:
    """A subject that was forgotten, or records of a topic that were excised.

    `name` and `sequence` are those of the entry, the other fields those of its document, which `document` writes again.
    """

    name: str
    sequence: int = 0
    what: Literal["forget", "excise"]
    of: str
    """The subject, or the topic."""
    where: str | None
    """The condition of an excision, without its values."""
    at: Microseconds
    who: str | None
    reason: str | None
    topics: Mapping[str, int]
    """How many records of each topic are deleted, or were private values of the subject."""
    logged: bool = True
    """Whether the log no longer gives the values out."""
    tick: int | None = None
    """The first tick without them."""
    settled_at: Microseconds | None = None
    views: Sequence[str] | None = None
    """The views that held something of them, once a tick has followed."""
    mended: Sequence[str] = ()
    """Those of the views that they were retracted from, and that need not be rebuilt."""
    sinks: Mapping[str, Microseconds] = field(default_factory=dict)
    """When each sink was brought to where it holds nothing of them."""
    followed: bool = False
    """Whether all sinks were."""
    offsets: Mapping[str, str] | None = None
    """The records of an excision, by partition, packed; None once it is over."""
    since: Microseconds | None = None
    """When the first record of an excision was appended."""
    incarnation: int | None = None
    """The topic of an excision, among all that had its name."""

    @classmethod
    def read(cls, entry: Entry) -> DeletionEntry:
        """The deletion that an entry of the catalog describes."""
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
        """The document of the entry."""
        written = {n: v for n, v in vars(self).items() if n not in ("name", "sequence")}
        return {n: v for n, v in written.items() if v is not None or n not in _OF_EXCISIONS}


def deletion_entries(log: Log) -> dict[str, DeletionEntry]:
    """Every deletion, by the name of its entry."""
    return {name: DeletionEntry.read(entry) for name, entry in log.entries(DELETION).items()}


def put_deletion(log: Log, entry: DeletionEntry, expect: int | None) -> DeletionEntry:
    """Store a deletion; ConflictError if its entry is another one by now."""
    return DeletionEntry.read(log.put_entry(DELETION, entry.name, entry.document(), expect=expect))
