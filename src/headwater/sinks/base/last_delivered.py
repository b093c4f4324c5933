"""The last tick delivered to a receiver that cannot be read, recorded next to the workspace and not in it.

The receiver of a webhook and a user's function store no checkpoint for us: theirs is in the log, and goes back in time if an
older copy of the workspace is restored. What was delivered since then is recorded only in this small file,
`<workspace>.sinks/<id>/<sink>.json`. It is written before a tick is delivered, so it is never behind the receiver. If it has
a tick that the workspace does not have, or has with another id, the receiver has rows of another history, and is sent all
rows.

The file is best effort: if it is lost, or cannot be written, delivery works as without it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import orjson

from headwater.core.errors import StorageError
from headwater.core.positions import Token
from headwater.core.storage import Storage


class LastDelivered:
    """The record of one sink of one workspace; `of` identifies the receiver, as in the log."""

    def __init__(self, workspace: Path, identity: str, sink: str, of: str) -> None:
        self._storage = Storage(f"{workspace.absolute()}.sinks")
        self._folder = identity
        self._file = f"{identity}/{sink}.json"
        self._of = of

    def tick(self) -> Token | None:
        """Return the tick that was delivered last, or was about to be; None if unknown."""
        try:
            plain = orjson.loads(self._storage.read(self._file))
            return Token.parse(plain["tick"]) if plain["of"] == self._of else None
        except (StorageError, ValueError, KeyError, TypeError):
            return None

    def write(self, tick: Token) -> None:
        """Record a tick; storage errors are ignored."""
        with contextlib.suppress(StorageError):
            self._storage.make_dirs(self._folder)
            self._storage.put(self._file, orjson.dumps({"of": self._of, "tick": str(tick)}))
