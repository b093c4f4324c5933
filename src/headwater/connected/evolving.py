"""Topics that follow the tables that they are captured from: made, and given their columns, with the views that read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.catalog import TopicDefinition
from headwater.errors import ConflictError
from headwater.log.protocol import Log

if TYPE_CHECKING:
    from headwater.runtime.views import Views

ATTEMPTS_MAX = 100


def define(log: Log, views: Callable[[], Views], wanted: TopicDefinition) -> None:
    """Make a topic, or give the one that is there these columns. What else is declared of it stays as it is: its options are
    the user's to alter."""
    for _ in range(ATTEMPTS_MAX):
        known = log.topics().get(wanted.name)
        if known is None:
            log.create_topic(wanted)
            return
        if known.schema.equals(wanted.schema):
            return
        changed = dataclasses.replace(known, schema=wanted.schema, schema_version=known.schema_version + 1)
        try:
            if _is_widened(known.schema, changed.schema) and log.entries("view"):
                views().widen(known, changed, partial(log.alter_topic, known, changed))
            else:
                log.alter_topic(known, changed)
        except ConflictError:  # someone else altered it meanwhile
            continue
        return
    raise ConflictError(f"topic {wanted.name!r} is altered again and again", hint="try again later")


def _is_widened(old: pa.Schema, new: pa.Schema) -> bool:
    """Whether a column that was there has another type."""
    return any(field.name in old.names and old.field(field.name).type != field.type for field in new)
