"""Files of an Iceberg table: rows found by key, their deletions, and rows written as files.

A data file never changes. Its rows that were deleted or replaced are listed, by position, in a delete file; a data file has
at most one of ours. The keys read from a file are cached in memory for the next change.
"""

from __future__ import annotations

import bisect
import io as streams
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, PyArrowFile, PyArrowFileIO, write_file
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table, WriteTask
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from headwater.core.hashing import Indices
from headwater.core.storage import SequentialWriter, Storage
from headwater.sinks.base.key_search import KeyIdentities

PATH_ID, _POSITION_ID = 2147483546, 2147483545
"""Field ids that Iceberg reserves for the columns of delete files."""
_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(_POSITION_ID)}),
    ]
)
_BUFFER = 1 << 20
_FEW_KEYS = 20_000
_REMEMBERED_ROWS = 8_000_000
"""Number of rows whose key hashes are kept in memory, at 20 bytes each."""


class SyncedFileIO(PyArrowFileIO):
    """File I/O of a local warehouse that syncs each file before a manifest or snapshot refers to it."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _SyncedFile(location, path, self.fs_by_scheme(scheme, netloc))


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        storage, name = Storage("/"), self._path.lstrip("/")
        storage.make_dirs(os.path.dirname(name))
        return streams.BufferedWriter(
            _SyncedStream(storage.open(name, create=True, exclusive=not overwrite)), _BUFFER
        )


class _SyncedStream(SequentialWriter):
    """Output stream that syncs the file on close."""

    def close(self) -> None:
        """Make the file and its name durable, and close it."""
        if not self.closed:
            self._file.sync()
            self._file.close()
            self._file.storage.sync_dir(os.path.dirname(self._file.name))
        super().close()


@dataclass(frozen=True)
class LiveFile:
    """A data file of a snapshot and the delete files that apply to it: those for this file alone, of which at most one is
    ours, and `shared` ones, written by other programs."""

    data: DataFile
    deletes: tuple[DataFile, ...] = ()
    shared: tuple[DataFile, ...] = ()

    @property
    def rows(self) -> int:
        """Approximate number of rows of the file that are not deleted."""
        return int(self.data.record_count) - sum(file.record_count for file in self.deletes)


class Sought:
    """Keys to look for: their hashes and, if the keys are few, the values of their first column, which exclude files by the
    column bounds in the table's metadata."""

    def __init__(self, rows: pa.RecordBatch, key: Sequence[str]) -> None:
        self.keys = KeyIdentities.of([rows.column(name) for name in key], rows.num_rows)
        self._column, first = key[0], rows.column(key[0])
        self._has_null = first.null_count > 0
        self._values: list[Any] | None = None
        if rows.num_rows <= _FEW_KEYS and not pa.types.is_floating(first.type):
            self._values = sorted(_as_bounds(first.drop_null()))

    def may_be_in(self, data: DataFile, schema: Schema) -> bool:
        """Whether a file may have one of the keys."""
        field = schema.find_field(self._column)
        lower = (data.lower_bounds or {}).get(field.field_id)
        upper = (data.upper_bounds or {}).get(field.field_id)
        nulls = (data.null_value_counts or {}).get(field.field_id)
        if self._values is None or lower is None or upper is None or (self._has_null and nulls != 0):
            return True
        kind = cast(PrimitiveType, field.field_type)
        at = bisect.bisect_left(self._values, from_bytes(kind, lower))
        return at < len(self._values) and bool(self._values[at] <= from_bytes(kind, upper))


