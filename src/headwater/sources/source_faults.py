"""Faults of a source: the source itself or some of its tables have stopped. Each is kept in the workspace until reading
resumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headwater.core.errors import ClosedError, FencedError, HeadwaterError
from headwater.core.faults import Fault, Faults
from headwater.sources.base import AGAIN, AWAY, Commit, Event, OfTables, Quiet, RowSource, Stated

KIND: Final = "source"


def table_fault(source: str, table: str) -> str:
    """Return the name of the fault of one table."""
    return f"{source}/{table}"


def faults_of(faults: Faults, source: str) -> tuple[Fault | None, dict[str, Fault]]:
    """Return the fault of the whole source, None without one, and the faults of its tables, by table."""
    found = {fault.name: fault for fault in faults.current() if fault.kind == KIND}
    begin = table_fault(source, "")
    return found.get(source), {n.removeprefix(begin): f for n, f in found.items() if n.startswith(begin)}


def clear_all(faults: Faults, source: str) -> None:
    """Clear the faults of a source that is dropped, replaced or restarted."""
    faults.clear(KIND, source)
    for table in faults_of(faults, source)[1]:
        faults.clear(KIND, table_fault(source, table))


class SourceFaults:
    """Reports and clears the faults of one source. The disk is touched only when something changes."""

    def __init__(self, faults: Faults, source: str) -> None:
        self._faults = faults
        self._source = source
        whole, tables = faults_of(faults, source)
        self._is_stopped = whole is not None
        self._tables = {table: fault.reason for table, fault in tables.items()}

    def stopped(self, error: Exception) -> None:
        """Report the error that stopped the source. Fencing by another process and the shutdown of this process are no
        faults."""
        if isinstance(error, ClosedError | FencedError):
            return
        self._is_stopped = True
        self._faults.report(KIND, self._source, error)

    def update(self, event: Event, source: RowSource) -> None:
        """Update the faults after an event of the source: report stopped tables, and clear the faults of what is read again."""
        stopped: Mapping[str, HeadwaterError] = source.stopped if isinstance(source, OfTables) else {}
        if not (stopped or self._tables or self._is_stopped):
            return
        for table, error in stopped.items():
            if self._tables.get(table) != error.message:
                self._tables[table] = error.message
                self._faults.report(KIND, table_fault(self._source, table), error)
        if isinstance(event, Commit) or (isinstance(event, Quiet) and not _is_away(source)):
            self._clear_source()
            if isinstance(event, Commit) or event.position is not None:  # its tables are determined by then
                self._clear_tables(stopped)

    def _clear_source(self) -> None:
        if self._is_stopped:
            self._is_stopped = False
            self._faults.clear(KIND, self._source)

    def _clear_tables(self, stopped: Mapping[str, HeadwaterError]) -> None:
        for table in self._tables.keys() - stopped.keys():
            del self._tables[table]
            self._faults.clear(KIND, table_fault(self._source, table))


def _is_away(source: RowSource) -> bool:
    """Whether a source waits for the external system that it reads from."""
    return isinstance(source, Stated) and source.state.startswith((AWAY, AGAIN))
