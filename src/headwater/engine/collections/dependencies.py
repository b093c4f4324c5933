"""Which views read which, directly or not."""

from __future__ import annotations

from headwater.engine.collections.collections import view_of
from headwater.engine.collections.workload import definitions, in_order
from headwater.log.protocol import Log


def above(log: Log, name: str) -> list[str]:
    """A view, and those that read it, directly or not, sources first; none if there is no such view."""
    ordered = in_order(definitions(log))
    wanted = {view.name for view in ordered if view.name.lower() == view_of(name).lower()}
    for view in ordered:
        if wanted & set(map(view_of, view.reads)):
            wanted.add(view.name)
    return [view.name for view in ordered if view.name in wanted]


def private_below(log: Log, name: str) -> str | None:
    """A topic with private columns: of this name, or read by the view of this name, directly or not; None if there is none."""
    topics, views = log.topics(), definitions(log)
    spelled = next((v for v in views if v.lower() == view_of(name).lower()), None)
    found = {name} if spelled is None else below(log, spelled)
    return next((t for t in sorted(found) if t in topics and topics[t].private), None)


def below(log: Log, name: str) -> set[str]:
    """Every topic and view that a view reads, directly or not."""
    views, found, left = definitions(log), set[str](), [view_of(name)]
    while left:
        for read in map(view_of, views[left.pop()].reads):
            if read not in found:
                found.add(read)
                left += [read] if read in views else []
    return found
