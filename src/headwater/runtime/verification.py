"""Holding views against what they should be: their SELECTs, run in batch over the log at the newest tick's cut."""

from __future__ import annotations

from contextlib import closing

from headwater.errors import HeadwaterError
from headwater.log.protocol import Finding, Log
from headwater.runtime.catalog import definitions
from headwater.runtime.comparison import difference
from headwater.runtime.past import Past, moment_of
from headwater.runtime.running import Listener
from headwater.runtime.tools import Tools
from headwater.runtime.units import view_of
from headwater.state.manifest import Manifest
from headwater.state.serving import view_contents
from headwater.state.store import StateStore


def verify_views(
    log: Log, store: StateStore, manifest: Manifest, tools: Tools, listener: Listener
) -> list[Finding]:
    """Every view that is part of the tick and differs, with the first differences; damaged state too."""
    live = [
        name for name in definitions(log) if name in manifest.views and manifest.views[name].status == "live"
    ]
    live = [each for name in live for each in (name, *_beside(manifest, name))]
    listener.verifying(live)
    findings = []
    with closing(Past(log, store, tools, moment_of(manifest))) as past:
        for name in live:
            told = _difference(store, manifest, past, name)
            listener.verified(name, told, on_base=name in past.on_base)
            if told is not None:
                text = f"view {name!r} at tick {manifest.tick}: {told}"
                findings.append(Finding(f"view {name}", None, None, None, text))
    return findings


def _beside(manifest: Manifest, view: str) -> list[str]:
    """What a view gives beside its rows."""
    return [
        name
        for name in manifest.views
        if view_of(name) == view != name and "derived" in manifest.views[name].extra
    ]


def _difference(store: StateStore, manifest: Manifest, past: Past, name: str) -> str | None:
    try:
        return difference(view_contents(store, manifest, name), past.view(name))
    except (
        HeadwaterError
    ) as error:  # damaged state, a row that fails: found, and the other views are looked at too
        return str(error.message)
