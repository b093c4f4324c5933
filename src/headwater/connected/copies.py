"""Copies of private values that sinks and alerts would make in the log: refused where forgetting would not reach them."""

from __future__ import annotations

from headwater.connections import AlertDefinition, SinkDefinition
from headwater.errors import StatementError
from headwater.log.protocol import Log
from headwater.runtime.dependencies import private_below
from headwater.sinks.kinds import wanted_of


def refuse_plain_copies(log: Log, made: SinkDefinition, view: str) -> None:
    """StatementError if a sink of this view would put private values into the log in plain."""
    if (topic := private_below(log, view)) is None:
        return
    if wanted_of(made).on_error == "divert":
        raise StatementError(
            f"sink {made.name!r} cannot divert: view {view!r} reads {topic}, which has private columns, and rows that "
            "the target refuses would be kept in plain",
            hint="leave on_error out: the sink stops before such a row, and says why",
        )
    target = log.topics().get(str(made.options.get("topic", ""))) if made.kind == "topic" else None
    if made.kind == "topic" and (target is None or not target.private):
        raise StatementError(
            f"sink {made.name!r} would copy private values in plain: view {view!r} reads {topic}, which has private columns",
            hint="CREATE TOPIC first, with the columns that come from private ones PRIVATE BY the subject",
        )


def refuse_plain_rows(log: Log, made: AlertDefinition, view: str) -> None:
    """StatementError if an alert on this view would keep rows with private values."""
    if (topic := private_below(log, view)) is not None:
        raise StatementError(
            f"alert {made.name!r} would keep private values in plain: view {view!r} reads {topic}, which has private columns",
            hint="have it watch a view that reads none, or copy what it needs to a topic without them",
        )
