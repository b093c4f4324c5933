"""Declaration of views: created, replaced, dropped, and rebuilt when something that they depend on changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.view_definitions import ViewDefinition, view_options
from headwater.core.errors import HeadwaterError, UsageError, ViewExistsError
from headwater.engine.collections.collections import view_of
from headwater.engine.collections.retention_holds import HOLD, beginning, hold_from_start, removed
from headwater.engine.collections.version_table import readable_versions
from headwater.engine.collections.workload import VIEW, definitions, derived_of, keep_past
from headwater.engine.row_errors.late_rows import LATE_NAME, late_schema, reports_late_rows
from headwater.plan.relations.metadata_columns import versions_of
from headwater.plan.time.late_policy import Policy
from headwater.serving.name_hints import names_hinted
from headwater.serving.query import not_run_yet
from headwater.sql import statements as s
from headwater.sql.system_time import may_read_versions
from headwater.state.view_reader import view_contents
from headwater.udf.udf_registry import Functions
from headwater.views.explain_view import begins_late
from headwater.views.late_replay import given_back, refuse_other_definition, refuse_untold
from headwater.views.rebuild import drop_old, old, renew
from headwater.views.runner import EngineHost
from headwater.views.state_growth import BOUNDED, extents, refuse_growth, refuse_growth_above
from headwater.views.udf_declarations import Declarations, stopped_for
from headwater.views.view_names import ViewNames, view_not_found


class ViewDeclarations:
    """Declares views. The next run builds what is declared here."""

    def __init__(self, room: EngineHost, functions: Functions, names: ViewNames) -> None:
        self._log = room.log
        self._store = room.store
        self._tools = room.tools
        self._listener = room.listener
        self._functions = functions
        self._names = names
        self._udf_declarations = Declarations(room.log, functions, room.tools)

    def create(self, statement: s.CreateView) -> None:
        """CREATE MATERIALIZED VIEW: planned and validated here, built by the next run."""
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
        where = begins_late({t: beginning(self._log, t) for t in made.reads if t in self._log.topics()})
        if where is not None:
            self._listener().began_late(made.name, where)

    def define(self, statement: s.CreateView) -> ViewDefinition:
        """Return the definition that a statement makes; StatementError if its query cannot be maintained."""
        self._functions.require(statement.query.text)
        catalog = self._tools().catalog
        options = view_options(s.resolve(statement.options))
        with names_hinted(self._log):
            plan = catalog.plan(statement.query, policy=Policy(options, statement.emit_on_close))
        late = late_schema(plan.late) if reports_late_rows(options.late, options.correct_for_us) else None
        made = statement.definition(plan.schema, plan.inputs, late=late)
        if made.options.state == BOUNDED:
            refuse_growth(plan, extents(catalog.units(), self._log.topics()))
        if made.name in definitions(self._log):
            self._refuse_cycle(made)
            refuse_growth_above(made.name, plan, catalog.units(), self._log.topics())
        self._listener().warned(made.name, plan.warnings)
        return made

    def drop(self, statement: s.DropView) -> None:
        """DROP VIEW: rejected while another view reads it, unless CASCADE."""
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
        """Drop the views that read a topic or view; without `cascade`, UsageError if there are any."""
        readers = [v.name for v in definitions(self._log).values() if name in map(view_of, v.reads)]
        if readers and not cascade:
            raise UsageError(
                f"{what} {name!r} cannot be dropped: it is read by {', '.join(readers)}",
                hint=f"drop its readers first, or DROP {what.upper()} {name} CASCADE",
                reason="read-by",
                readers=readers,
            )
        for reader in readers:
            if reader in definitions(self._log):
                self.drop(s.DropView(reader, if_exists=True, cascade=True))

    def declare(self, name: str, declare: Callable[[Declarations], list[str]]) -> None:
        """Declare a user's function; the next run rebuilds views that use a changed function, or that stopped because it was
        missing."""
        for view in declare(self._udf_declarations):
            renew(self._log, view, shadow=False)
        self.resume([name])

    def resume(self, functions: Sequence[str]) -> None:
        """Rebuild, in the next run, the views that stopped because one of these functions was missing."""
        if not functions:
            return
        views = definitions(self._log)
        for view in stopped_for(self._store.latest_whole(), functions):
            if view in views:
                renew(self._log, view, shadow=False)

    def hold(self, topic: str) -> None:
        """Retain every record of a topic that views read until the next tick releases it, because an alteration may change
        which records are removed from then on."""
        name = self._log.topic(topic).name
        if any(name in view.reads for view in definitions(self._log).values()):
            hold_from_start(self._log, [name])

    def refuse_losing_versions(self, changed: TopicDefinition) -> None:
        """Raise UsageError if other options of a topic could remove versions that views read."""
        if (refusal := readable_versions(changed).refusal) is None:
            return
        for view in definitions(self._log).values():
            if changed.name not in view.reads or not may_read_versions(view.query):
                continue
            if (
                versions_of(changed.name)
                in self._tools().catalog.plan(s.QueryText(view.query), view.inputs).reads
            ):
                raise UsageError(
                    f"topic {changed.name!r} cannot be altered: view {view.name!r} reads versions of its rows",
                    detail=refusal[0],
                    hint="set versions_for = '...' together with cleanup, to keep versions for that time",
                    topic=changed.name,
                    view=view.name,
                    reason="versions-read",
                )

    def widen(self, now: TopicDefinition, wider: TopicDefinition, alter: Callable[[], None]) -> None:
        """Alter a topic so that columns are wider, and rebuild the views that use them as shadow builds."""
        changed = self._tools().catalog.widened(wider)
        self._refuse_losing(changed, f"topic {now.name!r} cannot be altered")
        for name, view in changed.items():
            columns = view.inputs.get(now.name)
            types = {now.name: pa.schema([now.schema.field(c) for c in columns])} if columns else {}
            keep_past(self._log, name, served=True, types=types)
        alter()
        for name, view in changed.items():
            hold_from_start(self._log, view.reads)
            entry = self._log.entries(VIEW)[name]
            self._log.put_entry(VIEW, name, view.to_document(), expect=entry.sequence)

    def rebuild(self, name: str, *, verify: bool = True) -> list[str]:
        """Rebuild a view, and those that read it, as shadow builds in the next run; return their names."""
        return renew(self._log, self._names.canonical_name(name), shadow=True, verify=verify)

    def old(self, name: str, *, drop: bool = False) -> int | None:
        """Return the last tick of the version from before a rebuild, as long as it is kept; with `drop`, stop keeping it."""
        return (drop_old if drop else old)(self._log, self._store, self._names.canonical_name(name))

    def replay_late(self, name: str) -> int:
        """Replay the late rows of a view, and return their number. The next run builds the view from the log as a shadow
        build."""
        view, manifest = self._names.describe(name), self._store.latest()
        refuse_untold(view)
        if manifest is None:
            raise not_run_yet(view.name)
        refuse_other_definition(self._log, view, manifest.views.get(view.name))
        late = view_contents(self._store, manifest, f"{view.name}.{LATE_NAME}")
        again, rows = given_back(self._log, view, late, manifest.views[view.name].positions)
        if rows:
            self._refuse_losing([view.name], f"late rows of view {view.name!r} cannot be replayed")
            hold_from_start(self._log, view.reads)
            keep_past(self._log, view.name, served=True)
            self._log.put_entry(VIEW, view.name, again.to_document(), expect=view.incarnation)
        return rows

    def _refuse_cycle(self, made: ViewDefinition) -> None:
        views = definitions(self._log)
        left, seen = list(made.reads), set()
        while left:
            name = view_of(left.pop())
            if name == made.name:
                raise UsageError(f"view {made.name!r} would read itself", reason="cycle", view=made.name)
            if name in views and name not in seen:
                seen.add(name)
                left += views[name].reads

    def _refuse_breaking(self, made: ViewDefinition) -> None:
        """Raise UsageError if the views that read this one would become invalid, or would get columns of other types."""
        for reader in definitions(self._log).values():
            gone = [
                n for n in reader.reads if view_of(n) == made.name and n not in (made.name, *derived_of(made))
            ]
            if gone:
                raise UsageError(
                    f"view {made.name!r} cannot be replaced: {reader.name} reads {gone[0]}, which the new definition does not have",
                    hint=f"DROP VIEW {reader.name} first, or keep the option that diverts rows to it",
                    view=made.name,
                    reader=reader.name,
                    reason="read-by",
                    missing=gone[0],
                )
            if made.name not in reader.reads:
                continue
            try:
                plan = self._tools().catalog.plan_with(reader, made)
                same = plan.schema.types == reader.columns.types
                reason, problem = "reader-types", None if same else "would get columns of other types"
            except HeadwaterError as error:
                reason, problem = "breaks-reader", f"would become invalid: {error.message}"
            if problem is not None:
                raise UsageError(
                    f"view {made.name!r} cannot be replaced: {reader.name}, which reads it, {problem}",
                    hint=f"DROP VIEW {reader.name} first, or create the new view under another name",
                    view=made.name,
                    reader=reader.name,
                    reason=reason,
                )

    def _refuse_losing(self, views: Iterable[str], what: str) -> None:
        """Raise UsageError if a rebuild of views would give another result: records that they were built from were removed,
        and with the change they cannot start from their base."""
        latest = self._store.latest_whole()
        for name in views:
            state = latest.views.get(name) if latest is not None else None
            if state is not None and state.status == "live" and removed(self._log, state.record.begins):
                raise UsageError(
                    f"{what}: records that view {name!r} was built from have been removed, so it cannot be rebuilt",
                    hint=f"DROP VIEW {name} first; then create it from the remaining records",
                    view=name,
                    reason="history-removed",
                )

    def _release(self) -> None:
        read = {name for v in definitions(self._log).values() for name in v.reads}
        for cursor in self._log.cursors():
            if cursor.name == HOLD and cursor.topic not in read:
                self._log.drop_cursor(cursor.topic, HOLD)
                # a view that reads the topic may have been declared meanwhile
                again = [v.reads for v in definitions(self._log).values() if cursor.topic in v.reads]
                if again:
                    hold_from_start(self._log, [cursor.topic])


def _exists(then: ViewDefinition, made: ViewDefinition, same: bool) -> ViewExistsError:
    import difflib

    lines = list(
        difflib.unified_diff(then.to_sql().splitlines(), made.to_sql().splitlines(), lineterm="", n=1)
    )[2:]
    return ViewExistsError(
        f"view {then.name!r} already exists and " + ("is the same" if same else "differs"),
        detail=None if same else "- existing, + requested\n    " + "\n    ".join(lines),
        hint=f"CREATE OR REPLACE {made.to_sql().split()[1]} {made.to_sql().split()[2]} {then.name} replaces it",
        view=then.name,
        same=same,
    )
