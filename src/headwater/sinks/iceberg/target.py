"""LAKE: a view's rows as an Apache Iceberg table, through pyiceberg.

Guarantee: exactly once. The rows of a change and the stand, which is a property of the snapshot, become visible in one swap of
the table's metadata by its catalog; a swap is refused if the table has moved on meanwhile. A crash before it leaves files
that nothing names, never a part of a change.

What a change costs follows the change: rows that are replaced or gone are listed by position in small delete files
(Iceberg's merge-on-read, format version 2, which every engine reads), and new rows are a new file. A data file of
which much is deleted, and files that have become many and small, are written anew on the way. To find the rows, the keys of
the table's files are read once and kept in memory, as far as they fit; beyond that they are read again by every change.

In mode 'append' and 'changelog' a change is one more file; when these are many, a snapshot that changes no row ('replace') puts
them together. TINYINT and SMALLINT are `int` in the table; every other type is there as itself. Snapshots beyond the newest `snapshots` are removed, with the files that only they had. Files of a local warehouse are synced
to disk before a snapshot names them.
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

STAND = "headwater.stand"
"""The property of a snapshot that says where the table stood."""
_SMALL_FILES_MAX = 16
"""So many files that are small are written anew as one."""
_COMMIT_TRIES = 20
"""How often a commit is tried while another version of the table is written at the same time."""
_DEAD_PART = 0.3
"""A data file of which more is deleted is written anew."""

Answer = TypeVar("Answer")


class LakeTarget:
    """An Iceberg table. Without `catalog` properties its catalog is a SQLite file in the warehouse's folder, which any
    program with pyiceberg opens as `load_catalog("headwater", type="sql", uri="sqlite:///<warehouse>/catalog.db")`."""

    guarantee: ClassVar[str] = (
        "exactly once: rows and position are one snapshot of the table, put in place by one step of its catalog"
    )

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
        """The target that a declaration asks for."""
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
        """The shape's."""
        return () if self._shape is None else self._shape.key

    def prepare(self, shape: TargetShape) -> None:
        """Make the table, or check that the one there has these columns and is this sink's."""
        if shape.mode == "upsert" and not shape.key:
            raise SinkError(f"sink {shape.sink!r} into LAKE needs a key, or mode = 'append'", sink=shape.sink)
        self._shape = shape
        self._files = Files(shape.key, self._file_rows)
        self._manifests = Manifests()
        self._place.forget()
        self._asked(lambda: self._place.open(shape))

    def held(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as they are: BYTE and SHORT are INT in the table, and come back as they were."""
        return rows

    def stand(self) -> SinkCheckpoint | None:
        """What the newest snapshot says; compaction by others, which changes no row, is looked through."""
        return self._asked(lambda: self._stand(self._fresh()))

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """One snapshot, with `after` as its property."""
        self._asked(lambda: self._apply(change, before, after))

    def contents(self) -> Iterator[pa.RecordBatch]:
        """The rows of the newest snapshot, file by file."""
        shape = self._prepared()
        schema = shape.schema.append(WEIGHT) if shape.mode == "changelog" else shape.schema
        schema = pa.schema([field.with_nullable(True) for field in schema])

        def batches() -> Iterator[pa.RecordBatch]:
            table = self._fresh()
            for live in self._manifests.live(table, self._branch):
                for batch in self._files.batches(table, live):
                    yield adapt(batch, schema)

        found = batches()
        while (batch := self._asked(lambda: next(found, None))) is not None:
            yield batch.cast(self._held_schema())

    def versions(self) -> LakeVersions:
        """See `headwater.sinks.base.blue_green`."""
        return LakeVersions(self._prepared().sink, self._beside, self._stand_of, self._fresh, self._asked)

    def _beside(self, version: Version) -> LakeTarget:
        return LakeTarget(
            self._warehouse,
            self._name,
            catalog=self._properties,
            file_rows=self._file_rows,
            snapshots=self._snapshots,
            version=version,
        )

    def past(self, since: Since) -> TargetPast:
        """Older snapshots, and what files have beside the rows of the newest."""

        def stand(snapshot: Snapshot) -> SinkCheckpoint | None:
            said = None if snapshot.summary is None else snapshot.summary[STAND]
            return None if said is None else SinkCheckpoint.parse(said)

        return self._asked(lambda: past_of(self._fresh(), self._prepared().sink, since, stand))

    def close(self) -> None:
        """Let go of the catalog."""
        self._place.close()

    # --- one change ------------------------------------------------------------------------------------------------

    def _apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        table = self._fresh()
        found = self._stand(table)
        if found != before:
            raise self._moved(found)
        properties = {STAND: after.text()}
        if self._prepared().mode == "upsert":
            edit = self._upserted(table, change, properties)
        else:
            added = self._files.write(table, pa.Table.from_batches([change.records]))
            edit = Edit(Operation.APPEND, added, (), properties)
        self._commit(table, edit, before)
        if self._prepared().mode != "upsert":
            self._gather(table, properties)

    def _commit(self, table: Table, edit: Edit, before: SinkCheckpoint | None) -> None:
        """What was written stays good if another branch has moved on alone."""
        head = head_of(table, self._branch)
        for _ in range(_COMMIT_TRIES):
            try:
                commit(table, edit, self._manifests, self._snapshots, self._branch, OURS)
                return
            except CommitFailedException as error:
                failed = error
            table = self._fresh()
            now = head_of(table, self._branch)
            if self._stand(table) != before or (now and now.snapshot_id) != (head and head.snapshot_id):
                break
        self._place.forget()
        raise self._moved(self._stand(self._fresh())) from failed

    def _gather(self, table: Table, properties: dict[str, str]) -> None:
        """Put files together that are many and small. Somebody else's commit in between may win: then it is not done."""
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
        """The places of all rows of a file that are gone after this change; None if it takes none from it."""
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
            raise RuntimeError("prepare comes first")
        return self._shape

    def _held_schema(self) -> pa.Schema:
        shape = self._prepared()
        return shape.schema.append(WEIGHT) if shape.mode == "changelog" else shape.schema

    def _fresh(self) -> Table:
        """The table as it is now; made anew if somebody dropped it."""
        return self._place.fresh(self._prepared())

    def _stand(self, table: Table) -> SinkCheckpoint | None:
        return self._stand_of(table, self._branch)

    def _stand_of(self, table: Table, branch: str) -> SinkCheckpoint | None:
        snapshot = head_of(table, branch)
        while snapshot is not None and snapshot.summary is not None:
            said = snapshot.summary[STAND]
            if said is not None or snapshot.summary.operation != Operation.REPLACE:
                return None if said is None else SinkCheckpoint.parse(said)
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        return None

    def _moved(self, found: SinkCheckpoint | None) -> CheckpointConflictError:
        return CheckpointConflictError(
            f"table {'.'.join(self.identifier)} is not where it was left", found=found
        )

    def _asked(self, act: Callable[[], Answer]) -> Answer:
        """Do something with the table; what goes wrong outside is told as such."""
        try:
            return act()
        except (OSError, StorageError, SQLAlchemyError, CommitStateUnknownException) as error:
            self._place.forget()
            raise TargetDownError(
                f"table {'.'.join(self.identifier)} cannot be reached", detail=str(error)
            ) from error
        except (ValueError, NotImplementedError) as error:
            self._place.forget()
            raise SinkError(
                f"table {'.'.join(self.identifier)} cannot be read or written",
                detail=str(error),
                hint="if another program wrote to it, give the sink a table of its own",
            ) from error


def _catalog(given: Any) -> dict[str, str] | None:
    """The properties of a catalog: a JSON object, or the name of one that pyiceberg is configured with."""
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
            "catalog is the name of a catalog that pyiceberg is configured with, or a JSON object of its properties",
            hint="""catalog = '{"type": "rest", "uri": "https://..."}', or catalog = env('LAKE_CATALOG')""",
        ) from None
