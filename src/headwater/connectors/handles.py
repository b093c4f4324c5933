"""Handles on one source and one sink: what `ws.source(name)` and `ws.sink(name)` give."""

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
    from headwater.connectors.manage.source_manager import Told
    from headwater.connectors.supervisor import Supervisor


class SourceHandle:
    """One source of a workspace."""

    def __init__(self, outside: Supervisor, name: str) -> None:
        self._outside = outside
        self.name = outside.sources.spelled(name)

    def __repr__(self) -> str:
        return f"<Source {self.name}>"

    @property
    def definition(self) -> SourceDefinition:
        """What it is declared to be."""
        return self._outside.sources.definitions()[self.name]

    @property
    def status(self) -> Told:
        """How it is doing, as far as this process knows."""
        return self._outside.sources.told(self.name)

    def wait(self, after: str | int, timeout: float = 30) -> Receipt:
        """Until the log has everything up to a position in the source: for Postgres, an LSN that was read after a commit.
        The receipt of all that it has brought, for `ws.query(..., after=receipt)`."""
        return self._outside.captured(self.name, self._outside.sources.position_of(after), timeout)


class SinkHandle:
    """One sink of a workspace."""

    def __init__(self, outside: Supervisor, name: str) -> None:
        self._outside = outside
        self.name = outside.sinks.spelled(name)

    def __repr__(self) -> str:
        return f"<Sink {self.name}>"

    @property
    def definition(self) -> SinkDefinition:
        """What it is declared to be."""
        return self._outside.sinks.definitions()[self.name]

    @property
    def status(self) -> Status:
        """How it is doing, as far as this process knows."""
        return self._outside.sinks.status(self.name).status

    @property
    def lag(self) -> SinkLag:
        """How far it is behind its view: in ticks, rows and seconds."""
        return self._outside.sinks.status(self.name).lag

    def search(
        self,
        text: str | None = None,
        *,
        filters: Any = (),
        limit: int = 10,
        highlight: bool = False,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """The rows of an index that match, best first, with `_score`; see `headwater.sinks.search.search_index`."""
        index = self._outside.sinks.index(self.name)
        return index.query(text, filters, limit, highlight, columns=columns)

    def retry(self) -> int:
        """Try the rows again that its target has refused (`on_error = 'divert'`); how many it took."""
        return self._outside.sinks.retry(self.name)

    def resume(self) -> None:
        """Have it try again at once, if it is stopped."""
        self._outside.sinks.resume(self.name)

    def rebuild(self, *, verify: bool = True, told: Callable[[Step], None] = lambda step: None) -> Rebuilt:
        """Build a new version of what it fills beside the one in force, which goes on meanwhile: fill it from the view,
        follow until it is level, compare it with the view (unless `verify` is false), and put it in force in one step. The
        old one is kept until `drop_old`. `told` is called with what is done next.

        UsageError if an old one is still kept, or the kind holds nothing. What a crash leaves is not in force, and the
        next call goes on with it."""
        return rebuild_sink.rebuild(self._outside.sinks, self.name, verify=verify, told=told)

    def back(self, *, verify: bool = True, told: Callable[[Step], None] = lambda step: None) -> Rebuilt:
        """Put the version from before the last `rebuild` in force again, in the same way; the other is kept then."""
        return rebuild_sink.back(self._outside.sinks, self.name, verify=verify, told=told)

    def drop_old(self) -> str:
        """Remove the version from before the last `rebuild`; what it was called. UsageError if none is kept."""
        return rebuild_sink.drop_old(self._outside.sinks, self.name)

    @property
    def old(self) -> str | None:
        """What the version from before the last `rebuild` is called, in the target; None if none is kept."""
        return rebuild_sink.old(self._outside.sinks, self.name)

    def wait(self, after: Receipt | str | int | None = None, timeout: float = 30) -> int:
        """Until its target has seen an append, or a position in a source; without one, the newest tick. The tick that has
        it."""
        return self._outside.followed(self.name, after, timeout)
