"""Dead messages: rows of the topic `<queue>.dead`, each with its error, written in the commit that marks the message dead."""

from __future__ import annotations

import pyarrow as pa

from headwater.catalog.conform import conform
from headwater.catalog.definitions import define_topic
from headwater.catalog.rules import FORGOTTEN
from headwater.core.errors import UsageError
from headwater.core.json_csv import as_json
from headwater.log.protocol import Log
from headwater.queues.encrypted_messages import opened, sealed, shown_row
from headwater.queues.message_positions import Places, offset_of, partition_of
from headwater.queues.queue_definition import QueueDefinition
from headwater.queues.queue_state import LAPSED, QueueState

KEY = ("partition", "offset")
SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("deliveries", pa.int64(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("row", pa.string(), nullable=False),
        pa.field("row_arrow", pa.binary(), nullable=False),
    ]
)
"""The message's partition and offset in the queue's topic, the number of its deliveries, its last error, and its row:
as JSON, and exactly, as an Arrow stream. A message that dies again replaces its row. Private values are left out of the
JSON, and are encrypted in the stream."""
METADATA_COLUMNS = ("_offset", "_appended_at", "_sequence", "_op", FORGOTTEN)


def make_letters(log: Log, queue: QueueDefinition) -> None:
    """Create the topic of a queue's dead messages if it is missing; UsageError if another topic has its name."""
    name = queue.dead_topic
    known = log.topics().get(name)
    if known is None:
        log.create_topic(define_topic(name, SCHEMA, key=KEY, options={"cleanup": "compact"}))
    elif known.schema.names != SCHEMA.names:
        raise UsageError(
            f"queue {queue.name!r} needs the topic {name!r} for dead messages, but a topic of that name with other columns exists",
            hint="choose another name for the queue",
            queue=queue.name,
            topic=name,
        )


def letters_of(
    log: Log, queue: QueueDefinition, state: QueueState, places: Places, rows: pa.Table
) -> dict[str, list[pa.RecordBatch]]:
    """Return the rows of the topic of dead messages for the messages at `places`, given with their rows."""
    if not len(places):
        return {}
    plain, of = own_columns(rows), log.topic(queue.topic)
    found = []
    for number, place in enumerate(places.tolist()):
        body = state.bodies.get(place)
        row = opened(log, of, body) if body is not None else plain.take(pa.array([number]))
        found.append(
            {
                "partition": partition_of(place),
                "offset": offset_of(place),
                "deliveries": state.dying[place],
                "error": state.errors.get(place, LAPSED),
                "row": as_json(shown_row(of, row.to_pylist()[0])),
                "row_arrow": sealed(log, of, row.combine_chunks().to_batches()[0]),
            }
        )
    topic = log.topic(queue.dead_topic)
    return {topic.name: [conform(found, topic)]}


def own_columns(rows: pa.Table) -> pa.Table:
    """Return rows without the metadata columns of the log."""
    return rows.drop_columns([name for name in METADATA_COLUMNS if name in rows.column_names])
