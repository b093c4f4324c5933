"""PYTHON: a view's changes handed to a user's function.

Guarantee: at least once, in order. The function is called with one piece of a change after the other, and the position is
kept in the workspace when the last call has come back; a crash in between, or a call that raised, means that pieces
are given again, each with the same key. A function that remembers the keys it has seen does everything once.

    def send(change: pyarrow.Table, key: str) -> None: ...

In mode 'upsert' the table has the view's columns and `_op`: 'delete' (with the key columns alone) before 'upsert'. In mode
'changelog' it has `_weight` and `_tick`. Where changes cannot be followed (at first, when the position was lost or the view
built anew) the function is given all rows in one table, whose schema says so, `change.schema.metadata[b"snapshot"] == b"true"`:
what is not in it is gone.

What the function raises is told, and it is called again; RefusedRowError says that one row cannot be taken, which stops the
sink or diverts the row, as its `on_error` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import pyarrow as pa

from headwater.errors import RefusedRowError as RefusedRowError
from headwater.sinks.deliveries import Deliveries, Piece, StandKeeper
from headwater.sinks.target import Change, Refused, Shape, SinkError, Stand, TargetDownError

Function = Callable[[pa.Table, str], object]
"""Takes a change and its idempotency key; what it returns is not looked at."""

OP = pa.field("_op", pa.string())


class PythonTarget:
    """A user's function."""

    guarantee: ClassVar[str] = (
        "at least once, in order: a call may be repeated with the same key, after a crash or a call that raised"
    )
    readable: ClassVar[bool] = False
    """What it holds cannot be read back, and so not be compared with the view."""

    def __init__(self, function: Function, keeper: StandKeeper, *, rows: int = 10_000) -> None:
        self._function = function
        self._deliveries = Deliveries(keeper, rows, whole_snapshots=True)

    @property
    def key(self) -> tuple[str, ...]:
        """The shape's."""
        return () if self._deliveries.shape is None else self._deliveries.shape.key

    def prepare(self, shape: Shape) -> None:
        """Nothing is called before there is a change."""
        self._deliveries.prepare(shape)
        if shape.mode == "upsert" and OP.name in shape.schema.names:
            raise SinkError(
                f"view {shape.view!r} has a column '_op', which sink {shape.sink!r} adds",
                hint="give it another name in the view",
                sink=shape.sink,
            )

    def held(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as they are."""
        return rows

    def stand(self) -> Stand | None:
        """As it was kept."""
        return self._deliveries.stand()

    def apply(self, change: Change, before: Stand | None, after: Stand) -> None:
        """Call the function; the stand is kept when it has taken all."""
        self._deliveries.apply(change, before, after, self._give)

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Nobody can say: nothing. What is applied next is a snapshot."""
        return self._deliveries.contents()

    def close(self) -> None:
        """Nothing is open."""

    def _give(self, piece: Piece, key: str) -> list[Refused]:
        name = getattr(self._function, "__qualname__", repr(self._function))
        try:
            self._function(self._table(piece), key)
        except RefusedRowError as error:
            at = error.row - piece.deletes.num_rows
            if not 0 <= at < piece.rows.num_rows:
                raise SinkError(
                    f"function {name} refuses row {error.row}, which is not one that it could refuse: {error.message}",
                    hint="rows with _op = 'delete' are gone already",
                ) from error
            return [Refused(piece.first + at, error.message)]
        except Exception as error:
            raise TargetDownError(
                f"function {name} raised {type(error).__name__}: {error}",
                detail=f"it was called with key {key!r}",
            ) from error
        return []

    def _table(self, piece: Piece) -> pa.Table:
        shape = self._deliveries.shape
        assert shape is not None
        facts = {"snapshot": "true" if piece.snapshot else "false"}
        rows = pa.Table.from_batches([piece.rows])
        if shape.mode != "upsert":
            return rows.replace_schema_metadata(facts)
        schema = pa.schema([field.with_nullable(True) for field in shape.schema])
        keys, count = piece.deletes, piece.deletes.num_rows
        gone = [
            keys.column(field.name) if field.name in keys.schema.names else pa.nulls(count, field.type)
            for field in schema
        ]
        both = pa.concat_tables([pa.Table.from_arrays(gone, schema=schema), rows.cast(schema)])
        ops = ["delete"] * count + ["upsert"] * piece.rows.num_rows
        return both.append_column(OP, pa.array(ops, pa.string())).replace_schema_metadata(facts)
