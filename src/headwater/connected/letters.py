"""Rows that a sink's target has refused: told of on a topic of the sink's, each once."""

from __future__ import annotations

import orjson
import pyarrow as pa

from headwater.catalog import define_topic
from headwater.errors import AlreadyWrittenError, UsageError
from headwater.log.protocol import Append, Log, Producer
from headwater.records import conform
from headwater.sinks.applying import Letters

SCHEMA = pa.schema(
    [
        pa.field("sink", pa.string(), nullable=False),
        pa.field("tick", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("row", pa.string(), nullable=False),
    ]
)
"""Which sink, at which tick of its view, why in the target's words, and the row as JSON."""


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
    producer = Producer(f"letters:{letters.sink}", letters.serial)
    try:
        log.append(Append({topic.name: [conform(rows, topic)]}, producer))
    except AlreadyWrittenError:
        return
