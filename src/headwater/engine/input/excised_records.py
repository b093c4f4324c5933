"""Copies of excised records, kept until the next tick has retracted them from the state.

There is one file per excision, written before the first record is removed, and deleted once a tick without the records
is committed. It has the records with all metadata columns, as an Arrow stream; private values are encrypted as in the
log. If the file is missing, which is not an error, the views are rebuilt.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.rules import FORGOTTEN
from headwater.core.errors import KeyStoreError, WorkspaceMissingError
from headwater.core.hashing import Indices
from headwater.core.json_csv import packed, unpacked
from headwater.core.storage import Storage
from headwater.log.deletion_entries import DeletionEntry
from headwater.log.protocol import Log
from headwater.operators.zset.delta import concat_rows, take_rows
from headwater.plan.relations.metadata_columns import every_hidden, fitted, read_records
from headwater.privacy.column_encryption import decrypt_columns, encrypt_columns

FOLDER = "withdrawn"
ROWS_MAX = 200_000
"""Maximum number of records that are kept: with more, rebuilding the views is about as fast."""
_SPANS_MAX = 64
"""Maximum number of spans that are read one by one; with more, the records between them are read too."""


def keep(
    log: Log, storage: Storage, name: str, topic: TopicDefinition, offsets: Mapping[int, Sequence[int]]
) -> None:
    """Store the records at these offsets, which must still exist, under the name of an excision; durable when it returns.

    Nothing is stored if there are too many records, or the key store is not available.
    """
    if storage.exists(_file(name)) or sum(map(len, offsets.values())) > ROWS_MAX:
        return
    schema = pa.schema([*topic.schema, *every_hidden(topic)])
    found = [
        fitted(batch, schema)
        for partition, mine in sorted(offsets.items())
        for batch in records_at(log, topic.name, partition, np.asarray(mine, np.int64), schema.names)
    ]
    with suppress(KeyStoreError):  # without keys, it is impossible to determine what views contain
        rows = packed(encrypt_columns(concat_rows(found, schema), topic, log.keys))
        storage.make_dirs(FOLDER)
        storage.write_atomic(_file(name), rows)


def kept(log: Log, storage: Storage, name: str, topic: TopicDefinition) -> pa.RecordBatch | None:
    """Return the records that an excision has removed from a topic, with all columns.

    Returns None if they were not stored, or the columns of the topic have changed since.
    """
    try:
        stored = unpacked(storage.read(_file(name)))
    except WorkspaceMissingError:
        return None
    schema = pa.schema([*topic.schema, *every_hidden(topic)])
    if stored.schema.names != schema.names:
        return None
    batch = concat_rows(stored.to_batches(), stored.schema)
    names = [column for column in schema.names if column != FORGOTTEN]
    shown = decrypt_columns(batch.select(names), topic, log.keys, names)
    columns = [batch.column(n) if n == FORGOTTEN else shown.column(n) for n in schema.names]
    if [column.type for column in columns] != schema.types:
        return None
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def drop(storage: Storage, name: str) -> None:
    """Remove the stored records of an excision."""
    with suppress(WorkspaceMissingError, FileNotFoundError):
        storage.remove(_file(name))


def records_at(
    log: Log, topic: str, partition: int, offsets: Indices, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a partition at some ascending offsets, with these columns, which may include metadata columns."""
    if not len(offsets):
        return
    cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
    if len(cuts) < _SPANS_MAX:
        for span in np.split(offsets, cuts):
            yield from read_records(log, topic, partition, (int(span[0]), int(span[-1]) + 1), columns)
        return
    read = list(dict.fromkeys([*columns, "_offset"]))
    for batch in read_records(log, topic, partition, (int(offsets[0]), int(offsets[-1]) + 1), read):
        places = np.flatnonzero(np.isin(batch.column("_offset").to_numpy(), offsets))
        if len(places):
            yield take_rows(batch, places).select(list(columns))


def packed_offsets(found: Mapping[int, Sequence[int]]) -> dict[str, str]:
    """Return offsets as short texts by partition, for the catalog."""
    steps = {p: np.diff(np.asarray(offsets, np.int64), prepend=0) for p, offsets in found.items()}
    return {str(p): base64.b64encode(zlib.compress(s.tobytes())).decode() for p, s in steps.items()}


def offsets_of(entry: DeletionEntry) -> dict[int, list[int]]:
    """Return the offsets of the records that an excision removes, by partition; empty once the excision has finished."""
    packed = (entry.offsets or {}).items()
    steps = {int(p): np.frombuffer(zlib.decompress(base64.b64decode(t)), np.int64) for p, t in packed}
    return {p: np.cumsum(s).tolist() for p, s in steps.items()}


def _file(name: str) -> str:
    return f"{FOLDER}/{name}.arrow"
