"""Comparing views that are built anew with their SELECTs, before they are put in place: at once, or beside an engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headwater.core.errors import ConflictError, HeadwaterError
from headwater.core.faults import Component
from headwater.engine.collections.engine_context import EngineContext
from headwater.engine.collections.shadow_builds import BESIDE, REBUILD, due
from headwater.log.protocol import Log
from headwater.state.manifest import Manifest, ViewState
from headwater.state.store import StateStore
from headwater.state.view_reader import view_contents
from headwater.verify.recompute_at import PastRelations, moment_of
from headwater.verify.sketch_bounds import held_against

Told = Callable[[str, str | None, bool], None]
"""Called with a view that was compared, what differs, and whether it was computed from its base."""


TRIES = 3
"""So often a comparison that fails is begun, before it is said that the view cannot be compared."""
REST_S = 0.5
REST_MAX_S = 60.0
"""The rest after a failure: four times as long each time, up to this."""
CLOSE_S = 1.0
"""So long a comparison under way is waited for when an engine stops; the next one begins it anew."""


class Tries:
    """How often comparisons have failed, and the rest between them; none goes on once `stop` is set."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._failed: dict[tuple[str, int], int] = {}

    def fail(self, view: ViewState) -> bool:
        """One more failure of a view; whether it was tried often enough."""
        name = view.name, view.incarnation
        self._failed[name] = self._failed.get(name, 0) + 1
        return self._failed[name] >= TRIES

    def rest(self, views: Iterable[ViewState]) -> None:
        """Wait, if these have failed, before they are tried again."""
        most = max((self._failed[view.name, view.incarnation] for view in views), default=0)
        if most:
            self.stop.wait(min(REST_S * 4 ** (most - 1), REST_MAX_S))


def hold_trials(
    log: Log,
    store: StateStore,
    manifest: Manifest | None,
    tools: Callable[[], EngineContext],
    told: Told,
    tries: Tries,
) -> bool:
    """Compare the views that are due with their SELECTs at a tick, and say in the catalog what was found; whether there were
    some. Where that fails, whatever the error, it is left for the next time; after some tries that is what is said of the view."""
    waiting = due(log, manifest)
    if not waiting or manifest is None:
        return False
    new = {name: replace(manifest.views[f"{name}{BESIDE}"], name=name) for name in waiting}
    left, failed = set(waiting), dict[str, str]()

    def say(name: str, found: Mapping[str, Any]) -> None:
        with suppress(ConflictError):  # it was declared once more meanwhile
            said = {**waiting[name].document, "as": new[name].incarnation, **found}
            log.put_entry(REBUILD, name, said, expect=waiting[name].sequence)
        left.discard(name)

    try:
        then = replace(manifest, views={**manifest.views, **new})
        # Read first: a tick may not be kept for as long as computing takes.
        has = {name: view_contents(store, manifest, f"{name}{BESIDE}") for name in waiting}

        def held(name: str) -> pa.Table:
            return has[name] if name in has else view_contents(store, manifest, name)

        with closing(PastRelations(log, store, tools(), moment_of(then), held)) as past:
            for name in waiting:
                try:
                    wrong = _difference(has[name], past, name)
                except Exception as error:  # noqa: BLE001 - no view is held up by another
                    failed[name] = _in_words(error)
                    continue
                told(name, wrong, name in past.on_base)
                problem = None if wrong is None else _problem(manifest.tick, wrong)
                say(name, {"checked": manifest.tick} if problem is None else {"problem": problem})
    except Exception as error:  # noqa: BLE001 - who only looks again would begin it again and again
        failed |= dict.fromkeys(left - failed.keys(), _in_words(error))
    if failed and not tries.stop.is_set():
        try:
            for name in [name for name in failed if tries.fail(new[name])]:
                told(name, failed[name], False)
                say(name, {"problem": _not_compared(manifest.tick, failed[name])})
        finally:
            tries.rest(new[name] for name in failed if name in left)
    return True


def _difference(has: pa.Table, past: PastRelations, name: str) -> str | None:
    try:
        return held_against(has, past, name)
    except HeadwaterError as error:  # a row that fails, records that are gone: it is not shown to be right
        if error.retryable:
            raise
        return str(error.message)


def _problem(tick: int, wrong: str) -> str:
    return f"built anew, it is not what its SELECT gives at tick {tick}: {wrong}"


def _not_compared(tick: int, error: str) -> str:
    return (
        f"built anew, it could not be compared with its SELECT at tick {tick}, tried {TRIES} times: {error}"
    )


def _in_words(error: Exception) -> str:
    told = error.message if isinstance(error, HeadwaterError) else f"{type(error).__name__}: {error}"
    return str(told)[:_TOLD_MAX]


_TOLD_MAX = 2_000


class Comparing:
    """Compares views beside an engine that keeps going, in a thread of its own: ticks do not wait for it."""

    def __init__(self, log: Log, hold: Callable[[Manifest, Tries], Any]) -> None:
        self._log = log
        self._tries = Tries()
        self._hold = hold
        self._component = Component(log.faults, "background", "comparison of views built anew")
        self._thread: threading.Thread | None = None

    def look(self, manifest: Manifest | None) -> None:
        """Begin, if something is due and nothing under way."""
        if self._tries.stop.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        if manifest is not None and due(self._log, manifest):
            self._thread = threading.Thread(
                target=self._run, args=(manifest,), name="headwater-trials", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Begin nothing more. What is under way may take long, and is left to end by itself: nobody waits for it."""
        self._tries.stop.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self, manifest: Manifest) -> None:
        # What fails is said of the view. That it cannot be said is a fault, unless the log was closed meanwhile.
        try:
            self._hold(manifest, self._tries)
        except Exception as error:  # noqa: BLE001 - reported
            if not self._tries.stop.is_set():
                self._component.failed(error, "the comparison is begun again by itself")
                self._tries.stop.wait(REST_S)
        else:
            self._component.works()
