"""Rows that a sink's target rejected: reported on a topic of the sink, each once, and the names of their dead letters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

import numpy as np
import orjson
import pyarrow as pa

from headwater.catalog.conform import conform
from headwater.catalog.definitions import define_topic
from headwater.connectors.dead_letter_store.letter_store import pending_edit, unpacked
from headwater.core.errors import AlreadyWrittenError, ConflictError, UsageError
from headwater.log.protocol import Append, Log, Producer
from headwater.operators.zset.delta import concat_rows, row_hashes, take_rows
from headwater.sinks.base.applier import Letters
from headwater.sinks.base.rejected_rows import Choose, RejectedSinkRows, Tried
from headwater.views.dead_letter_actions import LetterAction, LetterActions

SCHEMA = pa.schema(
    [
        pa.field("sink", pa.string(), nullable=False),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("row", pa.string(), nullable=False),
    ]
)
"""Columns: the sink, the tick of its view, the reason in the target's words, and the row as JSON."""

ACTIONS_RESET = "letters anew"
"""Kind of catalog entry, by sink, whose commit starts a new incarnation of the sink's dead letters."""

REFUSED = "refused letters"
"""Kind of catalog entry, by sink, with the dead letters of rows that the target rejects: they are counted without the sink."""


def letters_topic(sink: str) -> str:
    """Return the topic on which a sink reports the rows that its target rejected."""
    return f"{sink}_errors"


def make_letters(log: Log, sink: str) -> None:
    """Create the topic; UsageError if a topic of its name has other columns."""
    name = letters_topic(sink)
    known = log.topics().get(name)
    if known is None:
        log.create_topic(define_topic(name, SCHEMA))
    elif not known.schema.equals(SCHEMA):
        raise UsageError(
            f"topic {name!r}, on which sink {sink!r} would report rejected rows, exists with other columns",
            hint="give the sink another name",
            topic=name,
            sink=sink,
        )


def reset_actions(log: Log, sink: str) -> None:
    """Invalidate the actions taken on a sink's dead letters so far, since it is dropped or gets another target: a row that
    another sink of the name rejects is a new dead letter."""
    if letters_topic(sink) in log.topics():
        known = log.entries(ACTIONS_RESET).get(sink)
        log.put_entry(ACTIONS_RESET, sink, {}, expect=None if known is None else known.sequence)
    store_rejected_letters(log, sink, ())


def incarnation_of(log: Log, sink: str) -> int:
    """Return the number that distinguishes the dead letters of a sink from those of an earlier sink of the same name."""
    known = log.entries(ACTIONS_RESET).get(sink)
    return 0 if known is None else known.sequence


def put_letters(log: Log, letters: Letters) -> None:
    """Report rejected rows. The same letters again, after a crash, are detected by their serial and not written twice."""
    topic = log.topic(letters_topic(letters.sink))
    rows = [
        {
            "sink": letters.sink,
            "tick": letters.tick,
            "reason": reason,
            "row": orjson.dumps(row, default=str, option=orjson.OPT_NON_STR_KEYS).decode(),
        }
        for row, reason in zip(letters.rows.to_pylist(), letters.reasons, strict=True)
    ]
    # serials of a new incarnation start again
    incarnation = incarnation_of(log, letters.sink)
    producer = Producer(
        f"letters:{letters.sink}{f'@{incarnation}' if incarnation else ''}", letters.serial, exact=False
    )
    try:
        log.append(Append({topic.name: [conform(rows, topic)]}, producer))
    except AlreadyWrittenError:
        return


# --- names ---------------------------------------------------------------------------------------------------------


def letter_ids(sink: str, rejected: RejectedSinkRows) -> list[str]:
    """Return the names of the letters of rows. A name is derived from the row, so that it is the same wherever and whenever
    the row is rejected; in a changelog also from whether the row is deleted."""
    high, _ = row_hashes(rejected.rows)
    going = (rejected.weights < 0).tolist()
    return [
        f"{sink}/{word >> 24:010x}{'-gone' if gone else ''}"
        for word, gone in zip(high.tolist(), going, strict=True)
    ]


def store_rejected_letters(log: Log, sink: str, letters: Sequence[str]) -> None:
    """Store the dead letters of the rows that a sink's target rejects now, for `count_open`."""
    entry = log.entries(REFUSED).get(sink)
    kept = [] if entry is None else entry.document["letters"]
    if list(letters) != kept:
        with suppress(ConflictError):  # another process has just stored them
            log.put_entry(
                REFUSED, sink, {"letters": list(letters)}, expect=None if entry is None else entry.sequence
            )


def count_open(log: Log, sink: str, actions: LetterActions) -> int:
    """Count the dead letters of a sink that were not dropped, as of the last time its target was read."""
    entry, incarnation = log.entries(REFUSED).get(sink), incarnation_of(log, sink)
    letters = [] if entry is None else entry.document["letters"]
    return sum(not actions.is_dropped(letter, incarnation) for letter in letters)


def count_dropped(sink: str, rejected: RejectedSinkRows, actions: LetterActions, incarnation: int = 0) -> int:
    """Count the rejected rows of a target whose dead letters were dropped."""
    return sum(actions.is_dropped(letter, incarnation) for letter in letter_ids(sink, rejected))


def chosen(
    sink: str, actions: LetterActions, letters: Collection[str] | None, incarnation: int = 0
) -> Choose:
    """Return a function that picks the rejected rows to retry, as last edited: the rows of `letters`, or all rows not
    dropped."""

    def is_meant(letter: str) -> bool:
        return not actions.is_dropped(letter, incarnation) if letters is None else letter in letters

    def choose(rejected: RejectedSinkRows) -> Tried:
        ids = letter_ids(sink, rejected)
        places = [p for p, letter in enumerate(ids) if is_meant(letter)]
        rows = [
            _as_edited(take_rows(rejected.rows, np.array([p])), actions.of(ids[p], incarnation))
            for p in places
        ]
        return Tried(np.array(places, dtype=np.int64), concat_rows(rows, rejected.rows.schema))

    return choose


def _as_edited(row: pa.RecordBatch, done: Sequence[LetterAction]) -> pa.RecordBatch:
    edit = pending_edit(done)
    if edit is None or edit.edited_arrow is None:
        return row
    edited = unpacked(edit.edited_arrow)
    # if the columns of the view have changed since, the edit is void
    same = edited.schema.equals(row.schema)
    return edited.combine_chunks().to_batches()[0] if same else row
