"""Names of views: as they were declared, with what they stand for."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from headwater.catalog.definitions import ViewDefinition
from headwater.core.errors import TopicNotFoundError, ViewNotFoundError
from headwater.engine.collections.collections import view_of
from headwater.engine.collections.workload import definitions, derived_of
from headwater.log.protocol import Log
from headwater.serving.name_hints import nearest, relation_names


class ViewNames:
    """The views of a log by their names, whose case does not count."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def spelled(self, name: str) -> str:
        """A view's name as it was declared; ViewNotFoundError."""
        views = definitions(self._log)
        known = (n for view in views.values() for n in (view.name, *derived_of(view)))
        found = next((n for n in known if n.lower() == name.lower()), None)
        if found is None:
            raise view_not_found(name, views, self._log.topics(), topic_hint="ws.topic({!r})")
        return found

    def describe(self, name: str) -> ViewDefinition:
        """The definition of a view; of what it gives beside its rows, that of the view."""
        return definitions(self._log)[view_of(self.spelled(name))]

    def columns(self, name: str) -> pa.Schema:
        """The columns of a view, or of what it gives beside its rows."""
        view, found = self.describe(name), self.spelled(name)
        return derived_of(view).get(found, view.columns)

    def no_relation(self, name: str) -> TopicNotFoundError:
        """The error for a name that neither a topic nor a view has, where either would do."""
        near = nearest(name, relation_names(self._log))
        hint = f"did you mean {near}?" if near else "SHOW TOPICS and SHOW VIEWS list what is there"
        return TopicNotFoundError(f"there is no topic or view {name!r}", hint=hint, topic=name)


def view_not_found(
    name: str, views: Iterable[str], topics: Iterable[str] = (), *, topic_hint: str = ""
) -> ViewNotFoundError:
    """The error for a view that is not there, with the nearest that is, or what to do with a topic of that name."""
    near = nearest(name, views)
    hint = f"did you mean {near!r}?" if near else "SHOW VIEWS lists those that are there"
    if (topic := next((t for t in topics if t.lower() == name.lower()), None)) is not None:
        hint = f"{topic} is a topic: {topic_hint.format(topic)}"
    return ViewNotFoundError(f"there is no view {name!r}", hint=hint, view=name)
