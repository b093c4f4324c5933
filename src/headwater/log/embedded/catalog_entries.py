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

    def entries(self, kind: str) -> Mapping[str, Entry]:
        """See `Log.entries`."""
        with self._folder.journal.mutex:
            self._folder.journal.refresh()
            found = [e for e in self._folder.journal.visible_entries.values() if e.kind == kind]
        return Named({e.name: e for e in sorted(found, key=lambda e: e.name)})

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