class Files:
    """Reads and writes the files of one table."""

    def __init__(self, key: tuple[str, ...], file_rows: int) -> None:
        self.key = key
        self.file_rows = file_rows
        self._keys: dict[str, KeyIdentities] = {}
        self._room = _REMEMBERED_ROWS

    def find(self, table: Table, live: LiveFile, sought: Sought) -> Indices:
        """Return the positions of keys in a file, including deleted rows."""
        path = live.data.file_path
        keys = self._keys.get(path)
        if keys is None:
            if not sought.may_be_in(live.data, table.schema()):
                return np.zeros(0, dtype=np.int64)
            rows = _scan(table, LiveFile(live.data), self.key)
            keys = KeyIdentities.of(_arrays(rows, self.key), rows.num_rows)
            # Keys beyond the limit are read again each time: evicting others would drop the ones needed next.
            if rows.num_rows <= self._room:
                self._keys[path] = keys
                self._room -= rows.num_rows
        return keys.find(sought.keys)

    def forget(self, live: Sequence[LiveFile]) -> None:
        """Drop the cached keys of files that no longer exist."""
        paths = {one.data.file_path for one in live}
        for path in [path for path in self._keys if path not in paths]:
            self._room += len(self._keys.pop(path).first)

    def rows(self, table: Table, live: LiveFile, without: Indices | None = None) -> pa.Table:
        """Return the rows of a file that are not deleted; `without` has the positions of all deleted rows, if known."""
        if without is None:
            return _scan(table, live)
        rows = _scan(table, LiveFile(live.data))
        kept = np.ones(rows.num_rows, dtype=np.bool_)
        kept[without] = False
        return rows.filter(pa.array(kept))

    def batches(self, table: Table, live: LiveFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file that are not deleted, in batches."""
        yield from _scanner(table).to_record_batches([_task(live)])

    def write(self, table: Table, rows: pa.Table) -> list[DataFile]:
        """Write rows as new data files, sorted by key so that each file has a range of keys, and return the files."""
        if not rows.num_rows:
            return []
        if self.key:
            rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in self.key]))
        count = -(-rows.num_rows // self.file_rows)
        bounds = [place * rows.num_rows // count for place in range(count + 1)]
        name, schema = uuid.uuid4(), table.schema()
        tasks = (
            WriteTask(name, place, schema, rows.slice(low, high - low).combine_chunks().to_batches())
            for place, (low, high) in enumerate(pairwise(bounds))
        )
        return list(write_file(table.io, table.metadata, tasks))

    def delete(self, table: Table, data: DataFile, places: Indices) -> DataFile:
        """Write a delete file that marks rows of a data file as deleted, and return it."""
        path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
        paths = pa.DictionaryArray.from_arrays(np.zeros(len(places), np.int32), [data.file_path])
        rows = pa.Table.from_arrays([paths.cast(pa.string()), pa.array(places)], schema=_DELETES)
        buffer = streams.BytesIO()
        pq.write_table(rows, buffer, compression="zstd")
        with table.io.new_output(path).create() as out:
            out.write(buffer.getvalue())
        bound = data.file_path.encode()
        file = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=len(places),
            file_size_in_bytes=len(buffer.getvalue()),
            column_sizes={},
            value_counts={PATH_ID: len(places), _POSITION_ID: len(places)},
            null_value_counts={PATH_ID: 0, _POSITION_ID: 0},
            nan_value_counts={},
            lower_bounds={PATH_ID: bound},
            upper_bounds={PATH_ID: bound},
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
        )
        file.spec_id = table.metadata.default_spec_id
        return file

    def deleted(self, table: Table, live: LiveFile) -> Indices:
        """Return the positions of the deleted rows of a file, ascending."""
        found = [np.zeros(0, dtype=np.int64)]
        for file in (*live.deletes, *live.shared):
            with table.io.new_input(file.file_path).open() as opened:
                rows = pq.read_table(pa.PythonFile(opened, "r"))
            mine = rows.filter(pc.equal(rows.column("file_path"), live.data.file_path))
            found.append(mine.column("pos").to_numpy().astype(np.int64))
        return np.unique(np.concatenate(found))


def _as_bounds(values: pa.Array) -> list[Any]:
    """Return values in the form in which the bounds of a file are read."""
    if pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    plain: list[Any] = values.to_pylist()
    return plain


def _scanner(table: Table, columns: Sequence[str] | None = None) -> ArrowScan:
    schema = table.schema() if columns is None else table.schema().select(*columns)
    return ArrowScan(table.metadata, table.io, schema, AlwaysTrue())


def _task(live: LiveFile) -> FileScanTask:
    return FileScanTask(live.data, {*live.deletes, *live.shared})


def _scan(table: Table, live: LiveFile, columns: Sequence[str] | None = None) -> pa.Table:
    return _scanner(table, columns).to_table([_task(live)])


def _arrays(rows: pa.Table, names: Sequence[str]) -> list[pa.Array]:
    return [rows.column(name).combine_chunks() for name in names]
