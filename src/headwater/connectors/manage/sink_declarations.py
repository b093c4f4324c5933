"""The sinks that are declared: what each follows, and how it is to be kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headwater.catalog.connectors import SINK, SINK_SETTABLE, SinkDefinition, altered
from headwater.connectors.dead_letter_store.sink_letters import begin_anew, make_letters
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
"""The kind of faults of sinks."""


class SinkDeclarations:
    """The declared sinks of a workspace. A target is connected to when a declaration is checked against it."""

    def __init__(self, log: Log, root: Path, views: Callable[[], Views]) -> None:
        self.functions: dict[str, Function] = {}
        """The user's, by name, for sinks of kind PYTHON."""
        self._log = log
        self._root = root
        self._views = views
        self._declared = ConnectorDeclarations(
            log, SINK, SinkDefinition.from_document, SinkExistsError, SinkNotFoundError
        )

    def all(self) -> Mapping[str, SinkDefinition]:
        """What is declared, by name."""
        return self._declared.all()

    def entry(self, name: str) -> Entry:
        """The entry of a sink in the catalog; SinkNotFoundError."""
        return self._declared.entry(name)

    def read(self, entry: Entry) -> SinkDefinition:
        """What an entry declares."""
        return self._declared.read(entry)

    def get(self, name: str) -> SinkDefinition:
        """What a sink is declared to be; SinkNotFoundError."""
        return self.read(self.entry(name))

    def create(self, statement: CreateSink) -> None:
        """CREATE SINK: its key is checked against the view, and its target asked, before anything is declared."""
        if not self._declared.is_new(statement):
            return
        made = statement.definition
        made = replace(made, key=self._key(made))
        self._refuse_circle(made)
        view = self._views().names.spelled(made.view)
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
            begin_anew(self._log, made.name)
        self._declared.put(made)
        self._log.faults.clear(FAULT, made.name)

    def set(self, statement: SetSink) -> None:
        """ALTER SINK ... SET: whoever keeps it in step, here or elsewhere, goes on with these options where it is. Another way to
        the target is tried first."""
        entry = self._declared.entry(statement.name)
        was = self._declared.read(entry)
        made = altered(was, statement.options)
        if made == was:
            return
        refuse_plain_letters(self._log, made, self._views().names.spelled(made.view))
        wanted, shape = wanted_of(made), self.shape_of(made)
        if {"url", "catalog"} & set(statement.options):
            target = self.open(made)
            try:
                target.prepare(shape)
                refuse_occupied(shape, target)
            finally:
                target.close()
        else:
            with suppress(SinkError):  # a user's function need not be known here
                self.open(made).close()
        if wanted.on_error == "divert":
            make_letters(self._log, made.name)
        self._declared.put(made, entry)
        self._log.faults.clear(FAULT, made.name)

    def drop(self, entry: Entry) -> None:
        """DROP SINK: what it has written stays where it is. Nobody keeps it in step any more."""
        begin_anew(self._log, entry.name)
        self._log.drop_entry(SINK, entry.name, expect=entry.sequence)
        self._log.faults.clear(FAULT, entry.name)
        forget(self.read(entry), self._log)

    def _refuse_circle(self, made: SinkDefinition) -> None:
        """A view must not read, by whatever way, what its own sink writes: it would never come to rest."""
        topic = str(made.options.get("topic", "")) if made.kind == "topic" else ""
        view = self._views().names.spelled(made.view)
        if topic and topic.lower() in (name.lower() for name in below(self._log, view)):
            raise StatementError(
                f"view {made.view!r} reads topic {topic!r}, which sink {made.name!r} would write to",
                hint="write to another topic",
            )

    def of_view(self, view: str) -> list[str]:
        """The sinks that follow a view."""
        return [name for name, made in self.all().items() if made.view.lower() == view.lower()]

    def readers_of(self, topic: str) -> list[str]:
        """The views that read a topic, and the cursors and groups."""
        views = definitions(self._log).values()
        found = [view.name for view in views if topic.lower() in map(str.lower, view.reads)]
        if topic in self._log.topics():
            found += sorted(f"cursor {cursor.name}" for cursor in self._log.cursors(topic))
        return found

    def topics_of(self, name: str) -> Topics | None:
        """Which topics a sink of kind TOPIC has: after it was built anew it writes to another than the one it was declared with.
        None for other kinds."""
        made = self.get(name)
        return topics_of(self._log, made.name, str(made.options["topic"])) if made.kind == "topic" else None

    def shape(self, name: str) -> TargetShape:
        """What a sink follows, and how."""
        return self.shape_of(self.get(name))

    def shape_of(self, made: SinkDefinition) -> TargetShape:
        """What a declaration follows, and how."""
        views = self._views()
        view = views.names.spelled(made.view)
        return TargetShape(made.name, view, views.names.columns(view), made.key, wanted_of(made).mode)

    def open(self, made: SinkDefinition) -> Target:
        """The target of a declaration, not connected yet."""
        return open_target(made, self._root, self._log, self.functions)

    def prepared(self, name: str) -> Target:
        """The target of a sink, connected to beside whoever keeps it in step, for one who asks and closes it."""
        made = self.get(name)
        target = self.open(made)
        try:
            target.prepare(self.shape_of(made))
        except BaseException:
            target.close()
            raise
        return target

    def _key(self, made: SinkDefinition) -> tuple[str, ...]:
        """What rows are replaced by; StatementError if nothing shows that it is unique in the view."""
        wanted, shape, views = wanted_of(made), self.shape_of(made), self._views()
        if wanted.mode == "upsert":
            return check_key(shape, wanted.key, views.reports.keys(shape.view))
        if wanted.mode == "append" and not views.reports.only_grows(shape.view):
            raise StatementError(
                f"sink {made.name!r} would append, and view {shape.view!r} takes rows back",
                hint="mode = 'changelog' appends every change, with _weight and _tick; or give a key",
            )
        return ()


def is_elsewhere(was: SinkDefinition, made: SinkDefinition) -> bool:
    """Whether a declaration means another target than the one that it replaces, or another view."""
    same = set(SINK_SETTABLE[made.kind]) - {"url", "catalog"}
    before, after = ({k: v for k, v in each.options.items() if k not in same} for each in (was, made))
    return (was.kind, was.view.lower()) != (made.kind, made.view.lower()) or before != after
