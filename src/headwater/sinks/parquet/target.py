"""PARQUET: the rows of a view as plain Parquet files in a folder, for anything that reads Parquet.

Guarantee: exactly once. A change is one file that is written under a temporary name, synced, and put in place by one rename.
The checkpoint is in the metadata of the file (`headwater.checkpoint`), so rows and checkpoint are one step; a crash leaves a
temporary file, which the next start removes. A checkpoint that advances without changes is in `_checkpoint.json`, which names the
file that it belongs to.

In mode 'upsert' the folder has one file, `contents.parquet`, with all rows. Each change rewrites it, which costs as much as
the view, not as the change; for large views that change often, use an Iceberg table. In the other modes each change adds a
file, named by an ascending number and its tick. Readers that have a file open keep its contents.
"""

from __future__ import annotations

import contextlib
import io
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, Self, TypeVar

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.core.errors import StorageError
from headwater.core.storage import TEMPORARY, SequentialWriter, Storage
from headwater.sinks.base.blue_green import Version
from headwater.sinks.base.folder_swap import MARK, FolderVersions, make_new, sibling
from headwater.sinks.base.key_search import KeyIdentities
from headwater.sinks.base.sink_setup import SinkSetup
from headwater.sinks.base.target import (
    TICK,
    WEIGHT,
    CheckpointConflictError,
    SinkCheckpoint,
    SinkError,
    TargetChange,
    TargetDownError,
    TargetShape,
)

CONTENTS = "contents.parquet"
CHECKPOINT = b"headwater.stand"
_ID = b"headwater.id"
_CHECKPOINT_FILE, _LOCK_FILE, _ASIDE = "_stand.json", "_lock", ".aside-"
_NUMBERED = re.compile(r"^(\d{10})-tick-\d+\.parquet$")
_OWN = re.compile(
    rf"{re.escape(CONTENTS)}|\d{{10}}-tick-\d+\.parquet|{MARK}|{_LOCK_FILE}|{re.escape(_CHECKPOINT_FILE)}(?:{TEMPORARY})?"
    rf"|{re.escape(_ASIDE)}[0-9a-f-]{{36}}"
)
"""Names of the files that a sink writes into its folder."""
_BUFFER = 1 << 20

Answer = TypeVar("Answer")


