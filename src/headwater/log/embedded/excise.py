"""Removes records from the log itself: segments are rewritten without them, and their offsets stay gaps that readers skip.

As in maintenance, each segment is written first, swapped in by one record of the journal, and the old file deleted last, so
that a crash leaves each segment either as before or rewritten. Small appends are in the journal as well: checkpoints are made
until the journals that contain them are removed. Watermarks, positions and the bounds of partitions do not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headwater.log.embedded.commit import Core
from headwater.log.embedded.journal.journal_state import JournalState, Segment, TopicState
from headwater.log.embedded.journal.recovery import KEPT
from headwater.log.embedded.maintenance import Maintenance


class Excision:
    """Removes records of one workspace."""

    def __init__(self, core: Core, maintenance: Maintenance) -> None:
        self._core = core
        self._journal = core.journal
        self._maintenance = maintenance

    def run(self, topic: TopicState, offsets: Mapping[int, Sequence[int]]) -> int:
        """Remove the records at these offsets, by partition, and return how many there were. Durable on return."""
        removed = 0
        with self._maintenance.exclusive():
            self._close(topic, offsets)
            for number, gone in sorted(offsets.items()):
                wanted = np.unique(np.asarray(gone, np.int64))
                for segment in self._touched(topic, number, wanted):
                    removed += self._rewrite(topic, number, segment, wanted)
            self._fold_journal()
            self._maintenance.sweep()  # files that an interrupted attempt left behind
        return removed

    def _close(self, topic: TopicState, offsets: Mapping[int, Sequence[int]]) -> None:
        def change(state: JournalState) -> dict[str, Any]:
            there = state.ids[topic.id].partitions
            parts = [[topic.id, number] for number in offsets if there[number].active is not None]
            return {"k": "close", "parts": parts, "excises": topic.id}

        self._core.change(change, sync=True)

    def _touched(self, topic: TopicState, number: int, wanted: np.ndarray[Any, Any]) -> list[Segment]:
        segments = self._journal.state.ids[topic.id].partitions[number].segments
        return [s for s in segments if ((wanted >= s.first) & (wanted < s.end)).any()]

    def _rewrite(self, topic: TopicState, number: int, segment: Segment, wanted: np.ndarray[Any, Any]) -> int:
        keep = ~np.isin(self._maintenance.offsets(topic, segment), wanted)
        if keep.all():
            return 0
        self._maintenance.replace_segment(topic, number, segment, keep)
        return int((~keep).sum())

    def _fold_journal(self) -> None:
        for _ in range(KEPT + 1):
            with self._core.exclusive():
                self._core.checkpoint()
