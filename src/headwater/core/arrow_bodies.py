"""Validation of Arrow IPC streams from clients: the sizes that a stream claims are checked before Arrow decodes it.

The messages of a stream state how many rows and bytes it has once it is decoded, and may lie: a few hundred bytes can claim a
billion rows of the null type, or buffers that decompress to gigabytes. Arrow validates only after decoding, which is too late.
Schemas may lie too: a part that is stored once, such as a field with its children or a long name, can be referenced any number
of times. This module walks the messages (their flatbuffers metadata, `format/Message.fbs` and `format/Schema.fbs` of Arrow),
adds up their claims, and rejects streams that exceed its bounds or have types that no topic holds. It is independent of topics.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from headwater.core.errors import shown

BATCHES_MAX = 10_000
"""Maximum number of batches and dictionaries of one stream: each costs tens of microseconds, however small it is."""
PARTS_MAX = 10_000
"""Maximum number of columns of one stream, including nested fields, and of metadata pairs."""
DEPTH_MAX = 32
"""Maximum nesting depth of types."""
NAMES_BYTES_MAX = 16 << 20
"""Maximum size of names, time zones and metadata of one stream: many fields may reference one long text."""
VALUE_BYTES = 8
"""Size charged per value in addition to its buffers: a null value has no buffer, and takes about this size in another type."""

SCHEMA_BYTES_REMEMBERED = 16_384

_CONTINUATION = 0xFFFFFFFF
_HEAD = struct.Struct("<Ii")
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
"""Message kinds, numbered as in `MessageHeader` of Message.fbs."""
_TIMESTAMP, _UNION = 10, 14
"""Type kinds with a text or a list, numbered as in `Type` of Schema.fbs."""


class StreamError(ValueError):
    """A body that is not an Arrow stream, or a stream that is rejected."""


class StreamTooLargeError(StreamError):
    """A stream whose decoded size exceeds the bounds."""


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """Limits on the decoded size of a stream."""

    rows_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A schema whose types are accepted, and the positions of its columns with nested offsets or indices."""

    schema: pa.Schema
    deep_places: tuple[int, ...]


def read_stream(body: bytes, bounds: StreamBounds) -> tuple[pa.Table, int]:
    """Return the rows of a stream, validated, and the size of their buffers in bytes. StreamError or StreamTooLargeError before
    the claimed memory is allocated."""
    try:
        accepted, size = _checked(body, bounds)
        batches = []
        with pa.ipc.open_stream(pa.py_buffer(body)) as stream:
            for batch in stream:
                if not batch.num_rows:
                    continue  # Arrow does not validate all of an empty batch, and it has no rows to use
                batch.validate(full=True)
                for place in accepted.deep_places:
                    _check_offsets(batch.column(place))
                batches.append(batch)
        return pa.Table.from_batches(batches, schema=accepted.schema), size
    except StreamError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError, struct.error) as error:
        raise StreamError(str(error).partition("\n")[0]) from None


def _checked(body: bytes, bounds: StreamBounds) -> tuple[_Accepted, int]:
    """Return the schema of a stream that is within its bounds, and the size of its decompressed buffers in bytes."""
    length = _metadata_length(body, 0) if body else 0
    if not length:
        raise StreamError("it is empty")
    end = _HEAD.size + length
    accepted = _read_schema(body[:end])
    rows = values = size = 0
    said = _Stated()
    for number, message in enumerate(_messages(body, end), start=1):
        if number > BATCHES_MAX:
            raise StreamTooLargeError(f"it has more than {BATCHES_MAX:,} batches")
        said.metadata(message.metadata)
        if message.kind not in (_BATCH, _DICTIONARY):
            raise StreamError(f"message {number} is neither a record batch nor a dictionary batch")
        batch = message.header
        if message.kind == _DICTIONARY:
            if batch.boolean(2):
                raise StreamError(
                    "it has a delta dictionary, which is not supported: send whole dictionaries"
                )
            batch = batch.table(1)
        else:
            rows += _length(batch, "a batch")
            if rows > bounds.rows_max:
                raise StreamTooLargeError(f"it has more than {bounds.rows_max:,} rows")
        values += _values(batch)
        size += _decoded_bytes(batch, message)
        if size + VALUE_BYTES * values > bounds.bytes_max:
            raise StreamTooLargeError(f"it is larger than {bounds.bytes_max:,} bytes once it is decoded")
    return accepted, size


