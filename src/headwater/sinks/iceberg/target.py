"""LAKE: the rows of a view as an Apache Iceberg table, through pyiceberg.

Guarantee: exactly once. The rows of a change and the checkpoint, which is a property of the snapshot, become visible in one
swap of the table's metadata by its catalog; the swap is rejected if the table has changed meanwhile. A crash before it
leaves files that no snapshot references, never a part of a change.

The cost of a change is proportional to the change: deleted and replaced rows are listed by position in small delete files
(Iceberg's merge-on-read, format version 2, which every engine reads), and new rows are a new file. A data file with many
deleted rows, and files that have become many and small, are rewritten by the same commit. To find rows, the keys of the
table's files are read once and cached in memory as far as they fit; beyond that they are read again by every change.

In modes 'append' and 'changelog' a change is one more file; when these are many, a snapshot that changes no row ('replace')
merges them. TINYINT and SMALLINT are `int` in the table; every other type is stored as itself. Snapshots beyond the newest
`snapshots` are removed, with the files that only they referenced. Files of a local warehouse are synced to disk before a
snapshot references them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import orjson
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from sqlalchemy.exc import SQLAlchemyError

from headwater.catalog.conform import adapt
from headwater.core.arguments import text
from headwater.core.errors import StorageError, UsageError
from headwater.sinks.base.blue_green import Version
from headwater.sinks.base.sink_setup import SinkSetup
from headwater.sinks.base.target import (
    WEIGHT,
    CheckpointConflictError,
    Since,
    SinkCheckpoint,
    SinkError,
    TargetChange,
    TargetDownError,
    TargetPast,
    TargetShape,
)
from headwater.sinks.iceberg.lake_table import LakeTable
from headwater.sinks.iceberg.old_snapshots import past_of
from headwater.sinks.iceberg.table_commit import Edit, Manifests, commit, head_of
from headwater.sinks.iceberg.table_files import Files, LiveFile, Sought
from headwater.sinks.iceberg.versions import OURS, LakeVersions, branch_of

CHECKPOINT = "headwater.stand"
"""Snapshot property with the checkpoint of the table."""
_SMALL_FILES_MAX = 16
"""Minimum number of small files for a rewrite into one."""
_COMMIT_TRIES = 20
"""Number of attempts to commit while another branch of the table is written at the same time."""
_DEAD_PART = 0.3
"""Share of deleted rows above which a data file is rewritten."""

Answer = TypeVar("Answer")


class LakeTarget:
    """An Iceberg table. Without `catalog` properties the catalog is a SQLite file in the folder of the warehouse, which
    programs with pyiceberg open as `load_catalog("headwater", type="sql", uri="sqlite:///<warehouse>/catalog.db")`."""

    guarantee: ClassVar[str] = "exactly once: rows and checkpoint are committed as one snapshot of the table"

    def __init__(
        self,
        warehouse: str | Path,
        table: str,
        *,
        catalog: Mapping[str, str] | None = None,
        file_rows: int = 250_000,
        snapshots: int = 100,
        version: Version | None = None,
    ) -> None:
        self._name = table
        self._branch = branch_of(version)
        self.identifier = tuple(table.split(".")) if "." in table else ("headwater", table)
        self._warehouse = Path(warehouse).absolute()
        self._properties = dict(catalog) if catalog else None
        self._place = LakeTable(self.identifier, self._warehouse, self._properties)
        self._file_rows = file_rows
        self._snapshots = snapshots
        self._shape: TargetShape | None = None
        self._files = Files((), file_rows)
        self._manifests = Manifests()

    @classmethod
    def declared(cls, setup: SinkSetup) -> Self:
        """Return the target that a declaration asks for."""
        options = setup.options
        return cls(
            options.get("warehouse") or setup.place,
            text(options.get("table") or setup.sink, "table"),
            catalog=_catalog(options.get("catalog")),
            file_rows=setup.count("file_rows", 250_000),
            snapshots=setup.count("snapshots", 100),
        )

    @property
    def key(self) -> tuple[str, ...]:
        """The key of the shape."""
        return () if self._shape is None else self._shape.key

    def prepare(self, shape: TargetShape) -> None:
        """Create the table, or check that the existing one has these columns and belongs to this sink."""
        if shape.mode == "upsert" and not shape.key:
            raise SinkError(
                f"sink {shape.sink!r} into LAKE needs a key, or mode = 'append'",
                sink=shape.sink,
                reason="no-key",
            )
        self._shape = shape
        self._files = Files(shape.key, self._file_rows)
        self._manifests = Manifests()
        self._place.forget()
        self._translate_errors(lambda: self._place.open(shape))

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows unchanged: TINYINT and SMALLINT are INT in the table, and are read back as their own types."""
        return rows

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the checkpoint in the newest snapshot. Compaction by other programs, which changes no row, is skipped."""
        return self._translate_errors(lambda: self._checkpoint(self._fresh()))

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """Commit one snapshot, with the property `after`."""
        self._translate_errors(lambda: self._apply(change, before, after))

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the newest snapshot, file by file."""
        shape = self._prepared()
        schema = shape.schema.append(WEIGHT) if shape.mode == "changelog" else shape.schema
        schema = pa.schema([field.with_nullable(True) for field in schema])

        def batches() -> Iterator[pa.RecordBatch]:
            table = self._fresh()
            for live in self._manifests.live(table, self._branch):
                for batch in self._files.batches(table, live):
                    yield adapt(batch, schema)

        found = batches()
        while (batch := self._translate_errors(lambda: next(found, None))) is not None:
            yield batch.cast(self._stored_schema())

    def versions(self) -> LakeVersions:
        """See `headwater.sinks.base.blue_green`."""
        return LakeVersions(
            self._prepared().sink,
            self._version_target,
            self._checkpoint_of,
            self._fresh,
            self._translate_errors,
        )

    def _version_target(self, version: Version) -> LakeTarget:
        return LakeTarget(
            self._warehouse,
            self._name,
            catalog=self._properties,
            file_rows=self._file_rows,
            snapshots=self._snapshots,
            version=version,
        )

    def past(self, since: Since) -> TargetPast:
        """Return the older snapshots, and the deleted rows in the files of the newest one."""

        def checkpoint(snapshot: Snapshot) -> SinkCheckpoint | None:
            said = None if snapshot.summary is None else snapshot.summary[CHECKPOINT]
            return None if said is None else SinkCheckpoint.parse(said)

        return self._translate_errors(
            lambda: past_of(self._fresh(), self._prepared().sink, since, checkpoint)
        )

    def close(self) -> None:
        """Close the catalog."""
        self._place.close()

    # --- one change ------------------------------------------------------------------------------------------------

    def _apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        table = self._fresh()
        found = self._checkpoint(table)
        if found != before:
            raise self._moved(found)
        properties = {CHECKPOINT: after.text()}
        if self._prepared().mode == "upsert":
            edit = self._upserted(table, change, properties)
        else:
            added = self._files.write(table, pa.Table.from_batches([change.records]))
            edit = Edit(Operation.APPEND, added, (), properties)
        self._commit(table, edit, before)
        if self._prepared().mode != "upsert":
            self._gather(table, properties)

    def _commit(self, table: Table, edit: Edit, before: SinkCheckpoint | None) -> None:
        """Commit an edit. The written files stay valid, and the commit is retried, if only another branch has changed."""
        head = head_of(table, self._branch)
        for _ in range(_COMMIT_TRIES):
            try:
                commit(table, edit, self._manifests, self._snapshots, self._branch, OURS)
                return
            except CommitFailedException as error:
                failed = error
            table = self._fresh()
            now = head_of(table, self._branch)
            if self._checkpoint(table) != before or (now and now.snapshot_id) != (head and head.snapshot_id):
                break
        self._place.forget()
        raise self._moved(self._checkpoint(self._fresh())) from failed

    def _gather(self, table: Table, properties: dict[str, str]) -> None:
        """Merge files that are many and small. If a commit of another process wins, nothing is merged."""
        small = [
            file for file in self._manifests.live(table, self._branch) if file.rows < self._file_rows // 8
        ]
        if len(small) >= 4 * _SMALL_FILES_MAX:
            added = self._files.write(
                table, pa.concat_tables([self._files.rows(table, file) for file in small])
            )
            removed = [one for file in small for one in (file.data, *file.deletes)]
            with contextlib.suppress(CommitFailedException):
                commit(
                    table,
                    Edit(Operation.REPLACE, added, removed, properties),
                    self._manifests,
                    self._snapshots,
                    self._branch,
                    OURS,
                )

    def _upserted(self, table: Table, change: TargetChange, properties: dict[str, str]) -> Edit:
        live = self._manifests.live(table, self._branch)
        rows = [pa.Table.from_batches([change.upserts])]
        added: list[DataFile] = []
        removed: list[DataFile] = []
        rest: list[tuple[LiveFile, np.ndarray | None]] = []
        wanted = [Sought(keys, self.key) for keys in (change.deletes, change.upserts) if keys.num_rows]
        for file in live:
            dead = self._dead(table, file, wanted)
            if dead is None:
                rest.append((file, None))
                continue
            removed += file.deletes
            if len(dead) >= file.data.record_count:
                removed.append(file.data)
            elif len(dead) > _DEAD_PART * file.data.record_count:
                removed.append(file.data)
                rows.append(self._files.rows(table, file, dead))
            else:
                rest.append((file, dead))
        small = [(file, dead) for file, dead in rest if file.rows < self._file_rows // 8]
        if len(small) >= _SMALL_FILES_MAX:
            for file, dead in small:
                removed += [file.data] if dead is not None else [file.data, *file.deletes]
                rows.append(self._files.rows(table, file, dead))
            gone = {file.data.file_path for file, _ in small}
            rest = [one for one in rest if one[0].data.file_path not in gone]
        added += [self._files.delete(table, file.data, dead) for file, dead in rest if dead is not None]
        together = pa.concat_tables([self._in_table_types(table, one) for one in rows])
        added += self._files.write(table, together)
        self._files.forget(live)
        operation = (
            Operation.OVERWRITE if removed or any(dead is not None for _, dead in rest) else Operation.APPEND
        )
        return Edit(operation, added, removed, properties)

    def _dead(self, table: Table, file: LiveFile, wanted: list[Sought]) -> np.ndarray | None:
        """Return the positions of all rows of a file that are deleted after this change; None if it deletes none in this
        file."""
        found = [self._files.find(table, file, keys) for keys in wanted]
        if not any(len(one) for one in found):
            return None
        before = self._files.deleted(table, file)
        after = np.unique(np.concatenate([before, *found]))
        return after if len(after) > len(before) else None

    def _in_table_types(self, table: Table, rows: pa.Table) -> pa.Table:
        return rows.cast(table.schema().as_arrow())

    # --- the table -------------------------------------------------------------------------------------------------

    def _prepared(self) -> TargetShape:
        if self._shape is None:
            raise RuntimeError("prepare was not called")
        return self._shape

    def _stored_schema(self) -> pa.Schema:
        shape = self._prepared()
        return shape.schema.append(WEIGHT) if shape.mode == "changelog" else shape.schema

    def _fresh(self) -> Table:
        """Return the table with its current metadata; create it again if it was dropped."""
        return self._place.fresh(self._prepared())

    def _checkpoint(self, table: Table) -> SinkCheckpoint | None:
        return self._checkpoint_of(table, self._branch)

    def _checkpoint_of(self, table: Table, branch: str) -> SinkCheckpoint | None:
        snapshot = head_of(table, branch)
        while snapshot is not None and snapshot.summary is not None:
            said = snapshot.summary[CHECKPOINT]
            if said is not None or snapshot.summary.operation != Operation.REPLACE:
                return None if said is None else SinkCheckpoint.parse(said)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        return None

    def _moved(self, found: SinkCheckpoint | None) -> CheckpointConflictError:
        return CheckpointConflictError(
            f"the checkpoint of table {'.'.join(self.identifier)} was changed by another process", found=found
        )

    def _translate_errors(self, act: Callable[[], Answer]) -> Answer:
        """Run an operation on the table, with storage and catalog errors converted to those of `Target`."""
        try:
            return act()
        except (OSError, StorageError, SQLAlchemyError, CommitStateUnknownException) as error:
            self._place.forget()
            raise TargetDownError(
                f"the catalog of table {'.'.join(self.identifier)} cannot be reached", detail=str(error)
            ) from error
        except (ValueError, NotImplementedError) as error:
            self._place.forget()
            raise SinkError(
                f"table {'.'.join(self.identifier)} cannot be read or written",
                detail=str(error),
                hint="check the catalog and its storage; if another program writes to the table, choose another table for the sink",
                table=".".join(self.identifier),
            ) from error


def _catalog(given: Any) -> dict[str, str] | None:
    """Return the properties of a catalog from a JSON object, or from the name of a catalog in pyiceberg's configuration."""
    if given is None:
        return None
    said = text(given, "catalog")
    if not said.lstrip().startswith("{"):
        return {"name": said}
    try:
        properties = orjson.loads(said)
        return {str(name): str(value) for name, value in properties.items()}
    except ValueError:
        raise UsageError(
            "catalog must be the name of a catalog in the configuration of pyiceberg, or a JSON object of its properties",
            hint="""catalog = '{"type": "rest", "uri": "https://..."}', or catalog = env('LAKE_CATALOG')""",
            option="catalog",
        ) from None
