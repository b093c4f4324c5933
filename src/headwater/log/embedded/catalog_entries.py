"""The catalog of the embedded log: documents by kind and name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.core.names import Named
from headwater.log.embedded.base import LogFolder
from headwater.log.embedded.journal.journal_state import JournalState
from headwater.log.protocol import Entry
from headwater.log.topic_names import check_drop, check_entry, plain_document


class LogEntries:
    """Implements the methods of `headwater.log.protocol.Log` for entries of the catalog."""

    def __init__(self, folder: LogFolder) -> None:
        self._folder = folder
        self._read: dict[str, tuple[object, Mapping[str, Entry]]] = {}
        """Entries by kind, with the version of the catalog: every tick reads many kinds, and they rarely change."""

    def entries(self, kind: str) -> Mapping[str, Entry]:
        """See `Log.entries`."""
        journal = self._folder.journal
        with journal.mutex:
            journal.refresh()
            known = self._read.get(kind)
            if known is None or known[0] is not journal.entries_version:
                found = [e for e in journal.visible_entries.values() if e.kind == kind]
                entries = Named({e.name: e for e in sorted(found, key=lambda e: e.name)})
                known = self._read[kind] = journal.entries_version, entries
        return known[1]

    def put_entry(self, kind: str, name: str, document: Mapping[str, Any], *, expect: int | None) -> Entry:
        """See `Log.put_entry`."""
        plain = plain_document(kind, name, document)

        def change(state: JournalState) -> dict[str, Any]:
            check_entry((kind, name), state.topics, state.entries, expect)
            return {"k": "entry", "kind": kind, "name": name, "document": plain}

        record = self._folder.change(change) or {}
        return Entry(kind, name, plain, record["seq"], record["at"])

    def drop_entry(self, kind: str, name: str, *, expect: int | None = None) -> None:
        """See `Log.drop_entry`."""

        def change(state: JournalState) -> dict[str, Any]:
            check_drop((kind, name), state.entries, expect)
            return {"k": "unentry", "kind": kind, "name": name}

        self._folder.change(change)
