"""Schema evolution of captured topics: topics are created and get new columns, together with the views that read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition, add_column, drop_not_null, widen_column
from headwater.catalog.dropped_columns import DroppedColumn
from headwater.core.errors import ConflictError
from headwater.core.types import WIDER
from headwater.log.protocol import Log
from headwater.log.topic_names import check_new

if TYPE_CHECKING:
    from headwater.views.view_manager import Views

ATTEMPTS_MAX = 100


def define(
    log: Log,
    views: Callable[[], Views],
    wanted: TopicDefinition,
    after: Callable[[], str | None] = lambda: None,
) -> None:
    """Create a topic, or change the columns of the existing topic. Other properties stay unchanged: options are altered by
    users.

    A column that is no longer wanted stays, nullable, and is marked as dropped: views that read it process the log up to
    now, and stop. A column that is wanted again continues. `after` returns the position in the source after which the change
    was seen.
    """
    for _ in range(ATTEMPTS_MAX):
        known = log.topics().get(wanted.name)
        if known is None:
            check_new(wanted)
            log.create_topic(wanted)
            return
        changed = _with_columns(known, wanted, log.sequence(), after())
        if changed == known:
            return
        try:
            if _is_widened(known.schema, changed.schema) and log.entries("view"):
                views().declarations.widen(known, changed, partial(log.alter_topic, known, changed))
            else:
                log.alter_topic(known, changed)
        except ConflictError:  # another process altered it meanwhile
            continue
        return
    raise ConflictError(
        f"topic {wanted.name!r} was altered concurrently too often", hint="try again later", topic=wanted.name
    )


def _with_columns(
    known: TopicDefinition, wanted: TopicDefinition, sequence: int, after: str | None
) -> TopicDefinition:
    """Return a topic with the wanted columns; SchemaError if old records could not be read with them."""
    topic = known
    for field in wanted.schema:
        if field.name not in topic.schema.names:
            topic = add_column(topic, field.with_nullable(True))
            continue
        # the types in WIDER are wide enough already
        if topic.schema.field(field.name).type not in WIDER.get(field.type, ()):
            topic = widen_column(topic, field.name, field.type)
        if field.nullable and not topic.schema.field(field.name).nullable:
            topic = drop_not_null(topic, field.name)
    gone = {one.column: one for one in wanted.dropped}
    for name in (name for name in topic.schema.names if name not in wanted.schema.names):
        gone.setdefault(name, DroppedColumn(name, f"source {known.captured_by!r} no longer has the column"))
        if not topic.schema.field(name).nullable:
            topic = drop_not_null(topic, name)
    marked = {one.column: one for one in known.dropped}
    where = "" if after is None else f", after {after}"
    marks = (
        marked.get(name) or dataclasses.replace(one, change=f"{one.change}{where}", sequence=sequence)
        for name, one in gone.items()
    )
    version = known.schema_version + (not topic.schema.equals(known.schema))
    return dataclasses.replace(topic, dropped=tuple(marks), schema_version=version)


def _is_widened(old: pa.Schema, new: pa.Schema) -> bool:
    """Whether an existing column has another type."""
    return any(field.name in old.names and old.field(field.name).type != field.type for field in new)
