"""PYTHON: the changes of a view passed to a user's function.

Guarantee: at least once, in order. The function is called with one piece of a change after the other, and the checkpoint is
stored in the workspace when the last call has returned. After a crash in between, or a call that raised, pieces are passed
again, each with the same key. A function that remembers the keys it has seen processes everything once.

    def send(change: pyarrow.Table, key: str) -> None: ...

In mode 'upsert' the table has the columns of the view and `_op`: 'delete' (with the key columns alone) before 'upsert'. In
mode 'changelog' it has `_weight` and `_tick`. If changes cannot be followed (at first, after the checkpoint was lost or the
view was rebuilt) the function is given all rows in one table, marked in its schema by `change.schema.metadata[b"snapshot"]
== b"true"`: a row that is not in it no longer exists.

An exception of the function is reported, and the call is retried. RefusedRowError means that one row cannot be taken, which
stops the sink or diverts the row, according to its `on_error`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import ClassVar, Self

import pyarrow as pa

from headwater.core.arguments import text
from headwater.core.errors import RefusedRowError as RefusedRowError
from headwater.core.positions import Token
from headwater.sinks.base.at_least_once import ChangePiece, CheckpointKeeper, Deliveries
from headwater.sinks.base.sink_setup import Function, SinkSetup
from headwater.sinks.base.target import (
    RefusedRow,
    SinkCheckpoint,
    SinkError,
    TargetChange,
    TargetDownError,
    TargetShape,
)

OP = pa.field("_op", pa.string())


class PythonTarget:
    """A user's function as a target."""

    guarantee: ClassVar[str] = (
        "at least once, in order: a call is repeated with the same key after a crash or an exception"
    )

    def __init__(self, function: Function, keeper: CheckpointKeeper, *, rows: int = 10_000) -> None:
        self._function = function
        self._deliveries = Deliveries(keeper, rows, whole_snapshots=True)

    @classmethod
    def declared(cls, setup: SinkSetup) -> Self:
        """Return the target that a declaration asks for."""
        name = text(setup.options.get("function"), "function")
        return cls(function_of(setup, name), setup.keeper(name), rows=setup.count("rows", 10_000))

    @property
    def key(self) -> tuple[str, ...]:
        """The key of the shape."""
        return () if self._deliveries.shape is None else self._deliveries.shape.key

    def prepare(self, shape: TargetShape) -> None:
        """Set the shape; the function is not called before the first change."""
        self._deliveries.prepare(shape)
        if shape.mode == "upsert" and OP.name in shape.schema.names:
            raise SinkError(
                f"view {shape.view!r} has a column '_op', which sink {shape.sink!r} adds to its rows",
                hint="rename the column in the view",
                sink=shape.sink,
                column="_op",
            )

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows unchanged."""
        return rows

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the checkpoint from the workspace."""
        return self._deliveries.checkpoint()

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """Call the function with each piece, then store the checkpoint."""
        self._deliveries.apply(change, before, after, self._give)

    def last_delivered(self) -> Token | None:
        """Return the tick that was delivered last, as recorded next to the workspace."""
        return self._deliveries.last_delivered()

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Return nothing, since the function cannot be asked for its rows. The next change is a snapshot."""
        return self._deliveries.contents()

    def close(self) -> None:
        """Do nothing, for lack of a connection."""

    def _give(self, piece: ChangePiece, key: str) -> list[RefusedRow]:
        name = getattr(self._function, "__qualname__", repr(self._function))
        try:
            self._function(self._table(piece), key)
        except RefusedRowError as error:
            at = error.row - piece.deletes.num_rows
            if not 0 <= at < piece.rows.num_rows:
                raise SinkError(
                    f"function {name} rejects row {error.row}, which is a deletion or does not exist: {error.message}",
                    hint="reject rows with _op = 'upsert' only: rows with _op = 'delete' no longer exist in the view",
                    function=name,
                    row=error.row,
                ) from error
            return [RefusedRow(piece.first + at, error.message)]
        except Exception as error:
            raise TargetDownError(
                f"function {name} raised {type(error).__name__}: {error}",
                detail=f"it was called with key {key!r}",
                function=name,
            ) from error
        return []

    def _table(self, piece: ChangePiece) -> pa.Table:
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


def function_of(setup: SinkSetup, name: str) -> Function:
    """Return the user's function that a sink calls: one declared in this process, or `package.module:function`."""
    if name in setup.functions:
        return setup.functions[name]
    module, _, attribute = name.partition(":")
    try:
        found: Function = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SinkError(
            f"this process has no function {name!r}, which sink {setup.sink!r} calls",
            detail=str(error) or None,
            hint="register it with ws.sink_function(name, fn), or write function = 'package.module:function'",
            sink=setup.sink,
            function=name,
        ) from error
    return found
