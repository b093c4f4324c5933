"""The watermark of a topic with producer watermarks: the minimum over its current producers, which never decreases.

A producer joins with its first watermark, or with its first append in its own name, and stays until it is retired or expires. A
producer that has appended and sent no watermark may still send anything, so it holds the topic's watermark where it is: the
watermarks of other producers never make its rows late. Without producers there is no minimum, and the watermark does not
change. Pure; both backends use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Microseconds
from headwater.core.errors import UsageError
from headwater.log.protocol import ProducerWatermark
from headwater.log.watermarks import NONE

ProducerWatermarks = Mapping[str, ProducerWatermark]


def declared(
    known: ProducerWatermarks, producer: str, moment: Microseconds, at: Microseconds
) -> dict[str, ProducerWatermark]:
    """Return the producers after `producer` sent the watermark `moment`; a watermark below its earlier one has no effect."""
    before = known.get(producer)
    if before is not None and before.moment is not None:
        moment = max(moment, before.moment)
    return {**known, producer: ProducerWatermark(moment, at)}


def appended(known: ProducerWatermarks, producer: str, at: Microseconds) -> dict[str, ProducerWatermark]:
    """Return the producers after `producer` appended in its own name."""
    before = known.get(producer)
    return {**known, producer: ProducerWatermark(None if before is None else before.moment, at)}


def retired(known: ProducerWatermarks, producer: str) -> dict[str, ProducerWatermark]:
    """Return the producers without `producer`."""
    return {name: mark for name, mark in known.items() if name != producer}


def lowest(known: ProducerWatermarks) -> Microseconds:
    """Return the minimum of the producers' watermarks; NONE if a producer has sent none, or there are no producers."""
    moments = [NONE if mark.moment is None else mark.moment for mark in known.values()]
    return min(moments, default=NONE)


def raised(known: ProducerWatermarks, watermarks: Iterable[Microseconds]) -> dict[int, Microseconds]:
    """Return the partitions whose watermark is below the minimum of the producers' watermarks, each with that minimum.

    `watermarks` are those of the partitions, in order.
    """
    reached = lowest(known)
    return {p: reached for p, watermark in enumerate(watermarks) if watermark < reached}


def check_has_producers(topic: TopicDefinition) -> None:
    """Raise UsageError unless the topic takes producer watermarks."""
    if topic.watermark != "producers":
        raise UsageError(
            f"topic {topic.name!r} has no producer watermarks: its watermark follows its rows",
            hint="create the topic WITH (watermark = 'producers'), or punctuate it without a producer: topic.punctuate(t)",
            topic=topic.name,
            reason="not-producer-watermarks",
        )
