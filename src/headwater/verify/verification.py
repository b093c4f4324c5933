"""Compares views with their SELECTs, run in batch over the log at the cut of the newest tick."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from headwater.core.errors import HeadwaterError
from headwater.engine.collections.collections import view_of
from headwater.engine.collections.engine_context import EngineContext
from headwater.engine.collections.workload import definitions, state_of
from headwater.engine.tick.listener import Listener
from headwater.log.protocol import Finding, Log
from headwater.state.damage import damaged
from headwater.state.manifest import Manifest
from headwater.state.store import StateStore
from headwater.state.view_reader import view_contents
from headwater.verify.recompute_at import PastRelations, moment_of
from headwater.verify.sketch_bounds import held_against


@dataclass(frozen=True)
class ViewCheck:
    """The result of `ws.verify()` for one view, or for a relation derived from a view, such as its late rows."""

    view: str
    ok: bool | None
    """Whether the view's contents are the result of its SELECT in batch. False for a stopped view; None for a view that is
    still backfilling."""
    status: str
    """'live', 'stopped' or 'backfilling'."""
    detail: str | None
    """The first differences; for a view that is not live, why it is stopped or backfilling."""
    on_base: bool
    """Whether input records were removed, so that the expected contents were computed from the view's base and the log
    after it."""
    tick: int | None
    """The tick that was checked; None if no tick was made yet."""

    @property
    def finding(self) -> Finding | None:
        """Finding that reports the difference or the stopped view, or None."""
        if self.ok is not False:
            return None
        problem = (
            f"is stopped: {self.detail}"
            if self.status == "stopped"
            else f"at tick {self.tick}: {self.detail}"
        )
        return Finding(f"view {self.view}", None, None, None, f"view {self.view!r} {problem}")


def verify_views(
    log: Log,
    store: StateStore,
    manifest: Manifest | None,
    tools: Callable[[], EngineContext],
    listener: Listener,
) -> list[ViewCheck]:
    """Check every declared view, and the relations derived from it. Views that are part of the tick are compared.

    A view whose state is damaged counts as different, even if its rows are right and only operator state is not what was
    written.
    """
    if manifest is None:
        return [
            ViewCheck(name, None, "backfilling", _NO_TICK, False, None) for name in sorted(definitions(log))
        ]
    found, live = [], []
    for name, view in sorted(definitions(log).items()):
        if name in manifest.views and manifest.views[name].status == "live":
            live += [name, *_shadow_build(manifest, name)]
            continue
        state = state_of(log, view, manifest)
        status = "backfilling" if state is None else state.status
        ok = False if status == "stopped" else None
        found.append(ViewCheck(name, ok, status, state.reason if state else None, False, manifest.tick))
    listener.verifying(live)
    if live:
        wrong = damaged(store, manifest)
        held = partial(view_contents, store, manifest)
        with closing(PastRelations(log, store, tools(), moment_of(manifest), held)) as past:
            for name in live:
                kept = manifest.kept_for(manifest.views[name])
                problem = _difference(store, manifest, past, name) or next(
                    (wrong[arrangement] for arrangement in kept if arrangement in wrong), None
                )
                on_base = name in past.on_base
                listener.verified(name, problem, on_base=on_base)
                found.append(ViewCheck(name, problem is None, "live", problem, on_base, manifest.tick))
    return sorted(found, key=lambda check: check.view)


_NO_TICK = "no tick was made yet"


def _shadow_build(manifest: Manifest, view: str) -> list[str]:
    """Return the names of the relations that a view provides besides its rows."""
    return [
        name
        for name in manifest.views
        if view_of(name) == view != name and manifest.views[name].record.derived
    ]


def _difference(store: StateStore, manifest: Manifest, past: PastRelations, name: str) -> str | None:
    try:
        return held_against(view_contents(store, manifest, name), past, name)
    except (
        HeadwaterError
    ) as error:  # damaged state or a failing row is a finding, and the other views are still checked
        return str(error.message)
