"""Bodies of a few hundred bytes that ask for gigabytes, or that no writer makes. Each is a valid HTTP request."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headwater.core.arrow_bodies import _Table

NULL_ROWS = 1_000_000_000
EXPANDED_BYTES = 2_200_000_000


def stream(
    *batches: pa.RecordBatch, schema: pa.Schema | None = None, compression: str | None = None
) -> bytes:
    """Batches as an Arrow stream."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, schema or batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def batch_of(**columns: pa.Array) -> pa.RecordBatch:
    """A batch with these columns."""
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def nulls_without_bytes() -> bytes:
    """A column of the type null, whose rows take no bytes."""
    return stream(batch_of(id=pa.nulls(NULL_ROWS)))


def rows_without_columns() -> bytes:
    """A batch of no columns that says that it has many rows: the length is patched into the metadata."""
    marked = 0x5EED_5EED
    batch = pa.RecordBatch.from_struct_array(
        pa.StructArray.from_buffers(pa.struct([]), marked, [None], children=[])
    )
    body = stream(batch)
    assert body.count(struct.pack("<q", marked)) >= 1
    return body.replace(struct.pack("<q", marked), struct.pack("<q", NULL_ROWS))


def list_of_nulls() -> bytes:
    """One row whose list has many values of the type null."""
    offsets = pa.array([0, NULL_ROWS], pa.int32())
    return stream(batch_of(tags=pa.ListArray.from_arrays(offsets, pa.nulls(NULL_ROWS))))


def structs_without_fields() -> bytes:
    """Many structs that have no field."""
    made = pa.StructArray.from_buffers(pa.struct([]), NULL_ROWS, [None], children=[])
    return stream(batch_of(place=made))


def empty_fixed_size_values() -> bytes:
    """Many binary values of the width 0."""
    made = pa.Array.from_buffers(pa.binary(0), NULL_ROWS, [None, pa.py_buffer(b"")])
    return stream(batch_of(raw=made))


def lists_of_no_values() -> bytes:
    """Many lists of the fixed size 0."""
    kind = pa.list_(pa.string(), 0)
    made = pa.Array.from_buffers(kind, NULL_ROWS, [None], children=[pa.array([], pa.string())])
    return stream(batch_of(tags=made))


def string_view_with_negative_length() -> bytes:
    """A string view under a null whose length is negative: Arrow's validation passes over what is null."""
    views = struct.pack("<i12s", -1, b"") + struct.pack("<i12s", 1, b"a")
    made = pa.Array.from_buffers(
        pa.string_view(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(views)], null_count=1
    )
    return stream(batch_of(id=pa.array([1, 2], pa.int64()), name=made))


def dictionary_that_expands() -> bytes:
    """A dictionary of one long value that many rows refer to, compressed."""
    length = 1_000_000
    indices = pa.array([0] * (EXPANDED_BYTES // length), pa.int16())
    made = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * length]))
    ids = pa.array(range(len(indices)), pa.int64())
    return stream(batch_of(id=ids, name=made), compression="zstd")


def dictionary_inside(column: str, kind: str = "list") -> bytes:
    """One row that refers to one long value a million times, in a column that holds no such values, or that no topic has."""
    made = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000_000, pa.int32()), pa.array(["x" * 100_000]))
    lists = pa.ListArray.from_arrays(pa.array([0, len(made)], pa.int32()), made)
    nested = pa.StructArray.from_arrays([lists], ["part"])
    return stream(batch_of(**{column: lists if kind == "list" else nested}), compression="zstd")


def many_values(column: str) -> bytes:
    """One row that is a list of many small values, which take eight times as much as objects of Python."""
    values = pa.array(np.zeros(20_000_000, np.int8))
    lists = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return stream(batch_of(**{column: lists}), compression="zstd")


def operations_that_expand() -> bytes:
    """What a row does, as a long value of a dictionary."""
    made = pa.DictionaryArray.from_arrays(pa.array([0] * 900_000, pa.int32()), pa.array(["x" * 2_000]))
    return stream(batch_of(id=pa.array(range(len(made))), _op=made), compression="zstd")


def zstd_bomb() -> bytes:
    """Zeros that compression makes ten thousand times smaller."""
    return stream(
        batch_of(id=pa.array(bytearray(8), pa.int8()), name=_zeros(1_900_000_000)), compression="zstd"
    )


