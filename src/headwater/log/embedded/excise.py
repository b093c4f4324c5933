"""Removing records from the log itself: segments are rewritten without them, offsets stay gaps that readers skip.

Each segment is written anew first, swapped in by one record of the journal, and the old file deleted last, as upkeep does it; a
crash leaves each segment as it was or as it is to be. Small appends lie in the journal as well: it is folded into
checkpoints until the parts that have them are removed. Watermarks, positions and the bounds of partitions do not change.
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
        self._maintenance = maintenance

    def run(self, topic: TopicState, offsets: Mapping[int, Sequence[int]]) -> int:
        """Remove the records at these offsets, by partition; how many were there. Durable when it returns."""
        removed = 0
        with self._maintenance.alone():
            self._close(topic, offsets)
            for number, gone in sorted(offsets.items()):
                wanted = np.unique(np.asarray(gone, np.int64))
                for segment in self._touched(topic, number, wanted):
                    removed += self._rewrite(topic, number, segment, wanted)
            self._fold_journal()
            self._maintenance.sweep()  # what an attempt that died left behind
        return removed

    def _close(self, topic: TopicState, offsets: Mapping[int, Sequence[int]]) -> None:
        def change(state: JournalState) -> dict[str, Any]:
            there = state.ids[topic.id].partitions
            parts = [[topic.id, number] for number in offsets if there[number].active is not None]
            return {"k": "close", "parts": parts, "excises": topic.id}

        self._core.change(change, sync=True)

    def _touched(self, topic: TopicState, number: int, wanted: np.ndarray[Any, Any]) -> list[Segment]:
        segments = self._core.state.ids[topic.id].partitions[number].segments
        return [s for s in segments if ((wanted >= s.first) & (wanted < s.end)).any()]

    def _rewrite(self, topic: TopicState, number: int, segment: Segment, wanted: np.ndarray[Any, Any]) -> int:
        keep = ~np.isin(self._maintenance.offsets(topic, segment), wanted)
        if keep.all():
            return 0
        self._maintenance.put_anew(topic, number, segment, keep)
        return int((~keep).sum())

    def _fold_journal(self) -> None:
        for _ in range(KEPT + 1):
            with self._core.exclusive():
                self._core.checkpoint()
