"""Definitions of topics from the arguments of `ws.topic`: the counterpart of CREATE TOPIC for Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.arguments import span_us
from headwater.core.arguments import text as text_of
from headwater.core.errors import UsageError
from headwater.core.types import normalize_schema
from headwater.sql.parser import parse_columns
from headwater.sql.statements import TopicColumns


def columns_of(
    name: str, schema: pa.Schema | str, key: str | Sequence[str] | None, time: str | None
) -> TopicColumns:
    """Return the columns of a new topic, with the key and the time column given as options."""
    if not isinstance(schema, (str, pa.Schema)):
        raise UsageError(
            f"the schema of topic {name!r} must be a pyarrow schema or a text, not {schema!r}",
            hint="schema='id BIGINT, at TIMESTAMP', or pa.schema([('id', pa.int64())])",
            topic=name,
            argument="schema",
            value=schema,
        )
    columns = parse_columns(schema) if isinstance(schema, str) else TopicColumns(normalize_schema(schema))
    given_key = key_of(key) or columns.key
    if time is not None:
        text_of(time, "time", hint="give the name of a column: time='at'")
    for what, given, declared in (("key", key, columns.key), ("time", time, columns.time)):
        if given is not None and declared:
            raise UsageError(
                f"the {what} of topic {name!r} is given twice: in the schema and as an option",
                topic=name,
                argument=what,
                reason="given-twice",
            )
    return dataclasses.replace(columns, key=given_key, time=time or columns.time)


def definition_of(
    name: str,
    columns: TopicColumns,
    lateness: str | timedelta | None,
    private: Mapping[str, str] | None,
    options: Mapping[str, Any],
) -> TopicDefinition:
    """Return the definition of a new topic. `private` gives the subject's column for each private column."""
    if lateness is not None and not columns.time:
        raise UsageError(
            f"topic {name!r} has a lateness but no time column",
            hint="time='at', lateness='10 minutes'",
            topic=name,
            argument="lateness",
            reason="no-time-column",
        )
    if private is not None and not isinstance(private, Mapping):
        raise UsageError(
            f"private must map each private column to the column of its subject, not {private!r}",
            hint='private={"email": "user"}',
            argument="private",
            value=private,
        )
    late = columns.lateness_us if lateness is None else span_us(lateness, "lateness")
    whose = {**columns.private, **(private or {})}
    key, time = columns.key, columns.time
    return define_topic(
        name, columns.schema, key=key, time=time, lateness=late, options=options, private=whose
    )


def key_of(key: Any) -> tuple[str, ...]:
    """Return the columns of a key given as a name or a list of names; an empty tuple for None."""
    columns = (key,) if isinstance(key, str) else key
    if columns is None:
        return ()
    if not isinstance(columns, Sequence) or not all(isinstance(column, str) for column in columns):
        raise UsageError(
            f"key is the name of a column or a list of names, not {key!r}",
            hint="key='id', or key=['shop', 'id']",
            argument="key",
            value=key,
        )
    return tuple(columns)
