"""Idle partitions and producers of a running engine: watermarks of idle partitions are advanced, silent producers expire.

A partition is idle if it received nothing for its topic's `idle_after`: no record and no declared punctuation, counted from
its last one or from the start of the engine, whichever is later. So an engine that starts after a downtime, perhaps before
its producers do, waits as long as any other. A partition that never had a record counts from the creation of its topic in
the same way.

The engine appends a punctuation to an idle partition, up to the lowest watermark of the partitions that are not idle or, if
all are idle, up to the engine's clock less the lateness. The punctuation is a record of the log like any other, so every
reader of the log makes the same decisions, at any time. It never lowers a watermark, and a record that was appended first
wins.

Idle partitions follow the others at most once a second. A topic whose partitions are all idle follows the clock at most once
in a quarter of its `idle_after`, and at most once a second: the passing of time alone makes few commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Clock, Microseconds, parse_span_us
from headwater.core.errors import TopicNotFoundError
from headwater.log.protocol import Log

CHECK_EVERY_MS = 200.0
"""Interval at which the topics are checked, however fast the ticks are."""
FOLLOW_EVERY_US = parse_span_us("1 second")


@dataclass(frozen=True)
class Heard:
    """The state of a partition: watermark (None before the first), and start of the current silence."""

    watermark: Microseconds | None
    since: Microseconds


def without_input(
    partitions: Mapping[int, Heard], idle_after_us: Microseconds, now_us: Microseconds
) -> frozenset[int]:
    """Return the partitions without input for `idle_after_us`."""
    return frozenset(p for p, heard in partitions.items() if now_us - heard.since >= idle_after_us)


def decide(
    partitions: Mapping[int, Heard],
    *,
    idle_after_us: Microseconds,
    lateness_us: Microseconds,
    now_us: Microseconds,
) -> dict[int, Microseconds]:
    """Return the new watermark of each idle partition whose watermark must advance."""
    quiet = without_input(partitions, idle_after_us, now_us)
    speaking = [heard.watermark for p, heard in partitions.items() if p not in quiet]
    known = [watermark for watermark in speaking if watermark is not None]
    if len(known) < len(speaking):
        return {}
    level = min(known, default=now_us - lateness_us)
    below = {p: partitions[p].watermark for p in sorted(quiet)}
    return {p: level for p, watermark in below.items() if watermark is None or watermark < level}


class IdlePartitions:
    """Handles the idle partitions of a log for one running engine. Call `check` continually, including when nothing arrives."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._began_us = clock.now_us()
        self._checked_ms: float | None = None
        self._said_us: dict[str, Microseconds] = {}

    def check(self) -> None:
        """Append due punctuations of all topics with an `idle_after`, and expire silent producers."""
        now_ms = self._clock.steady_ms()
        if self._checked_ms is not None and now_ms - self._checked_ms < CHECK_EVERY_MS:
            return
        self._checked_ms = now_ms
        for topic in self._log.topics().values():
            try:
                if topic.producer_timeout_us is not None:
                    self._expire(topic.name, topic.producer_timeout_us)
                if topic.idle_after_us is not None and topic.time is not None:
                    self._raise(topic, topic.idle_after_us)
            except TopicNotFoundError:
                continue  # the topic was dropped meanwhile

    def _raise(self, topic: TopicDefinition, idle_after_us: Microseconds) -> None:
        infos, now_us = self._log.partitions(topic.name), self._clock.now_us()
        partitions = {p: Heard(i.watermark, max(i.heard_at, self._began_us)) for p, i in infos.items()}
        wholly = len(without_input(partitions, idle_after_us, now_us)) == len(partitions)
        if wholly and self._log.clock.doubt is not None:
            # a watermark never falls: advanced by a wrong clock, it would make every later row late
            return
        every_us = max(FOLLOW_EVERY_US, idle_after_us // 4) if wholly else FOLLOW_EVERY_US
        said_us = self._said_us.get(topic.name)
        if said_us is not None and 0 <= now_us - said_us < every_us:
            return
        moments = decide(
            partitions, idle_after_us=idle_after_us, lateness_us=topic.lateness_us, now_us=now_us
        )
        if moments:
            self._said_us[topic.name] = now_us
            self._log.punctuate(topic.name, moments, idle_at={p: infos[p].end for p in moments})

    def _expire(self, topic: str, timeout_us: Microseconds) -> None:
        now_us = self._clock.now_us()
        for producer, watermark in self._log.producer_watermarks(topic).items():
            if now_us - max(watermark.heard_at, self._began_us) >= timeout_us:
                self._log.retire(topic, producer, idle_since=watermark.heard_at)
