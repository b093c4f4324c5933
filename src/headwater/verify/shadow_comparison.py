"""Compares shadow builds of views with their SELECTs before they are switched in: synchronously, or in the background of an
engine."""

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
from headwater.engine.collections.shadow_builds import REBUILD, SHADOW, due
from headwater.log.protocol import Log
from headwater.state.manifest import Manifest, ViewState
from headwater.state.store import StateStore
from headwater.state.view_reader import view_contents
from headwater.verify.recompute_at import PastRelations, moment_of
from headwater.verify.sketch_bounds import held_against

Report = Callable[[str, str | None, bool], None]
"""Called with the name of a compared view, the difference or None, and whether the view was computed from its base."""


TRIES = 3
"""Number of failed attempts after which a view is reported as not comparable."""
REST_S = 0.5
REST_MAX_S = 60.0
"""Upper limit of the pause after a failure, in seconds; the pause grows by a factor of four per failure."""
CLOSE_S = 1.0
"""How long a stopping engine waits for a comparison in progress, in seconds; the next engine starts the comparison over."""


class Tries:
    """Counts failed comparisons per view and pauses between attempts; no pause or attempt continues once `stop` is set."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._failed: dict[tuple[str, int], int] = {}

    def fail(self, view: ViewState) -> bool:
        """Count a failure of a view; return whether the attempts are used up."""
        name = view.name, view.incarnation
        self._failed[name] = self._failed.get(name, 0) + 1
        return self._failed[name] >= TRIES

    def rest(self, views: Iterable[ViewState]) -> None:
        """Pause before the next attempt if comparisons of these views have failed."""
        most = max((self._failed[view.name, view.incarnation] for view in views), default=0)
        if most:
            self.stop.wait(min(REST_S * 4 ** (most - 1), REST_MAX_S))


def compare_shadow_builds(
    log: Log,
    store: StateStore,
    manifest: Manifest | None,
    tools: Callable[[], EngineContext],
    report: Report,
    tries: Tries,
) -> bool:
    """Compare the shadow builds that are due with their SELECTs at a tick, and write the results to the catalog; return
    whether any was due.

    A comparison that fails, whatever the error, is left for the next call; after `TRIES` failures the error becomes the
    result of the view.
    """
    waiting = due(log, manifest)
    if not waiting or manifest is None:
        return False
    new = {name: replace(manifest.views[f"{name}{SHADOW}"], name=name) for name in waiting}
    left, failed = set(waiting), dict[str, str]()

    def say(name: str, found: Mapping[str, Any]) -> None:
        with suppress(ConflictError):  # the view was declared again in the meantime
            said = {**waiting[name].document, "as": new[name].incarnation, **found}
            log.put_entry(REBUILD, name, said, expect=waiting[name].sequence)
        left.discard(name)

    try:
        then = replace(manifest, views={**manifest.views, **new})
        # Read first: the tick may no longer be kept when the computation ends.
        has = {name: view_contents(store, manifest, f"{name}{SHADOW}") for name in waiting}

        def held(name: str) -> pa.Table:
            return has[name] if name in has else view_contents(store, manifest, name)

        with closing(PastRelations(log, store, tools(), moment_of(then), held)) as past:
            for name in waiting:
                try:
                    wrong = _difference(has[name], past, name)
                except Exception as error:  # noqa: BLE001 - one view must not block the others
                    failed[name] = _text(error)
                    continue
                report(name, wrong, name in past.on_base)
                problem = None if wrong is None else _problem(manifest.tick, wrong)
                say(name, {"checked": manifest.tick} if problem is None else {"problem": problem})
    except Exception as error:  # noqa: BLE001 - the caller would otherwise retry without limit
        failed |= dict.fromkeys(left - failed.keys(), _text(error))
    if failed and not tries.stop.is_set():
        try:
            for name in [name for name in failed if tries.fail(new[name])]:
                report(name, failed[name], False)
                say(name, {"problem": _not_compared(manifest.tick, failed[name])})
        finally:
            tries.rest(new[name] for name in failed if name in left)
    return True


def _difference(has: pa.Table, past: PastRelations, name: str) -> str | None:
    try:
        return held_against(has, past, name)
    except HeadwaterError as error:  # a failing row or removed records: the build is not shown to be correct
        if error.retryable:
            raise
        return str(error.message)


def _problem(tick: int, wrong: str) -> str:
    return f"the shadow build differs from its SELECT at tick {tick}: {wrong}"


def _not_compared(tick: int, error: str) -> str:
    return (
        f"the shadow build could not be compared with its SELECT at tick {tick}, after {TRIES} tries: {error}"
    )


def _text(error: Exception) -> str:
    text = error.message if isinstance(error, HeadwaterError) else f"{type(error).__name__}: {error}"
    return str(text)[:_TEXT_MAX]


_TEXT_MAX = 2_000


class ShadowComparison:
    """Compares shadow builds in a thread of its own while an engine keeps running: ticks do not wait for it."""

    def __init__(self, log: Log, hold: Callable[[Manifest, Tries], Any]) -> None:
        self._log = log
        self._tries = Tries()
        self._hold = hold
        self._component = Component(log.faults, "background", "comparison of shadow builds")
        self._thread: threading.Thread | None = None

    def check(self, manifest: Manifest | None) -> None:
        """Start the comparison thread if a comparison is due and none is running."""
        if self._tries.stop.is_set() or (self._thread is not None and self._thread.is_alive()):
            return
        if manifest is not None and due(self._log, manifest):
            self._thread = threading.Thread(
                target=self._run, args=(manifest,), name="headwater-trials", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Start no further comparisons. A comparison in progress may take long: close waits at most `CLOSE_S` for it and
        then leaves the daemon thread to end by itself."""
        self._tries.stop.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self, manifest: Manifest) -> None:
        # Failed comparisons are recorded for the view. Failing to record one is a fault, unless the log was closed
        # meanwhile.
        try:
            self._hold(manifest, self._tries)
        except Exception as error:  # noqa: BLE001 - reported
            if not self._tries.stop.is_set():
                self._component.failed(error, "the comparison is retried automatically")
                self._tries.stop.wait(REST_S)
        else:
            self._component.works()
