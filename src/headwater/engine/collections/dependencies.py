"""Dependencies between views, direct and indirect."""

from __future__ import annotations

from headwater.engine.collections.collections import view_of
from headwater.engine.collections.workload import definitions, in_order
from headwater.log.protocol import Log


def above(log: Log, name: str) -> list[str]:
    """Return a view and the views that read it, directly or indirectly, sources first; empty if there is no such view."""
    ordered = in_order(definitions(log))
    wanted = {view.name for view in ordered if view.name.lower() == view_of(name).lower()}
    for view in ordered:
        if wanted & set(map(view_of, view.reads)):
            wanted.add(view.name)
    return [view.name for view in ordered if view.name in wanted]


def private_below(log: Log, name: str) -> str | None:
    """Return a topic with private columns that has this name, or that the view of this name reads, directly or
    indirectly; None if there is none."""
    topics, views = log.topics(), definitions(log)
    stored = next((v for v in views if v.lower() == view_of(name).lower()), None)
    found = {name} if stored is None else below(log, stored)
    return next((t for t in sorted(found) if t in topics and topics[t].private), None)


def below(log: Log, name: str) -> set[str]:
    """Return every topic and view that a view reads, directly or indirectly."""
    views, found, left = definitions(log), set[str](), [view_of(name)]
    while left:
        for read in map(view_of, views[left.pop()].reads):
            if read not in found:
                found.add(read)
                left += [read] if read in views else []
    return found
