"""Snapshots of aggregate states, stored next to the log, so that a long history loads without all of its events.

Snapshots are disposable: one is used only if it is intact, of the same topic and aggregate, and of the same code of `fold`;
otherwise the state is folded from the events. Each is a file, written after the commit and without a sync: a lost snapshot
costs only time. The format is JSON, read back by the types that the state declares; a state that does not read back equal is
not stored.
"""

from __future__ import annotations

import hashlib
import re
import struct
from dataclasses import dataclass
from typing import Any

import orjson
import xxhash

from headwater.core.clock import Microseconds
from headwater.core.errors import HeadwaterError, SchemaError
from headwater.core.storage import TEMPORARY, Storage
from headwater.events.encrypted_state import StateEncryption
from headwater.events.field_types import json_default, shape_of

EVERY = 100
"""Number of events after which a new snapshot is written."""
FOLDERS = 256


_FILES = re.compile(rf"[0-9a-f]{{2}}/[0-9a-f]{{32}}\.json(?:{TEMPORARY})?")
"""Names of the files in the folder of snapshots."""


@dataclass(frozen=True)
class Snapshot:
    """The state of an aggregate after its first `version` events, the last of which is at `offset`."""

    version: int
    offset: int
    at: Microseconds
    state: Any


class Snapshots:
    """The snapshots of one topic and one code fingerprint; empty without a storage."""

    def __init__(
        self,
        storage: Storage | None,
        folder: str,
        code: str,
        state_type: Any,
        encryption: StateEncryption | None = None,
    ) -> None:
        """`folder` belongs to one incarnation of a topic. `encryption` encrypts the snapshots."""
        self._encryption = encryption
        self._storage = storage
        self._folder = folder
        self._code = code
        self.why_not: str | None = None if storage is not None else "the workspace is in memory"
        try:
            self._from_json = shape_of(state_type).from_json
        except SchemaError as error:
            self.why_not = error.message

    def find(self, aggregate_id: str) -> Snapshot | None:
        """Return the snapshot of an aggregate; None if missing or invalid."""
        if self.why_not is not None or self._storage is None:
            return None
        try:
            data = self._storage.read(self._name(aggregate_id))
            if self._encryption is not None:
                data = self._encryption.decrypt(data)
            (digest,) = struct.unpack_from("<Q", data)
            if xxhash.xxh3_64_intdigest(data[8:]) != digest:
                return None
            plain = orjson.loads(data[8:])
            if plain["code"] != self._code or plain["aggregate_id"] != aggregate_id:
                return None
            return Snapshot(plain["version"], plain["offset"], plain["at"], self._read(plain["state"]))
        except (HeadwaterError, struct.error, ValueError, TypeError, KeyError, AttributeError):
            return None  # missing, torn, or in another format

    def keep(self, aggregate_id: str, snapshot: Snapshot) -> bool:
        """Write a snapshot; False if it cannot be stored, which is harmless."""
        if self.why_not is not None or self._storage is None:
            return False
        plain = {
            "code": self._code,
            "aggregate_id": aggregate_id,
            "version": snapshot.version,
            "offset": snapshot.offset,
            "at": snapshot.at,
            "state": snapshot.state,
        }
        try:
            data = orjson.dumps(plain, default=json_default, option=orjson.OPT_NON_STR_KEYS)
            if self._read(orjson.loads(data)["state"]) != snapshot.state:
                return False
            name = self._name(aggregate_id)
            data = struct.pack("<Q", xxhash.xxh3_64_intdigest(data)) + data
            if self._encryption is not None:
                data = self._encryption.encrypt(aggregate_id, data)
            self._storage.make_dirs(name.rpartition("/")[0])
            self._storage.put(name, data)
        except (HeadwaterError, ValueError, TypeError, KeyError, AttributeError):
            return False
        return True

    def clear(self) -> None:
        """Delete all snapshots of the topic, of every code fingerprint."""
        if self._storage is not None:
            self._storage.remove_dir(self._folder, _FILES)

    def _read(self, plain: Any) -> Any:
        return plain if self._from_json is None else self._from_json(plain)

    def _name(self, aggregate_id: str) -> str:
        name = hashlib.blake2b(aggregate_id.encode(), digest_size=16).hexdigest()
        return f"{self._folder}/{int(name[:4], 16) % FOLDERS:02x}/{name}.json"
