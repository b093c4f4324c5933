"""Detection of damaged runs of a tick. Repairs nothing: the engine does, by rebuilding from the log."""

from __future__ import annotations

from headwater.core.errors import CorruptionError, HeadwaterError, TickNotKeptError
from headwater.state.manifest import Manifest
from headwater.state.run_refs import RunRef
from headwater.state.state_files import FOLDER, RUNS
from headwater.state.store import StateStore


def is_of_state(error: HeadwaterError) -> bool:
    """Whether an error reports damage of the state, which can be rebuilt from the log, and not damage of the log itself."""
    return isinstance(error, CorruptionError) and str(error.facts.get("file", "")).startswith(f"{FOLDER}/")


def lost(store: StateStore, manifest: Manifest) -> dict[str, str]:
    """Return the arrangements with a missing, truncated or modified run file, with a description.

    A file is modified if it changed since this process wrote or first read it, and no longer verifies. No other files
    are read.
    """
    sizes = {file: store.stored_runs.size_of(file) for file in manifest.files}
    changed = store.stored_runs.changed(file for file, size in sizes.items() if size is not None)
    found: dict[str, str] = {}
    for arrangement, refs in manifest.arrangements.items():
        for ref in refs:
            size = sizes[ref.file]
            if size is None:
                found[arrangement] = f"{RUNS}/{ref.file} is missing"
            elif size < ref.end:
                found[arrangement] = f"{RUNS}/{ref.file} ends at byte {size}"
            elif ref.file in changed and (wrong := _wrong(store, ref)) is not None:
                found[arrangement] = wrong
    return found


def damaged(store: StateStore, manifest: Manifest) -> dict[str, str]:
    """Return the arrangements with a run that differs from what was written, with a description. Reads every byte of
    every run."""
    found: dict[str, str] = {}
    for arrangement, refs in manifest.arrangements.items():
        for ref in refs:
            if (wrong := _wrong(store, ref)) is not None:
                store.stored_runs.suspect(ref.file)
                found[arrangement] = wrong
    return found


def _wrong(store: StateStore, ref: RunRef) -> str | None:
    try:
        store.verify(ref)
    except (CorruptionError, TickNotKeptError) as error:
        return error.message
    return None
