"""The watermark of a topic whose producers promise: the minimum over the known ones, which never goes back.

A producer is known from its first promise, or from its first append in its own name, until it is retired or expires.
One that has appended and not promised may still send anything, so it holds the watermark where it is: a row is never
made late by what others have said. With nobody known there is no minimum, and the watermark stays. Pure; both backends
use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Microseconds
from headwater.core.errors import UsageError
from headwater.log.protocol import Promise
from headwater.log.watermarks import NONE

Promises = Mapping[str, Promise]


def promised(known: Promises, producer: str, moment: Microseconds, at: Microseconds) -> dict[str, Promise]:
    """The producers after one has promised."""
    before = known.get(producer)
    if before is not None and before.moment is not None:
        moment = max(moment, before.moment)
    return {**known, producer: Promise(moment, at)}


def appended(known: Promises, producer: str, at: Microseconds) -> dict[str, Promise]:
    """The producers after one has appended in its own name."""
    before = known.get(producer)
    return {**known, producer: Promise(None if before is None else before.moment, at)}


def retired(known: Promises, producer: str) -> dict[str, Promise]:
    """The producers without one."""
    return {name: promise for name, promise in known.items() if name != producer}


def level(known: Promises) -> Microseconds:
    """What they have promised together; NONE if one has not, or there is none."""
    moments = [NONE if promise.moment is None else promise.moment for promise in known.values()]
    return min(moments, default=NONE)


def raised(known: Promises, watermarks: Iterable[Microseconds]) -> dict[int, Microseconds]:
    """The partitions whose watermark, in order, is below what the producers have promised together, with that moment."""
    reached = level(known)
    return {p: reached for p, watermark in enumerate(watermarks) if watermark < reached}


def check_promised(topic: TopicDefinition) -> None:
    """UsageError unless the producers of the topic are to promise."""
    if topic.watermark != "producers":
        raise UsageError(
            f"the producers of topic {topic.name!r} make no promises: its watermark follows its rows",
            hint="make the topic WITH (watermark = 'producers'), or punctuate it as a whole: topic.punctuate(t)",
        )
