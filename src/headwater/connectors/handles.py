"""Handles of one source and one sink, which `ws.source(name)` and `ws.sink(name)` return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.catalog.connectors import SinkDefinition, SourceDefinition
from headwater.connectors.manage import rebuild_sink
from headwater.core.positions import Receipt
from headwater.sinks.base.applier import SinkLag, Status
from headwater.sinks.base.sink_rebuild import Rebuilt, Step

if TYPE_CHECKING:
    from headwater.connectors.manage.source_manager import SourceSummary
    from headwater.connectors.supervisor import Supervisor


class SourceHandle:
    """One source of a workspace."""

    def __init__(self, supervisor: Supervisor, name: str) -> None:
        self._supervisor = supervisor
        self.name = supervisor.sources.canonical_name(name)

    def __repr__(self) -> str:
        return f"<Source {self.name}>"

    @property
    def definition(self) -> SourceDefinition:
        """Definition of the source, as declared."""
        return self._supervisor.sources.definitions()[self.name]

    @property
    def status(self) -> SourceSummary:
        """Status of the source, as far as this process knows."""
        return self._supervisor.sources.status(self.name)

    def wait(self, after: str | int, timeout: float = 30) -> Receipt:
        """Wait until the log has everything up to a position in the source: for Postgres, an LSN that was read after a
        commit. Return a receipt for everything that the log has then, for `ws.query(..., after=receipt)`."""
        return self._supervisor.wait_captured(self.name, self._supervisor.sources.position_of(after), timeout)


class SinkHandle:
    """One sink of a workspace."""

    def __init__(self, supervisor: Supervisor, name: str) -> None:
        self._supervisor = supervisor
        self.name = supervisor.sinks.canonical_name(name)

    def __repr__(self) -> str:
        return f"<Sink {self.name}>"

    @property
    def definition(self) -> SinkDefinition:
        """Definition of the sink, as declared."""
        return self._supervisor.sinks.definitions()[self.name]

    @property
    def status(self) -> Status:
        """Status of the sink, as far as this process knows."""
        return self._supervisor.sinks.status(self.name).status

    @property
    def lag(self) -> SinkLag:
        """Lag of the sink behind its view: in ticks, rows and seconds."""
        return self._supervisor.sinks.status(self.name).lag

    def search(
        self,
        text: str | None = None,
        *,
        filters: Any = (),
        limit: int = 10,
        highlight: bool = False,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the matching rows of an index, best first, with `_score`; see `headwater.sinks.search.search_index`."""
        index = self._supervisor.sinks.index(self.name)
        return index.query(text, filters, limit, highlight, columns=columns)

    def retry(self) -> int:
        """Retry the rows that the target rejected (`on_error = 'divert'`), and return how many of them it accepted."""
        return self._supervisor.sinks.retry(self.name)

    def resume(self) -> None:
        """Let the sink retry at once, if it is stopped."""
        self._supervisor.sinks.resume(self.name)

    def rebuild(self, *, verify: bool = True, on_step: Callable[[Step], None] = lambda step: None) -> Rebuilt:
        """Rebuild the target: fill a staging version from the view next to the active version, which continues meanwhile,
        let it catch up, compare it with the view (unless `verify` is false), and make it active in one step. The previous
        version is kept until `drop_old`. `on_step` is called with each next step.

        UsageError if a previous version is still kept, or the kind of sink has no versions. A crash leaves an inactive
        staging version, and the next call continues with it.
        """
        return rebuild_sink.rebuild(self._supervisor.sinks, self.name, verify=verify, on_step=on_step)

    def back(self, *, verify: bool = True, on_step: Callable[[Step], None] = lambda step: None) -> Rebuilt:
        """Make the version from before the last `rebuild` active again, by the steps of `rebuild`; the replaced version is
        kept."""
        return rebuild_sink.back(self._supervisor.sinks, self.name, verify=verify, on_step=on_step)

    def drop_old(self) -> str:
        """Remove the version from before the last `rebuild` and return its name. UsageError if none is kept."""
        return rebuild_sink.drop_old(self._supervisor.sinks, self.name)

    @property
    def old(self) -> str | None:
        """Name, in the target, of the version from before the last `rebuild`; None if none is kept."""
        return rebuild_sink.old(self._supervisor.sinks, self.name)

    def wait(self, after: Receipt | str | int | None = None, timeout: float = 30) -> int:
        """Wait until the target has an append, or everything up to a position in a source; without one, the newest tick.
        Return the tick that contains it."""
        return self._supervisor.wait_applied(self.name, after, timeout)
