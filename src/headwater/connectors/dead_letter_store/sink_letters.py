"""Rows that a sink's target has refused: told of on a topic of the sink's, each once; and what each is called."""

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
from headwater.sinks.base.rejected_rows import Choose, Tried, Withheld
from headwater.views.dead_letter_actions import Deed, Deeds

SCHEMA = pa.schema(
    [
        pa.field("sink", pa.string(), nullable=False),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("row", pa.string(), nullable=False),
    ]
)
"""Which sink, at which tick of its view, why in the target's words, and the row as JSON."""

ANEW = "letters anew"
"""The kind of the entries that say from which commit on what is done about a sink's letters counts, by sink."""

REFUSED = "refused letters"
"""The kind of the entries that keep the letters whose rows a sink's target refuses, by sink: they are counted where the sink is not at work."""


def letters_topic(sink: str) -> str:
    """The topic on which a sink tells of the rows that its target has refused."""
    return f"{sink}_errors"


def make_letters(log: Log, sink: str) -> None:
    """Make that topic; UsageError if another is in its place."""
    name = letters_topic(sink)
    known = log.topics().get(name)
    if known is None:
        log.create_topic(define_topic(name, SCHEMA))
    elif not known.schema.equals(SCHEMA):
        raise UsageError(
            f"sink {sink!r} would tell of refused rows on topic {name!r}, which is there and has other columns",
            hint="give the sink another name",
            topic=name,
        )


def begin_anew(log: Log, sink: str) -> None:
    """What was done about a sink's letters so far counts no more: it is dropped, or gets another target. The row that another
    sink of the name refuses is a letter that nobody has seen."""
    if letters_topic(sink) in log.topics():
        known = log.entries(ANEW).get(sink)
        log.put_entry(ANEW, sink, {}, expect=None if known is None else known.sequence)
    keep_refused(log, sink, ())


def incarnation_of(log: Log, sink: str) -> int:
    """What tells the letters of a sink from those of another that had its name before."""
    known = log.entries(ANEW).get(sink)
    return 0 if known is None else known.sequence


def put_letters(log: Log, letters: Letters) -> None:
    """Tell of refused rows. The same letters again, after a crash, are known by their serial and not written twice."""
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
    anew = incarnation_of(log, letters.sink)  # its serials begin anew, too
    producer = Producer(f"letters:{letters.sink}{f'@{anew}' if anew else ''}", letters.serial, exact=False)
    try:
        log.append(Append({topic.name: [conform(rows, topic)]}, producer))
    except AlreadyWrittenError:
        return


# --- by name -------------------------------------------------------------------------------------------------------


def letter_ids(sink: str, withheld: Withheld) -> list[str]:
    """What the letters of rows are called: by the row, so that it is the same wherever and whenever it is refused; in a changelog
    also by whether the row goes."""
    high, _ = row_hashes(withheld.rows)
    going = (withheld.weights < 0).tolist()
    return [
        f"{sink}/{word >> 24:010x}{'-gone' if gone else ''}"
        for word, gone in zip(high.tolist(), going, strict=True)
    ]


def keep_refused(log: Log, sink: str, letters: Sequence[str]) -> None:
    """Keep the letters whose rows a sink's target refuses now, for `count_open`."""
    entry = log.entries(REFUSED).get(sink)
    kept = [] if entry is None else entry.document["letters"]
    if list(letters) != kept:
        with suppress(ConflictError):  # another process has just kept what the target refuses
            log.put_entry(
                REFUSED, sink, {"letters": list(letters)}, expect=None if entry is None else entry.sequence
            )


def count_open(log: Log, sink: str, deeds: Deeds) -> int:
    """Count the letters of a sink that nobody has dropped, as its target was last heard of."""
    entry, incarnation = log.entries(REFUSED).get(sink), incarnation_of(log, sink)
    letters = [] if entry is None else entry.document["letters"]
    return sum(not deeds.is_dropped(letter, incarnation) for letter in letters)


def count_dropped(sink: str, withheld: Withheld, deeds: Deeds, incarnation: int = 0) -> int:
    """How many of the rows that a target refuses were dropped."""
    return sum(deeds.is_dropped(letter, incarnation) for letter in letter_ids(sink, withheld))


def chosen(sink: str, deeds: Deeds, letters: Collection[str] | None, incarnation: int = 0) -> Choose:
    """Which rows a sink is to try again: those of these letters, or all that were not dropped; each as it was edited."""

    def is_meant(letter: str) -> bool:
        return not deeds.is_dropped(letter, incarnation) if letters is None else letter in letters

    def choose(withheld: Withheld) -> Tried:
        ids = letter_ids(sink, withheld)
        places = [p for p, letter in enumerate(ids) if is_meant(letter)]
        rows = [
            _given(take_rows(withheld.rows, np.array([p])), deeds.of(ids[p], incarnation)) for p in places
        ]
        return Tried(np.array(places, dtype=np.int64), concat_rows(rows, withheld.rows.schema))

    return choose


def _given(row: pa.RecordBatch, done: Sequence[Deed]) -> pa.RecordBatch:
    edit = pending_edit(done)
    if edit is None or edit.edited_arrow is None:
        return row
    edited = unpacked(edit.edited_arrow)
    same = edited.schema.equals(row.schema)  # else the view has other columns by now, and the edit is void
    return edited.combine_chunks().to_batches()[0] if same else row
