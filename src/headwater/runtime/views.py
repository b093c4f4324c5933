"""The views of a workspace: declared, run, read and verified. What `Workspace` hands on to when views are meant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.arguments import whole_number
from headwater.catalog import TopicDefinition, ViewDefinition, view_options
from headwater.clock import Clock, from_us
from headwater.errors import (
    EngineRunningError,
    HeadwaterError,
    TickNotKeptError,
    TopicNotFoundError,
    UsageError,
    ViewExistsError,
    ViewNotFoundError,
)
from headwater.log.protocol import Log
from headwater.positions import Receipt
from headwater.queries import statements as s
from headwater.queries.as_of import may_read_versions
from headwater.queries.dialect import words_of
from headwater.queries.parsing import parse
from headwater.runtime import reading
from headwater.runtime.catalog import VIEW, definitions, derived_of, keep_past, state_of
from headwater.runtime.declaring import Declarations, stopped_for
from headwater.runtime.deeds import with_dropped
from headwater.runtime.erasing import rewritten
from headwater.runtime.explain import begins_late, explained, resting_on, sketched, unplanned
from headwater.runtime.following import Arrivals, Changes, FollowedView
from headwater.runtime.functions.registry import Functions
from headwater.runtime.growth import BOUNDED, extents, refuse_growth, refuse_growth_above
from headwater.runtime.hidden import versions_of
from headwater.runtime.history import HOLD, beginning, hold_from_start, let_go, removed
from headwater.runtime.keys import keys_of, only_grows
from headwater.runtime.lateness import LATE_NAME, late_schema, tells, watermark_of
from headwater.runtime.nearest import names_hinted, nearest, relation_names
from headwater.runtime.pacing import Pace
from headwater.runtime.planning.policy import Policy
from headwater.runtime.renewing import drop_old, old, renew
from headwater.runtime.replaying import given_back, refuse_other_definition, refuse_untold
from headwater.runtime.running import Beside, EngineRoom, Listener, Runner, RunReport, run, wait_for
from headwater.runtime.session import ui_address
from headwater.runtime.subscribing import FollowedQuery, Subscription
from headwater.runtime.tools import Tools
from headwater.runtime.units import Ledger, balanced, total, view_of
from headwater.runtime.versions import readable_versions
from headwater.state.bases import Bases
from headwater.state.cuts import Cut
from headwater.state.errors import tick_not_kept
from headwater.state.manifest import Manifest
from headwater.state.ownership import Owner, Ownership, owner
from headwater.state.refs import RunRef
from headwater.state.serving import view_changes, view_contents
from headwater.state.store import StateStore
from headwater.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.runtime.copying import Rows
    from headwater.runtime.past import Past
    from headwater.runtime.verification import ViewCheck
    from headwater.runtime.why import Why


class Views:
    """Everything about views. Spark starts when something first needs it: a CREATE, a run, a query it must answer."""

    def __init__(
        self,
        log: Log,
        storage: Storage,
        clock: Clock,
        spark: SparkSession | None = None,
        keep_ticks: int | None = None,
    ) -> None:
        self._log = log
        self._clock = clock
        self._given = spark
        self._made: Tools | None = None
        self.functions = Functions(log)
        self._declarations = Declarations(log, self.functions, self._tools)
        self._guard = threading.RLock()
        self.store = StateStore(storage, clock)
        self.listener = Listener()
        self.arrivals = Arrivals(storage)
        self._room = EngineRoom(
            log, storage, self.store, clock, self._tools, lambda: self.listener, keep_ticks=keep_ticks
        )
        self._runners: list[Runner] = []

    def tools(self) -> Tools:
        """Spark and what works in it, started if it is not up."""
        return self._tools()

    def _tools(self) -> Tools:
        with self._guard:
            if self._made is None:
                with self.listener.starting_spark():
                    self._made = Tools(self._log, self._given, self.functions)
            return self._made

    def close(self) -> None:
        """Stop what still runs."""
        for runner in self._runners:
            if runner.running:
                runner.stop()
        self._runners.clear()
        self._room.close()
        self.arrivals.close()

    # --- declaring -------------------------------------------------------------------------------------------------

    def create(self, statement: s.CreateView) -> None:
        """CREATE MATERIALIZED VIEW: planned and refused here, built by the next run."""
        existing = self._log.entries(VIEW).get(statement.name)
        if existing is not None and statement.if_not_exists:
            return
        made = self.define(statement)
        if existing is not None:
            then = ViewDefinition.from_document(existing.document)
            same = replace(then, replayed={}).to_document() == made.to_document()
            if statement.or_replace:
                if same:
                    return
                self._refuse_breaking(made)
                self._refuse_losing([made.name], f"view {made.name!r} cannot be replaced")
            else:
                raise _exists(then, made, same)
        hold_from_start(self._log, made.reads)
        if existing is not None:
            keep_past(self._log, existing.name, served=True)
        expect = existing.sequence if existing is not None else None
        self._log.put_entry(VIEW, made.name, made.to_document(), expect=expect)
        topics = self._log.topics()
        begins = {t: beginning(self._log, t) for t in made.reads if t in topics}
        if (where := begins_late(begins)) is not None:
            self.listener.began_late(made.name, where)

    def define(self, statement: s.CreateView) -> ViewDefinition:
        """The definition that a statement makes; StatementError if its query cannot be kept."""
        self.functions.require(statement.query.text)
        catalog = self._tools().catalog
        options = view_options(s.resolve(statement.options))
        with names_hinted(self._log):
            plan = catalog.plan(statement.query, policy=Policy(options, statement.emit_on_close))
        late = late_schema(plan.late) if tells(options.late, options.correct_for_us) else None
        made = statement.definition(plan.schema, plan.inputs, late=late)
        if made.options.state == BOUNDED:
            refuse_growth(plan, extents(catalog.units(), self._log.topics()))
        if made.name in definitions(self._log):
            self._refuse_cycle(made)
            refuse_growth_above(made.name, plan, catalog.units(), self._log.topics())
        return made

    def drop(self, statement: s.DropView) -> None:
        """DROP VIEW: refused while another view reads it, unless CASCADE."""
        views = definitions(self._log)
        name = next((n for n in views if n.lower() == statement.name.lower()), None)
        if name is None:
            if statement.if_exists:
                return
            raise view_not_found(statement.name, views, self._log.topics(), topic_hint="DROP TOPIC {}")
        self.drop_readers(name, statement.cascade, "view")
        keep_past(self._log, name, served=False)
        self._log.drop_entry(VIEW, name)
        self._release()

    def drop_readers(self, name: str, cascade: bool, what: str) -> None:
        """Drop the views that read a topic or view, or refuse to."""
        readers = [v.name for v in definitions(self._log).values() if name in map(view_of, v.reads)]
        if readers and not cascade:
            raise UsageError(
                f"{what} {name!r} cannot be dropped: it is read by {', '.join(readers)}",
                hint=f"drop what reads it first, or DROP {what.upper()} {name} CASCADE",
            )
        for reader in readers:
            if reader in definitions(self._log):
                self.drop(s.DropView(reader, if_exists=True, cascade=True))

    def _refuse_cycle(self, made: ViewDefinition) -> None:
        views = definitions(self._log)
        left, seen = list(made.reads), set()
        while left:
            name = view_of(left.pop())
            if name == made.name:
                raise UsageError(f"view {made.name!r} would read itself")
            if name in views and name not in seen:
                seen.add(name)
                left += views[name].reads

    def _refuse_breaking(self, made: ViewDefinition) -> None:
        """Views that read this one must go on meaning what they mean."""
        for reader in definitions(self._log).values():
            gone = [
                n for n in reader.reads if view_of(n) == made.name and n not in (made.name, *derived_of(made))
            ]
            if gone:
                raise UsageError(
                    f"view {made.name!r} cannot be replaced so: {reader.name} reads {gone[0]}, which it would not have",
                    hint=f"DROP VIEW {reader.name} first, or keep the option that diverts rows to it",
                    view=made.name,
                    reader=reader.name,
                )
            if made.name not in reader.reads:
                continue
            try:
                plan = self._tools().catalog.plan_with(reader, made)
                told = (
                    None if plan.schema.types == reader.columns.types else "would have columns of other types"
                )
            except HeadwaterError as error:
                told = f"would not work any more: {error.message}"
            if told is not None:
                raise UsageError(
                    f"view {made.name!r} cannot be replaced so: {reader.name}, which reads it, {told}",
                    hint=f"DROP VIEW {reader.name} first, or make the new one under another name",
                    view=made.name,
                    reader=reader.name,
                )

    def _release(self) -> None:
        read = {name for v in definitions(self._log).values() for name in v.reads}
        for cursor in self._log.cursors():
            if cursor.name == HOLD and cursor.topic not in read:
                self._log.drop_cursor(cursor.topic, HOLD)
                # someone may have declared a view over it meanwhile
                again = [v.reads for v in definitions(self._log).values() if cursor.topic in v.reads]
                if again:
                    hold_from_start(self._log, [cursor.topic])

    def declare(self, name: str, declare: Callable[[Declarations], list[str]]) -> None:
        """Declare a user's function; views that it changes, or that stopped for want of it, are built anew by the next
        run."""
        for view in declare(self._declarations):
            renew(self._log, view, beside=False)
        self._resume([name])

    def _resume(self, functions: Sequence[str]) -> None:
        """Have the views that stopped for want of a function built anew."""
        if not functions:
            return
        views = definitions(self._log)
        for view in stopped_for(self.store.latest_whole(), functions):
            if view in views:
                renew(self._log, view, beside=False)

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self, tick_rows: int | None = None) -> RunReport:
        """Bring every view up to what the log holds now."""
        if self.engine() is None:
            self._resume(self.functions.here())
        return run(self._room, tick_rows)

    def claim(self) -> Ownership:
        """Become the engine of the workspace before there is anything to run, such as Spark; EngineRunningError if another
        is. For `start`, or to be released."""
        return self._room.claim()

    def start(
        self,
        pace: Pace,
        tick_rows: int | None,
        ownership: Ownership | None = None,
        beside: Beside | None = None,
    ) -> Runner:
        """Keep every view up to date in the background; `ownership` is the workspace's, if it was claimed already."""
        if ownership is not None or self.engine() is None:
            self._resume(self.functions.here())
        runner = Runner(self._room, pace, tick_rows, ownership, beside)
        self._runners.append(runner)
        return runner

    def hold(self, topic: str) -> None:
        """Keep every record of a topic that views read until the next tick lets go of it: what is removed from then on
        may be another matter than it was."""
        name = self._log.topic(topic).name
        if any(name in view.reads for view in definitions(self._log).values()):
            hold_from_start(self._log, [name])

    def refuse_losing_versions(self, changed: TopicDefinition) -> None:
        """Refuse other options of a topic with which versions could be lost that views read."""
        if (refusal := readable_versions(changed).refusal) is None:
            return
        for view in definitions(self._log).values():
            if changed.name not in view.reads or not may_read_versions(view.query):
                continue
            if (
                versions_of(changed.name)
                in self._tools().catalog.plan(s.Query(view.query), view.inputs).reads
            ):
                raise UsageError(
                    f"topic {changed.name!r} cannot be altered so: view {view.name!r} reads versions of its rows",
                    detail=refusal[0],
                    hint="set versions_for = '...' to how long they are to be kept, together with cleanup",
                    topic=changed.name,
                    view=view.name,
                )

    def widen(self, now: TopicDefinition, wider: TopicDefinition, alter: Callable[[], None]) -> None:
        """Have a topic altered so that columns are wider, and the views that use them built anew, beside."""
        changed = self._tools().catalog.widened(wider)
        self._refuse_losing(changed, f"topic {now.name!r} cannot be altered so")
        for name, view in changed.items():
            columns = view.inputs.get(now.name)
            types = {now.name: pa.schema([now.schema.field(c) for c in columns])} if columns else {}
            keep_past(self._log, name, served=True, types=types)
        alter()
        for name, view in changed.items():
            hold_from_start(self._log, view.reads)
            entry = self._log.entries(VIEW)[name]
            self._log.put_entry(VIEW, name, view.to_document(), expect=entry.sequence)

    def _refuse_losing(self, views: Iterable[str], what: str) -> None:
        """Refuse to build views anew that would not be the same: records are gone, and they would mean another thing
        than their base."""
        latest = self.store.latest_whole()
        for name in views:
            state = latest.views.get(name) if latest is not None else None
            if state is not None and state.status == "live" and removed(self._log, state.extra["begins"]):
                raise UsageError(
                    f"{what}: records that view {name!r} was made from were removed, and it cannot be made anew",
                    hint=f"DROP VIEW {name} first; it can be created again, from the records that are left",
                    view=name,
                )

    def let_go(self) -> None:
        """Let the log remove what every view has read. Beside a running engine nothing is done: it sees to it itself."""
        with suppress(EngineRunningError), self._room.claim():
            latest = self.store.latest_whole()
            if latest is not None:
                let_go(self._log, Bases(self.store.storage), latest, self._clock)

    def drop_state(self) -> None:
        """Remove what views keep, at once, because something was forgotten that it may hold: the next run makes them anew.
        EngineRunningError beside a running engine."""
        from headwater.runtime.erasing import drop_state

        with self._room.claim():
            drop_state(self.store, Bases(self.store.storage))

    def engine(self) -> Owner | None:
        """Who runs an engine on this workspace; None if nobody does."""
        return owner(self._room.storage)

    def has_failed(self) -> bool:
        """Whether an error has ended the engine that was started here last."""
        return bool(self._runners) and self._runners[-1].failed

    def start_spark(self) -> str | None:
        """Start Spark now, if it is not up, rather than at first need; the address of its own pages, if it has some."""
        return ui_address(self._tools().spark)

    def rebuild(self, name: str, *, verify: bool = True) -> list[str]:
        """Have a view, and those that read it, built anew by the next run, beside what is served; their names."""
        return renew(self._log, self.spelled(name), beside=True, verify=verify)

    def old(self, name: str, *, drop: bool = False) -> int | None:
        """The last tick of the version from before a view was built anew, as long as that is kept: not after `drop`."""
        return (drop_old if drop else old)(self._log, self.store, self.spelled(name))

    def replay_late(self, name: str) -> int:
        """Give the late rows of a view back to it; how many. The next run builds it from the log, beside what is served."""
        view, manifest = self.describe(name), self.store.latest()
        refuse_untold(view)
        if manifest is None:
            raise self._never_run(view.name)
        refuse_other_definition(self._log, view, manifest.views.get(view.name))
        late = view_contents(self.store, manifest, f"{view.name}.{LATE_NAME}")
        again, rows = given_back(self._log, view, late, manifest.views[view.name].positions)
        if rows:
            self._refuse_losing([view.name], f"late rows of view {view.name!r} cannot be given back")
            hold_from_start(self._log, view.reads)
            keep_past(self._log, view.name, served=True)
            self._log.put_entry(VIEW, view.name, again.to_document(), expect=view.incarnation)
        return rows

    # --- reading ---------------------------------------------------------------------------------------------------

    def query(
        self,
        text: str,
        *,
        as_of: int | datetime | None = None,
        after: Receipt | None = None,
        timeout_ms: float = 30_000,
    ) -> pa.Table:
        """A SELECT over views and topics as they are at one tick."""
        _refuse_other_than_query(text)
        if after is not None:
            if not isinstance(after, Receipt):
                raise UsageError(
                    f"after is the receipt of an append, not {after!r}", hint="receipt = topic.append(rows)"
                )
            self.reach(after, timeout_ms)
        names = {w.text.lower() for w in words_of(text) if w.is_name}
        tick = self._tick_of(as_of)
        with names_hinted(self._log):
            if tick is not None and (cut := self._collected(tick)) is not None:
                with closing(self._past(cut)) as past:
                    found = reading.answer(text, past.relations(names), lambda: self._tools())
                    return rewritten(self._log, tick, found)
            relations = reading.relations(self._log, self.store, self.at(tick), names)
            return reading.answer(text, relations, lambda: self._tools())

    def rows(self, query: s.Query) -> Rows:
        """The columns and rows of a query, as a stream where it can be one."""
        from headwater.runtime.copying import rows_of

        with names_hinted(self._log):
            return rows_of(query, self._log, self._tools, self.query)

    def at(self, as_of: int | datetime | None) -> Manifest | None:
        """The manifest of a tick; the newest without one."""
        tick = self._tick_of(as_of)
        return self.store.latest() if tick is None else self.store.manifest(tick)

    def _tick_of(self, as_of: int | datetime | None) -> int | None:
        if as_of is None:
            return None
        if not isinstance(as_of, datetime):
            return whole_number(
                as_of, "as_of", least=1, hint="the first tick is 1; left out, it is the newest"
            )
        tick = self.store.tick_at(as_of)
        if tick is None:
            raise TickNotKeptError(f"no tick was committed at or before {as_of.isoformat()}")
        return tick

    def _collected(self, tick: int) -> Cut | None:
        """The cut of a tick whose state is kept no more; None if it is kept, or never was."""
        try:
            self.store.manifest(tick)
        except TickNotKeptError as not_kept:
            try:
                return self.store.cut_of(tick)
            except TickNotKeptError:
                raise not_kept from None
        return None

    def _past(self, cut: Cut) -> Past:
        from headwater.runtime.past import Moment, Past

        return Past(self._log, self.store, self._tools(), Moment(cut.tick, cut.positions, cut.views))

    def reach(self, receipt: Receipt, timeout_ms: float) -> None:
        """Wait until the views have seen an append; without an engine that is brought about."""
        reached = self.reached(receipt)
        latest = self.store.latest()
        if latest is not None and reached(latest):
            return
        if owner(self._room.storage) is not None and wait_for(self._room, reached, timeout_ms) is not None:
            return
        self.run()

    def reached(self, receipt: Receipt) -> Callable[[Manifest], bool]:
        """Whether a tick has seen an append, as a question to its manifest."""
        views = definitions(self._log).values()
        readers = {t: {v.name for v in views if t in v.reads} for t in receipt.positions}

        def reached(manifest: Manifest) -> bool:
            stopped = {name for name, view in manifest.views.items() if view.status == "stopped"}
            return all(
                manifest.positions.get(t, {}).get(p, -1) >= end
                for t, parts in receipt.positions.items()
                if readers[t] - stopped  # those that stand still will never get there
                for p, (_, end) in parts.items()
            )

        return reached

    def contents(self, name: str, as_of: int | datetime | None = None) -> pa.Table:
        """The rows of a view at a tick."""
        tick = self._tick_of(as_of)
        if tick is not None and (cut := self._collected(tick)) is not None:
            with closing(self._past(cut)) as past:
                return past.view(self.spelled(name))
        manifest = self.at(tick)
        if manifest is None:
            raise self._never_run(name)
        return view_contents(self.store, manifest, self.spelled(name))

    def changes(self, name: str, since: int) -> pa.Table:
        """What changed in a view after a tick."""
        found, ticks = self.spelled(name), self.store.ticks()
        if not ticks:
            raise self._never_run(name)
        if since > ticks[-1]:
            raise tick_not_kept(since, ticks)
        return view_changes(self.store, found, since)

    def follow(self, name: str, since: int | None, timeout_ms: float | None, *, resync: bool) -> Changes:
        """What is in a view, or changed after a tick, then what every tick changes."""
        followed = FollowedView(self.store, self.spelled(name), self.spelled)
        return Changes(
            followed,
            self.store,
            self.arrivals,
            self._clock,
            since=since,
            timeout_ms=timeout_ms,
            resync=resync,
        )

    def subscribe(
        self, query: s.Query, since: int | None, timeout_ms: float | None, rows_max: int
    ) -> Subscription:
        """The rows of a query, then what every tick changes in them; StatementError if it cannot be kept."""
        with names_hinted(self._log):
            followed = FollowedQuery(self._log, self.store, self._tools, query, rows_max)
        return Subscription(
            followed, self.store, self.arrivals, self._clock, since=since, timeout_ms=timeout_ms
        )

    def why(self, name: str, key: Any, as_of: int | datetime | None = None) -> Why:
        """The records that the rows of a view which a key finds come from."""
        from headwater.runtime.why import why

        manifest = self.at(as_of)
        if manifest is None:
            raise self._never_run(name)
        return why(self._log, self.store, self._tools, manifest, self.spelled(name), key)

    def frame(self, name: str) -> DataFrame:
        """A view, or a topic, as a Spark DataFrame at the newest tick."""
        manifest = self.store.latest()
        relation = reading.relations(self._log, self.store, manifest, {name.lower()}).get(name.lower())
        if relation is None:
            raise view_not_found(name, relation_names(self._log))
        spark = self._given if self._given is not None else self._tools().spark
        return spark.createDataFrame(relation.read(None, None))

    def spelled(self, name: str) -> str:
        """A view's name as it was declared; ViewNotFoundError."""
        views = definitions(self._log)
        known = (n for view in views.values() for n in (view.name, *derived_of(view)))
        found = next((n for n in known if n.lower() == name.lower()), None)
        if found is None:
            raise view_not_found(name, views, self._log.topics(), topic_hint="ws.topic({!r})")
        return found

    def no_relation(self, name: str) -> TopicNotFoundError:
        """The error for a name that neither a topic nor a view has, where either would do."""
        near = nearest(name, relation_names(self._log))
        hint = f"did you mean {near}?" if near else "SHOW TOPICS and SHOW VIEWS list what is there"
        return TopicNotFoundError(f"there is no topic or view {name!r}", hint=hint, topic=name)

    def _never_run(self, name: str) -> Exception:
        view = self.spelled(name)
        return reading.not_run_yet(view)

    # --- telling ---------------------------------------------------------------------------------------------------

    def show(self) -> pa.Table:
        """SHOW VIEWS: a row per view."""
        manifest = self.store.latest()
        rows = []
        for name, view in sorted(definitions(self._log).items()):
            state = state_of(self._log, view, manifest)
            refs: Sequence[RunRef] = ()
            size = 0
            if manifest is not None and state is not None:
                refs = manifest.arrangements.get(state.contents, ())
                size = sum(ref.size for each in manifest.kept_for(state).values() for ref in each)
            account = total(self.ledger(name))
            reached = watermark_of(state.extra) if state is not None else None
            rows.append(
                {
                    "view": name,
                    "status": state.status if state is not None else "backfilling",
                    "reads": ", ".join(view.reads),
                    "columns": len(view.columns),
                    "runs": len(refs),
                    "state_bytes": size,
                    "last_tick": state.last_tick if state is not None else None,
                    "committed_at": from_us(manifest.committed_at) if manifest else None,
                    "reason": state.reason if state is not None else None,
                    **{what: account[what] for what in ("failed", "diverted", "dropped")},
                    "watermark": None if reached is None else from_us(reached),
                }
            )
        return pa.Table.from_pylist(rows, schema=_VIEWS)

    def explain(self, name: str) -> pa.Table:
        """EXPLAIN view: its statement, its graph, and what it keeps."""
        view = self.describe(name)
        workload = self._tools().catalog.workload({})
        unit = next((unit for unit in workload.units if unit.name == view.name), None)
        manifest = self.store.latest()
        if unit is None:
            return unplanned(view, workload.broken[view.name].reason, manifest)
        base = resting_on(self._log, unit, Bases(self.store.storage), manifest)
        return explained(view, unit, manifest, extents(workload.units, self._log.topics()), base)

    def explain_query(self, query: s.Query) -> pa.Table:
        """EXPLAIN query: how it would be kept as a view."""
        tools = self._tools()
        known = extents(tools.catalog.units(), self._log.topics())
        with names_hinted(self._log):
            plan = tools.catalog.plan(query)
        return sketched(plan, tools.evaluator, known)

    def verify(self) -> list[ViewCheck]:
        """Recompute every live view in batch from the log at the newest tick's cut, and compare."""
        from headwater.runtime.verification import verify_views

        return verify_views(self._log, self.store, self.store.latest(), self._tools, self.listener)

    def describe(self, name: str) -> ViewDefinition:
        """The definition of a view; of what it gives beside its rows, that of the view."""
        return definitions(self._log)[view_of(self.spelled(name))]

    def columns(self, name: str) -> pa.Schema:
        """The columns of a view, or of what it gives beside its rows."""
        view, found = self.describe(name), self.spelled(name)
        return derived_of(view).get(found, view.columns)

    def keys(self, name: str) -> list[tuple[str, ...]]:
        """The columns of a view that are a key of it, by what it is; () says that it has one row at most."""
        return keys_of(self._log, self._tools().catalog, self.describe(name))

    def only_grows(self, name: str) -> bool:
        """Whether a view never takes a row back, by what it is."""
        return only_grows(self._tools().catalog, self.describe(name))

    def ledger(self, name: str, *, by_hand: bool = True) -> dict[str, dict[str, int]]:
        """By topic that a view reads: what became of its rows up to the newest tick. A row that failed and that somebody has
        dropped since counts as dropped; unless `by_hand`, as failed still."""
        view = self.describe(name)
        state = state_of(self._log, view, self.store.latest())
        counted: Ledger = state.extra.get("ledger", {}) if state is not None else {}
        accounts = balanced(counted, [topic for topic in view.reads if topic in self._log.topics()])
        if by_hand and any(account["failed"] for account in accounts.values()):
            return with_dropped(self._log, view.name, accounts, partial(self.contents, f"{view.name}.errors"))
        return accounts


