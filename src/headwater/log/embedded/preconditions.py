"""Preconditions of a commit, checked under the lock before anything is written. The checks raise and change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwater.core.errors import AlreadyWrittenError, ConflictError, FencedError, UsageError
from headwater.core.positions import Receipt, Token
from headwater.log.backpressure import check_backlog
from headwater.log.embedded.journal.journal_state import JournalState
from headwater.log.protocol import CursorMove, Producer
from headwater.log.repeated_appends import Sums, check_repeat
from headwater.log.routing import check_incarnation
from headwater.log.topic_names import no_topic


def check_incarnations(state: JournalState, incarnations: Mapping[str, int]) -> None:
    """Raise TopicNotFoundError if a topic was dropped, or another topic has its name now."""
    for name, incarnation in incarnations.items():
        if name not in state.topics:
            raise no_topic(name, state.topics)
        check_incarnation(state.topics[name].definition, incarnation)


def check_behind(state: JournalState, rows: Mapping[str, int], moves: Sequence[CursorMove]) -> None:
    """Raise BacklogError if holding cursors of a topic are too far behind for so many more rows."""
    for name, count in rows.items():
        topic = state.topics.get(name)
        if topic is not None and topic.definition.backlog_rows is not None:
            cursors = [c for (t, _), c in state.cursors.items() if t == name]
            ends = {p: part.end for p, part in enumerate(topic.partitions)}
            check_backlog(topic.definition, ends, count, cursors, moves)


def check_moves(state: JournalState, moves: Sequence[CursorMove]) -> None:
    """Raise FencedError if a cursor is moved by a member that no longer owns the partitions."""
    for move in moves:
        if move.topic not in state.topics:
            raise no_topic(move.topic, state.topics)
        if (move.topic, move.cursor) not in state.cursors:
            raise UsageError(
                f"topic {move.topic!r} has no cursor {move.cursor!r}",
                hint=f"create it with topic.cursor({move.cursor!r})",
                topic=move.topic,
                cursor=move.cursor,
            )
        unknown = [p for p in move.positions if not 0 <= p < state.topics[move.topic].definition.partitions]
        if unknown:
            raise UsageError(
                f"topic {move.topic!r} has no partition {unknown[0]}", topic=move.topic, partition=unknown[0]
            )
        if move.member is None:
            continue
        group = state.groups.get((move.topic, move.cursor))
        lost = [p for p in move.positions if group is None or group.owners.get(p) != move.member]
        if lost:
            raise FencedError(
                f"member {move.member!r} no longer owns partition {', '.join(map(str, lost))} of topic {move.topic!r}",
                detail="it sent no heartbeat within its timeout, or the partition was assigned to another member",
                hint="discard the rows read from these partitions; the new owner reads them again",
                topic=move.topic,
                member=move.member,
                partitions=lost,
            )


def check_offsets(topic: str, wanted: Mapping[Any, int], ends: Mapping[int, int], given: object) -> None:
    """Raise ConflictError unless every partition ends at its expected offset; `given` is the value that the caller passed."""
    for partition, offset in wanted.items():
        if partition not in ends:
            raise UsageError(
                f"topic {topic!r} has no partition {partition!r}",
                hint=f"its partitions are 0 to {len(ends) - 1}",
                topic=topic,
                partition=partition,
            )
        if ends[partition] != offset:
            raise ConflictError(
                f"partition {partition} of topic {topic!r} is at offset {ends[partition]}, not {offset}",
                detail="another writer appended first; nothing was written",
                hint="read the new records, decide again, and append with the new offset",
                topic=topic,
                expected=given,
                actual=ends[partition] if isinstance(given, int) else {p: ends.get(p) for p in wanted},
            )


def check_producer(
    state: JournalState, producer: Producer | None, sums: Sums | None = None
) -> Receipt | None:
    """Return the first receipt of a sequence that was already written; None if the append is to be written.

    FencedError for an old epoch, AlreadyWrittenError for an old sequence without a receipt. `sums` are those of the appended
    rows: SequenceReusedError if they are known to differ from the first ones.
    """
    known = state.producers.get(producer.name) if producer is not None else None
    if producer is None or known is None:
        return None
    if producer.epoch < known.epoch:
        raise FencedError(
            f"producer {producer.name!r} of epoch {producer.epoch} was fenced by epoch {known.epoch}",
            hint="stop this producer: a newer instance has taken over",
            producer=producer.name,
            epoch=producer.epoch,
            current=known.epoch,
        )
    if producer.sequence in known.receipts:
        ranges, token = known.receipts[producer.sequence], known.tokens.get(producer.sequence)
        positions = {t: {p: (s[0], s[1]) for p, s in parts.items()} for t, parts in ranges.items()}
        receipt = Receipt(positions, None if token is None else Token.parse(token))
        if producer.exact:
            check_repeat(producer, receipt, known.sums.get(producer.sequence), sums)
        return receipt
    if producer.sequence <= known.last:
        raise AlreadyWrittenError(
            f"sequence {producer.sequence} of producer {producer.name!r} is too old: the last one written is {known.last}",
            detail="its receipt is no longer kept, or the sequence was skipped",
            hint="use a higher sequence",
            producer=producer.name,
            sequence=producer.sequence,
            last=known.last,
        )
    return None
