"""Device clock state of a process that appends, for topics with device clocks. Used under the writer's lock.

Kept in memory per partition, read once from the latest records, then updated with every commit of any process. A device whose
last record is older than those records, or was removed, is a new device to a process that starts.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from headwater.log.device_clocks import READ_BACK_ROWS, DeviceChange, Devices, read_back
from headwater.log.embedded.journal.journal_state import TopicState
from headwater.log.embedded.key_counts import ReadColumns


class _Kept:
    def __init__(self, topic: TopicState, end: int) -> None:
        self.topic = topic
        self.end = end
        self.devices = Devices()


class DeviceClocks:
    """Devices of every partition, by topic id and partition."""

    def __init__(self, read: ReadColumns) -> None:
        self._read = read
        self._kept: dict[tuple[int, int], _Kept] = {}

    def correct(
        self, topic: TopicState, routed: Mapping[int, list[pa.RecordBatch]], appended_at: int
    ) -> tuple[dict[int, list[pa.RecordBatch]], dict[int, DeviceChange]]:
        """Return the rows with the columns that the log fills, and the state changes for `advance` once they are committed."""
        corrected: dict[int, list[pa.RecordBatch]] = {}
        changes: dict[int, DeviceChange] = {}
        for partition, batches in routed.items():
            devices = self._current(topic, partition).devices
            rows = pa.concat_batches(batches)
            filled, changes[partition] = devices.correct(rows, topic.definition, appended_at)
            corrected[partition] = [filled]
        return corrected, changes

    def advance(self, topic: TopicState, changes: Mapping[int, DeviceChange]) -> None:
        """Apply the changes of rows that were just committed."""
        for partition, change in changes.items():
            kept = self._kept[topic.id, partition]
            kept.devices.advance(change)
            kept.end = topic.partitions[partition].end

    def _current(self, topic: TopicState, partition: int) -> _Kept:
        kept = self._kept.get((topic.id, partition))
        place = topic.partitions[partition]
        if kept is None or kept.topic is not topic:  # reloaded: its records may be void
            begin = max(place.first, place.end - READ_BACK_ROWS)
            kept = self._kept[topic.id, partition] = _Kept(topic, begin)
        if kept.end < place.end:
            columns = read_back(topic.definition)
            for batch in self._read(topic, partition, max(kept.end, place.first), place.end, columns):
                kept.devices.absorb(batch, topic.definition)
            kept.end = place.end
        return kept
