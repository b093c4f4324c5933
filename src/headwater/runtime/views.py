"""The views of a workspace: declared, run, read and verified. What `Workspace` hands on to when views are meant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.catalog import ViewDefinition
from headwater.clock import Clock, from_us
from headwater.errors import TickNotKeptError, UsageError, ViewExistsError, ViewNotFoundError
from headwater.log.protocol import Finding, Log
from headwater.positions import Receipt
from headwater.queries import statements as s
from headwater.queries.dialect import words_of
from headwater.runtime import reading
from headwater.runtime.catalog import VIEW, definitions, in_order
from headwater.runtime.comparison import difference
from headwater.runtime.engine import HOLD
from headwater.runtime.explain import explained, sketched
from headwater.runtime.running import EngineRoom, Listener, Runner, RunReport, run, wait_for
from headwater.runtime.session import ui_address
from headwater.runtime.tools import Tools
from headwater.state.manifest import Manifest
from headwater.state.ownership import Owner, owner
from headwater.state.serving import view_changes, view_contents
from headwater.state.store import StateStore
from headwater.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Views:
    """Everything about views. Spark starts when something first needs it: a CREATE, a run, a query it must answer."""

    def __init__(self, log: Log, storage: Storage, clock: Clock, spark: SparkSession | None = None) -> None:
        self._log = log
        self._clock = clock
        self._given = spark
        self._made: Tools | None = None
        self._guard = threading.RLock()
        self.store = StateStore(storage, clock)
        self.listener = Listener()
        self._room = EngineRoom(log, storage, self.store, clock, self._tools, lambda: self.listener)
        self._runners: list[Runner] = []

    def _tools(self) -> Tools:
        with self._guard:
            if self._made is None:
                self.listener.starting_spark()
                self._made = Tools(self._log, self._given)
            return self._made

    def close(self) -> None:
        """Stop what still runs."""
        for runner in self._runners:
            if runner.running:
                runner.stop()
        self._runners.clear()

    # --- declaring -------------------------------------------------------------------------------------------------

    def create(self, statement: s.CreateView) -> None:
        """CREATE MATERIALIZED VIEW: planned and refused here, built by the next run."""
        existing = self._log.entries(VIEW).get(statement.name)
        if existing is not None and statement.if_not_exists:
            return
        self._refuse_unsupported(statement)
        made = self.define(statement)
        if existing is not None:
            then = ViewDefinition.from_document(existing.document)
            same = then.to_document() == made.to_document()
            if statement.or_replace:
                if same:
                    return
                self._refuse_cycle(made)
            else:
                raise _exists(then, made, same)
        self._hold(made)
        expect = existing.sequence if existing is not None else None
        self._log.put_entry(VIEW, made.name, made.to_document(), expect=expect)

    def define(self, statement: s.CreateView) -> ViewDefinition:
        """The definition that a statement makes; StatementError if its query cannot be kept."""
        plan = self._tools().catalog.plan(statement.query)
        return statement.definition(plan.schema, plan.inputs)

    def drop(self, statement: s.DropView) -> None:
        """DROP VIEW: refused while another view reads it, unless CASCADE."""
        views = definitions(self._log)
        name = next((n for n in views if n.lower() == statement.name.lower()), None)
        if name is None:
            if statement.if_exists:
                return
            raise view_not_found(statement.name, views)
        self.drop_readers(name, statement.cascade, "view")
        self._log.drop_entry(VIEW, name)
        self._release()

    def drop_readers(self, name: str, cascade: bool, what: str) -> None:
        """Drop the views that read a topic or view, or refuse to."""
        readers = [v.name for v in definitions(self._log).values() if name in v.reads]
        if readers and not cascade:
            raise UsageError(
                f"{what} {name!r} cannot be dropped: it is read by {', '.join(readers)}",
                hint=f"drop what reads it first, or DROP {what.upper()} {name} CASCADE",
            )
        for reader in readers:
            if reader in definitions(self._log):
                self.drop(s.DropView(reader, if_exists=True, cascade=True))

    def _refuse_unsupported(self, statement: s.CreateView) -> None:
        options = s.resolve(statement.options)
        for name, value in options.items():
            if name in ("late", "correct_for", "on_error") and value not in ("correct", "stop", None):
                raise UsageError(
                    f"this version of Headwater does not have {name} = {value!r}", hint="leave the option out"
                )
        if statement.emit_on_close:
            raise UsageError(
                "this version of Headwater does not have EMIT ON WINDOW CLOSE",
                hint="leave it out: windows show at once",
            )

    def _refuse_cycle(self, made: ViewDefinition) -> None:
        views = definitions(self._log)
        left, seen = list(made.reads), set()
        while left:
            name = left.pop()
            if name == made.name:
                raise UsageError(f"view {made.name!r} would read itself")
            if name in views and name not in seen:
                seen.add(name)
                left += views[name].reads

    def _hold(self, definition: ViewDefinition) -> None:
        """Keep the records that the view has yet to read from being removed."""
        topics = self._log.topics()
        for name in definition.reads:
            if name in topics and self._log.cursor(name, HOLD) is None:
                starts = {p: info.first for p, info in self._log.partitions(name).items()}
                self._log.create_cursor(name, HOLD, starts, hold=True)

    def _release(self) -> None:
        read = {name for v in definitions(self._log).values() for name in v.reads}
        for cursor in self._log.cursors():
            if cursor.name == HOLD and cursor.topic not in read:
                self._log.drop_cursor(cursor.topic, HOLD)

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self, tick_rows: int | None = None) -> RunReport:
        """Bring every view up to what the log holds now."""
        return run(self._room, tick_rows)

    def start(self, every_ms: float | None, tick_rows: int | None) -> Runner:
        """Keep every view up to date in the background."""
        runner = Runner(self._room, every_ms, tick_rows)
        self._runners.append(runner)
        return runner

    def engine(self) -> Owner | None:
        """Who runs an engine on this workspace; None if nobody does."""
        return owner(self._room.storage)

    def start_spark(self) -> str | None:
        """Start Spark now, if it is not up, rather than at first need; the address of its own pages, if it has some."""
        return ui_address(self._tools().spark)

    def rebuild(self, name: str) -> list[str]:
        """Have a view, and those that read it, built anew from the log by the next run; their names, sources first."""
        views = definitions(self._log)
        wanted = {self.spelled(name)}
        for view in in_order(views):
            if wanted & set(view.reads):
                wanted.add(view.name)
        again = [view.name for view in in_order(views) if view.name in wanted]
        for each in again:
            entry = self._log.entries(VIEW)[each]
            self._log.put_entry(VIEW, each, entry.document, expect=entry.sequence)
        return again

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
        if after is not None:
            self._reach(after, timeout_ms)
        manifest = self.at(as_of)
        names = {w.text.lower() for w in words_of(text) if w.is_name}
        relations = reading.relations(self._log, self.store, manifest, names)
        return reading.answer(text, relations, lambda: self._tools())

    def at(self, as_of: int | datetime | None) -> Manifest | None:
        """The manifest of a tick; the newest without one."""
        if as_of is None:
            return self.store.latest()
        if isinstance(as_of, datetime):
            tick = self.store.tick_at(as_of)
            if tick is None:
                raise TickNotKeptError(f"no tick was committed at or before {as_of.isoformat()}")
            return self.store.manifest(tick)
        return self.store.manifest(as_of)

    def _reach(self, receipt: Receipt, timeout_ms: float) -> None:
        reached = self._reached(receipt)
        latest = self.store.latest()
        if latest is not None and reached(latest):
            return
        if owner(self._room.storage) is not None and wait_for(self._room, reached, timeout_ms) is not None:
            return
        self.run()

    def _reached(self, receipt: Receipt) -> Callable[[Manifest], bool]:
        read = {name for v in definitions(self._log).values() for name in v.reads}
        wanted = {t: parts for t, parts in receipt.positions.items() if t in read}

        def reached(manifest: Manifest) -> bool:
            return all(
                manifest.positions.get(t, {}).get(p, -1) >= end
                for t, parts in wanted.items()
                for p, (_, end) in parts.items()
            )

        return reached

    def contents(self, name: str, as_of: int | datetime | None = None) -> pa.Table:
        """The rows of a view at a tick."""
        manifest = self.at(as_of)
        if manifest is None:
            raise self._never_run(name)
        return view_contents(self.store, manifest, self.spelled(name))

    def changes(self, name: str, since: int) -> pa.Table:
        """What changed in a view after a tick."""
        if self.store.latest() is None:
            raise self._never_run(name)
        return view_changes(self.store, self.spelled(name), since)

    def frame(self, name: str) -> DataFrame:
        """A view, or a topic, as a Spark DataFrame at the newest tick."""
        manifest = self.store.latest()
        relation = reading.relations(self._log, self.store, manifest, {name.lower()}).get(name.lower())
        if relation is None:
            raise view_not_found(name, definitions(self._log))
        spark = self._given if self._given is not None else self._tools().spark
        return spark.createDataFrame(relation.read(None, None))

    def spelled(self, name: str) -> str:
        """A view's name as it was declared; ViewNotFoundError."""
        views = definitions(self._log)
        found = next((n for n in views if n.lower() == name.lower()), None)
        if found is None:
            raise view_not_found(name, views)
        return found

    def _never_run(self, name: str) -> Exception:
        view = self.spelled(name)
        return reading.not_run_yet(view)

    # --- telling ---------------------------------------------------------------------------------------------------

    def show(self) -> pa.Table:
        """SHOW VIEWS: a row per view."""
        manifest = self.store.latest()
        rows = []
        for name, view in sorted(definitions(self._log).items()):
            state = manifest.views.get(name) if manifest else None
            fresh = state is not None and state.incarnation == view.incarnation
            assert state is not None or not fresh
            refs = manifest.arrangements.get(state.contents, ()) if manifest and state and fresh else ()
            size = 0
            if manifest and state and fresh:
                prefix = state.contents.rsplit("/", 1)[0] + "/"
                size = sum(
                    r.length
                    for n in manifest.arrangements
                    if n.startswith(prefix)
                    for r in manifest.arrangements[n]
                )
            rows.append(
                {
                    "view": name,
                    "status": state.status if state is not None and fresh else "backfilling",
                    "reads": ", ".join(view.reads),
                    "columns": len(view.columns),
                    "runs": len(refs),
                    "state_bytes": size,
                    "last_tick": state.last_tick if state is not None and fresh else None,
                    "committed_at": from_us(manifest.committed_at) if manifest else None,
                    "reason": state.reason if state is not None and fresh else None,
                }
            )
        return pa.Table.from_pylist(rows, schema=_VIEWS)

    def explain(self, name: str) -> pa.Table:
        """EXPLAIN view: its statement, its graph, and what it keeps."""
        view = definitions(self._log)[self.spelled(name)]
        units = {u.name: u for u in self._tools().catalog.units()}
        return explained(view, units[view.name], self.store.latest())

    def explain_query(self, query: s.Query) -> pa.Table:
        """EXPLAIN query: how it would be kept as a view."""
        tools = self._tools()
        return sketched(tools.catalog.plan(query), tools.evaluator)

    def verify(self) -> list[Finding]:
        """Recompute every live view in batch from the log at the newest tick's cut, and compare."""
        from headwater.runtime.batch import Batch

        manifest = self.store.latest()
        if manifest is None:
            return []
        views = {
            n: v
            for n, v in definitions(self._log).items()
            if n in manifest.views and manifest.views[n].incarnation == v.incarnation
        }
        live = [n for n in views if manifest.views[n].status == "live"]
        self.listener.verifying(live)
        batch = Batch(self._tools().spark, self._log, manifest.positions)
        try:
            wanted = batch.views(views, live)
        finally:
            batch.close()
        findings = []
        for name in live:
            told = difference(view_contents(self.store, manifest, name), wanted[name])
            self.listener.verified(name, told)
            if told is not None:
                findings.append(
                    Finding(
                        f"view {name}", None, None, None, f"view {name!r} at tick {manifest.tick}: {told}"
                    )
                )
        return findings

    def describe(self, name: str) -> ViewDefinition:
        """The definition of a view."""
        return definitions(self._log)[self.spelled(name)]


def view_not_found(name: str, views: Mapping[str, Any]) -> ViewNotFoundError:
    """The error for a view that is not there, with the nearest that is."""
    import difflib

    near = difflib.get_close_matches(name, list(views), 1)
    hint = f"did you mean {near[0]!r}?" if near else "SHOW VIEWS lists those that are there"
    return ViewNotFoundError(f"there is no view {name!r}", hint=hint, view=name)


def _exists(then: ViewDefinition, made: ViewDefinition, same: bool) -> ViewExistsError:
    import difflib

    lines = list(
        difflib.unified_diff(then.to_sql().splitlines(), made.to_sql().splitlines(), lineterm="", n=1)
    )[2:]
    return ViewExistsError(
        f"view {then.name!r} is there already and " + ("is the same" if same else "differs"),
        detail=None if same else "- is there, + is asked for\n    " + "\n    ".join(lines),
        hint=f"CREATE OR REPLACE MATERIALIZED VIEW {then.name} builds it anew",
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
    ]
)
