"""Names of views as they were declared, and the definitions of the views."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from headwater.catalog.view_definitions import ViewDefinition
from headwater.core.errors import TopicNotFoundError, ViewNotFoundError
from headwater.engine.collections.collections import view_of
from headwater.engine.collections.workload import definitions, derived_of
from headwater.log.protocol import Log
from headwater.serving.name_hints import relation_names, suggest


class ViewNames:
    """The views of a log by name, case-insensitive."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def canonical_name(self, name: str) -> str:
        """Return a view's name as it was declared; ViewNotFoundError."""
        views = definitions(self._log)
        known = (n for view in views.values() for n in (view.name, *derived_of(view)))
        found = next((n for n in known if n.lower() == name.lower()), None)
        if found is None:
            raise view_not_found(name, views, self._log.topics(), topic_hint="ws.topic({!r})")
        return found

    def describe(self, name: str) -> ViewDefinition:
        """Return the definition of a view; for a derived view such as `<view>.late`, the definition of the view that it
        belongs to."""
        return definitions(self._log)[view_of(self.canonical_name(name))]

    def columns(self, name: str) -> pa.Schema:
        """Return the columns of a view, or of a derived view such as `<view>.late`."""
        view, found = self.describe(name), self.canonical_name(name)
        return derived_of(view).get(found, view.columns)

    def no_relation(self, name: str) -> TopicNotFoundError:
        """Return the error for a name that is neither a topic nor a view, where both are accepted."""
        near = suggest(name, relation_names(self._log))
        hint = f"did you mean {near}?" if near else "SHOW TOPICS and SHOW VIEWS list all names"
        return TopicNotFoundError(f"there is no topic or view {name!r}", hint=hint, topic=name)


def view_not_found(
    name: str, views: Iterable[str], topics: Iterable[str] = (), *, topic_hint: str = ""
) -> ViewNotFoundError:
    """Return the error for a missing view, with the nearest existing name, or with a hint if a topic has the name."""
    near = suggest(name, views)
    hint = f"did you mean {near!r}?" if near else "SHOW VIEWS lists all views"
    if (topic := next((t for t in topics if t.lower() == name.lower()), None)) is not None:
        hint = f"{topic} is a topic: {topic_hint.format(topic)}"
    return ViewNotFoundError(f"there is no view {name!r}", hint=hint, view=name)