def _read_schema(message: bytes) -> _Accepted:
    """Return the schema of the first message of a stream. Clients send the same schema repeatedly: the latest ones are
    cached."""
    return (
        _remembered_schema(message) if len(message) <= SCHEMA_BYTES_REMEMBERED else _checked_schema(message)
    )


def _checked_schema(message: bytes) -> _Accepted:
    # a schema message with a body is rejected: the body would lie beyond these bytes
    measured = _Message(message, _HEAD.size, len(message) - _HEAD.size)
    if measured.kind != _SCHEMA:
        raise StreamError("it does not begin with a schema")
    said = _Stated()
    said.metadata(measured.metadata)
    said.schema(measured.header)
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    _check_fields(schema)
    types = pa.types
    deep = (
        place for place, kind in enumerate(schema.types) if types.is_nested(kind) or types.is_dictionary(kind)
    )
    return _Accepted(schema, tuple(deep))


_remembered_schema = lru_cache(maxsize=64)(_checked_schema)


def _length(batch: _Table, what: str) -> int:
    length = batch.int64(0)
    if length < 0:
        raise StreamError(f"{what} has {length} rows")
    return length


def _values(batch: _Table) -> int:
    """Return the number of values in the columns of a batch, nested ones included, as the batch claims it."""
    lengths = batch.int64_pairs(1)[::2]
    if lengths and min(lengths) < 0:
        raise StreamError("a column has a negative length")
    return sum(lengths)


def _decoded_bytes(batch: _Table, message: _Message) -> int:
    """Return the size of a batch's buffers once they are decompressed, as the batch claims it."""
    pairs = batch.int64_pairs(2)
    offsets, sizes = pairs[::2], pairs[1::2]
    room = message.body_length
    for offset, length in zip(offsets, sizes, strict=True):
        if offset < 0 or length < 0 or offset + length > room:
            raise StreamError("a buffer lies outside its message")
    if batch.has(3):
        sizes = tuple(
            message.uncompressed(offset, length) for offset, length in zip(offsets, sizes, strict=True)
        )
    return sum(sizes)


def _check_offsets(column: pa.Array) -> None:
    """Raise StreamError if an offset of a column that Arrow found valid points outside of its buffer.

    Arrow checks no offset of a list or text column without values, and follows the offsets when the column is converted or
    measured.
    """
    types, kind = pa.types, column.type
    inner: list[pa.Array] = []
    room = None
    if types.is_struct(kind):
        inner = [column.field(i) for i in range(kind.num_fields)]
    elif types.is_dictionary(kind):
        inner = [column.dictionary]
    elif types.is_map(kind):
        inner = [column.keys, column.items]
        room = len(column.keys)
    elif types.is_nested(kind):
        inner = [column.values]
        room = None if types.is_fixed_size_list(kind) else len(column.values)
    elif kind.id in _TEXTS:
        data = column.buffers()[2]
        room = 0 if data is None else data.size
    if room is not None and not len(column):
        _check_first_offset(column, room)
    for part in inner:
        _check_offsets(part)


def _check_first_offset(column: pa.Array, room: int) -> None:
    offsets = column.buffers()[1]
    width = 8 if column.type.id in _WIDE else 4
    if offsets is not None and offsets.size >= width:
        first = int.from_bytes(offsets.slice(0, width).to_pybytes(), "little", signed=True)
        if not 0 <= first <= room:
            raise StreamError("an offset of a list or string column without values is out of range")


# --- schemas -------------------------------------------------------------------------------------------------------


