"""Watermark declarations without rows: punctuation, idle partitions, and producer watermarks.

Each is one commit of the journal, of kind `append`, with a punctuation in every partition whose watermark it raises. Whatever
it declares beyond that is in `said`, in the record and in each of its frames:

  {"what": "silence", "t": topic}                                  the partitions are idle, which stays so
  {"what": "promise", "t": topic, "by": producer, "moment": ...}   the producer's new watermark
  {"what": "retire" or "expire", "t": topic, "by": producer}       the producer is removed from the minimum
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headwater.core.clock import Microseconds
from headwater.log import producer_watermarks as by_producer
from headwater.log.embedded.append import Appender
from headwater.log.embedded.base import LogFolder, partition_of, topic_of
from headwater.log.embedded.commit import Ticket, VoidedError
from headwater.log.embedded.journal.journal_state import JournalState, TopicState
from headwater.log.protocol import ProducerWatermark


class LogPunctuation:
    """Implements the methods of `headwater.log.protocol.Log` for watermarks that no row raises."""

    def __init__(self, folder: LogFolder, appender: Appender) -> None:
        self._folder = folder
        self._appender = appender

    def punctuate(
        self,
        topic: str,
        moments: Mapping[int, Microseconds],
        *,
        idle_at: Mapping[int, int] | None = None,
    ) -> None:
        """See `Log.punctuate`."""

        def change(state: JournalState) -> tuple[Ticket, bool] | None:
            found = topic_of(state, topic)
            places = {p: partition_of(found, p) for p in moments}
            if idle_at is None:
                return self._appender.punctuate(found, moments) if moments else None
            still = {
                p: moment
                for p, moment in moments.items()
                if places[p].end == idle_at[p] and places[p].watermark < moment
            }
            said = {"what": "silence", "t": found.id}
            return self._appender.punctuate(found, still, said) if still else None

        self._declare(change)

    def declare_watermark(self, topic: str, producer: str, moment: Microseconds) -> None:
        """See `Log.declare_watermark`."""

        def change(state: JournalState) -> tuple[Ticket, bool]:
            found = topic_of(state, topic)
            by_producer.check_has_producers(found.definition)
            known = by_producer.declared(found.watermarks_by_producer, producer, moment, 0)
            said = {"what": "promise", "t": found.id, "by": producer, "moment": moment}
            return self._agree(found, known, said)

        self._declare(change)

    def retire(self, topic: str, producer: str, *, idle_since: Microseconds | None = None) -> bool:
        """See `Log.retire`."""

        def change(state: JournalState) -> tuple[Ticket, bool] | None:
            found = topic_of(state, topic)
            by_producer.check_has_producers(found.definition)
            known = found.watermarks_by_producer.get(producer)
            if known is None or (idle_since is not None and known.heard_at > idle_since):
                return None
            what = "retire" if idle_since is None else "expire"
            said = {"what": what, "t": found.id, "by": producer}
            return self._agree(found, by_producer.retired(found.watermarks_by_producer, producer), said)

        return self._declare(change)

    def producer_watermarks(self, topic: str) -> Mapping[str, ProducerWatermark]:
        """See `Log.producer_watermarks`."""
        with self._folder.journal.mutex:
            self._folder.journal.refresh()
            return dict(topic_of(self._folder.journal.state, topic).watermarks_by_producer)

    def _agree(
        self, topic: TopicState, known: Mapping[str, ProducerWatermark], said: dict[str, Any]
    ) -> tuple[Ticket, bool]:
        """Commit a declaration, and raise the partitions to the resulting minimum of the producers' watermarks."""
        raised = by_producer.raised(known, (p.watermark for p in topic.partitions))
        return self._appender.punctuate(topic, raised, said)

    def _declare(self, change: Callable[[JournalState], tuple[Ticket, bool] | None]) -> bool:
        """Commit under the lock and return once the commit counts; False if there was nothing to commit."""
        while True:
            try:
                with self._folder.core.exclusive() as state:
                    done = change(state)
                if done is not None:
                    self._folder.core.flusher.flush(done[0], sync=done[1])
                return done is not None
            except VoidedError:
                continue
