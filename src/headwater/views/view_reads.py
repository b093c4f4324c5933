"""Reads of views: queries, contents, changes and streams, at the newest tick or a past one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.core.arguments import tick_token
from headwater.core.errors import TickNotKeptError, UsageError
from headwater.core.positions import Receipt, Token
from headwater.engine.deletion.rebuild_after_delete import rewritten
from headwater.serving import query as reading
from headwater.serving.follow import Arrivals, Changes, CommittedTicks, FollowedView, FollowStart
from headwater.serving.name_hints import names_hinted, relation_names
from headwater.serving.query import not_run_yet
from headwater.serving.subscribe import FollowedQuery, Subscription
from headwater.sql import statements as s
from headwater.sql.lexer import words_of
from headwater.sql.parser import parse
from headwater.state.cut_history import TickCut
from headwater.state.manifest import Manifest
from headwater.state.missing_ticks import tick_not_kept
from headwater.state.view_reader import view_changes, view_contents
from headwater.views.runner import EngineHost
from headwater.views.view_names import ViewNames, view_not_found

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.lineage.why import Why
    from headwater.serving.create_topic_as import QueryRows
    from headwater.verify.recompute_at import PastRelations


class ViewReads:
    """Reads views at committed ticks."""

    def __init__(
        self,
        room: EngineHost,
        names: ViewNames,
        arrivals: Arrivals,
        reach: Callable[[Receipt, float], None],
        spark: SparkSession | None,
    ) -> None:
        """`reach` waits until views have an append; `spark` is the session that the workspace was given."""
        self._log = room.log
        self._store = room.store
        self._clock = room.clock
        self._tools = room.tools
        self._names = names
        self._ticks = CommittedTicks(room.store, arrivals, room.clock)
        self._reach = reach
        self._given = spark

    def query(
        self,
        text: str,
        *,
        as_of: int | str | datetime | None = None,
        after: Receipt | None = None,
        timeout_ms: float = 30_000,
    ) -> pa.Table:
        """Answer a SELECT over views and topics as of one tick."""
        _refuse_other_than_query(text)
        if after is not None:
            if not isinstance(after, Receipt):
                raise UsageError(
                    f"after takes a receipt, not {after!r}",
                    hint="receipt = topic.append(rows)",
                    option="after",
                    value=after,
                )
            self._reach(after, timeout_ms)
        names = {w.text.lower() for w in words_of(text) if w.is_name}
        tick = self._tick_of(as_of)
        with names_hinted(self._log):
            if tick is not None and (cut := self._collected(tick)) is not None:
                with closing(self._past(cut)) as past:
                    found = reading.answer(text, past.relations(names), self._tools)
                    return rewritten(self._log, tick, found)
            relations = reading.relations(self._log, self._store, self.at(tick), names)
            return reading.answer(text, relations, self._tools)

    def rows(self, query: s.QueryText) -> QueryRows:
        """Return the columns and rows of a query, as a stream if possible."""
        from headwater.serving.create_topic_as import rows_of

        with names_hinted(self._log):
            return rows_of(query, self._log, self._tools, self.query)

    def at(self, as_of: int | str | datetime | None) -> Manifest | None:
        """Return the manifest of a tick; without one, of the newest."""
        tick = self._tick_of(as_of)
        return self._store.latest() if tick is None else self._store.manifest(tick)

    def contents(self, name: str, as_of: int | str | datetime | None = None) -> pa.Table:
        """Return the rows of a view at a tick."""
        tick = self._tick_of(as_of)
        if tick is not None and (cut := self._collected(tick)) is not None:
            with closing(self._past(cut)) as past:
                return past.view(self._names.canonical_name(name))
        if (manifest := self.at(tick)) is None:
            raise self._never_run(name)
        return view_contents(self._store, manifest, self._names.canonical_name(name))

    def changes(self, name: str, since: Token) -> pa.Table:
        """Return the changes of a view after a tick."""
        found = self._names.canonical_name(name)
        if not (ticks := self._store.ticks()):
            raise self._never_run(name)
        if since.number > ticks[-1]:
            raise tick_not_kept(since.number, ticks)
        return view_changes(self._store, found, since)

    def follow(self, name: str, since: Token | None, timeout_ms: float | None, *, resync: bool) -> Changes:
        """Return the rows of a view, or its changes after a tick, followed by the changes of every tick."""
        followed = FollowedView(self._store, self._names.canonical_name(name), self._names.canonical_name)
        return Changes(followed, self._ticks, FollowStart(since, timeout_ms), resync=resync)

    def subscribe(
        self, query: s.QueryText, since: Token | None, timeout_ms: float | None, rows_max: int
    ) -> Subscription:
        """Return the rows of a query, followed by the changes of every tick; StatementError if the query cannot be
        maintained."""
        with names_hinted(self._log):
            followed = FollowedQuery(self._log, self._store, self._tools, query, rows_max)
        return Subscription(followed, self._ticks, FollowStart(since, timeout_ms))

    def why(self, name: str, key: Any, as_of: int | str | datetime | None = None) -> Why:
        """Return the log records from which the rows of a view with a key are derived."""
        from headwater.lineage.why import why

        manifest = self.at(as_of)
        if manifest is None:
            raise self._never_run(name)
        return why(self._log, self._store, self._tools, manifest, self._names.canonical_name(name), key)

    def frame(self, name: str) -> DataFrame:
        """Return a view, or a topic, as a Spark DataFrame at the newest tick."""
        manifest = self._store.latest()
        relation = reading.relations(self._log, self._store, manifest, {name.lower()}).get(name.lower())
        if relation is None:
            raise view_not_found(name, relation_names(self._log))
        spark = self._given if self._given is not None else self._tools().spark
        return spark.createDataFrame(relation.read(None, None))

    def _tick_of(self, as_of: int | str | datetime | None) -> int | None:
        if as_of is None:
            return None
        if not isinstance(as_of, datetime):
            hint = "ticks are numbered from 1; without as_of, the newest is read"
            token = tick_token(as_of, "as_of", least=1, hint=hint)
            self._store.check_token(token)
            return token.number
        tick = self._store.tick_at(as_of)
        if tick is None:
            raise TickNotKeptError(f"no tick was committed at or before {as_of.isoformat()}", as_of=as_of)
        return tick

    def _collected(self, tick: int) -> TickCut | None:
        """Return the cut of a tick whose state is no longer kept; None if the state is kept. TickNotKeptError if the tick is
        unknown."""
        try:
            self._store.manifest(tick)
        except TickNotKeptError as not_kept:
            try:
                return self._store.cut_of(tick)
            except TickNotKeptError:
                raise not_kept from None
        return None

    def _past(self, cut: TickCut) -> PastRelations:
        from headwater.verify.recompute_at import PastRelations
        from headwater.verify.recompute_units import Moment

        return PastRelations(
            self._log, self._store, self._tools(), Moment(cut.tick, cut.positions, cut.views)
        )

    def _never_run(self, name: str) -> Exception:
        return not_run_yet(self._names.canonical_name(name))


def _refuse_other_than_query(text: str) -> None:
    """Raise UsageError unless the text is one SELECT: Spark would execute any statement."""
    statements = parse(text)
    if len(statements) != 1 or not isinstance(statements[0], s.QueryText):
        raise UsageError(
            "ws.query takes one SELECT",
            hint="ws.sql(...) runs other statements, and several at once",
            reason="not-a-query",
        )
