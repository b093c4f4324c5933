"""Orders to sources, such as to snapshot a table, executed by the process that reads the source, this one or another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.core.errors import UsageError
from headwater.log.protocol import Log
from headwater.sources.base import Pausable, Restarting, RowSource, Snapshotting
from headwater.sources.source_runner import Capture
from headwater.sql.statements import AlterSource

ORDER = "order"
"""Kind of the catalog entries with orders to sources."""


class SourceOrders:
    """The orders in the catalog for the sources of a workspace."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._handed: dict[str, tuple[Capture, int]] = {}

    def put(self, name: str, source: RowSource, statement: AlterSource) -> None:
        """Record an order; UsageError if sources of its kind do not support it."""
        order = {
            "source": name,
            "action": statement.action,
            "table": statement.table,
            "where": statement.where,
        }
        # to a source that is not running, to check that the order is supported
        give(source, order)
        self._log.put_entry(ORDER, f"{name}_{self._log.sequence()}", order, expect=None)

    def hand_over(self, name: str, capture: Capture) -> None:
        """Pass the recorded orders to a running source. Each entry is removed once a later commit has the order in its
        position."""
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
    """Pass an order to a source; UsageError if the source does not support it."""
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
        raise UsageError(f"a source of this kind does not support {action.upper()}", action=action)