def _zeros(size: int) -> pa.Array:
    """Eight texts of NUL characters."""
    each = size // 8
    offsets = struct.pack("<9i", *(each * n for n in range(9)))
    return pa.StringArray.from_buffers(8, pa.py_buffer(offsets), pa.py_buffer(bytes(each * 8)))


def claimed_length(claim: int) -> bytes:
    """A compressed buffer that claims another uncompressed length than it has."""
    body = bytearray(stream(batch_of(id=pa.array([7] * 5_000, pa.int64())), compression="zstd"))
    at = body.find(struct.pack("<q", 40_000))
    assert at > 0
    body[at : at + 8] = struct.pack("<q", claim)
    return bytes(body)


def dictionary_deltas() -> bytes:
    """Batches that each add a value to a long dictionary: every one of them would keep a copy of the whole."""
    long = pa.array(["x" * 1_000_000])
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True, compression="zstd")
    sink = io.BytesIO()
    schema = pa.schema([("name", pa.dictionary(pa.int16(), pa.string()))])
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for count in range(1, 3_000):
            values = pa.concat_arrays([long, pa.array([str(n) for n in range(count)])])
            indices = pa.array([0], pa.int16())
            writer.write_batch(
                pa.RecordBatch.from_arrays([pa.DictionaryArray.from_arrays(indices, values)], schema=schema)
            )
    return sink.getvalue()


def metadata_length(length: int) -> bytes:
    """A stream whose first message claims so many bytes of metadata."""
    body = bytearray(stream(batch_of(id=pa.array([1], pa.int64()))))
    body[4:8] = struct.pack("<i", length)
    return bytes(body)


def nested(levels: int) -> bytes:
    """A schema of lists in lists."""
    kind: pa.DataType = pa.int64()
    for _ in range(levels):
        kind = pa.list_(kind)
    return stream(schema=pa.schema([("id", kind)]))


def doubling_structs(levels: int) -> bytes:
    """A schema with one column that has 2 to the power of `levels` leaves."""
    kind: pa.DataType = pa.null()
    for _ in range(levels):
        kind = pa.struct([("a", kind), ("b", kind)])
    return stream(schema=pa.schema([("place", kind)]))


def shared_name() -> bytes:
    """A schema whose columns all refer to one long name."""
    names = ["x" * 1_000_000, *(f"c{n}" for n in range(300))]
    schema = _Patched(stream(schema=pa.schema([(name, pa.int8()) for name in names])))
    first, *others = schema.tables(schema.root, 1)
    for other in others:
        schema.refer(schema.place(other, 0), schema.place(first, 0))
    return schema.body()


def shared_metadata() -> bytes:
    """A schema whose metadata are one long value again and again."""
    metadata = {"first": "x" * 1_000_000} | {str(n): "" for n in range(300)}
    schema = _Patched(stream(schema=pa.schema([("id", pa.int64())], metadata=metadata)))
    first, *others = schema.tables(schema.root, 2)
    for other in others:
        schema.refer(schema.place(other, 1), schema.place(first, 1))
    return schema.body()


def shared_fields(levels: int) -> bytes:
    """A schema of structs that have one and the same struct twice: two to the power of `levels` fields."""
    kind: pa.DataType = pa.int8()
    for _ in range(levels):
        kind = pa.struct([("a", kind), ("b", pa.int8())])
    long = pa.field("x" * 500_000, pa.int8())  # the number of fields that Arrow accepts goes by the size
    schema = _Patched(stream(schema=pa.schema([pa.field("place", kind), long])))
    field = schema.tables(schema.root, 1)[0]
    for _ in range(levels):
        one, other = schema.entries(field, 5)
        schema.refer(other, one)
        field = schema.tables(field, 5)[0]
    return schema.body()


class _Patched:
    """The first message of a stream, with references in it that are made to lead elsewhere."""

    def __init__(self, body: bytes) -> None:
        self._data = bytearray(_first_metadata(body))
        self._rest = body[8 + len(self._data) :]
        self.root = _Table.root(self._data).table(2)

    def place(self, table: _Table, field: int) -> int:
        """Where a table refers to one of its fields."""
        found = table._place(field)
        assert found is not None
        return found

    def entries(self, table: _Table, field: int) -> list[int]:
        """Where a vector refers to its tables."""
        start = self._target(self.place(table, field))
        (count,) = struct.unpack_from("<I", self._data, start)
        return list(range(start + 4, start + 4 + 4 * count, 4))

    def tables(self, table: _Table, field: int) -> list[_Table]:
        """The tables of a vector."""
        return [_Table(self._data, self._target(entry)) for entry in self.entries(table, field)]

    def refer(self, place: int, other: int) -> None:
        """Let what stands at a place refer to what the other refers to."""
        struct.pack_into("<I", self._data, place, self._target(other) - place)

    def body(self) -> bytes:
        """The stream."""
        return struct.pack("<Ii", 0xFFFFFFFF, len(self._data)) + self._data + self._rest

    def _target(self, place: int) -> int:
        (offset,) = struct.unpack_from("<I", self._data, place)
        return int(place + offset)


