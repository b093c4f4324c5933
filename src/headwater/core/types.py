"""Column types: Spark SQL's names on one side, Arrow's on the other, exact both ways.

Types without an exact counterpart (VARCHAR(n), intervals, unsigned integers) are rejected, with the nearest supported type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa

from headwater.core.errors import SchemaError

TIMESTAMP = pa.timestamp("us", tz="UTC")

_SIMPLE: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_NAMES = {kind: name for name, kind in _SIMPLE.items()}
_ALIASES = {
    "BYTE": "TINYINT",
    "SHORT": "SMALLINT",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "REAL": "FLOAT",
    "TEXT": "STRING",
    "TIMESTAMP_LTZ": "TIMESTAMP",
    "BOOL": "BOOLEAN",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][A-Za-z0-9_]*)|(\d+)|([<>(),:]))")
_PLAIN_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*\Z")
RELATION_KEYWORDS = frozenset(
    (
        "current_path",
        "false",
        "from",
        "having",
        "lateral",
        "limit",
        "null",
        "offset",
        "qualify",
        "stream",
        "true",
        "where",
    )
)
"""Words that a query does not always parse as the name of a topic or a view unless they are in backticks."""
COLUMN_KEYWORDS = frozenset(("all", "as", "current_path", "distinct", "false", "not", "null", "true"))
"""Words that a query does not always parse as the name of a column unless they are in backticks. The tests try every keyword of
Spark and of the tokenizer for both lists."""

WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}
"""Types to which a column may be widened without changing any value."""


def parse_type(text: str) -> pa.DataType:
    """Return the Arrow type of a Spark SQL type such as `DECIMAL(10, 2)` or `ARRAY<STRUCT<a: INT NOT NULL>>`."""
    tokens = _Tokens(text)
    kind = _type(tokens)
    tokens.end()
    return kind


def format_type(kind: pa.DataType) -> str:
    """Return the Spark SQL name of a type that topics can hold."""
    if name := _NAMES.get(kind):
        return name
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{format_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{format_type(kind.key_type)},{format_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        if not fields or len({f.name for f in fields}) < len(fields):
            raise _unsupported(str(kind))
        body = ", ".join(
            f"{quote(f.name)}: {format_type(f.type)}{'' if f.nullable else ' NOT NULL'}" for f in fields
        )
        return f"STRUCT<{body}>"
    raise _unsupported(str(kind))


def normalize_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a topic stores values of an Arrow type: one canonical form each, as in Spark."""
    types = pa.types
    if kind in _NAMES:
        # Timestamps without a zone are taken as UTC here; TIMESTAMP_NTZ must be declared in DDL.
        return TIMESTAMP if types.is_timestamp(kind) else kind
    if types.is_timestamp(kind):
        return TIMESTAMP
    if types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if types.is_large_binary(kind) or types.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    if types.is_dictionary(kind):
        return normalize_type(kind.value_type)
    if types.is_date64(kind):
        return pa.date32()
    if types.is_decimal(kind):
        if kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
            return pa.decimal128(kind.precision, kind.scale)
    elif types.is_map(kind):
        return pa.map_(normalize_type(kind.key_type), normalize_type(kind.item_type))
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(normalize_type(kind.value_type))
    elif types.is_struct(kind):
        return pa.struct(
            [
                pa.field(f.name, normalize_type(f.type), f.nullable)
                for f in (kind.field(i) for i in range(kind.num_fields))
            ]
        )
    raise _unsupported(str(kind))


def normalize_schema(schema: pa.Schema) -> pa.Schema:
    """Return a user's Arrow schema with the types that a topic stores."""
    fields = []
    for field in schema:
        try:
            fields.append(pa.field(field.name, normalize_type(field.type), field.nullable))
        except SchemaError as error:
            raise SchemaError(
                f"column {field.name!r}: {error.message}", hint=error.hint, column=field.name, **error.facts
            ) from None
    return pa.schema(fields)


