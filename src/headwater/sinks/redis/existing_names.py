"""Existence and type of names in Redis."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.hashing import Mask
from headwater.sinks.base.target import RefusedRow
from headwater.sinks.redis.encoding import NAME
from headwater.sinks.redis.redis_protocol import Wire, bulk, commands, head

NAMES_AT_ONCE = 10_000


def existing(wire: Wire, rows: pa.RecordBatch, kind: bytes) -> tuple[Mask, list[RefusedRow]]:
    """Return which rows have a name that exists, and as rejected rows those whose name exists with another type."""
    kinds = _types(wire, rows.column(NAME))
    nothing: Mask = kinds == b"+none"
    foreign = np.flatnonzero(~nothing & (kinds != b"+" + kind))
    names = rows.column(NAME)
    refused = [
        RefusedRow(int(at), f"{names[int(at)].as_py()!r} is a {kinds[at][1:].decode()} of another program")
        for at in foreign
    ]
    return ~nothing, refused


def ours(wire: Wire, keys: pa.RecordBatch, kind: bytes) -> Mask:
    """Return which of the names exist with the sink's type."""
    found: Mask = _types(wire, keys.column(NAME)) == b"+" + kind
    return found


def _types(wire: Wire, names: pa.Array) -> npt.NDArray[np.bytes_]:
    parts = [np.zeros(0, dtype="S16")]
    for start in range(0, len(names), NAMES_AT_ONCE):
        some = names.slice(start, NAMES_AT_ONCE)
        wire.send(commands(len(some), head(2, b"TYPE"), bulk(some)))
        parts.append(np.array(wire.lines(len(some)).split(b"\r\n")[:-1], dtype="S16"))
    return np.concatenate(parts)
