"""Orders to sources, such as to snapshot a table: whoever reads the source takes them up, here or in another process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.core.errors import UsageError
from headwater.log.protocol import Log
from headwater.sources.base import Pausable, Restarting, RowSource, Snapshotting
from headwater.sources.source_runner import Capture
from headwater.sql.statements import AlterSource

ORDER = "order"
"""The kind of the entries that tell a source to do something."""


class SourceOrders:
    """The orders that lie in the catalog for the sources of a workspace."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._handed: dict[str, tuple[Capture, int]] = {}

    def put(self, name: str, source: RowSource, statement: AlterSource) -> None:
        """Put an order there; UsageError if a source of its kind cannot do that."""
        order = {
            "source": name,
            "action": statement.action,
            "table": statement.table,
            "where": statement.where,
        }
        give(source, order)  # to nobody, to see whether it can be given
        self._log.put_entry(ORDER, f"{name}_{self._log.sequence()}", order, expect=None)

    def hand_over(self, name: str, capture: Capture) -> None:
        """Give a source the orders that are there for it; each is taken out once a later commit has it in its position."""
        for entry in self._log.entries(ORDER).values():
            if entry.document["source"] != name:
                continue
            known = self._handed.get(entry.name)
            if known is None or known[0] is not capture:
                give(capture.source, entry.document)
                self._handed[entry.name] = (capture, capture.progress.commits)
            elif capture.progress.commits > known[1]:
                self._log.drop_entry(ORDER, entry.name)
                del self._handed[entry.name]


def give(source: RowSource, order: Mapping[str, Any]) -> None:
    """Tell a source what to do; UsageError if it cannot."""
    action, table, where = order["action"], order["table"], order["where"]
    if action == "snapshot" and isinstance(source, Snapshotting):
        source.snapshot(table, where)
    elif action == "restart" and isinstance(source, Restarting):
        source.retry(table)
    elif action == "pause" and isinstance(source, Pausable):
        source.pause()
    elif action == "resume" and isinstance(source, Pausable):
        source.resume()
    else:
        raise UsageError(f"a source of this kind cannot {action}")