class ParquetTarget:
    """Parquet files in a folder."""

    guarantee: ClassVar[str] = (
        "exactly once: a change and its checkpoint are one file, which one rename commits"
    )

    def __init__(self, path: str | Path, *, version: Version | None = None) -> None:
        self._place = Path(path)
        self._version = version
        self.path = sibling(self._place, version)
        self._storage = Storage(self.path)
        self._shape: TargetShape | None = None

    @classmethod
    def declared(cls, setup: SinkSetup) -> Self:
        """Return the target that a declaration asks for."""
        return cls(setup.options.get("path") or setup.place)

    @property
    def key(self) -> tuple[str, ...]:
        """The key of the shape."""
        return () if self._shape is None else self._shape.key

    def prepare(self, shape: TargetShape) -> None:
        """Create the folder, or check that its files have these columns; remove temporary files that a crash left."""
        if shape.mode == "upsert" and not shape.key:
            raise SinkError(
                f"sink {shape.sink!r} into PARQUET needs a key, or mode = 'append'",
                sink=shape.sink,
                reason="no-key",
            )
        self._shape = shape

        def check() -> None:
            if self._version == "new":
                make_new(self._place)
            Storage(self.path.parent).make_dirs(self.path.name)
            with self._locked():
                for name in self._storage.files("."):
                    if name.startswith(_ASIDE) and _OWN.fullmatch(name):
                        self._storage.remove(name)
            self._check(shape)

        self._translate_errors(check)

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows unchanged."""
        return rows

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the checkpoint of the newest file."""
        return self._translate_errors(self._checkpoint)

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """Write one file, or the checkpoint alone if there are no rows."""

        def act() -> None:
            with self._locked():
                found = self._checkpoint()
                if found != before:
                    raise CheckpointConflictError(
                        f"the checkpoint in {self.path} was changed by another process", found=found
                    )
                self._apply(change, after)

        self._translate_errors(act)

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all files."""
        for name in self._translate_errors(self._files):
            with self._open(name) as file:
                batches = file.iter_batches()
                while (batch := self._translate_errors(lambda: next(batches, None))) is not None:  # noqa: B023
                    yield batch.select(self._stored_schema().names).cast(self._stored_schema())

    def versions(self) -> FolderVersions:
        """See `headwater.sinks.base.blue_green`."""
        shape = self._prepared()

        def target(version: Version | None) -> ParquetTarget:
            made = ParquetTarget(self._place, version=version)
            made._shape = shape
            return made

        return FolderVersions(
            shape.sink,
            self._place,
            _OWN,
            lambda version: ParquetTarget(self._place, version=version),
            lambda version: target(version).checkpoint(),
            lambda version: target(version)._locked(),
        )

    def close(self) -> None:
        """Do nothing: no file stays open."""

    # --- one change ------------------------------------------------------------------------------------------------

    def _apply(self, change: TargetChange, after: SinkCheckpoint) -> None:
        files = self._files()
        if not len(change) and files:
            said = {"of": self._facts(files[-1]).get(_ID, b"").decode(), "stand": after.text()}
            self._storage.write_atomic(_CHECKPOINT_FILE, orjson.dumps(said))
        elif self._prepared().mode == "upsert":
            self._write(CONTENTS, self._changed(files, change), after)
        else:
            match = _NUMBERED.match(files[-1]) if files else None
            number = int(match[1]) + 1 if match else 1
            self._write(f"{number:010d}-tick-{after.tick}.parquet", [change.records], after)

    def _changed(self, files: list[str], change: TargetChange) -> Iterator[pa.RecordBatch]:
        """Yield the rows that stay, then the upserted ones."""
        wanted = [
            KeyIdentities.of([keys.column(name) for name in self.key], keys.num_rows)
            for keys in (change.deletes, change.upserts)
            if keys.num_rows
        ]
        for name in files:
            with self._open(name) as file:
                for batch in file.iter_batches():
                    here = KeyIdentities.of([batch.column(name) for name in self.key], batch.num_rows)
                    kept = np.ones(batch.num_rows, dtype=np.bool_)
                    for keys in wanted:
                        kept[here.find(keys)] = False
                    yield batch.filter(pa.array(kept))
        yield change.upserts

    def _write(self, name: str, batches: Iterable[pa.RecordBatch], after: SinkCheckpoint) -> None:
        aside = f"{_ASIDE}{uuid.uuid4()}"
        schema = self._columns().with_metadata(
            {CHECKPOINT: after.text().encode(), _ID: uuid.uuid4().bytes.hex()}
        )
        with contextlib.closing(self._storage.open(aside, create=True)) as file:
            with io.BufferedWriter(SequentialWriter(file), _BUFFER) as out:
                with pq.ParquetWriter(out, schema, compression="zstd") as writer:
                    for batch in batches:
                        writer.write_batch(batch.cast(schema))
            file.sync()
        self._storage.rename(aside, name)
        self._storage.sync_dir(".")

    # --- the folder ------------------------------------------------------------------------------------------------

    def _prepared(self) -> TargetShape:
        if self._shape is None:
            raise RuntimeError("prepare was not called")
        return self._shape

    def _stored_schema(self) -> pa.Schema:
        shape = self._prepared()
        return shape.schema.append(WEIGHT) if shape.mode == "changelog" else shape.schema

    def _columns(self) -> pa.Schema:
        shape = self._prepared()
        more = [WEIGHT, TICK] if shape.mode == "changelog" else []
        return pa.schema([*(pa.field(f.name, f.type) for f in shape.schema), *more])

    def _files(self) -> list[str]:
        """Return the files with rows, the newest last."""
        if not self.path.is_dir():
            raise FileNotFoundError(f"{self.path} is not a folder")
        names = self._storage.list(".")
        if self._prepared().mode == "upsert":
            return [name for name in names if name == CONTENTS]
        return [name for name in names if _NUMBERED.match(name)]

    def _checkpoint(self) -> SinkCheckpoint | None:
        files = self._files()
        if not files:
            return None
        facts = self._facts(files[-1])
        if self._storage.exists(_CHECKPOINT_FILE):
            said = orjson.loads(self._storage.read(_CHECKPOINT_FILE))
            if said["of"] == facts.get(_ID, b"").decode():
                return SinkCheckpoint.parse(said["stand"])
        return SinkCheckpoint.parse(facts[CHECKPOINT]) if CHECKPOINT in facts else None

    def _facts(self, name: str) -> dict[bytes, bytes]:
        with self._open(name) as file:
            return file.metadata.metadata or {}

    def _open(self, name: str) -> pq.ParquetFile:
        return pq.ParquetFile(self._storage.path(name))

    def _check(self, shape: TargetShape) -> None:
        for name in self._storage.list("."):
            if name.endswith(".parquet") and name[0] != "." and name not in self._files():
                raise SinkError(
                    f"{self.path} contains {name}, which sink {shape.sink!r} did not write",
                    hint="choose an empty folder for the sink",
                    sink=shape.sink,
                    file=name,
                )
        for name in self._files()[-1:]:
            with self._open(name) as file:
                found = file.schema_arrow.remove_metadata()
            expected = self._columns()
            if found != expected:
                raise SinkError(
                    f"the columns of the files in {self.path} differ from those that sink {shape.sink!r} writes",
                    detail=f"the files have {_shown(found)}; the sink writes {_shown(expected)}",
                    hint="DROP SINK and CREATE SINK with another path",
                    sink=shape.sink,
                    found=_shown(found),
                    expected=_shown(expected),
                )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with contextlib.closing(self._storage.open(_LOCK_FILE, create=True)) as file:
            if not file.try_lock():
                raise TargetDownError(f"another process writes {self.path}")
            yield

    def _translate_errors(self, act: Callable[[], Answer]) -> Answer:
        """Run an operation on the folder, with storage and Arrow errors converted to those of `Target`."""
        try:
            return act()
        except (OSError, StorageError) as error:
            raise TargetDownError(
                f"the files in {self.path} cannot be read or written", detail=str(error)
            ) from error
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise SinkError(
                f"{self.path} contains a damaged file",
                detail=str(error),
                hint="remove the file: the sink then writes the folder again",
            ) from error


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
