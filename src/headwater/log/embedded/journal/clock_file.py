"""The file `clock`: the last trusted reading of the wall clock by any process of the workspace, since the machine booted.

48 bytes, overwritten in place and never synced, because its content is useless after a reboot: "HWC1", four zeros, the boot id
of the machine (16 bytes), then the time, the monotonic clock and the moment from which records may again be removed by age (8
bytes each, microseconds, little endian), and the XXH3-64 of the bytes before. A file of another boot, or one that was read
during a write, is ignored.
"""

from __future__ import annotations

import contextlib
import struct

import xxhash

from headwater.core.errors import HeadwaterError
from headwater.core.storage import Storage
from headwater.core.trusted_clock import Anchor

FILE = "clock"
_BODY = struct.Struct("<4s4x16sqqq")
_MAGIC = b"HWC1"


class KeptAnchors:
    """See `headwater.core.trusted_clock.Anchors`. A failed write is ignored."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._boot = storage.boot_id().encode()[:16].ljust(16, b"\0")

    def read(self) -> Anchor | None:
        """See `Anchors.read`."""
        with contextlib.suppress(HeadwaterError, OSError):
            if not self._storage.exists(FILE):
                return None
            data = self._storage.read(FILE)
            if len(data) < _BODY.size + 8:
                return None
            body = data[: _BODY.size]
            magic, boot, *times = _BODY.unpack(body)
            (checksum,) = struct.unpack_from("<Q", data, _BODY.size)
            if (magic, boot, checksum) == (_MAGIC, self._boot, xxhash.xxh3_64_intdigest(body)):
                return Anchor(*times)
        return None

    def keep(self, anchor: Anchor) -> None:
        """See `Anchors.keep`."""
        body = _BODY.pack(_MAGIC, self._boot, anchor.now_us, anchor.elapsed_us, anchor.settles_us)
        with (
            contextlib.suppress(HeadwaterError, OSError),
            contextlib.closing(self._storage.open(FILE, create=True)) as file,
        ):
            file.write_at(0, body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body)))
