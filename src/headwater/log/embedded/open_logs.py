"""Caches open logs between the tasks of a Spark process: opening a log costs more than a small task."""

from __future__ import annotations

import os

from headwater.core.errors import HeadwaterError
from headwater.log.embedded.creation import WORKSPACE_FILE
from headwater.log.embedded.embedded_log import EmbeddedLog

OPEN_MAX = 8
"""Number of logs kept open; a process that alternates between more workspaces reopens them, which no known program does."""

_Identity = tuple[int, int, int]
_open: dict[str, tuple[_Identity, EmbeddedLog]] = {}


def open_log(workspace: str) -> EmbeddedLog:
    """Return the log in a folder, opened on first use; NotAWorkspaceError if there is none.

    The path alone does not identify the workspace: its folder may be removed and another created in its place.
    """
    kept = _open.pop(workspace, None)
    identity = _identity(workspace)
    if kept is not None and kept[0] != identity:
        kept[1].close()
        kept = None
    if kept is None or identity is None:
        log = EmbeddedLog.open(workspace, create=False)
        identity = _identity(workspace)
        if identity is None:
            log.close()
            raise HeadwaterError(
                f"there is no workspace in the folder {workspace}",
                hint="check whether the folder was moved or deleted",
                workspace=workspace,
            )
        kept = (identity, log)
    while len(_open) >= OPEN_MAX:
        _open.pop(next(iter(_open)))[1].close()
    _open[workspace] = kept
    return kept[1]


def _identity(workspace: str) -> _Identity | None:
    """Return an identity of the workspace that no later workspace at the same path has; None if there is no workspace."""
    try:
        found = os.stat(os.path.join(workspace, WORKSPACE_FILE))
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns
