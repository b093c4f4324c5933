"""Appends of rows as users pass them, in one commit of the log: in one piece, or staged where the rows may exceed memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwater.catalog.conform import chunks, conform, is_stream
from headwater.catalog.definitions import TopicDefinition
from headwater.core.arguments import label, whole_number
from headwater.core.errors import BadRowError, UsageError
from headwater.core.positions import Receipt
from headwater.log.protocol import Append, CursorMove, Log, Producer, Stage
from headwater.log.topic_names import check_written

Expect = int | Mapping[Any, int]
"""Next offset of the only partition concerned, or {partition: next offset}, or {key: number of the key's records}."""


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
    for definition in definitions.values():
        check_written(definition)
    for topic in expect or {}:
        if topic not in rows:
            raise UsageError(
                f"expect names topic {topic!r}, to which no rows are appended", topic=topic, reason="no-rows"
            )
    expect = {topic: check_expect(given, definitions[topic]) for topic, given in (expect or {}).items()}
    if not any(is_stream(given) for given in rows.values()):
        batches = {topic: [conform(given, definitions[topic])] for topic, given in rows.items()}
        made_for = {topic: definition.incarnation for topic, definition in definitions.items()}
        return log.append(Append(batches, producer, expect, moves, made_for))
    stage = log.stage(producer)
    try:
        for topic, given in rows.items():
            stage_rows(stage, given, definitions[topic])
        return stage.commit(producer=producer, expect=expect, moves=moves)
    except BaseException:
        stage.abort()
        raise


def stage_rows(stage: Stage, rows: Any, definition: TopicDefinition) -> None:
    """Conform rows to the topic and add them to a stage, chunk by chunk."""
    check_written(definition)
    done = 0
    for chunk in chunks(rows):
        try:
            batch = conform(chunk, definition)
        except BadRowError as error:
            raise _shifted(error, done) from None
        if batch.num_rows:
            stage.add(definition.name, batch, definition.incarnation)
        done += batch.num_rows


def make_producer(name: str | None, sequence: int | None, epoch: int | None) -> Producer | None:
    """Return the producer that the options of an append name, or None if they name no producer."""
    if name is None:
        if sequence is not None or epoch is not None:
            raise UsageError(
                "sequence and epoch need a producer",
                hint="append(rows, producer='loader', sequence=17)",
                reason="no-producer",
            )
        return None
    label(name, "producer")
    if sequence is None:
        raise UsageError(
            f"producer {name!r} needs a sequence",
            hint=f"append(rows, producer={name!r}, sequence=17), with a higher sequence for each append",
            producer=name,
            reason="no-sequence",
        )
    return Producer(
        name, whole_number(sequence, "sequence"), 0 if epoch is None else whole_number(epoch, "epoch")
    )


def expectations(expect: Any) -> dict[str, Expect] | None:
    """Return the expectations of an append to several topics, by topic; None if the append has none."""
    if expect is None or isinstance(expect, Mapping):
        return None if expect is None else dict(expect)
    raise UsageError(
        f"expect must be a mapping by topic, not {expect!r}",
        hint='expect={"orders": 17}, or {"orders": {0: 17}}',
        argument="expect",
        value=expect,
    )


def check_expect(expect: Any, topic: TopicDefinition) -> Expect:
    """Return the expectation of an append for one topic with every number as a plain int; UsageError if it is malformed."""
    if topic.versioned_by is not None:
        hint = f"topic {topic.name!r} is versioned by {topic.versioned_by!r}: expect={{key: count of its records}}"
        if not isinstance(expect, Mapping):
            raise UsageError(
                f"expect must map keys to record counts on topic {topic.name!r}, not {expect!r}",
                hint=hint,
                topic=topic.name,
                argument="expect",
                value=expect,
            )
        return {key: whole_number(n, f"expect of key {key!r}", hint=hint) for key, n in expect.items()}
    hint = "expect=17 is the next offset; expect={0: 17} says the partition too"
    if not isinstance(expect, Mapping):
        return whole_number(expect, "expect", hint=hint)
    return {
        whole_number(p, "a partition in expect", hint=hint): whole_number(n, "expect", hint=hint)
        for p, n in expect.items()
    }


def _shifted(error: BadRowError, by: int) -> BadRowError:
    """Return the error with its row number counted from the beginning of the stream instead of the chunk."""
    row = error.row + by
    message = error.message.replace(f"row {error.row} ", f"row {row} ", 1)
    return BadRowError(message, detail=error.detail, hint=error.hint, **{**error.facts, "row": row})
