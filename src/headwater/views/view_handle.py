"""A handle of one view, which `ws.view(name)` returns."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from headwater.catalog.view_definitions import ViewDefinition
from headwater.core.arguments import tick_token
from headwater.core.errors import UsageError
from headwater.core.positions import Token
from headwater.engine.collections.row_ledger import total
from headwater.log.reader import wait_ms

if TYPE_CHECKING:
    from headwater.lineage.why import Why
    from headwater.serving.follow import Changes
    from headwater.views.view_manager import Views


class View:
    """One view of a workspace."""

    def __init__(self, views: Views, name: str) -> None:
        self._views = views
        self.name = views.names.canonical_name(name)

    def __repr__(self) -> str:
        return f"<View {self.name}>"

    @property
    def definition(self) -> ViewDefinition:
        """Definition of the view, as declared."""
        return self._views.names.describe(self.name)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the view."""
        return self._views.names.columns(self.name)

    def read(self, *, as_of: int | str | datetime | None = None) -> pa.Table:
        """Return the rows of the view at the newest tick, or at an earlier one."""
        return self._views.reads.contents(self.name, as_of)

    @overload
    def changes(self, since: int | str | None = None, *, follow: Literal[False] = False) -> pa.Table: ...

    @overload
    def changes(
        self,
        since: int | str | None = None,
        *,
        follow: Literal[True],
        timeout: float | None = None,
        resync: bool = False,
    ) -> Changes: ...

    def changes(
        self,
        since: int | str | None = None,
        *,
        follow: bool = False,
        timeout: float | None = None,
        resync: bool = False,
    ) -> pa.Table | Changes:
        """Return the changes after tick `since`: the columns of the view with `_weight` (+n, -n) and `_tick`, netted per
        tick.

        Without `follow`, the changes reach up to the newest tick, from the first one if `since` is left out. With `follow`,
        an iterator is returned, of a table for every tick that changed the view: first the kept ticks after `since` or, if
        it is left out, all current rows; then every tick to come. The iterator ends at `close()`, or after `timeout` seconds
        without a change, and its `token` is the point to continue from. If it cannot continue, TickNotKeptError is raised;
        with `resync` it starts again with all rows instead, and its `snapshot` is true for these.

        `since` is a token, or the number of a tick. In an older copy of the workspace that was restored, a number alone may
        mean another tick; a token is rejected there (OtherHistoryError, a TickNotKeptError).
        """
        after = None if since is None else tick_token(since, "since")
        if follow:
            return self._views.reads.follow(self.name, after, wait_ms(timeout), resync=resync)
        if timeout is not None or resync:
            raise UsageError(
                "timeout and resync need follow=True",
                hint="changes(..., follow=True)",
                reason="not-following",
            )
        return self._views.reads.changes(self.name, after or Token(0))

    def why(self, key: Any, *, as_of: int | str | datetime | None = None) -> Why:
        """Return the log records from which a row is derived, through every view in between, and the tick that last changed
        it.

        `key` is a mapping of columns to values, any columns, or the value (of several, a tuple) of the columns that the view
        is arranged by, such as those of its GROUP BY. If it matches several rows, the answer is for all of them.
        RowNotFoundError if it matches none.
        """
        return self._views.reads.why(self.name, key, as_of)

    def ledger(self, *, by_input: bool = False) -> dict[str, Any]:
        """Return the accounts of the topic rows that the view has read up to the newest tick: `read`, `used`, `diverted`,
        `dropped` and `failed`, where the last four add up to the first; with `by_input`, by topic. Dropped rows came too
        late, or failed and their dead letters were dropped since (`ws.dead()`).

        For a topic with a primary key, the rows are those of its current table; if it is joined AS OF a time, its versions;
        in a view that leaves late rows out, all its records.
        """
        accounts = self._views.reports.ledger(self.name)
        if by_input:
            return accounts
        return total(accounts)

    def rebuild(self, *, verify: bool = True) -> list[str]:
        """Rebuild the view from the log in the next run, with every view above it, and return their names.

        Each is built as a shadow build, and becomes active in one tick after it was compared with its SELECT in batch; with
        `verify=False`, once it has caught up. The version before it stays readable by `as_of=view.old` until `drop_old`.
        """
        return self._views.declarations.rebuild(self.name, verify=verify)

    @property
    def old(self) -> int | None:
        """Last tick of the version from before a rebuild, which is kept until `drop_old`; None if there is none."""
        return self._views.declarations.old(self.name)

    def drop_old(self) -> int | None:
        """Keep the version from before a rebuild no longer than other ticks, and return its last tick."""
        return self._views.declarations.old(self.name, drop=True)

    def replay_late(self) -> int:
        """Replay the rows that were late for the view, as `<view>.late` has them now: they count as if they had been on
        time. Return the number of topic rows; 0 if there are none, and then nothing is done.

        The next run rebuilds the view from the log as a shadow build, which becomes active in one tick. UsageError if the
        view has no `.late`, or if records that it was built from were removed.
        """
        return self._views.declarations.replay_late(self.name)
