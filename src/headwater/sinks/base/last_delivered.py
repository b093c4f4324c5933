"""The last tick that was handed to somebody who cannot be asked, remembered beside the workspace and not in it.

A webhook's receiver and a user's function keep no position for us: theirs is in the log, and goes back with it where an older
copy of the workspace is put back. What they were given since is then known to nobody but to this small file,
`<workspace>.sinks/<id>/<sink>.json`. It is written before a tick is handed over, so it is never behind what they have. A tick in
it that the workspace does not have, or has as another one, says that they hold rows of another history: they are given all rows.

The file is a help and no part of the contract: where it is lost, or cannot be written, everything goes on as without it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import orjson

from headwater.core.errors import StorageError
from headwater.core.positions import Token
from headwater.core.storage import Storage


class Remembered:
    """Of one sink of one workspace; `of` says whose position it is, as in the log."""

    def __init__(self, workspace: Path, identity: str, sink: str, of: str) -> None:
        self._storage = Storage(f"{workspace.absolute()}.sinks")
        self._folder = identity
        self._file = f"{identity}/{sink}.json"
        self._of = of

    def tick(self) -> Token | None:
        """The tick that was handed over last, or was about to be; None if that is not known."""
        try:
            plain = orjson.loads(self._storage.read(self._file))
            return Token.parse(plain["tick"]) if plain["of"] == self._of else None
        except (StorageError, ValueError, KeyError, TypeError):
            return None

    def write(self, tick: Token) -> None:
        """Remember a tick, if the disk lets us."""
        with contextlib.suppress(StorageError):
            self._storage.make_dirs(self._folder)
            self._storage.put(self._file, orjson.dumps({"of": self._of, "tick": str(tick)}))
