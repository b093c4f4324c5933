"""Copies of private values that sinks and alerts would store in the log: encrypted like the originals, or rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.catalog.connectors import SINK, AlertDefinition, SinkDefinition
from headwater.catalog.view_definitions import ViewDefinition
from headwater.core.errors import StatementError
from headwater.engine.collections.collections import view_of
from headwater.engine.collections.dependencies import above, private_below
from headwater.engine.collections.workload import definitions
from headwater.log.protocol import Log
from headwater.sinks.registry import wanted_of
from headwater.sinks.topic.versions import topics_of

if TYPE_CHECKING:
    from headwater.views.view_manager import Views


def refuse_plain_letters(log: Log, made: SinkDefinition, view: str) -> None:
    """Raise StatementError if a sink of this view would put rows with private values on its topic of rejected rows."""
    topic = private_below(log, view)
    if topic is not None and wanted_of(made).on_error == "divert":
        raise StatementError(
            f"sink {made.name!r} cannot divert rejected rows, which would be stored unencrypted: view {view!r} reads "
            f"topic {topic!r}, which has private columns",
            hint="leave on_error out: the sink then stops at a rejected row",
            sink=made.name,
            view=view,
            topic=topic,
        )


def private_in_copy(log: Log, views: Views, made: SinkDefinition, view: str) -> tuple[tuple[str, str], ...]:
    """Return the columns of a sink's topic that must be private, each with the column of its subject. StatementError if the
    subject of a column is unknown, unless the topic exists and declares the column private."""
    if made.kind != "topic" or private_below(log, view) is None:
        return ()
    from headwater.views.private_copies import PrivateCopy, copied_by_view

    described = views.names.describe(view)
    if described.name == view:
        found = copied_by_view(log, views.tools().catalog, described, made.key)
    else:
        # a derived view with whole rows of topics besides the columns of the view
        found = [PrivateCopy(name, None, None) for name in views.names.columns(view).names]
    target = log.topics().get(str(made.options.get("topic", "")))
    there = {} if target is None else dict(target.private)
    for one in found:
        if one.by is None and one.column not in there:
            raise StatementError(
                f"sink {made.name!r} would copy private values unencrypted: {one.why} of view {view!r}",
                hint=f"{one.remedy}; or CREATE TOPIC first, with {one.column} PRIVATE BY the subject",
                sink=made.name,
                view=view,
                column=one.column,
            )
    return tuple((one.column, one.by) for one in found if one.by is not None)


def refuse_plain_replacement(log: Log, views: Views, made: ViewDefinition) -> None:
    """Raise StatementError if a replaced view would have private values in columns that sinks copy unencrypted."""
    if not any(topic.private for topic in log.topics().values()):
        return
    from headwater.views.private_copies import copied_by_view

    touched, known = above(log, made.name), definitions(log)
    for sink in map(SinkDefinition.from_document, (e.document for e in log.entries(SINK).values())):
        name = next((v for v in touched if v.lower() == view_of(sink.view).lower()), None)
        if sink.kind != "topic" or name is None:
            continue
        view = made if name == made.name else known[name]
        found = copied_by_view(log, views.tools().catalog, view, sink.key, instead=made)
        target = log.topics().get(topics_of(log, sink.name, str(sink.options["topic"])).in_force)
        there = dict(sink.private) if target is None else dict(target.private)
        for one in found:
            if one.column not in there or one.by not in (None, there[one.column]):
                raise StatementError(
                    f"sink {sink.name!r} would copy private values of view {made.name!r} unencrypted: column "
                    f"{one.column!r} of view {name!r}",
                    hint=f"DROP SINK {sink.name} first, and create it afterwards with another topic",
                    view=made.name,
                    sink=sink.name,
                    column=one.column,
                )


def refuse_plain_rows(log: Log, made: AlertDefinition, view: str) -> None:
    """Raise StatementError if an alert on this view would store rows with private values."""
    if (topic := private_below(log, view)) is not None:
        raise StatementError(
            f"alert {made.name!r} would store private values unencrypted: view {view!r} reads topic {topic!r}, which has "
            "private columns",
            hint="create the alert on a view that reads no private columns",
            alert=made.name,
            view=view,
            topic=topic,
        )
