"""Lookup of topic names as callers write them, and the rules for new names. Pure; both backends use it, so that they agree.

Topics and views share one namespace that ignores case. Workspaces from before that rule may have two topics that differ by case
alone: each is found by its exact name.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from typing import Any

import orjson

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.rules import DELETION_TOPICS, check_free, is_system_topic
from headwater.core.errors import (
    ConflictError,
    SchemaError,
    TopicExistsError,
    TopicNotFoundError,
    UsageError,
)
from headwater.core.names import canonical_name, names_alike
from headwater.log.protocol import Append, Entry

VIEWS_HOLD = "headwater_views"
"""Name of the cursor that keeps records for views; no reader uses it."""
RELATIONS = ("view",)
"""Kinds of catalog entries that a query can read by name, like topics."""

EntryKey = tuple[str, str]
"""Kind, and name in lower case."""


def entry_key(kind: str, name: str) -> EntryKey:
    """Return the key under which an entry is stored."""
    return kind, name.lower()


def no_topic(name: str, topics: Collection[str]) -> TopicNotFoundError:
    """Return the error for a topic that does not exist."""
    if "." in name:
        return TopicNotFoundError(
            f"there is no topic {name!r}",
            hint="only the dead-letter topic of a queue has a dot in its name; late rows and errors of a view are read like a view, and "
            "only the engine writes them",
            topic=name,
        )
    alike = sorted(names_alike(topics, name))
    hint = f"CREATE TOPIC {name} (...) creates it; existing topics: {', '.join(sorted(topics)) or 'none yet'}"
    if alike:
        hint = f"write its name with the exact case: {' or '.join(alike)}"
    elif near := difflib.get_close_matches(name, topics, 1):
        hint = f"did you mean {near[0]}?"
    return TopicNotFoundError(f"there is no topic {name!r}", hint=hint, topic=name, alike=alike)


def with_canonical_topics(append: Append, topics: Collection[str]) -> Append:
    """Return the append with every topic spelled as it is declared; names of topics that do not exist stay."""
    moved = [move.topic for move in append.moves]
    given = {*append.batches, *append.expect, *append.incarnations, *moved}
    if all(name in topics for name in given):
        return append
    canonical = {name: canonical_name(topics, name) or name for name in given}
    return dataclasses.replace(
        append,
        batches=_renamed(append.batches, canonical),
        expect=_renamed(append.expect, canonical),
        moves=tuple(dataclasses.replace(move, topic=canonical[move.topic]) for move in append.moves),
        incarnations=_renamed(append.incarnations, canonical),
    )


def _renamed(by_topic: Mapping[str, Any], canonical: Mapping[str, str]) -> dict[str, Any]:
    renamed = {canonical[name]: value for name, value in by_topic.items()}
    if len(renamed) < len(by_topic):
        twice = next(name for name in renamed if sum(canonical[n] == name for n in by_topic) > 1)
        raise UsageError(
            f"topic {twice!r} is given twice, in different case",
            hint="names of topics ignore case",
            topic=twice,
            reason="given-twice",
        )
    return renamed


def check_topic_name(name: str, topics: Collection[str], entries: Mapping[EntryKey, Entry]) -> None:
    """Raise TopicExistsError if a new topic cannot have this name."""
    if alike := names_alike(topics, name):
        _refuse_name(name, "topic", alike[0], "CREATE TOPIC IF NOT EXISTS, or choose another name")
    for kind in RELATIONS:
        if found := entries.get(entry_key(kind, name)):
            _refuse_name(name, kind, found.name, "topics and views cannot have the same name; choose another")


def _refuse_name(name: str, kind: str, there: str, hint: str) -> None:
    raise TopicExistsError(
        f"{kind} {there!r} exists already"
        + ("" if there == name else f", and {name!r} differs from it only in case"),
        hint=hint,
        topic=name,
        kind=kind,
        existing=there,
    )


def check_entry(
    entry: tuple[str, str], topics: Collection[str], entries: Mapping[EntryKey, Entry], expect: int | None
) -> None:
    """Raise ConflictError unless the entry stored under this kind and name is the one that the caller expects to replace."""
    kind, name = entry
    found = entries.get(entry_key(kind, name))
    if found is None and kind in RELATIONS and (alike := names_alike(topics, name)):
        _refuse_name(name, "topic", alike[0], f"topics and {kind}s cannot have the same name; choose another")
    if (found.sequence if found else None) != expect:
        raise _conflict(kind, name, found, expect)


def check_drop(entry: tuple[str, str], entries: Mapping[EntryKey, Entry], expect: int | None) -> None:
    """Raise ConflictError if there is no entry to drop, or its sequence is not the expected one."""
    kind, name = entry
    found = entries.get(entry_key(kind, name))
    if found is None or expect not in (None, found.sequence):
        raise _conflict(kind, name, found, expect)


def _conflict(kind: str, name: str, found: Entry | None, expect: int | None) -> ConflictError:
    if found is None:
        message = f"there is no {kind} {name!r}"
        hint = "it was dropped or never created"
    else:
        message = (
            f"{kind} {found.name!r} exists already"
            if expect is None
            else f"{kind} {found.name!r} was changed by another process"
        )
        hint = "read it again, and decide again"
    return ConflictError(
        message, hint=hint, kind=kind, name=name, expected=expect, actual=found.sequence if found else None
    )


def plain_document(kind: str, name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a document as it reads back from JSON; UsageError if it is not plain JSON."""
    if not kind or not name:
        raise UsageError(f"an entry needs a kind and a name, not {kind!r} and {name!r}", kind=kind, name=name)
    try:
        text = orjson.dumps(dict(document))
    except (orjson.JSONEncodeError, TypeError, ValueError) as error:
        raise UsageError(
            f"the document of {kind} {name!r} is not plain JSON: {error}", kind=kind, name=name
        ) from None
    plain: dict[str, Any] = orjson.loads(text)
    return plain


