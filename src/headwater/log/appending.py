"""From rows as users have them to one commit of the log: in one piece, or staged where they may exceed memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.catalog import TopicDefinition
from headwater.errors import BadRowError, UsageError
from headwater.log.protocol import Append, CursorMove, Log, Producer, Stage
from headwater.positions import Receipt
from headwater.records import chunks, conform, is_stream

Expect = int | Mapping[Any, int]
"""The next offset of the one partition concerned, or {partition: offset}, or {key: count of its records}."""


def append_rows(
    log: Log,
    rows: Mapping[str, Any],
    *,
    producer: Producer | None = None,
    expect: Mapping[str, Expect] | None = None,
    moves: tuple[CursorMove, ...] = (),
) -> Receipt:
    """Append to several topics in one commit. Nothing is written unless every row fits its topic."""
    definitions = {topic: log.topic(topic) for topic in rows}
    for topic in expect or {}:
        if topic not in rows:
            raise UsageError(f"expect names topic {topic!r}, which nothing is appended to")
    if not any(is_stream(given) for given in rows.values()):
        batches = {topic: [conform(given, definitions[topic])] for topic, given in rows.items()}
        return log.append(Append(batches, producer=producer, expect=expect or {}, moves=moves))
    stage = log.stage()
    try:
        for topic, given in rows.items():
            stage_rows(stage, given, definitions[topic])
        return stage.commit(producer=producer, expect=expect, moves=moves)
    except BaseException:
        stage.abort()
        raise


def stage_rows(stage: Stage, rows: Any, definition: TopicDefinition) -> None:
    """Put rows into a stage, chunk by chunk."""
    done = 0
    for chunk in chunks(rows):
        try:
            batch = conform(chunk, definition)
        except BadRowError as error:
            raise _shifted(error, done) from None
        stage.add(definition.name, batch)
        done += batch.num_rows


def make_producer(name: str | None, sequence: int | None, epoch: int | None) -> Producer | None:
    """The producer that the options of an append name; None where they name none."""
    if name is None:
        if sequence is not None or epoch is not None:
            raise UsageError(
                "sequence and epoch belong to a producer", hint="append(rows, producer='loader', sequence=17)"
            )
        return None
    if sequence is None:
        raise UsageError(
            f"producer {name!r} needs a sequence",
            hint=f"append(rows, producer={name!r}, sequence=17), rising by append",
        )
    given: dict[str, Any] = {"sequence": sequence, "epoch": epoch or 0}
    for what, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise UsageError(f"{what} is a whole number from 0 up, not {value!r}")
    return Producer(name, sequence, epoch or 0)


def _shifted(error: BadRowError, by: int) -> BadRowError:
    """The same error with the row counted from the beginning of the stream."""
    row = error.row + by
    message = error.message.replace(f"row {error.row} ", f"row {row} ", 1)
    return BadRowError(message, detail=error.detail, hint=error.hint, **{**error.facts, "row": row})
