"""The layout of rows in a search index: the fields of each column, and the document of each row.

A document has its whole row in `_hw_source` (exact JSON, see `headwater.sinks.base.json_values`), its key as one term in
`_hw_key`, and fields to search by. Text columns are tokenized under their own names; integers, floats and booleans are
fields under their own names. Types that no field type of the index orders exactly have an internal field: dates, timestamps
and decimals of up to 18 digits as integers; text, binaries and longer decimals as hexadecimal terms, whose order is that of
the bytes. `_hw_null` lists the columns that are NULL. One additional document without a row is the head of the index: its
layout and its checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import tantivy

from headwater.core.hashing import hash_rows, null_mask, words_of
from headwater.core.text_analysis import Analysis
from headwater.core.types import format_type, parse_type
from headwater.sinks.base.json_values import from_plain, plain_values
from headwater.sinks.base.target import SinkCheckpoint, SinkError

KEY, SOURCE, SLICE, NULL = "_hw_key", "_hw_source", "_hw_slice", "_hw_null"
RESERVED = "_hw_"
HEAD = "\0head"
"""Key of the head document; keys of rows are JSON arrays and begin with a bracket."""
FORMAT = 1
SLICES = 256
"""Number of parts, by hash of the key, in which an index can be read."""

_KEY_CHARACTERS = 1_000
"""Maximum length of a key term; longer keys are replaced by their digest, because the index skips terms that are too long."""
_TEXT_BYTES, _TERM_BYTES = 16, 64
"""Number of leading bytes of a value that its exact term has before a digest of the whole value: for a text column, and for
other columns. Only shorter values are accepted for < and >, so that the bytes cut off never decide."""
_DECIMAL_OFFSET = 10**38

Exact = Literal["number", "float", "boolean", "term"]


@dataclass(frozen=True)
class SearchColumn:
    """A column and its fields: `words` is searched in full text, `exact` is compared by filters."""

    name: str
    kind: pa.DataType
    place: int
    words: str | None
    exact: str | None
    how: Exact | None
    term_bytes: int = _TERM_BYTES


@dataclass(frozen=True)
class SearchLayout:
    """The layout of an index: the columns of its rows, their key, the text columns and how their text is tokenized."""

    schema: pa.Schema
    key: tuple[str, ...]
    text: tuple[str, ...]
    language: str | None = None
    accents: bool = True

    @property
    def columns(self) -> list[SearchColumn]:
        """The columns with their fields."""
        return [self._column(place, field) for place, field in enumerate(self.schema)]

    def _column(self, place: int, field: pa.Field) -> SearchColumn:
        name, kind, types = field.name, field.type, pa.types
        if types.is_integer(kind):
            return SearchColumn(name, kind, place, None, name, "number")
        if types.is_floating(kind):
            return SearchColumn(name, kind, place, None, name, "float")
        if types.is_boolean(kind):
            return SearchColumn(name, kind, place, None, name, "boolean")
        if types.is_temporal(kind) or (types.is_decimal(kind) and kind.precision <= 18):
            return SearchColumn(name, kind, place, None, f"{RESERVED}n{place}", "number")
        if types.is_string(kind):
            size = _TEXT_BYTES if name in self.text else _TERM_BYTES
            return SearchColumn(name, kind, place, name, f"{RESERVED}x{place}", "term", size)
        if types.is_binary(kind) or types.is_decimal(kind):
            return SearchColumn(name, kind, place, None, f"{RESERVED}x{place}", "term")
        words = name if types.is_list(kind) and types.is_string(kind.value_type) else None
        return SearchColumn(name, kind, place, words, None, None)

    def document(self) -> dict[str, Any]:
        """Return the layout as plain JSON."""
        columns = [[field.name, format_type(field.type), field.nullable] for field in self.schema]
        return {
            "columns": columns,
            "key": list(self.key),
            "text": list(self.text),
            "language": self.language,
            **({} if self.accents else {"accents": False}),
        }

    @staticmethod
    def of_document(plain: dict[str, Any]) -> SearchLayout:
        """Return the layout that `document` wrote."""
        fields = [pa.field(name, parse_type(kind), nullable) for name, kind, nullable in plain["columns"]]
        key, text = tuple(plain["key"]), tuple(plain["text"])
        return SearchLayout(pa.schema(fields), key, text, plain["language"], plain.get("accents", True))

    def fields(self) -> tantivy.Schema:
        """Return the schema of the index."""
        builder = tantivy.SchemaBuilder()
        builder.add_text_field(KEY, tokenizer_name="raw", index_option="basic")
        builder.add_bytes_field(SOURCE, stored=True)
        builder.add_unsigned_field(SLICE, indexed=True, fast=True)
        builder.add_unsigned_field(NULL, indexed=True)
        for column in self.columns:
            if column.words is not None:
                words = self.analysis.name if column.name in self.text else "raw"
                builder.add_text_field(column.words, tokenizer_name=words)
            if column.exact is None:
                continue
            if column.how == "number":
                builder.add_integer_field(column.exact, indexed=column.exact == column.name, fast=True)
            elif column.how == "float":
                builder.add_float_field(column.exact, indexed=True, fast=True)
            elif column.how == "boolean":
                builder.add_boolean_field(column.exact, indexed=True)
            else:
                builder.add_text_field(column.exact, tokenizer_name="raw", index_option="basic")
        return builder.build()

    @property
    def analysis(self) -> Analysis:
        """The tokenization of text."""
        return Analysis(self.language, self.accents)

    def keys(self, rows: pa.RecordBatch) -> list[str]:
        """Return the key term of each row; the rows have the key columns, and may have others."""
        columns = [plain_values(_one_zero(rows.column(name))) for name in self.key]
        terms = [orjson.dumps(values).decode() for values in zip(*columns, strict=True)]
        return [term if len(term) <= _KEY_CHARACTERS else _digest(term) for term in terms]

    def documents(self, rows: pa.RecordBatch, keys: Sequence[str]) -> list[tantivy.Document]:
        """Return a document for each row."""
        columns = [plain_values(rows.column(place)) for place in range(len(self.schema))]
        sources = [orjson.dumps(values) for values in zip(*columns, strict=True)]
        hashes = hash_rows([rows.column(name) for name in self.key], rows.num_rows)
        slices = (hashes % np.uint64(SLICES)).tolist()
        adders = self._adders(rows, columns)
        made = tantivy.Document
        documents = []
        for row, source in enumerate(sources):
            document = made()
            document.add_text(KEY, keys[row])
            document.add_bytes(SOURCE, source)
            document.add_unsigned(SLICE, slices[row])
            for add, name, values in adders:
                if (value := values[row]) is not None:
                    add(document, name, value)
            documents.append(document)
        return documents

    def _adders(
        self, rows: pa.RecordBatch, plain: Sequence[list[Any]]
    ) -> list[tuple[Callable[[Any, str, Any], None], str, list[Any]]]:
        """Return the fields to add to documents: the method, the field, and the value of each row, None for no value."""
        document = tantivy.Document
        adders: list[tuple[Callable[[Any, str, Any], None], str, list[Any]]] = []
        adds = {"number": document.add_integer, "float": document.add_float, "boolean": document.add_boolean}
        for column in self.columns:
            values = rows.column(column.place)
            if values.null_count:
                nulls = [column.place if null else None for null in values.is_null().to_pylist()]
                adders.append((document.add_unsigned, NULL, nulls))
            if values.null_count == len(values):
                continue
            if column.words is not None:
                add = document.add_text if pa.types.is_string(column.kind) else _add_texts
                adders.append((add, column.words, plain[column.place]))
            if column.exact is not None and column.how is not None:
                terms = exact_values(values, column)
                adders.append((adds.get(column.how, document.add_text), column.exact, terms))
        return adders

    def rows(self, sources: Sequence[bytes]) -> pa.RecordBatch:
        """Return the rows encoded in these sources."""
        columns = list(zip(*map(orjson.loads, sources), strict=True)) if sources else [()] * len(self.schema)
        arrays = [from_plain(values, field.type) for values, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def head(self, checkpoint: SinkCheckpoint | None) -> tantivy.Document:
        """Return the head document of the index, with its checkpoint."""
        plain = {
            "format": FORMAT,
            **self.document(),
            "stand": None if checkpoint is None else checkpoint.text(),
        }
        document = tantivy.Document()
        document.add_text(KEY, HEAD)
        document.add_bytes(SOURCE, orjson.dumps(plain))
        return document


def read_head(source: bytes) -> tuple[SearchLayout, SinkCheckpoint | None]:
    """Return the layout and the checkpoint in a head document."""
    plain = orjson.loads(source)
    if plain["format"] != FORMAT:
        raise SinkError(
            f"the search index has format {plain['format']}; this version of Headwater reads format {FORMAT}",
            hint="upgrade Headwater, or drop the sink and create it again",
            format=plain["format"],
            supported=FORMAT,
        )
    checkpoint = plain["stand"]
    return SearchLayout.of_document(plain), None if checkpoint is None else SinkCheckpoint.parse(checkpoint)


def exact_values(values: pa.Array, column: SearchColumn) -> list[Any]:
    """Return the values of a column in the form of its exact field: numbers, or terms that sort like the values."""
    kind, types = column.kind, pa.types
    if types.is_floating(kind):
        numbers: list[Any] = _one_zero(values).cast(pa.float64()).to_pylist()
        return numbers
    if types.is_boolean(kind) or types.is_integer(kind):
        whole: list[Any] = values.to_pylist()
        return whole
    if types.is_date32(kind):
        return values.cast(pa.int32()).to_pylist()  # type: ignore[no-any-return]
    if types.is_temporal(kind):
        return values.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    if types.is_decimal(kind):
        return _decimals(values)
    raw = values.cast(pa.binary()) if types.is_string(kind) else values
    return [None if v is None else _term(v, column.term_bytes) for v in raw.to_pylist()]


def ordered(value: Any, column: SearchColumn) -> bool:
    """Whether a value of a term column is short enough to be compared by < and >."""
    size = len(value.encode()) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 0
    return size < column.term_bytes


def _term(value: bytes, size: int) -> str:
    if len(value) <= size:
        return "x" + value.hex()
    return f"x{value[:size].hex()}z{hashlib.blake2b(value, digest_size=16).hexdigest()}"


def _decimals(values: pa.Array) -> list[Any]:
    words = words_of(values)
    assert words is not None
    low, high = words
    if values.type.precision <= 18:
        numbers = pa.array(low, mask=null_mask(values))
        return numbers.to_pylist()  # type: ignore[no-any-return]
    unsigned = low.view(np.uint64).tolist()
    wide = [(h << 64) + u + _DECIMAL_OFFSET for h, u in zip(high.tolist(), unsigned, strict=True)]
    nulls = null_mask(values)
    return [None if nulls is not None and nulls[row] else f"x{value:039d}" for row, value in enumerate(wide)]


def _one_zero(column: pa.Array) -> pa.Array:
    """Return floats with one zero: -0.0 and 0.0 are one key and compare equal."""
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


def _digest(term: str) -> str:
    return "[#" + hashlib.blake2b(term.encode(), digest_size=32).hexdigest()


def _add_texts(document: tantivy.Document, name: str, values: list[str | None]) -> None:
    for value in values:
        if value is not None:
            document.add_text(name, value)