class _Stated:
    """Running total of the decoded metadata of a stream: fields including nested ones, and the bytes of texts."""

    def __init__(self) -> None:
        self._parts = 0
        self._bytes = 0

    def schema(self, schema: _Table) -> None:
        """Add a schema. A part that is referenced several times counts each time."""
        self.metadata(schema.tables(2))
        self._fields(schema.tables(1), 0)

    def metadata(self, pairs: Iterable[_Table]) -> None:
        """Add metadata pairs."""
        for pair in pairs:
            self._add(pair.length(0) + pair.length(1))

    def _fields(self, fields: Iterable[_Table], depth: int) -> None:
        if depth > DEPTH_MAX:
            raise StreamError(f"a column is nested deeper than {DEPTH_MAX} levels")
        for field in fields:
            self._add(field.length(0))
            kind = field.uint8(2)
            if kind == _UNION:
                raise StreamError("a column is of the type union, which is not accepted")
            if kind == _TIMESTAMP:
                self._add(field.table(3).length(1))
            self.metadata(field.tables(6))
            self._fields(field.tables(5), depth + 1)

    def _add(self, size: int) -> None:
        self._parts += 1
        self._bytes += size
        if self._parts > PARTS_MAX:
            raise StreamTooLargeError(f"it has more than {PARTS_MAX:,} columns, fields and metadata")
        if self._bytes > NAMES_BYTES_MAX:
            raise StreamTooLargeError(f"its names and metadata are larger than {NAMES_BYTES_MAX:,} bytes")


def _check_fields(schema: pa.Schema) -> None:
    """Raise StreamError for a column without a unique name, or with a type that no topic needs."""
    seen: set[str] = set()
    for place, field in enumerate(schema):
        if not field.name:
            raise StreamError(f"column {place} has no name")
        if field.name in seen:
            raise StreamError(f"column {shown(field.name)} appears twice")
        seen.add(field.name)
        _check_type(field.type, field.name)


def _check_type(kind: pa.DataType, column: str) -> None:
    types = pa.types
    if _is_plain(kind) or (types.is_dictionary(kind) and kind.value_type.id in _IN_DICTIONARIES):
        return
    if types.is_map(kind):
        inner = [kind.key_type, kind.item_type]
    elif (
        types.is_list(kind)
        or types.is_large_list(kind)
        or (types.is_fixed_size_list(kind) and kind.list_size > 0)
    ):
        inner = [kind.value_type]
    elif types.is_struct(kind) and kind.num_fields:
        parts = [kind.field(i) for i in range(kind.num_fields)]
        if len({part.name for part in parts}) < len(parts):
            raise StreamError(f"column {shown(column)} has two fields of the same name")
        inner = [part.type for part in parts]
    else:
        raise StreamError(f"column {shown(column)} is of the type {kind!s:.80}, which is not accepted")
    for part in inner:
        _check_type(part, column)


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_decimal(kind):
        return bool(0 < kind.precision <= 76 and abs(kind.scale) <= 76)
    if types.is_fixed_size_binary(kind):
        return bool(kind.byte_width > 0)
    return kind.id in _PLAIN


_TEXTS = frozenset(kind.id for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()))
_WIDE = frozenset(kind.id for kind in (pa.large_string(), pa.large_binary(), pa.large_list(pa.null())))
_IN_DICTIONARIES = frozenset(
    kind.id
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    )
)
_PLAIN = _IN_DICTIONARIES | {
    kind.id for kind in (pa.null(), pa.bool_(), pa.float16(), pa.date32(), pa.date64(), pa.timestamp("us"))
}


# --- messages ------------------------------------------------------------------------------------------------------


def _messages(body: bytes, at: int) -> Iterator[_Message]:
    """Yield the messages from a position to the end of the stream; StreamError for bytes after it."""
    while at < len(body):
        length = _metadata_length(body, at)
        at += _HEAD.size
        if length == 0:
            break
        message = _Message(body, at, length)
        at = message.end
        yield message
    if at < len(body):
        raise StreamError("bytes follow its end")


def _metadata_length(body: bytes, at: int) -> int:
    """Return the length of the metadata of the message at a position; 0 at the end of the stream."""
    if len(body) - at < _HEAD.size:
        raise StreamError("it is truncated")
    marker, length = _HEAD.unpack_from(body, at)
    if marker != _CONTINUATION:
        raise StreamError("a message does not begin with the continuation marker of Arrow 0.15 and later")
    if length and (length < 8 or at + _HEAD.size + length > len(body)):
        raise StreamError(f"a message claims {length:,} bytes of metadata")
    return int(length)


