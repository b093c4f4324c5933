"""The declared sinks: the view of each, and how its changes are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater.catalog.connectors import SINK, SINK_SETTABLE, SinkDefinition, altered
from headwater.connectors.dead_letter_store.sink_letters import make_letters, reset_actions
from headwater.connectors.manage.declarations import ConnectorDeclarations
from headwater.connectors.manage.sink_private_copies import private_in_copy, refuse_plain_letters
from headwater.core.errors import SinkExistsError, SinkNotFoundError, StatementError
from headwater.engine.collections.dependencies import below
from headwater.engine.collections.workload import definitions
from headwater.log.protocol import Entry, Log
from headwater.sinks.base.applier import refuse_occupied
from headwater.sinks.base.sink_setup import Function
from headwater.sinks.base.target import SinkError, Target, TargetShape
from headwater.sinks.base.upsert_key import check_key
from headwater.sinks.registry import forget, open_target, wanted_of
from headwater.sinks.topic.versions import Topics, topics_of
from headwater.sql.statements import CreateSink, SetSink

if TYPE_CHECKING:
    from headwater.views.view_manager import Views

FAULT: Final = "sink"
"""Kind of the faults of sinks."""


class SinkDeclarations:
    """The declared sinks of a workspace. A target is connected to when a declaration is checked against it."""

    def __init__(self, log: Log, root: Path, views: Callable[[], Views]) -> None:
        self.functions: dict[str, Function] = {}
        """Functions of the user by name, for sinks of kind PYTHON."""
        self._log = log
        self._root = root
        self._views = views
        self._declared = ConnectorDeclarations(
            log, SINK, SinkDefinition.from_document, SinkExistsError, SinkNotFoundError
        )

    def all(self) -> Mapping[str, SinkDefinition]:
        """Return the declared sinks, by name."""
        return self._declared.all()

    def entry(self, name: str) -> Entry:
        """Return the catalog entry of a sink; SinkNotFoundError."""
        return self._declared.entry(name)

    def read(self, entry: Entry) -> SinkDefinition:
        """Return the definition in an entry."""
        return self._declared.read(entry)

    def get(self, name: str) -> SinkDefinition:
        """Return the definition of a sink; SinkNotFoundError."""
        return self.read(self.entry(name))

    def create(self, statement: CreateSink) -> None:
        """CREATE SINK: check the key against the view, and the target by connecting, then declare the sink."""
        if not self._declared.is_new(statement):
            return
        made = statement.definition
        made = replace(made, key=self._key(made))
        self._refuse_circle(made)
        view = self._views().names.canonical_name(made.view)
        refuse_plain_letters(self._log, made, view)
        made = replace(made, private=private_in_copy(self._log, self._views(), made, view))
        shape = self.shape_of(made)
        target = self.open(made)
        try:
            target.prepare(shape)
            if not made.resolved().get("adopt"):
                refuse_occupied(shape, target)
        finally:
            target.close()
        if wanted_of(made).on_error == "divert":
            make_letters(self._log, made.name)
        was = self.all().get(made.name)
        if was is not None and is_elsewhere(was, made):
            reset_actions(self._log, made.name)
        self._declared.put(made)
        self._log.faults.clear(FAULT, made.name)

    def set(self, statement: SetSink) -> None:
        """ALTER SINK ... SET: the process that runs the sink, this one or another, continues with these options from its
        checkpoint. A new address of the target is tried first."""
        entry = self._declared.entry(statement.name)
        was = self._declared.read(entry)
        made = altered(was, statement.options)
        if made == was:
            return
        refuse_plain_letters(self._log, made, self._views().names.canonical_name(made.view))
        wanted, shape = wanted_of(made), self.shape_of(made)
        if {"url", "catalog"} & set(statement.options):
            target = self.open(made)
            try:
                target.prepare(shape)
                refuse_occupied(shape, target)
            finally:
                target.close()
        else:
            with suppress(SinkError):  # a user's function may not be declared here
                self.open(made).close()
        if wanted.on_error == "divert":
            make_letters(self._log, made.name)
        self._declared.put(made, entry)
        self._log.faults.clear(FAULT, made.name)

    def drop(self, entry: Entry) -> None:
        """DROP SINK: the written data stays. The sink is no longer kept in sync."""
        reset_actions(self._log, entry.name)
        self._log.drop_entry(SINK, entry.name, expect=entry.sequence)
        self._log.faults.clear(FAULT, entry.name)
        forget(self.read(entry), self._log)

    def _refuse_circle(self, made: SinkDefinition) -> None:
        """Raise StatementError if the view reads, directly or not, the topic that its own sink writes: updates would never
        end."""
        topic = str(made.options.get("topic", "")) if made.kind == "topic" else ""
        view = self._views().names.canonical_name(made.view)
        if topic and topic.lower() in (name.lower() for name in below(self._log, view)):
            raise StatementError(
                f"view {made.view!r} reads topic {topic!r}, which sink {made.name!r} would write to",
                hint="write to another topic",
                view=made.view,
                topic=topic,
                sink=made.name,
            )

    def of_view(self, view: str) -> list[str]:
        """Return the names of the sinks of a view."""
        return [name for name, made in self.all().items() if made.view.lower() == view.lower()]

    def readers_of(self, topic: str) -> list[str]:
        """Return the views, cursors and groups that read a topic."""
        views = definitions(self._log).values()
        found = [view.name for view in views if topic.lower() in map(str.lower, view.reads)]
        if topic in self._log.topics():
            found += sorted(f"cursor {cursor.name}" for cursor in self._log.cursors(topic))
        return found

    def topics_of(self, name: str) -> Topics | None:
        """Return the topics of a sink of kind TOPIC, which after a rebuild writes to another topic than the declared one.
        None for other kinds."""
        made = self.get(name)
        return topics_of(self._log, made.name, str(made.options["topic"])) if made.kind == "topic" else None

    def shape(self, name: str) -> TargetShape:
        """Return the view, columns, key and mode of a sink."""
        return self.shape_of(self.get(name))

    def shape_of(self, made: SinkDefinition) -> TargetShape:
        """Return the view, columns, key and mode of a declaration."""
        views = self._views()
        view = views.names.canonical_name(made.view)
        return TargetShape(made.name, view, views.names.columns(view), made.key, wanted_of(made).mode)

    def open(self, made: SinkDefinition) -> Target:
        """Return the target of a declaration, not connected yet."""
        return open_target(made, self._root, self._log, self.functions)

    def prepared(self, name: str) -> Target:
        """Return the target of a sink with a connection of its own, independent of the process that runs the sink. The
        caller closes it."""
        made = self.get(name)
        target = self.open(made)
        try:
            target.prepare(self.shape_of(made))
        except BaseException:
            target.close()
            raise
        return target

    def _key(self, made: SinkDefinition) -> tuple[str, ...]:
        """Return the upsert key; StatementError if it is not provably unique in the view."""
        wanted, shape, views = wanted_of(made), self.shape_of(made), self._views()
        if wanted.mode == "upsert":
            return check_key(shape, wanted.key, views.reports.keys(shape.view))
        if wanted.mode == "append" and not views.reports.only_grows(shape.view):
            raise StatementError(
                f"sink {made.name!r} cannot use mode 'append': view {shape.view!r} retracts rows",
                hint="mode = 'changelog' appends every change, with _weight and _tick; or give a key",
                sink=made.name,
                view=shape.view,
                mode="append",
            )
        return ()


def is_elsewhere(was: SinkDefinition, made: SinkDefinition) -> bool:
    """Whether a declaration means another target or another view than the one that it replaces."""
    same = set(SINK_SETTABLE[made.kind]) - {"url", "catalog"}
    before, after = ({k: v for k, v in each.options.items() if k not in same} for each in (was, made))
    return (was.kind, was.view.lower()) != (made.kind, made.view.lower()) or before != after
