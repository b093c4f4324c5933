"""Answers to commands that left no event, including refusals: records of the topic `_answers`.

A command with events is found by its events, which carry its id. A command without events has a record here if its caller
named an id, so that it gets the same answer again, whatever happened to the aggregate since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition, add_column, define_topic
from headwater.catalog.rules import FORGOTTEN
from headwater.core import errors
from headwater.core.errors import CommandRefusedError, ConflictError, TopicExistsError
from headwater.events.event_positions import KeyOffsets
from headwater.log.protocol import Log

TOPIC = "_answers"
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("aggregate_id", pa.string(), nullable=False),
        pa.field("command_id", pa.string(), nullable=False),
        pa.field("command_hash", pa.int64(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("refusal", pa.string()),
    ]
)
SEALED = pa.field("refusal_private", pa.string())
"""Column for refusals of aggregates with private fields, which may quote them: PRIVATE BY the aggregate's id."""
KEY = ("topic", "aggregate_id", "command_id")


@dataclass(frozen=True)
class CommandAnswer:
    """The answer to a command without events: the aggregate's version, or the refusal."""

    command_hash: int
    version: int
    refusal: CommandRefusedError | None


class CommandLog:
    """The answers of a workspace, as far as this process has read them. Their topic is created with the first one."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._key_offsets: KeyOffsets | None = None

    def refresh(self) -> None:
        """Read the answers of other processes."""
        if self._key_offsets is None and TOPIC in self._log.topics():
            self._key_offsets = KeyOffsets(self._log, self._log.topic(TOPIC), KEY)
        if self._key_offsets is not None:
            self._key_offsets.refresh()

    def among(self, topic: str, commands: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return the commands that may have an answer, with one lookup for all."""
        if self._key_offsets is None or not commands:
            return set()
        return {
            (one[1], one[2])
            for one in self._key_offsets.among(0, [(topic, *command) for command in commands])
        }

    def find(self, topic: str, aggregate_id: str, command_id: str) -> CommandAnswer | None:
        """Return the first answer to a command, or None."""
        if self._key_offsets is None:
            return None
        key = (topic, aggregate_id, command_id)
        offsets = self._key_offsets.offsets(0, key)[:1]
        columns = [*KEY, "command_hash", "version", "refusal"]
        columns += [SEALED.name, FORGOTTEN] if self._log.topic(TOPIC).private else []
        for batch in self._key_offsets.records(0, key, offsets, columns):
            row = batch.to_pylist()[0]
            refusal = _read(row["refusal"] or row.get(SEALED.name))
            return CommandAnswer(
                row["command_hash"], row["version"], _forgotten(key) if row.get(FORGOTTEN) else refusal
            )
        return None

    def ensure_topic(self, *, private: bool = False) -> TopicDefinition:
        """Return the topic of the answers, created if missing; with `private`, it has the column for private refusals."""
        made = ensure_own_topic(self._log, define_topic(TOPIC, SCHEMA))
        while private and not made.private:
            # another process has just added the column
            with suppress(ConflictError):
                self._log.alter_topic(made, add_column(made, SEALED, "aggregate_id"))
            made = self._log.topic(TOPIC)
        return made


def answer_row(
    topic: str, aggregate_id: str, command_id: str, answer: CommandAnswer, *, private: bool = False
) -> dict[str, Any]:
    """Return an answer as a row; with `private`, a refusal is stored encrypted."""
    return {
        "topic": topic,
        "aggregate_id": aggregate_id,
        "command_id": command_id,
        "command_hash": answer.command_hash,
        "version": answer.version,
        SEALED.name if private else "refusal": None if answer.refusal is None else _written(answer.refusal),
    }


def ensure_own_topic(log: Log, wanted: TopicDefinition) -> TopicDefinition:
    """Return a topic of the workspace's own, created if missing."""
    if wanted.name not in log.topics():
        try:
            log.create_topic(wanted)
        except TopicExistsError:
            # another process has just created it
            pass
    return log.topic(wanted.name)


def _forgotten(key: Sequence[str]) -> CommandRefusedError:
    return CommandRefusedError(
        f"command {key[2]!r} was refused; the reason was erased when {key[1]!r} was forgotten",
        hint="the answer to a command id does not change: send another command with a new id",
        reason="forgotten",
        aggregate_id=key[1],
        command_id=key[2],
    )


def _written(refusal: CommandRefusedError) -> str:
    plain = {
        "kind": type(refusal).__name__,
        "message": refusal.message,
        "detail": refusal.detail,
        "hint": refusal.hint,
        "facts": refusal.facts,
    }
    return orjson.dumps(plain, default=str).decode()


def _read(text: str | None) -> CommandRefusedError | None:
    if text is None:
        return None
    plain: Mapping[str, Any] = orjson.loads(text)
    kind = getattr(errors, plain["kind"], CommandRefusedError)
    refused: type[CommandRefusedError] = (
        kind if issubclass(kind, CommandRefusedError) else CommandRefusedError
    )
    return refused(plain["message"], detail=plain["detail"], hint=plain["hint"], **plain["facts"])
