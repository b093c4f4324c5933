"""Creates the folder of a workspace, and reads its `headwater.json`."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Mapping
from typing import Any

import orjson
import xxhash

from headwater.core.errors import (
    CorruptionError,
    NewerVersionError,
    NotAWorkspaceError,
    WorkspaceMissingError,
)
from headwater.core.settings import LogSettings
from headwater.core.storage import Storage
from headwater.log.embedded import staging
from headwater.log.embedded.journal import journal_file, recovery

WORKSPACE_FILE = "headwater.json"
FORMAT = 1


def read_about(storage: Storage) -> dict[str, Any]:
    """Return the content of `headwater.json`; an error if it is damaged or of a newer version."""
    about = _about(storage)
    if about.get("format", 0) > FORMAT:
        raise NewerVersionError(
            f"workspace {storage.root} was written by a newer version of Headwater (format {about['format']})",
            detail=f"this version reads formats up to {FORMAT}",
            hint="upgrade Headwater: pip install -U headwater",
            found=about["format"],
            supported=FORMAT,
        )
    return about


def create_workspace(storage: Storage, settings: LogSettings, create: bool) -> None:
    """Create the folder, if `create`. Completes a creation that a crash interrupted; of concurrent processes one writes the
    id."""
    if not create:
        raise WorkspaceMissingError(
            f"there is no workspace in {storage.root}",
            hint="`headwater init` creates one",
            file=str(storage.root),
        )
    if storage.root.is_file():
        raise NotAWorkspaceError(
            f"{storage.root} is a file, not a folder", hint="pass the path of a folder", reason="file"
        )
    storage.make_dirs(".")
    strangers = [
        n for n in storage.list(".") if n not in _OWN_NAMES and not n.startswith((".", WORKSPACE_FILE))
    ]
    if storage.exists(WORKSPACE_FILE):  # another process was faster
        return
    if strangers:
        raise NotAWorkspaceError(
            f"{storage.root} is not a workspace: it contains {strangers[0]!r} but no {WORKSPACE_FILE}",
            hint="pass the path of a new or empty folder",
            file=strangers[0],
            reason="other-files",
        )
    for folder in (journal_file.FOLDER, recovery.CHECKPOINTS, "topics", "groups", staging.FOLDER):
        storage.make_dirs(folder)
    with (
        contextlib.suppress(FileExistsError),
        contextlib.closing(storage.open(journal_file.journal_name(1), exclusive=True)) as file,
    ):
        begin = {"k": "begin", "seq": 0, "at": 0, "previous_end": 0, "fence": False}
        file.write_at(0, journal_file.encode_record(begin))
        file.sync()
        storage.sync_dir(journal_file.FOLDER)
    with contextlib.closing(storage.open(journal_file.journal_name(1))) as file:
        while not file.try_lock():
            time.sleep(0.001)
        if not storage.exists(WORKSPACE_FILE):
            about = {"format": FORMAT, "id": uuid.uuid4().hex, "durability": settings.durability}
            about["checksum"] = _checksum(about)
            storage.write_atomic(WORKSPACE_FILE, orjson.dumps(about, option=orjson.OPT_INDENT_2))


def _about(storage: Storage) -> dict[str, Any]:
    """Return the content of `headwater.json`; CorruptionError if its checksum fails."""
    data = storage.read(WORKSPACE_FILE)
    try:
        about = orjson.loads(data)
        # the content of a newer format is checked by its own version
        if about["format"] > FORMAT or about["checksum"] == _checksum(about):
            return dict(about)
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        pass
    raise CorruptionError(
        f"{WORKSPACE_FILE} is damaged at byte 0: its checksum does not match",
        detail="the file has only the format and the durability of the workspace; its records are not affected",
        hint="restore the file from a backup, or copy it from another workspace of this version",
        file=WORKSPACE_FILE,
        offset=0,
    )


def _checksum(about: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in about.items() if key != "checksum"}
    return xxhash.xxh3_64_hexdigest(orjson.dumps(plain, option=orjson.OPT_SORT_KEYS))


_OWN_NAMES = {
    journal_file.FOLDER,
    recovery.CHECKPOINTS,
    "topics",
    "groups",
    staging.FOLDER,
    journal_file.HEAD,
    "flush.lock",
    "maintain.lock",
    "state",
    "bases",
}
