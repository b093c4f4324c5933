"""The encoding of a view's row in Redis, as a hash, a string or a member of a sorted set, and the commands for it.

- *hash*: one per key, with a field for each column that is not NULL; values are written by
  `headwater.sinks.base.text_values`, BINARY unchanged.
- *string*: one per key, a JSON object of all columns that are not NULL.
- *zset*: a member of a sorted set: one set for all rows, or one for each value of the other key columns.

Names are the prefix and the key's columns, joined by `:`; within a value `%` is `%25` and `:` is `%3A`, and NULL is `%N`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.errors import UsageError
from headwater.core.hashing import Mask
from headwater.sinks.base.target import RefusedRow
from headwater.sinks.base.text_values import json_rows, texts
from headwater.sinks.redis.redis_protocol import BYTES, Piece, Wire, bulk, commands, head, table, tokens

NAME = "_name"
_LARGE = 10_000
"""Number of members of a sorted set that are read at a time."""


class RowEncoding(Protocol):
    """A way to store rows in Redis."""

    @property
    def kind(self) -> bytes:
        """The Redis type of the stored values."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """Columns that identify a stored row; the first is the Redis name."""
        ...

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the view in the stored form."""
        ...

    def refused(self, stored: pa.RecordBatch) -> list[RefusedRow]:
        """Return the rows that cannot be stored."""
        ...

    def deletes(self, keys: pa.RecordBatch) -> tuple[int, pa.Buffer]:
        """Return the number and the bytes of the commands that remove rows. Each command is answered by one line."""
        ...

    def upserts(self, stored: pa.RecordBatch, there: Mask) -> tuple[int, pa.Buffer]:
        """Return the number and the bytes of the commands that write rows; `existing` marks the rows whose name exists."""
        ...

    def read(self, wire: Wire, names: pa.Array) -> Iterator[pa.RecordBatch]:
        """Yield the rows stored under these names."""
        ...


class KeyNames:
    """The Redis names of rows, made from some of their columns."""

    def __init__(self, prefix: str, columns: Sequence[str]) -> None:
        self.prefix = prefix
        self.columns = tuple(columns)

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the name of each row."""
        if not self.columns:
            return pa.array([self.prefix.rstrip(":").encode()] * rows.num_rows, BYTES)
        return joined([rows.column(name) for name in self.columns], self.prefix)

    @property
    def pattern(self) -> bytes:
        """Glob pattern of all names."""
        text = self.prefix if self.columns else self.prefix.rstrip(":")
        glob = "".join("\\" + letter if letter in "*?[]\\^-" else letter for letter in text)
        return f"{glob}*".encode() if self.columns else glob.encode()


class HashForm:
    """A hash for each key."""

    kind = b"hash"
    key: tuple[str, ...] = (NAME,)

    def __init__(self, names: KeyNames, schema: pa.Schema) -> None:
        self._names = names
        self._fields = [field.name.encode() for field in schema]
        columns = [pa.field(field.name, BYTES) for field in schema]
        self.schema = pa.schema([pa.field(NAME, BYTES), *columns, pa.field("_more", pa.int64())])

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the name, the text of each column, and the number of fields that are not columns of the view: 0."""
        columns = [column if column.type == BYTES else texts(column).cast(BYTES) for column in rows.columns]
        others = pa.array(np.zeros(rows.num_rows, dtype=np.int64))
        return pa.RecordBatch.from_arrays([self._names.of(rows), *columns, others], schema=self.schema)

    def refused(self, stored: pa.RecordBatch) -> list[RefusedRow]:
        """Return the rows in which all columns are NULL: a hash needs a field."""
        empty = np.flatnonzero(_filled(stored.columns[1:-1], stored.num_rows) == 0)
        return [RefusedRow(int(at), "all its columns are NULL, and a hash needs a field") for at in empty]

    def deletes(self, keys: pa.RecordBatch) -> tuple[int, pa.Buffer]:
        """Return DEL commands."""
        return _removed(keys)

    def upserts(self, stored: pa.RecordBatch, there: Mask) -> tuple[int, pa.Buffer]:
        """Return HSET commands; existing names get DEL first, since they may have more fields."""
        names = bulk(stored.column(NAME))
        values = stored.columns[1:-1]
        first = pc.if_else(pa.array(there), pc.binary_join_element_wise(head(2, b"DEL"), names, b""), b"")
        words = pa.array(2 + 2 * _filled(values, stored.num_rows)).cast(pa.string()).cast(BYTES)
        pieces: list[Piece] = [first, b"*", words, b"\r\n$4\r\nHSET\r\n", names]
        for field, column in zip(self._fields, values, strict=True):
            label = b"$%d\r\n%b\r\n" % (len(field), field)
            pair = pc.binary_join_element_wise(label, bulk(column), b"")
            pieces.append(pc.fill_null(pair, b"") if column.null_count else pair)
        return stored.num_rows + int(there.sum()), commands(stored.num_rows, *pieces)

    def read(self, wire: Wire, names: pa.Array) -> Iterator[pa.RecordBatch]:
        """Read with HMGET and HLEN."""
        words = bulk(names)
        labels = b"".join(b"$%d\r\n%b\r\n" % (len(field), field) for field in self._fields)
        asked = [head(2 + len(self._fields), b"HMGET"), words, labels, head(2, b"HLEN"), words]
        found = tokens(wire.replies(commands(len(names), *asked)))
        width = len(self._fields) + 2
        # a name has changed its type since it was listed
        if len(found) != width * len(names):
            for name in names if len(names) > 1 else []:
                yield from self.read(wire, pa.array([name.as_py()], BYTES))
            return
        _, *values, lengths = table(found, width)
        fields = pc.utf8_slice_codeunits(lengths.cast(pa.string()), 1).cast(pa.int64())
        more = fields.to_numpy() - _filled(values, len(names))
        there = pc.greater(fields, 0)
        rows = pa.RecordBatch.from_arrays([names, *values, pa.array(more)], schema=self.schema)
        yield rows.filter(there)


