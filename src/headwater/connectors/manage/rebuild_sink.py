"""Rebuild of a sink and choice of its active version, for `ws.sink(name)` and `headwater rebuild`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.core.errors import UsageError
from headwater.sinks.base.sink_rebuild import Rebuilt, Step

if TYPE_CHECKING:
    from headwater.connectors.manage.sink_manager import Sinks

Progress = Callable[[Step], None]


def rebuild(
    sinks: Sinks, name: str, *, verify: bool = True, on_step: Progress = lambda step: None
) -> Rebuilt:
    """Fill a staging version of a sink, compare it with the view, and make it active."""
    refuse_read_topic(sinks, name)
    with sinks.versions(name, on_step) as versions:
        return versions.build(verify=verify)


def back(sinks: Sinks, name: str, *, verify: bool = True, on_step: Progress = lambda step: None) -> Rebuilt:
    """Let the version from before the last rebuild catch up, and make it active again."""
    refuse_read_topic(sinks, name)
    with sinks.versions(name, on_step) as versions:
        return versions.back(verify=verify)


def drop_old(sinks: Sinks, name: str) -> str:
    """Remove the version from before the last rebuild and return its name."""
    _refuse_read_old(sinks, name)
    with sinks.versions(name) as versions:
        return versions.drop_old()


def old(sinks: Sinks, name: str) -> str | None:
    """Return the name of the version from before the last rebuild; None if none is kept."""
    with sinks.versions(name) as versions:
        return versions.old()


def refuse_read_topic(sinks: Sinks, name: str) -> None:
    """Raise UsageError if views or cursors read the topic of a sink: they would go on reading the previous topic, which no
    process fills any more."""
    topics = sinks.topics_of(name)
    if topics is not None and (readers := sinks.declared.readers_of(topics.in_force)):
        raise UsageError(
            f"sink {name!r} cannot be rebuilt: its topic {topics.in_force!r} is read by {', '.join(readers)}",
            detail="a rebuild writes to a new topic, and a topic cannot be renamed",
            hint=f"`headwater verify --repair` corrects the topic in place; or create another sink for {readers[0]}",
            sink=name,
            topic=topics.in_force,
            readers=readers,
        )


def _refuse_read_old(sinks: Sinks, name: str) -> None:
    """Raise UsageError if the previous topic is read."""
    topics = sinks.topics_of(name)
    if topics is not None and topics.old is not None and (readers := sinks.declared.readers_of(topics.old)):
        raise UsageError(
            f"topic {topics.old!r} cannot be dropped: it is read by {', '.join(readers)}",
            hint=f"drop the readers first; sink {name!r} now writes to topic {topics.in_force!r}",
            sink=name,
            topic=topics.old,
            readers=readers,
        )
