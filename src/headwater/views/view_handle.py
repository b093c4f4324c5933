"""A handle on one view: what `ws.view(name)` gives."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, overload

import pyarrow as pa

from headwater.catalog.definitions import ViewDefinition
from headwater.core.arguments import tick_token
from headwater.core.errors import UsageError
from headwater.core.positions import Token
from headwater.engine.collections.collections import total
from headwater.log.reader import wait_ms

if TYPE_CHECKING:
    from headwater.lineage.why import Why
    from headwater.serving.follow import Changes
    from headwater.views.view_manager import Views


class View:
    """One view of a workspace."""

    def __init__(self, views: Views, name: str) -> None:
        self._views = views
        self.name = views.names.spelled(name)

    def __repr__(self) -> str:
        return f"<View {self.name}>"

    @property
    def definition(self) -> ViewDefinition:
        """What it is declared to be."""
        return self._views.names.describe(self.name)

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._views.names.columns(self.name)

    def read(self, *, as_of: int | str | datetime | None = None) -> pa.Table:
        """Its rows at the newest tick, or at an earlier one."""
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
        """What changed after tick `since`: its columns with `_weight` (+n, -n) and `_tick`, netted per tick.

        Up to the newest tick, from the first if `since` is left out. With `follow` an iterator instead, of a table for
        every tick that changed it: of the kept ticks after `since`, or, if that is left out, first all rows as they are;
        then of every tick to come. It ends at `close()`, or after `timeout` seconds of silence, and its `token` is
        where to go on from. If it cannot go on, TickNotKeptError; with `resync` it begins again with all rows
        instead, for which its `snapshot` is true.

        `since` is a token, or the number of a tick. A number alone stands for another tick where an older copy of the workspace
        was put back; a token is refused there (OtherHistoryError, a TickNotKeptError).
        """
        after = None if since is None else tick_token(since, "since")
        if follow:
            return self._views.reads.follow(self.name, after, wait_ms(timeout), resync=resync)
        if timeout is not None or resync:
            raise UsageError("timeout and resync are for following", hint="changes(..., follow=True)")
        return self._views.reads.changes(self.name, after or Token(0))

    def why(self, key: Any, *, as_of: int | str | datetime | None = None) -> Why:
        """The log records from which a row comes, through every view in between, and the tick that last changed it.

        `key` is a mapping of columns to values, any columns, or the value (of several, a tuple) of the columns that the
        view is arranged by, such as those of its GROUP BY. If it finds several rows, the answer is for all of them.
        RowNotFoundError if it finds none.
        """
        return self._views.reads.why(self.name, key, as_of)

    def ledger(self, *, by_input: bool = False) -> dict[str, Any]:
        """What became of the rows of topics that it has read up to the newest tick: `read`, `used`, `diverted`,
        `dropped` and `failed`, where the last four add up to the first; with `by_input` that for each topic. Dropped are rows
        that came too late, or failed and were dropped by somebody since (`ws.dead()`).

        Of a topic with a primary key, the rows are those of its current table; where it is joined AS OF a time, versions,
        or in a view that leaves late rows out all its records.
        """
        accounts = self._views.reports.ledger(self.name)
        if by_input:
            return accounts
        return total(accounts)

    def rebuild(self, *, verify: bool = True) -> list[str]:
        """Have it built anew from the log by the next run, and every view above it with it; says which.

        Each is built beside what is served, and takes its place in one tick once it was compared with its SELECT in batch;
        with `verify=False`, once it has caught up. The version before it stays readable by `as_of=view.old` until `drop_old`.
        """
        return self._views.declarations.rebuild(self.name, verify=verify)

    @property
    def old(self) -> int | None:
        """The last tick of the version from before it was built anew, which is kept until `drop_old`; None if there is none."""
        return self._views.declarations.old(self.name)

    def drop_old(self) -> int | None:
        """Keep the version from before it was built anew no longer than other ticks; the last tick that has it."""
        return self._views.declarations.old(self.name, drop=True)

    def replay_late(self) -> int:
        """Give the rows that came too late for it, as `<view>.late` has them now, back to it: they count as if they had
        been in time. Says how many rows of topics that are; 0 if there are none, and then nothing is done.

        The next run builds it anew from the log beside what is served, and takes its place in one tick. UsageError if it
        has no `.late`, or if records were removed that it was made from.
        """
        return self._views.declarations.replay_late(self.name)
