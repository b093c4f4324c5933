"""Counts of the rows that sources, views, sinks and queues left out, from the log and the state alone.

Counting connects to no target and starts no Spark: `status`, the console, the metrics and the summary of `run` ask often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from headwater.catalog.connectors import SINK, SOURCE, SourceDefinition
from headwater.connectors.dead_letter_store.sink_letters import letters_topic
from headwater.connectors.manage.source_manager import SourceManager
from headwater.connectors.manage.webhooks import refused_ever
from headwater.engine.row_errors.rejected_row_counts import RejectedRows as RejectedRows
from headwater.log.protocol import Log
from headwater.queues.queue_definition import QUEUE, QueueDefinition
from headwater.sources.files.options import is_errors_topic
from headwater.sources.source_runner import producer_of
from headwater.views.view_status import left_out

if TYPE_CHECKING:
    from headwater.views.view_manager import Views

Open = Mapping[tuple[str, str], int]
"""Number of open dead letters by kind and owner."""
Waiting = Callable[[], Open]
"""Returns the open dead letters, which are counted at the first call."""


class CountedConnectors(Protocol):
    """The part of `headwater.connectors.supervisor.Supervisor` that counting uses."""

    @property
    def sources(self) -> SourceManager:
        """The sources of the workspace."""
        ...

    def open_letters(self) -> Open:
        """Return the number of open dead letters, as far as known without requests to targets."""
        ...


def rejected_rows(log: Log, views: Views, supervisor: CountedConnectors) -> list[RejectedRows]:
    """Count the rows that were left out, by owner and outcome, without counts of zero."""
    waiting = cache(supervisor.open_letters)  # of no use to a workspace that has left out no row
    found = [
        *_of_files(log, waiting),
        *_of_listeners(log, supervisor),
        *_of_views(log, views, waiting),
        *_of_sinks(log, waiting),
        *_of_queues(log, waiting),
    ]
    return [one for one in found if one.rows]


def captured_rows(log: Log) -> int:
    """Count the records that sources ever added to their topics, without those of errors topics."""
    topics = (t for t in log.topics().values() if t.captured_by is not None and not is_errors_topic(t))
    return sum(_ever(log, topic.name) for topic in topics)


def _of_files(log: Log, waiting: Waiting) -> Iterator[RejectedRows]:
    """Yield the counts of lines on the topics `<source>_errors`, including those of sources no longer declared."""
    for topic in log.topics().values():
        if topic.captured_by is not None and is_errors_topic(topic):
            source = topic.captured_by
            yield RejectedRows(
                "source",
                source,
                "diverted",
                _ever(log, topic.name),
                waiting().get(("source", source)),
                _letters_of(source),
            )


def _of_listeners(log: Log, supervisor: CountedConnectors) -> Iterator[RejectedRows]:
    """Yield the counts of rows that listening sources rejected, or dropped for lack of room."""
    if not log.entries(SOURCE):
        return
    facts = supervisor.sources.facts()
    for name, made in supervisor.sources.definitions().items():
        counts = facts.get(name, {}).get("counts")
        where = f"headwater sql 'EXPLAIN {name}'"
        if made.kind == "webhook":
            reported = facts.get(name, {}).get("refused_ever")
            refused = refused_ever(log, name) if reported is None else int(reported)
            yield RejectedRows("source", name, "rejected", refused, where=where, unit="deliveries")
        elif made.kind == "statsd":
            known = counts or _noted(log, made)
            malformed = int(known.get("malformed", 0))
            lost = int(known.get("dropped_by_kernel", 0)) + int(known.get("dropped_here", 0))
            yield RejectedRows("source", name, "rejected", malformed, where=where, unit="lines")
            yield RejectedRows("source", name, "dropped", lost, where=where, unit="datagrams")


def _noted(log: Log, made: SourceDefinition) -> Mapping[str, Any]:
    """Return the counts that a source has stored with its position."""
    known = log.producer(producer_of(made.name, made.generation))
    return {} if known is None or known.note is None else known.note


def _of_views(log: Log, views: Views, waiting: Waiting) -> Iterator[RejectedRows]:
    for name, account in left_out(log, views.newest()).items():
        letters = waiting().get(("view", name))
        yield RejectedRows("view", name, "diverted", account["failed"], letters, _letters_of(name))
        yield RejectedRows("view", name, "late", account["diverted"], where=f"headwater late {name}")
        yield RejectedRows("view", name, "dropped", account["dropped"], where="headwater late")


def _of_sinks(log: Log, waiting: Waiting) -> Iterator[RejectedRows]:
    for name in log.entries(SINK):
        if letters_topic(name) in log.topics():
            rows = _ever(log, letters_topic(name))
            yield RejectedRows(
                "sink", name, "diverted", rows, waiting().get(("sink", name)), _letters_of(name)
            )


def _of_queues(log: Log, waiting: Waiting) -> Iterator[RejectedRows]:
    for entry in log.entries(QUEUE).values():
        queue = QueueDefinition.from_entry(entry)
        if queue.dead_topic in log.topics():
            name, rows = entry.name, _ever(log, queue.dead_topic)
            letters, where = waiting().get(("queue", name)), _letters_of(name)
            yield RejectedRows("queue", name, "diverted", rows, letters, where, unit="messages")


def _ever(log: Log, topic: str) -> int:
    """Return the number of records ever appended to a topic without punctuation."""
    return sum(info.end for info in log.partitions(topic).values())


def _letters_of(owner: str) -> str:
    return f"headwater dead list {owner}"
