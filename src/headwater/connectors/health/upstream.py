"""Upstream failures: the components that get nothing new because a component before them in the dataflow has stopped.

The dataflow goes from sources to topics, from topics to views, queues, cursors and groups, from views to views and sinks,
and from a sink of kind TOPIC to its topic.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection
from typing import Protocol

from headwater.catalog.connectors import SINK
from headwater.connectors.manage.sink_manager import Sinks
from headwater.connectors.manage.source_manager import SourceManager
from headwater.engine.collections.collections import view_of
from headwater.engine.collections.workload import definitions
from headwater.log.protocol import Log
from headwater.queues.queue_client import Ledgers
from headwater.queues.queue_definition import QUEUE
from headwater.sources.postgres.server.options import read_tables_option

Place = tuple[str, str]
"""A kind of component, or `topic`, and a name."""


class Connectors(Protocol):
    """The sources, sinks and queues of a workspace."""

    sources: SourceManager
    sinks: Sinks
    queues: Callable[[], Ledgers]


def below_stopped(log: Log, connected: Connectors, stopped: Collection[Place]) -> dict[Place, str]:
    """Return every place downstream of a stopped component, with the component that is the cause."""
    readers = _readers(log, connected)
    causes: dict[Place, str] = {}
    for origin in sorted(stopped):
        reached = deque([origin] if origin[0] != "source" else _topics_of_source(log, connected, origin[1]))
        while reached:
            for place in readers.get(reached.popleft(), ()):
                if place not in causes and place not in stopped:
                    causes[place] = f"{origin[0]} {origin[1]}"
                    reached.append(place)
    return causes


def _topics_of_source(log: Log, connected: Connectors, name: str) -> list[Place]:
    """Return the topics that a stopped source no longer fills: all, or those of its stopped tables if the others continue."""
    topics = [topic.name for topic in log.topics().values() if topic.captured_by == name]
    tables = connected.sources.stopped_tables(name)
    if tables:
        named = read_tables_option(connected.sources.definitions()[name].options.get("tables"))
        topic_of = {str(table): table.topic for table in named}
        stopped = {topic_of.get(table, table.rpartition(".")[2]) for table in tables}
        topics = [topic for topic in topics if topic in stopped]
    return [("topic", topic) for topic in topics]


def _readers(log: Log, connected: Connectors) -> dict[Place, list[Place]]:
    """Return the dataflow as edges: for each place, the places that read from it."""
    found: dict[Place, list[Place]] = defaultdict(list)
    views = definitions(log)
    by_lower = {name.lower(): name for name in views}
    for view in views.values():
        for read in map(view_of, view.reads):
            found["view" if read in views else "topic", read].append(("view", view.name))
    if log.entries(SINK):
        for name, sink in connected.sinks.definitions().items():
            view_name = view_of(sink.view).lower()
            found["view", by_lower.get(view_name, sink.view)].append(("sink", name))
            written = connected.sinks.topics_of(name)
            if written is not None:
                found["sink", name].append(("topic", written.in_force))
    for name, queue in log.entries(QUEUE).items():
        found["topic", str(queue.document["topic"])].append(("queue", name))
    for cursor in log.cursors():
        for kind in ("cursor", "group"):
            found["topic", cursor.topic].append((kind, f"{cursor.topic}/{cursor.name}"))
    return found
