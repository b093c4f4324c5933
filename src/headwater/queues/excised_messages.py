"""Removes excised records of a topic from the queues on it: from their state, and from the copies among their dead
messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headwater.log.protocol import Append, Log
from headwater.queues.message_positions import OFFSET_BITS, Places, place_of
from headwater.queues.queue_ddl import queues_on
from headwater.queues.queue_definition import QueueDefinition, definitions
from headwater.queues.queue_records import Op, to_batch


def excise_messages(log: Log, topic: str, found: Mapping[int, Sequence[int]]) -> dict[str, int]:
    """Remove these records, given as offsets by partition, from every queue on a topic. Returns the number of copies
    removed from each topic of dead messages. Repeating the call changes nothing.

    The queue's state records the removal before the copies are removed: a dead letter is written only by a process that
    has read all earlier records of the queue, so no copy can be written after this.
    """
    places = [place_of(partition, 0) + np.asarray(offsets, np.int64) for partition, offsets in found.items()]
    gone = np.sort(np.concatenate(places))
    removed: dict[str, int] = {}
    for name in queues_on(log, topic):
        queue = definitions(log)[name]
        said = log.topic(queue.state_topic)
        batch = to_batch([Op("gone", gone)], said.row_schema)
        log.append(Append({said.name: [batch]}, incarnations={said.name: said.incarnation}))
        copies = _copies(log, queue, gone)
        if copies:
            log.excise(queue.dead_topic, {0: copies})
        removed[queue.dead_topic] = len(copies)
    return removed


def _copies(log: Log, queue: QueueDefinition, gone: Places) -> list[int]:
    """Return the offsets, in the queue's topic of dead messages, of the messages at these positions."""
    info, found = log.partitions(queue.dead_topic)[0], []
    for batch in log.read(queue.dead_topic, 0, info.first, info.end, ["partition", "offset", "_offset"]):
        partitions, offsets, own = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
        places = partitions.astype(np.int64) << OFFSET_BITS | offsets
        found += own[np.isin(places, gone)].tolist()
    return found
