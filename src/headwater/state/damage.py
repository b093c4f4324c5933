"""What is wrong with the runs that a tick names. Mends nothing: that is the engine, which builds from the log again."""

from __future__ import annotations

from headwater.errors import CorruptionError, HeadwaterError, TickNotKeptError
from headwater.state.layout import FOLDER, RUNS
from headwater.state.manifest import Manifest
from headwater.state.store import StateStore


def is_of_state(error: HeadwaterError) -> bool:
    """Whether an error says that the state is damaged, which the log can mend; not the log itself."""
    return isinstance(error, CorruptionError) and str(error.facts.get("file", "")).startswith(f"{FOLDER}/")


def lost(store: StateStore, manifest: Manifest) -> dict[str, str]:
    """Arrangements with a run whose file is gone or too short, and what is wrong. Reads no run."""
    sizes = {file: store.size_of(file) for file in manifest.files}
    found: dict[str, str] = {}
    for arrangement, refs in manifest.arrangements.items():
        for ref in refs:
            size = sizes[ref.file]
            if size is None:
                found[arrangement] = f"{RUNS}/{ref.file} is missing"
            elif size < ref.end:
                found[arrangement] = f"{RUNS}/{ref.file} ends at byte {size}"
    return found


def damaged(store: StateStore, manifest: Manifest) -> dict[str, str]:
    """Arrangements with a run that is not what was written, and what is wrong. Reads every byte of every run."""
    found: dict[str, str] = {}
    for arrangement, refs in manifest.arrangements.items():
        for ref in refs:
            try:
                store.verify(ref)
            except (CorruptionError, TickNotKeptError) as error:
                found[arrangement] = error.message
    return found
