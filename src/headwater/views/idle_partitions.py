"""What a running engine writes when nothing is heard: silent partitions are raised, silent producers expire.

A partition is silent once nothing was heard of it for its topic's `idle_after`: no record and no declared punctuation,
counted from its last one or from the start of the engine, whichever is later. So an engine that comes up after a
break, perhaps before its producers do, waits as long as any other. A partition that never had a record counts from the
creation of its topic in the same way.

Silence is a punctuation in the silent partition, up to the lowest watermark of the partitions that are not silent or,
if all are, to the engine's clock less the lateness. It is a record of the log like any other: whoever reads the log
takes the same decisions, whenever that is. It never lowers a watermark, and a record that came first wins.

Silent partitions follow the others at most once a second. A topic that is wholly silent follows the clock at most once
in a quarter of its `idle_after`, and not more than once a second either: time alone makes few commits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Clock, Microseconds, parse_span_us
from headwater.core.errors import TopicNotFoundError
from headwater.log.protocol import Log

LOOK_EVERY_MS = 200.0
"""How often the topics are looked at, however fast the ticks are."""
FOLLOW_EVERY_US = parse_span_us("1 second")


@dataclass(frozen=True)
class Heard:
    """What is known of a partition: its watermark, None if it has none yet, and since when nothing was heard of it."""

    watermark: Microseconds | None
    since: Microseconds


def silent(
    partitions: Mapping[int, Heard], idle_after_us: Microseconds, now_us: Microseconds
) -> frozenset[int]:
    """The partitions of which nothing was heard for `idle_after_us`."""
    return frozenset(p for p, heard in partitions.items() if now_us - heard.since >= idle_after_us)


def decide(
    partitions: Mapping[int, Heard],
    *,
    idle_after_us: Microseconds,
    lateness_us: Microseconds,
    now_us: Microseconds,
) -> dict[int, Microseconds]:
    """The silent partitions whose watermark is to rise, each with the moment that it rises to."""
    quiet = silent(partitions, idle_after_us, now_us)
    speaking = [heard.watermark for p, heard in partitions.items() if p not in quiet]
    known = [watermark for watermark in speaking if watermark is not None]
    if len(known) < len(speaking):
        return {}
    level = min(known, default=now_us - lateness_us)
    below = {p: partitions[p].watermark for p in sorted(quiet)}
    return {p: level for p, watermark in below.items() if watermark is None or watermark < level}


class IdlePartitions:
    """Looks after the topics of a log for one running engine. Call `look` all the time, also when nothing comes."""

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._began_us = clock.now_us()
        self._looked_ms: float | None = None
        self._said_us: dict[str, Microseconds] = {}

    def look(self) -> None:
        """Write what is to be written now, for every topic that says how long its silence may last."""
        now_ms = self._clock.steady_ms()
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_EVERY_MS:
            return
        self._looked_ms = now_ms
        for topic in self._log.topics().values():
            try:
                if topic.producer_timeout_us is not None:
                    self._expire(topic.name, topic.producer_timeout_us)
                if topic.idle_after_us is not None and topic.time is not None:
                    self._raise(topic, topic.idle_after_us)
            except TopicNotFoundError:
                continue  # it was dropped meanwhile

    def _raise(self, topic: TopicDefinition, idle_after_us: Microseconds) -> None:
        infos, now_us = self._log.partitions(topic.name), self._clock.now_us()
        partitions = {p: Heard(i.watermark, max(i.heard_at, self._began_us)) for p, i in infos.items()}
        wholly = len(silent(partitions, idle_after_us, now_us)) == len(partitions)
        if wholly and self._log.clock.doubt is not None:
            return  # a watermark never falls: one by a clock that is wrong would make every later row late
        every_us = max(FOLLOW_EVERY_US, idle_after_us // 4) if wholly else FOLLOW_EVERY_US
        said_us = self._said_us.get(topic.name)
        if said_us is not None and 0 <= now_us - said_us < every_us:
            return
        moments = decide(
            partitions, idle_after_us=idle_after_us, lateness_us=topic.lateness_us, now_us=now_us
        )
        if moments:
            self._said_us[topic.name] = now_us
            self._log.punctuate(topic.name, moments, silent_at={p: infos[p].end for p in moments})

    def _expire(self, topic: str, timeout_us: Microseconds) -> None:
        now_us = self._clock.now_us()
        for producer, promise in self._log.promises(topic).items():
            if now_us - max(promise.heard_at, self._began_us) >= timeout_us:
                self._log.retire(topic, producer, silent_since=promise.heard_at)
