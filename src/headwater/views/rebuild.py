"""Rebuild of unchanged views: each is declared once more, and the next tick starts to build it."""

from __future__ import annotations

from functools import partial

from headwater.engine.collections import shadow_builds
from headwater.engine.collections.dependencies import above
from headwater.engine.collections.retention_holds import hold_from_start
from headwater.engine.collections.workload import VIEW, definitions, keep_past
from headwater.log.protocol import Log
from headwater.state.store import StateStore


def renew(log: Log, view: str, *, shadow: bool, verify: bool = False) -> list[str]:
    """Rebuild a view, and those that read it, from the log in the next run; return their names, sources first.

    With `shadow`, the active version is served until the shadow build has caught up and, with `verify`, was compared with
    its SELECT. Without it the active version is wrong, and is removed at once.
    """
    views, again = definitions(log), above(log, view)
    for each in again:
        entry = log.entries(VIEW)[each]
        keep_past(log, each, served=shadow)
        hold_from_start(log, views[each].reads)
        again_as = partial(log.put_entry, VIEW, each, entry.document, expect=entry.sequence)
        if shadow:
            shadow_builds.declare(log, each, again_as, after=entry.sequence, verify=verify)
        else:
            again_as()
    return again


def old(log: Log, store: StateStore, view: str) -> int | None:
    """Return the last tick of the version from before a rebuild, as long as it is kept."""
    return shadow_builds.old_ticks(log, store.latest()).get(view)


def drop_old(log: Log, store: StateStore, view: str) -> int | None:
    """Stop keeping the version from before a rebuild, and return its last tick."""
    tick = old(log, store, view)
    shadow_builds.forget(log, view)
    return tick
