"""Views that are built anew: each is on trial beside the one that is served, until it was compared with its SELECT.

`rebuild` declares a view once more as it is, and says so in an entry of the catalog. The new version is built beside the one that is served; once it has
caught up it goes on with every tick, under a name of its own, and is compared with its SELECT in batch at one of them.
Then the next tick puts it in the place of the other. If it differs it is stopped, and the other goes on.

The tick before the switch is kept, whatever else is collected, until it is told otherwise: `as_of` reads the version from before in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headwater.core.errors import ConflictError
from headwater.log.protocol import Entry, Log
from headwater.state.manifest import Manifest, ViewState

REBUILD = "rebuild"
"""The kind of the entries, by view."""
BESIDE = "~next"
"""Follows the name of a view while it is built beside the one that it is to replace."""
OLD = "old"
"""In a view's state: the tick before the one at which it took the place of the version before it."""


@dataclass(frozen=True)
class Trial:
    """Where a view that is built anew is."""

    is_over: bool
    """Whether it may take the place of the other."""
    problem: str | None
    """Why it may not, ever."""


def declare(log: Log, view: str, put: Callable[[], Entry], *, after: int, verify: bool) -> None:
    """Declare a view once more, after the entry `after`, by `put`; it is on trial, and compared if that is wanted."""
    entry = log.entries(REBUILD).get(view)
    document = {"after": after, "as": None, "verify": verify, "checked": None, "problem": None}
    said = log.put_entry(REBUILD, view, document, expect=None if entry is None else entry.sequence)
    made = put()
    with suppress(ConflictError):  # an engine that is quick has found something out already
        log.put_entry(REBUILD, view, {**document, "as": made.sequence}, expect=said.sequence)


def forget(log: Log, view: str) -> None:
    """Nothing is to be kept of the version before; and the view is on trial no more."""
    if view in log.entries(REBUILD):
        log.drop_entry(REBUILD, view)


def trial_of(log: Log, view: str, incarnation: int) -> Trial | None:
    """Where a view is that is built beside another; None if it is not the same one, built anew."""
    entry = log.entries(REBUILD).get(view)
    if entry is None or not _is_of(entry.document, incarnation):
        return None
    said = entry.document
    return Trial(not said["verify"] or said["checked"] is not None, said["problem"])


def old_ticks(log: Log, manifest: Manifest | None) -> dict[str, int]:
    """By view, the tick that has the version before the one in force, as long as that is to be kept."""
    states = manifest.views.items() if manifest is not None else ()
    kept = log.entries(REBUILD)
    return {name: state.record.old for name, state in states if state.record.old is not None and name in kept}


def due(log: Log, manifest: Manifest | None) -> dict[str, Entry]:
    """The views on trial that have caught up and were not compared yet, with their entries."""
    if manifest is None:
        return {}
    found = {}
    for name, entry in log.entries(REBUILD).items():
        said, state = entry.document, manifest.views.get(f"{name}{BESIDE}")
        if state is not None and _is_due(said, state):
            found[name] = entry
    return found


def _is_due(said: Mapping[str, Any], state: ViewState) -> bool:
    open_ = said["verify"] and said["checked"] is None and said["problem"] is None
    return bool(open_ and state.status == "live" and _is_of(said, state.incarnation))


def _is_of(said: Mapping[str, Any], incarnation: int) -> bool:
    """Whether it is the declaration that was said; after a crash before that was written down, any since."""
    return incarnation > said["after"] and said["as"] in (None, incarnation)
