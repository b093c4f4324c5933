"""Values and bodies for the fuzzer: valid ones, odd ones, and ones that are broken on purpose. All follow from a seed."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pyarrow as pa

from tests.web import hostile

COLUMNS: dict[str, str] = {
    "id": "BIGINT",
    "flag": "BOOLEAN",
    "small": "TINYINT",
    "price": "DECIMAL(10, 2)",
    "wide": "DECIMAL(38, 18)",
    "ratio": "DOUBLE",
    "share": "FLOAT",
    "name": "STRING",
    "raw": "BINARY",
    "day": "DATE",
    "at": "TIMESTAMP",
    "plain": "TIMESTAMP_NTZ",
    "tags": "ARRAY<STRING>",
    "times": "ARRAY<TIMESTAMP>",
    "place": "STRUCT<x: INT, y: DECIMAL(5, 1), d: DATE>",
    "counts": "MAP<STRING, INT>",
    "by_day": "MAP<DATE, TIMESTAMP>",
}
"""The columns of the topic that bodies are made for, with a type of every kind."""

NUMBERS = (
    *(
        "0",
        "-0",
        "1",
        "-1",
        "1.5",
        "1e3",
        "1E+2",
        "0.1",
        "127",
        "128",
        "-129",
        "2147483648",
        "9223372036854775807",
    ),
    *(
        "9223372036854775808",
        "-9223372036854775809",
        "18446744073709551616",
        "1e-400",
        "1e400",
        "1e-999999999",
    ),
    *(
        "1E+999999999",
        "-1e999999999999",
        "0e999999999",
        "1e" + "9" * 30,
        "12345678.99",
        "99999999.999",
        "9" * 39,
        "9" * 500,
        "9" * 5_000,
    ),
    *("0." + "0" * 300 + "1", "NaN", "Infinity", "-Infinity", "1_000", " 1", "１", "0x10", "1e", "--1", ""),
)
TIMES = (
    *("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.123456+01:00", "2026-01-31", "0001-01-01T00:00:00+14:00"),
    *(
        "9999-12-31T23:59:59.999999-14:00",
        "0001-01-01",
        "9999-12-31",
        "10000-01-01",
        "0000-01-01",
        "294247-01-10T04:00:54.775807Z",
    ),
    *(
        "-1",
        "-10",
        "-999999999",
        "0",
        "1",
        "17",
        "41",
        "999999999999999999",
        "9223372036854775807",
        "99999999999999999999999",
    ),
    *(
        "earliest",
        "latest",
        "0@0",
        "0@1,1@2",
        "0@9223372036854775808",
        "0@" + "9" * 5_000,
        "7@1",
        "0@1,0@2",
        "٣@٣",
    ),
    *(
        "2026-01-31T12:00:00+24:00",
        "2026-02-30",
        "24:00",
        "T",
        "2026-W01-1",
        "20260131T120000",
        "nan",
        "inf",
        "",
    ),
)
TEXTS = (
    *(
        "",
        "a",
        "ch",
        "at",
        "revenue",
        "x" * 300,
        "x" * 20_000,
        'ein "Wort"\n',
        "\x00",
        "a\x00b",
        "\x7f",
        "é",
        "日本",
        "😀",
    ),
    *(
        "'",
        '"',
        "`",
        "\\",
        "%",
        "%00",
        "../../etc/passwd",
        "a/b",
        "a;b",
        "a,b",
        "<b>",
        "\u202e",
        "\ufeff",
        "\ud800",
        "null",
    ),
    *(
        "SELECT 1",
        "*",
        "(",
        '"',
        "a:b",
        "+a -b",
        "AND",
        "a*",
        "a~2",
        "[a TO b]",
        "_op",
        "_offset",
        "constructor",
    ),
)


def number(rng: Random) -> str:
    """A number as somebody may write it."""
    return (
        rng.choice(NUMBERS)
        if rng.random() < 0.7
        else str(rng.randint(-(10 ** rng.randint(1, 30)), 10 ** rng.randint(1, 30)))
    )


def text(rng: Random) -> str:
    """Any text."""
    if rng.random() < 0.8:
        return rng.choice(TEXTS)
    return "".join(
        chr(rng.choice((rng.randint(0, 127), rng.randint(0, 0x2FFF)))) for _ in range(rng.randint(1, 12))
    )


def scalar_text(rng: Random) -> str:
    """What may stand for a value in a query string."""
    return rng.choice((number, lambda r: r.choice(TIMES), text))(rng)


# --- JSON ----------------------------------------------------------------------------------------------------------


def json_value(rng: Random, kind: str | None = None, depth: int = 0) -> str:
    """JSON text, fit for a type more often than not."""
    if kind is None or rng.random() < 0.08:
        return _any_json(rng, depth)
    if rng.random() < 0.1:
        return "null"
    head = kind.partition("<")[0].partition("(")[0]
    if head in ("BIGINT", "TINYINT"):
        return str(rng.randint(-128, 127)) if rng.random() < 0.8 else number(rng) or "0"
    if head in ("DECIMAL", "DOUBLE", "FLOAT"):
        found = f"{rng.uniform(-1e6, 1e6):.2f}" if rng.random() < 0.7 else number(rng)
        return found if rng.random() < 0.6 else json.dumps(found)
    if head == "BOOLEAN":
        return rng.choice(("true", "false", "0", '"t"'))
    if head in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ"):
        return json.dumps(rng.choice(TIMES))
    if head == "BINARY":
        raw = base64.b64encode(rng.randbytes(rng.randint(0, 9))).decode()
        return json.dumps(raw if rng.random() < 0.8 else raw + rng.choice("=!x"))
    if head == "ARRAY":
        inner = kind[6:-1]
        return "[" + ",".join(json_value(rng, inner, depth + 1) for _ in range(rng.randint(0, 3))) + "]"
    if head == "STRUCT":
        parts = {"x": "TINYINT", "y": "DECIMAL(5, 1)", "d": "DATE"}
        chosen = [name for name in parts if rng.random() < 0.7]
        return "{" + ",".join(f'"{n}":{json_value(rng, parts[n], depth + 1)}' for n in chosen) + "}"
    if head == "MAP":
        key, _, item = kind[4:-1].partition(", ")
        keys = [json.dumps(rng.choice(TIMES if key == "DATE" else TEXTS)) for _ in range(rng.randint(0, 3))]
        if rng.random() < 0.2:
            return "[" + ",".join(f"[{k},{json_value(rng, item, depth + 1)}]" for k in keys) + "]"
        return "{" + ",".join(f"{k}:{json_value(rng, item, depth + 1)}" for k in keys) + "}"
    return json.dumps(text(rng), ensure_ascii=rng.random() < 0.8)


def _any_json(rng: Random, depth: int) -> str:
    if rng.random() < 0.04:
        levels = rng.choice((40, 300, 900, 990, 1_010, 3_000))
        return rng.choice(("[" * levels + "]" * levels, '{"a":' * levels + "1" + "}" * levels))
    if depth > 3 or rng.random() < 0.7:
        pick = (
            lambda r: number(r) or "0",
            lambda r: json.dumps(text(r)),
            lambda r: r.choice(("null", "true", "false")),
        )
        return rng.choice(pick)(rng)
    inner = [_any_json(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    if rng.random() < 0.5:
        return "[" + ",".join(inner) + "]"
    return "{" + ",".join(f"{json.dumps(text(rng))}:{value}" for value in inner) + "}"


def json_row(rng: Random) -> str:
    """A row of the topic with a column of each type, or nearly one."""
    members = [f'"{name}":{json_value(rng, kind)}' for name, kind in COLUMNS.items() if rng.random() < 0.35]
    if rng.random() < 0.06:
        members.append(f"{json.dumps(text(rng))}:{_any_json(rng, 0)}")
    if rng.random() < 0.03 and members:
        members.append(members[0])
    return "{" + ",".join(members) + "}"


def as_bytes(said: str) -> bytes:
    """As UTF-8, with half characters as somebody may send them."""
    return said.encode("utf-8", "surrogatepass")


def json_body(rng: Random) -> bytes:
    """A JSON document of rows."""
    if rng.random() < 0.05:
        return as_bytes(_any_json(rng, 0))
    if rng.random() < 0.5:
        return as_bytes(json_row(rng))
    return as_bytes("[" + ",".join(json_row(rng) for _ in range(rng.randint(0, 5))) + "]")


def ndjson_body(rng: Random) -> bytes:
    """Lines of JSON."""
    end = rng.choice(("\n", "\r\n", "\n\n", "\n \n"))
    return as_bytes("".join(json_row(rng) + end for _ in range(rng.randint(0, 5))))


# --- Arrow ---------------------------------------------------------------------------------------------------------


def _types(rng: Random) -> pa.DataType:
    simple: list[pa.DataType] = [
        *(
            pa.int8(),
            pa.int32(),
            pa.int64(),
            pa.uint64(),
            pa.float16(),
            pa.float32(),
            pa.float64(),
            pa.bool_(),
        ),
        *(
            pa.string(),
            pa.large_string(),
            pa.binary(),
            pa.large_binary(),
            pa.binary(3),
            pa.string_view(),
            pa.null(),
        ),
        *(
            pa.date32(),
            pa.date64(),
            pa.timestamp("us", "UTC"),
            pa.timestamp("s"),
            pa.timestamp("ns", "Europe/Zurich"),
        ),
        *(
            pa.decimal128(10, 2),
            pa.decimal256(60, 3),
            pa.decimal32(5, 1),
            pa.time64("us"),
            pa.duration("s"),
            pa.uuid(),
        ),
    ]
    kind = rng.choice(simple)
    roll = rng.random()
    if roll < 0.06:
        return pa.list_(_types(rng))
    if roll < 0.10:
        return pa.struct([("x", _types(rng)), (rng.choice(("y", "x", "")), _types(rng))])
    if roll < 0.13:
        return pa.map_(pa.string(), _types(rng))
    if roll < 0.16:
        return pa.dictionary(pa.int8(), rng.choice(simple[:12]))
    if roll < 0.18:
        return rng.choice((pa.large_list(kind), pa.list_(kind, 2), pa.list_view(kind)))
    return kind


_FITTING: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "flag": pa.bool_(),
    "small": pa.int8(),
    "price": pa.decimal128(10, 2),
    "ratio": pa.float64(),
    "name": pa.string(),
    "raw": pa.binary(),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "plain": pa.timestamp("us"),
    "tags": pa.list_(pa.string()),
    "times": pa.list_(pa.timestamp("us", "UTC")),
}


def _array(rng: Random, kind: pa.DataType, rows: int) -> pa.Array:
    """Values of any type. Numbers are of any bits, which gives times that Python has no name for."""
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_temporal(kind):
        width = kind.bit_width // 8
        raw = (
            rng.randbytes(width * rows)
            if rng.random() < 0.5
            else struct.pack("<q", rng.randint(0, 100))[:width] * rows
        )
        return pa.Array.from_buffers(kind, rows, [_validity(rng, rows), pa.py_buffer(raw)])
    if types.is_dictionary(kind):
        values = _array(rng, kind.value_type, 3)
        return pa.DictionaryArray.from_arrays(
            pa.array([rng.randint(0, 2) for _ in range(rows)], kind.index_type), values
        )
    if types.is_null(kind):
        return pa.nulls(rng.choice((rows, rows, 10**9)))
    try:
        made = pa.array([None if rng.random() < 0.3 else _python(rng, kind) for _ in range(rows)], kind)
        return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
    except (pa.ArrowException, TypeError, ValueError):
        return pa.nulls(rows, kind)


def _validity(rng: Random, rows: int) -> pa.Buffer | None:
    return pa.py_buffer(rng.randbytes(rows // 8 + 1)) if rng.random() < 0.4 else None


def _python(rng: Random, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_boolean(kind):
        return rng.random() < 0.5
    if types.is_decimal(kind):
        return rng.randint(-99, 99)
    if types.is_map(kind):
        return [(text(rng).encode("utf-8", "replace").decode(), None)]
    if types.is_nested(kind) and not types.is_struct(kind):
        return [None] * 2
    if types.is_struct(kind):
        return {}
    if types.is_binary(kind) or types.is_large_binary(kind):
        return rng.randbytes(3)
    if types.is_fixed_size_binary(kind):
        return rng.randbytes(kind.byte_width)
    return rng.choice(TEXTS).encode("utf-8", "replace").decode()


def arrow_body(rng: Random) -> bytes:
    """An Arrow stream: fit, of other types, of claims that are not true, or with bytes that are changed."""
    if rng.random() < 0.06:
        return _bomb(rng.choice(_SMALL_BOMBS))
    rows = rng.choice((0, 1, 2, 5, 70))
    names = rng.sample(list(_FITTING), rng.randint(1, 5))
    if rng.random() < 0.05:
        names += [rng.choice((names[0], "", "nothing", "_offset", "_op"))]
    arrays = [
        _array(rng, _FITTING.get(name, pa.int64()) if rng.random() < 0.7 else _types(rng), rows)
        for name in names
    ]
    batches = []
    try:
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        batches = [batch] * rng.choice((0, 1, 1, 1, 3))
        body = hostile.stream(
            *batches, schema=batch.schema, compression=rng.choice((None, None, "zstd", "lz4"))
        )
    except (pa.ArrowException, ValueError):
        return _bomb("rows without columns")
    return body if rng.random() < 0.5 else mutated(rng, body)


_SMALL_BOMBS = tuple(name for name in hostile.ARROW_BOMBS if name != "dictionary deltas")


@cache
def _bomb(name: str) -> bytes:
    return hostile.ARROW_BOMBS[name]()


def mutated(rng: Random, body: bytes) -> bytes:
    """The same with a few bytes changed, a number put in, a piece cut out or doubled, or an end that is missing."""
    found = bytearray(body)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        if not found:
            break
        at = rng.randrange(len(found))
        match rng.randrange(6):
            case 0:
                found[at] ^= 1 << rng.randrange(8)
            case 1:
                found[at] = rng.randrange(256)
            case 2:
                number = rng.choice(
                    (-1, 0, 1, 2**31 - 1, -(2**31), 2**62, -(2**63), 10**9, rng.randrange(2**40))
                )
                at -= at % 8
                found[at : at + 8] = struct.pack("<q", number)[: len(found) - at]
            case 3:
                del found[at:]
            case 4:
                del found[at : at + rng.randint(1, 16)]
            case _:
                found[at:at] = found[at : at + rng.randint(1, 16)]
    return bytes(found)


BODIES: dict[str, Callable[[Random], bytes]] = {
    "application/json": json_body,
    "application/x-ndjson": ndjson_body,
    "application/vnd.apache.arrow.stream": arrow_body,
}