def schema_with_body() -> bytes:
    """A schema that has a body, which whoever reads the stream skips: a batch may hide there, or what follows may be taken for it."""
    plain, rest = stream(batch_of(id=pa.array([1]))), nulls_without_bytes()
    metadata, rest = _first_metadata(plain), rest[8 + len(_first_metadata(rest)) :]
    root, vtable, table, end = 16, 4, 12, 40
    header = _Table.root(metadata).table(2)._at
    front = struct.pack("<I6Hi", root, table, end - root, 16, 18, 4, 8, root - vtable)
    front += struct.pack("<IqhB5x", end + header - (root + 4), 8, 4, 1)
    return struct.pack("<Ii", 0xFFFFFFFF, len(front + metadata)) + front + metadata + bytes(8) + rest


def _first_metadata(body: bytes) -> bytes:
    (length,) = struct.unpack_from("<i", body, 4)
    return body[8 : 8 + length]


def offsets_without_values(rows: int) -> bytes:
    """So many rows of an empty list of lists: the inner one has no values, and an offset that leads far away."""
    marked = 0x5EED_5EED
    texts = pa.StringArray.from_buffers(0, pa.py_buffer(struct.pack("<i", 0)), pa.py_buffer(b""))
    inner = pa.Array.from_buffers(
        pa.list_(pa.string()), 0, [None, pa.py_buffer(struct.pack("<i", marked))], children=[texts]
    )
    outer = pa.ListArray.from_arrays(pa.array([0] * (rows + 1), pa.int32()), inner)
    return stream(batch_of(tags=outer))


def with_names(*names: str) -> bytes:
    """A stream whose columns have these names."""
    batch = pa.RecordBatch.from_arrays([pa.array([1], pa.int64())] * len(names), names=list(names))
    return stream(batch)


ARROW_BOMBS: dict[str, Callable[[], bytes]] = {
    "a column of nulls without bytes": nulls_without_bytes,
    "rows without columns": rows_without_columns,
    "a list of nulls": list_of_nulls,
    "structs without fields": structs_without_fields,
    "binary values of width 0": empty_fixed_size_values,
    "lists of fixed size 0": lists_of_no_values,
    "a string view with a negative length": string_view_with_negative_length,
    "a dictionary that expands": dictionary_that_expands,
    "a dictionary that expands inside of a list": lambda: dictionary_inside("name"),
    "a dictionary that expands inside of a struct": lambda: dictionary_inside("name", "struct"),
    "a dictionary that expands in a column of no topic": lambda: dictionary_inside("nobody"),
    "many values of another type in a row": lambda: many_values("name"),
    "many values in a column of no topic": lambda: many_values("nobody"),
    "a dictionary of operations": operations_that_expand,
    "zstd that expands": zstd_bomb,
    "a buffer that claims 60 GB": lambda: claimed_length(60 << 30),
    "a buffer that claims less than it has": lambda: claimed_length(8),
    "a buffer that claims a negative length": lambda: claimed_length(-2),
    "dictionary deltas": dictionary_deltas,
    "metadata of 2 GB": lambda: metadata_length(2**31 - 1),
    "metadata of negative length": lambda: metadata_length(-5),
    "lists in lists": lambda: nested(60),
    "an offset of a list without values": lambda: offsets_without_values(2),
    "an offset of a list without values or rows": lambda: offsets_without_values(0),
    "one long name of many columns": shared_name,
    "metadata that are one long value": shared_metadata,
    "fields that are there twice": lambda: shared_fields(19),
    "a schema with a body": schema_with_body,
}
"""Streams that the server refuses, each with a status of 4xx and without taking memory for what they ask for."""

DECIMALS = (
    "1e-999999999",
    "1E+999999999",
    "-1e-999999",
    "1e-400",
    "9" * 4_000,
    "0." + "1" * 100_000,
    "1e400",
)
"""Numbers that no DECIMAL holds."""