FOREIGN_TYPES = {
    "timestamptz": "TIMESTAMP",
    "timestamp": "TIMESTAMP",
    "timestamp_ltz": "TIMESTAMP",
    "datetime": "TIMESTAMP",
    "text": "STRING",
    "varchar": "STRING",
    "char": "STRING",
    "json": "STRING",
    "jsonb": "STRING",
    "uuid": "STRING",
    "bytea": "BINARY",
    "bytes": "BINARY",
    "bool": "BOOLEAN",
    "int2": "SMALLINT",
    "int4": "INT",
    "int8": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "numeric": "DECIMAL(38, 9)",
}
"""Types of other engines, and the nearest supported type; TIMESTAMP(3) is one too, as TIMESTAMP has microseconds."""


def quote(name: str) -> str:
    """Return a name of a column, topic or view, quoted if SQL needs it."""
    is_plain = _PLAIN_NAME.match(name) and name.lower() not in RELATION_KEYWORDS | COLUMN_KEYWORDS
    return name if is_plain else "`" + name.replace("`", "``") + "`"


class _Tokens:
    """Tokens of a type, with one of lookahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._words = list(self._split(text))
        self._at = 0

    def _split(self, text: str) -> Iterator[str]:
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if not match:
                raise _unsupported(text)
            yield match[0].strip()
            at = match.end()

    def peek(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def take(self, expected: str | None = None) -> str:
        word = self.peek()
        if not word or (expected is not None and word.upper() != expected):
            raise _unsupported(self.text)
        self._at += 1
        return word

    def accept(self, word: str) -> bool:
        if self.peek().upper() == word:
            self._at += 1
            return True
        return False

    def number(self) -> int:
        word = self.take()
        if not word.isdigit():
            raise _unsupported(self.text)
        return int(word)

    def end(self) -> None:
        if self.peek():
            raise _unsupported(self.text)


def _type(tokens: _Tokens) -> pa.DataType:
    word = tokens.take().upper()
    word = _ALIASES.get(word, word)
    if word in _SIMPLE:
        return _SIMPLE[word]
    if word == "DECIMAL":
        return _decimal(tokens)
    if word == "ARRAY":
        tokens.take("<")
        item = _type(tokens)
        tokens.take(">")
        return pa.list_(item)
    if word == "MAP":
        tokens.take("<")
        key = _type(tokens)
        tokens.take(",")
        item = _type(tokens)
        tokens.take(">")
        return pa.map_(key, item)
    if word == "STRUCT":
        return _struct(tokens)
    raise _unsupported(tokens.text)


def _decimal(tokens: _Tokens) -> pa.DataType:
    precision, scale = 10, 0
    if tokens.accept("("):
        precision = tokens.number()
        if tokens.accept(","):
            scale = tokens.number()
        tokens.take(")")
    if not (1 <= precision <= 38 and 0 <= scale <= precision):
        raise _unsupported(tokens.text)
    return pa.decimal128(precision, scale)


def _struct(tokens: _Tokens) -> pa.DataType:
    tokens.take("<")
    fields: list[pa.Field] = []
    while not tokens.accept(">"):
        if fields:
            tokens.take(",")
        name = tokens.take()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        tokens.accept(":")
        kind = _type(tokens)
        nullable = not tokens.accept("NOT")
        if not nullable:
            tokens.take("NULL")
        fields.append(pa.field(name, kind, nullable))
    return pa.struct(fields)


def _unsupported(text: str) -> SchemaError:
    known = FOREIGN_TYPES.get(text.partition("(")[0].strip().lower())
    return SchemaError(
        f"type {text!r} is not supported in a topic",
        hint=f"write {known}"
        if known is not None
        else "use BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, BINARY, DATE, "
        "TIMESTAMP, TIMESTAMP_NTZ, ARRAY<...>, MAP<...> or STRUCT<...>",
        type=text,
    )