def _refuse_other_than_query(text: str) -> None:
    """Spark would carry out whatever it understands."""
    statements = parse(text)
    if len(statements) != 1 or not isinstance(statements[0], s.Query):
        raise UsageError(
            "a query is one SELECT", hint="ws.sql(...) runs other statements, and several of them"
        )


def view_not_found(
    name: str, views: Iterable[str], topics: Iterable[str] = (), *, topic_hint: str = ""
) -> ViewNotFoundError:
    """The error for a view that is not there, with the nearest that is, or what to do with a topic of that name."""
    near = nearest(name, views)
    hint = f"did you mean {near!r}?" if near else "SHOW VIEWS lists those that are there"
    if (topic := next((t for t in topics if t.lower() == name.lower()), None)) is not None:
        hint = f"{topic} is a topic: {topic_hint.format(topic)}"
    return ViewNotFoundError(f"there is no view {name!r}", hint=hint, view=name)


def _exists(then: ViewDefinition, made: ViewDefinition, same: bool) -> ViewExistsError:
    import difflib

    lines = list(
        difflib.unified_diff(then.to_sql().splitlines(), made.to_sql().splitlines(), lineterm="", n=1)
    )[2:]
    return ViewExistsError(
        f"view {then.name!r} is there already and " + ("is the same" if same else "differs"),
        detail=None if same else "- is there, + is asked for\n    " + "\n    ".join(lines),
        hint=f"CREATE OR REPLACE {made.to_sql().split()[1]} {made.to_sql().split()[2]} {then.name} builds it anew",
        view=then.name,
        same=same,
    )


_VIEWS = pa.schema(
    [
        ("view", pa.string()),
        ("status", pa.string()),
        ("reads", pa.string()),
        ("columns", pa.int32()),
        ("runs", pa.int32()),
        ("state_bytes", pa.int64()),
        ("last_tick", pa.int64()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("reason", pa.string()),
        ("failed", pa.int64()),
        ("diverted", pa.int64()),
        ("dropped", pa.int64()),
        ("watermark", pa.timestamp("us", tz="UTC")),
    ]
)
