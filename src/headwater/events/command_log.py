"""What was answered to commands that left no event, refused ones too: records of the topic `_answers`.

A command with events is known by them: they carry its id. One without has its record here, if it came with an id, so that
it gets the same answer again, whatever became of the aggregate since.
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
from headwater.events.event_positions import Places
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
"""Where refusals of aggregates with private fields are, which may quote them: PRIVATE BY the aggregate's id."""
KEY = ("topic", "aggregate_id", "command_id")


@dataclass(frozen=True)
class CommandAnswer:
    """What a command without events was told: the aggregate's version, or why it was refused."""

    command_hash: int
    version: int
    refusal: CommandRefusedError | None


class CommandLog:
    """The answers of a workspace, as one process knows them. Made when the first is needed."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._places: Places | None = None

    def refresh(self) -> None:
        """Take in what others have answered."""
        if self._places is None and TOPIC in self._log.topics():
            self._places = Places(self._log, self._log.topic(TOPIC), KEY)
        if self._places is not None:
            self._places.refresh()

    def among(self, topic: str, commands: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those of several commands that may have an answer, all looked up at once."""
        if self._places is None or not commands:
            return set()
        return {
            (one[1], one[2]) for one in self._places.among(0, [(topic, *command) for command in commands])
        }

    def find(self, topic: str, aggregate_id: str, command_id: str) -> CommandAnswer | None:
        """The first answer to a command, if there is one."""
        if self._places is None:
            return None
        key = (topic, aggregate_id, command_id)
        offsets = self._places.offsets(0, key)[:1]
        columns = [*KEY, "command_hash", "version", "refusal"]
        columns += [SEALED.name, FORGOTTEN] if self._log.topic(TOPIC).private else []
        for batch in self._places.records(0, key, offsets, columns):
            row = batch.to_pylist()[0]
            refusal = _read(row["refusal"] or row.get(SEALED.name))
            return CommandAnswer(
                row["command_hash"], row["version"], _forgotten(key) if row.get(FORGOTTEN) else refusal
            )
        return None

    def made(self, *, private: bool = False) -> TopicDefinition:
        """The topic of the answers; with the column for private ones, if some are to be written."""
        made = made_topic(self._log, define_topic(TOPIC, SCHEMA))
        while private and not made.private:
            with suppress(ConflictError):  # somebody else has just done so
                self._log.alter_topic(made, add_column(made, SEALED, "aggregate_id"))
            made = self._log.topic(TOPIC)
        return made


def answer_row(
    topic: str,
    aggregate_id: str,
    command_id: str,
    command_hash: int,
    version: int,
    refusal: CommandRefusedError | None,
    private: bool = False,
) -> dict[str, Any]:
    """An answer as a row; what was refused is encrypted, if that is private."""
    return {
        "topic": topic,
        "aggregate_id": aggregate_id,
        "command_id": command_id,
        "command_hash": command_hash,
        "version": version,
        SEALED.name if private else "refusal": None if refusal is None else _written(refusal),
    }


def made_topic(log: Log, wanted: TopicDefinition) -> TopicDefinition:
    """A topic of the workspace's own, made if it is not there."""
    if wanted.name not in log.topics():
        try:
            log.create_topic(wanted)
        except TopicExistsError:  # somebody made it just now
            pass
    return log.topic(wanted.name)


def _forgotten(key: Sequence[str]) -> CommandRefusedError:
    return CommandRefusedError(
        f"command {key[2]!r} was refused, and why was forgotten with {key[1]!r}",
        hint="an answer stays; send another command, with another id",
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
