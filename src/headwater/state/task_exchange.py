"""Exchange of changes between the engine and its Spark tasks: files in a folder that exists for one step.

The files are neither synced nor named by a manifest. Leftovers of a crash are collected together with unreferenced runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from headwater.core.storage import SequentialWriter, Storage, translated
from headwater.operators.zset.delta import Delta
from headwater.state.state_files import EXCHANGE, EXCHANGE_FILES

_WEIGHT = pa.field("_weight", pa.int64(), nullable=False)


class Exchange:
    """The folder of one step, by its name within `state/exchange`. Each file is written once, under a unique name."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.name = name
        self._storage = storage
        self._folder = f"{EXCHANGE}/{name}"

    def create(self) -> None:
        """Create the folder; writing to a removed folder raises an error."""
        self._storage.make_dirs(self._folder)

    def write(self, file: str, changes: Sequence[Delta]) -> None:
        """Write one or more changes of equal schema, which can be read individually."""
        schema = pa.schema([_WEIGHT, *changes[0].rows.schema])
        with (
            contextlib.closing(self._storage.open(f"{self._folder}/{file}", exclusive=True)) as opened,
            pa.ipc.new_file(SequentialWriter(opened), schema) as writer,
        ):
            for change in changes:
                weights = pa.array(np.ascontiguousarray(change.weights, dtype=np.int64))
                writer.write_batch(pa.RecordBatch.from_arrays([weights, *change.rows.columns], schema=schema))

    def read(self, file: str, place: int = 0, *, distinct: bool = False) -> Delta:
        """Return the change at index `place` of a file, as views that remain valid when the folder is removed."""
        name = f"{self._folder}/{file}"
        with translated(name), pa.memory_map(self._storage.path(name)) as opened:
            batch = pa.ipc.open_file(opened.read_buffer()).get_batch(place)
        return Delta(batch.select(range(1, batch.num_columns)), batch.column(0).to_numpy(), distinct)

    def remove(self) -> None:
        """Delete the folder and its files. Tasks still working on the step get an error."""
        self._storage.remove_dir(self._folder, EXCHANGE_FILES)
