"""Shadow builds of views that are rebuilt: built while the served version goes on, and compared with the batch result.

`rebuild` redeclares a view unchanged, and records that in an entry of the catalog. The shadow build catches up while
the old version is served. Then it advances with every tick, under a name of its own, and is compared with the batch
result of its SELECT at one of them. If they are equal, the next tick replaces the old version; otherwise the shadow
build is stopped, and the old version goes on.

The tick before the switch is kept until `forget`, whatever else is collected, so that `as_of` can read the old version.
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
"""Kind of the catalog entries, which are named by view."""
SHADOW = "~next"
"""Suffix of the name of a view during its shadow build."""
OLD = "old"
"""Key in the state of a view: the last tick with the version that the shadow build has replaced."""


@dataclass(frozen=True)
class ShadowVerification:
    """The verification of a shadow build."""

    is_over: bool
    """Whether the shadow build may replace the served version."""
    problem: str | None
    """Why the shadow build may never replace the served version; None if there is no such problem."""


def declare(log: Log, view: str, put: Callable[[], Entry], *, after: int, verify: bool) -> None:
    """Redeclare a view by `put`, after the entry `after`, and start its verification; it is compared with batch only if
    `verify`."""
    entry = log.entries(REBUILD).get(view)
    document = {"after": after, "as": None, "verify": verify, "checked": None, "problem": None}
    said = log.put_entry(REBUILD, view, document, expect=None if entry is None else entry.sequence)
    made = put()
    with suppress(ConflictError):  # a fast engine has recorded a result already
        log.put_entry(REBUILD, view, {**document, "as": made.sequence}, expect=said.sequence)


def forget(log: Log, view: str) -> None:
    """Remove the entry of a rebuild: the old version need not be kept any more, and the verification ends."""
    if view in log.entries(REBUILD):
        log.drop_entry(REBUILD, view)


def verification_of(log: Log, view: str, incarnation: int) -> ShadowVerification | None:
    """Return the verification of a shadow build; None if the view's definition is not a rebuild."""
    entry = log.entries(REBUILD).get(view)
    if entry is None or not _is_of(entry.document, incarnation):
        return None
    said = entry.document
    return ShadowVerification(not said["verify"] or said["checked"] is not None, said["problem"])


def old_ticks(log: Log, manifest: Manifest | None) -> dict[str, int]:
    """Return, by view, the last tick with the version before the active one, as long as it must be kept."""
    states = manifest.views.items() if manifest is not None else ()
    kept = log.entries(REBUILD)
    return {name: state.record.old for name, state in states if state.record.old is not None and name in kept}


def due(log: Log, manifest: Manifest | None) -> dict[str, Entry]:
    """Return the shadow builds that have caught up and have not been compared yet, with their entries."""
    if manifest is None:
        return {}
    found = {}
    for name, entry in log.entries(REBUILD).items():
        said, state = entry.document, manifest.views.get(f"{name}{SHADOW}")
        if state is not None and _is_due(said, state):
            found[name] = entry
    return found


def _is_due(said: Mapping[str, Any], state: ViewState) -> bool:
    open_ = said["verify"] and said["checked"] is None and said["problem"] is None
    return bool(open_ and state.status == "live" and _is_of(said, state.incarnation))


def _is_of(said: Mapping[str, Any], incarnation: int) -> bool:
    """Whether an entry belongs to a declaration of the view.

    If a crash has prevented the entry from naming the declaration, any later declaration matches.
    """
    return incarnation > said["after"] and said["as"] in (None, incarnation)
