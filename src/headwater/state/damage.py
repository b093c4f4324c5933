"""What is wrong with the runs that a tick names. Mends nothing: that is the engine, which builds from the log again."""

from __future__ import annotations

from headwater.core.errors import CorruptionError, HeadwaterError, TickNotKeptError
from headwater.state.manifest import Manifest
from headwater.state.run_refs import RunRef
from headwater.state.state_files import FOLDER, RUNS
from headwater.state.store import StateStore


def is_of_state(error: HeadwaterError) -> bool:
    """Whether an error says that the state is damaged, which the log can mend; not the log itself."""
    return isinstance(error, CorruptionError) and str(error.facts.get("file", "")).startswith(f"{FOLDER}/")


def lost(store: StateStore, manifest: Manifest) -> dict[str, str]:
    """Arrangements with a run whose file is gone or too short, or was changed since this process wrote or first read it, and what is
    wrong. Reads no other run."""
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
    """Arrangements with a run that is not what was written, and what is wrong. Reads every byte of every run."""
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