class _Message:
    """One message: its `kind`, `header` and `metadata`, and the position of its body."""

    def __init__(self, body: bytes, at: int, length: int) -> None:
        self._body = body
        metadata = body[at : at + length]
        root = _Table.root(metadata)
        self.kind = root.uint8(1)
        self.header = root.table(2)
        self.body_length = root.int64(3)
        self.metadata = root.tables(4)
        self._start = at + length
        self.end = self._start + self.body_length
        if self.body_length < 0 or self.end > len(body):
            raise StreamError(f"a message claims a body of {self.body_length:,} bytes")

    def uncompressed(self, offset: int, length: int) -> int:
        """Return the size of a buffer once it is decompressed, which a compressed buffer states in its first bytes."""
        if not length:
            return 0
        if length < 8:
            raise StreamError("a compressed buffer does not state its uncompressed length")
        (claimed,) = struct.unpack_from("<q", self._body, self._start + offset)
        if claimed == -1:  # stored uncompressed
            return length - 8
        if claimed < 0:
            raise StreamError(f"a buffer claims {claimed} bytes")
        return int(claimed)


class _Table:
    """A table of a flatbuffer, read with every position checked. Fields are addressed by their number in the schema."""

    def __init__(self, data: bytes | bytearray, at: int) -> None:
        self._data = data
        self._at = at
        vtable = at - _read(_INT32, data, at)
        count = min(_read(_UINT16, data, vtable) // 2 - 2, FIELDS_READ)
        self._offsets: tuple[int, ...] = _OFFSETS[count](data, vtable + 4) if count > 0 else ()

    @classmethod
    def root(cls, data: bytes | bytearray) -> _Table:
        """Return the root table of a flatbuffer."""
        return cls(data, _read(_UINT32, data, 0))

    def has(self, field: int) -> bool:
        """Whether a field is present."""
        return self._place(field) is not None

    def boolean(self, field: int) -> bool:
        """Return a bool field, false if it is absent."""
        return self.uint8(field) != 0

    def uint8(self, field: int) -> int:
        """Return a byte field, 0 if it is absent."""
        place = self._place(field)
        return 0 if place is None else _read(_UINT8, self._data, place)

    def int64(self, field: int) -> int:
        """Return a long field, 0 if it is absent."""
        place = self._place(field)
        return 0 if place is None else _read(_INT64, self._data, place)

    def table(self, field: int) -> _Table:
        """Return a nested table; StreamError if it is absent."""
        place = self._place(field)
        if place is None:
            raise StreamError("the metadata of a message is incomplete")
        return _Table(self._data, place + _read(_UINT32, self._data, place))

    def tables(self, field: int) -> Iterator[_Table]:
        """Yield the tables of a vector."""
        place = self._place(field)
        if place is not None:
            start = place + _read(_UINT32, self._data, place)
            for at in range(start + 4, start + 4 + 4 * _read(_UINT32, self._data, start), 4):
                yield _Table(self._data, at + _read(_UINT32, self._data, at))

    def length(self, field: int) -> int:
        """Return the length of a text field in bytes, 0 if it is absent."""
        place = self._place(field)
        if place is None:
            return 0
        return _read(_UINT32, self._data, place + _read(_UINT32, self._data, place))

    def int64_pairs(self, field: int) -> tuple[int, ...]:
        """Return a vector of structs of two longs as a flat tuple."""
        place = self._place(field)
        if place is None:
            return ()
        start = place + _read(_UINT32, self._data, place)
        count = _read(_UINT32, self._data, start)
        if start + 4 + 16 * count > len(self._data):
            raise StreamError("a list in the metadata is longer than the metadata")
        return struct.unpack_from(f"<{2 * count}q", self._data, start + 4)

    def _place(self, field: int) -> int | None:
        """Return the position of a field; None if it is absent."""
        if field >= len(self._offsets) or not (offset := self._offsets[field]):
            return None
        return self._at + offset


_Unpack = Callable[[bytes | bytearray, int], tuple[int, ...]]
"""Reads numbers at a position; struct.error where they do not lie within the data."""

FIELDS_READ = 8
"""Number of fields of a table that are read: no more are needed."""
_UINT8, _UINT16, _INT32, _UINT32, _INT64 = (struct.Struct(f"<{form}").unpack_from for form in "BHiIq")
_OFFSETS = [struct.Struct(f"<{count}H").unpack_from for count in range(FIELDS_READ + 1)]
"""Unpackers of the offsets of a table's fields, by the number of fields."""


def _read(unpack: _Unpack, data: bytes | bytearray, at: int) -> int:
    if at < 0:  # which Python would count from the end
        raise StreamError("a position in the metadata lies before its beginning")
    (value,) = unpack(data, at)
    return value