def is_own(topic: TopicDefinition) -> bool:
    """Whether a topic is the workspace's own: holds on its records are needed, and cannot be overridden."""
    return topic.name.startswith("_")


def check_new(topic: TopicDefinition) -> None:
    """Raise SchemaError if only a queue, or the workspace itself, may create a topic of that name."""
    check_free(topic.name)
    if "." in topic.name:
        raise SchemaError(
            f"topic name {topic.name!r} is reserved for the dead-letter topic of a queue",
            hint="use letters, digits and underscores; ws.queue creates the dead-letter topic",
            topic=topic.name,
            reason="reserved-name",
        )


def check_alterable(topic: TopicDefinition) -> None:
    """Raise UsageError if a topic must not be changed."""
    if topic.name in DELETION_TOPICS:
        raise UsageError(
            f"topic {topic.name!r} is the record of deletions and cannot be changed",
            topic=topic.name,
            reason="record-of-deletions",
        )


def check_written(topic: TopicDefinition) -> None:
    """Raise UsageError if only the workspace, or the queue that a topic belongs to, may write to it."""
    if is_system_topic(topic.name):
        raise UsageError(
            f"topic {topic.name!r} is written by the workspace only",
            hint="it can be read like any other topic",
            topic=topic.name,
            reason="system-topic",
        )
    if "." in topic.name:
        queue = topic.name.partition(".")[0]
        raise UsageError(
            f"topic {topic.name!r} is the dead-letter topic of queue {queue!r} and is written by it only",
            hint=f"append to the topic of the queue, which `headwater queue show {queue}` names",
            topic=topic.name,
            queue=queue,
            reason="dead-letter-topic",
        )


def check_excision(topic: TopicDefinition) -> None:
    """Raise UsageError if records of a topic may not be removed one by one."""
    if topic.versioned_by is not None:
        raise UsageError(
            f"records of topic {topic.name!r} cannot be excised: it is event-sourced (versioned_by = {topic.versioned_by!r})",
            detail="every event of an aggregate is needed to rebuild it, and writers expect the number of its events",
            hint="declare columns that must be erasable PRIVATE BY a subject, and forget the subject",
            topic=topic.name,
            reason="event-sourced",
        )