class StringForm:
    """A JSON object for each key."""

    kind = b"string"
    key: tuple[str, ...] = (NAME,)
    schema = pa.schema([pa.field(NAME, BYTES), pa.field("_value", BYTES)])

    def __init__(self, names: KeyNames) -> None:
        self._names = names

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the name and the JSON text of each row."""
        return pa.RecordBatch.from_arrays(
            [self._names.of(rows), json_rows(rows).cast(BYTES)], schema=self.schema
        )

    def refused(self, stored: pa.RecordBatch) -> list[RefusedRow]:
        """Return an empty list: every row can be stored."""
        del stored
        return []

    def deletes(self, keys: pa.RecordBatch) -> tuple[int, pa.Buffer]:
        """Return DEL commands."""
        return _removed(keys)

    def upserts(self, stored: pa.RecordBatch, there: Mask) -> tuple[int, pa.Buffer]:
        """Return SET commands."""
        del there
        names, values = bulk(stored.column(NAME)), bulk(stored.column(1))
        return stored.num_rows, commands(stored.num_rows, head(3, b"SET"), names, values)

    def read(self, wire: Wire, names: pa.Array) -> Iterator[pa.RecordBatch]:
        """Read with MGET, which returns nil for names that are not strings."""
        asked = commands(len(names), bulk(names))
        found = tokens(wire.replies(head(1 + len(names), b"MGET"), asked)).slice(1)
        rows = pa.RecordBatch.from_arrays([names, found], schema=self.schema)
        yield rows.filter(found.is_valid())


class ZsetForm:
    """Members of sorted sets: `member` are the columns that name a member, `score` is the column to sort by."""

    kind = b"zset"
    key: tuple[str, ...] = (NAME, "_member")
    schema = pa.schema([pa.field(NAME, BYTES), pa.field("_member", BYTES), pa.field("_score", pa.float64())])

    def __init__(self, names: KeyNames, member: Sequence[str], score: str, schema: pa.Schema) -> None:
        self._names = names
        self._member = tuple(member)
        self._score = score
        kind = schema.field(score).type
        types = pa.types
        self._moment = types.is_timestamp(kind)
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or self._moment):
            raise UsageError(
                f"column {score!r} is {kind}; the score of a sorted set must be a number or a TIMESTAMP",
                hint="name a numeric column as score",
                option="score",
                column=score,
            )

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the set, the member, and the score: a double; for a TIMESTAMP the seconds since 1970."""
        if len(self._member) == 1:
            members = texts(rows.column(self._member[0])).cast(BYTES)
        else:
            members = joined([rows.column(name) for name in self._member], "")
        scores = rows.column(self._score)
        if self._moment:
            scores = pc.divide(scores.cast(pa.int64()).cast(pa.float64(), safe=False), 1e6)
        return pa.RecordBatch.from_arrays(
            [self._names.of(rows), members, scores.cast(pa.float64(), safe=False)], schema=self.schema
        )

    def refused(self, stored: pa.RecordBatch) -> list[RefusedRow]:
        """Return the rows whose score is not a number, or whose member is NULL."""
        scores = stored.column(2)
        bad = pc.or_(scores.is_null(), pc.fill_null(pc.is_nan(scores), True)).to_numpy(zero_copy_only=False)
        nobody = stored.column(1).is_null().to_numpy(zero_copy_only=False)
        found = [RefusedRow(int(at), "its score is NULL or NaN") for at in np.flatnonzero(bad & ~nobody)]
        return found + [RefusedRow(int(at), "its member is NULL") for at in np.flatnonzero(nobody)]

    def deletes(self, keys: pa.RecordBatch) -> tuple[int, pa.Buffer]:
        """Return ZREM commands; a NULL member was never written."""
        keys = keys.filter(keys.column(1).is_valid())
        pieces = head(3, b"ZREM"), bulk(keys.column(NAME)), bulk(keys.column(1))
        return keys.num_rows, commands(keys.num_rows, *pieces)

    def upserts(self, stored: pa.RecordBatch, there: Mask) -> tuple[int, pa.Buffer]:
        """Return ZADD commands."""
        del there
        scores, members = bulk(texts(stored.column(2)).cast(BYTES)), bulk(stored.column(1))
        pieces = head(4, b"ZADD"), bulk(stored.column(NAME)), scores, members
        return stored.num_rows, commands(stored.num_rows, *pieces)

    def read(self, wire: Wire, names: pa.Array) -> Iterator[pa.RecordBatch]:
        """Read each set with ZRANGE, large sets in parts."""
        sizes = tokens(wire.replies(commands(len(names), head(2, b"ZCARD"), bulk(names)))).to_pylist()
        small = np.array([size.isascii() and size[:1] == b":" and int(size[1:]) <= _LARGE for size in sizes])
        few = names.filter(pa.array(small))
        if len(few):
            asked = head(5, b"ZRANGE"), bulk(few), b"$1\r\n0\r\n$2\r\n-1\r\n$10\r\nWITHSCORES\r\n"
            yield self._rows(few, wire.replies(commands(len(few), *asked)))
        for name, size, fits in zip(names, sizes, small, strict=True):
            if fits or size[:1] != b":":
                continue
            alone = pa.array([name.as_py()], BYTES)
            for start in range(0, int(size[1:]) + _LARGE, _LARGE):
                ranks = b"".join(
                    b"$%d\r\n%b\r\n" % (len(r), r) for r in (b"%d" % start, b"%d" % (start + _LARGE - 1))
                )
                asked = head(5, b"ZRANGE"), bulk(alone), ranks + b"$10\r\nWITHSCORES\r\n"
                yield self._rows(alone, wire.replies(commands(1, *asked)))

    def _rows(self, names: pa.Array, data: bytes) -> pa.RecordBatch:
        """Return the members of sets from their concatenated replies: `*n`, followed by n members and scores."""
        found = tokens(data)
        counts, at = [], 0
        for _ in range(len(names)):
            text = found[at].as_py()
            counts.append(int(text[1:]) // 2 if text.startswith(b"*") else 0)
            at += 1 + 2 * counts[-1]
        places: npt.NDArray[np.int64] = np.ones(len(found), dtype=np.bool_)
        places[np.cumsum([0, *(1 + 2 * count for count in counts[:-1])])] = False
        members, scores = table(found.filter(pa.array(places)), 2)
        of = names.take(pa.array(np.repeat(np.arange(len(names)), counts)))
        return pa.RecordBatch.from_arrays(
            [of, members, scores.cast(pa.string()).cast(pa.float64())], schema=self.schema
        )


def joined(columns: Sequence[pa.Array], prefix: str) -> pa.Array:
    """Return a text for each row of values that no other values have."""
    parts = [pc.fill_null(_escaped(column), b"%N") for column in columns]
    body = parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*parts, b":")
    return pc.binary_join_element_wise(prefix.encode(), body, b"") if prefix else body


def _escaped(column: pa.Array) -> pa.Array:
    if pa.types.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))  # -0.0 and 0.0 are one key
    found = texts(column)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_timestamp(kind) or pa.types.is_nested(kind):
        found = pc.replace_substring(pc.replace_substring(found, "%", "%25"), ":", "%3A")
    return found.cast(BYTES)


def _removed(keys: pa.RecordBatch) -> tuple[int, pa.Buffer]:
    return keys.num_rows, commands(keys.num_rows, head(2, b"DEL"), bulk(keys.column(NAME)))


def _filled(columns: Sequence[pa.Array], rows: int) -> npt.NDArray[np.int64]:
    """Return the number of non-NULL columns of each row."""
    filled = np.zeros(rows, dtype=np.int64)
    for column in columns:
        filled += column.is_valid().to_numpy(zero_copy_only=False)
    return filled
