"""Reads the input files of `headwater append` in chunks of rows, each with the rows' places in the file."""

from __future__ import annotations

import csv
import io
import json
import os
import select
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import click
import orjson
import pyarrow as pa

from headwater.catalog.definitions import METADATA_COLUMNS, TopicDefinition
from headwater.cli.output import INPUT_FORMATS
from headwater.core.errors import BadRowError, UsageError
from headwater.core.json_csv import InputRows, decoded, json_decoder, text_decoder

_SUFFIXES = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
}
_IGNORED = {name for name in METADATA_COLUMNS if name != "_op"}
_LINE = "line {}"
"""Columns that `headwater tail --json` prints and that cannot be appended."""


@dataclass(frozen=True)
class InputChunk:
    """A chunk of rows, the place of each (line or row number, from 1), and the bytes of the file read up to its end."""

    rows: Any
    places: range | list[int]
    bytes_done: int
    place_name: str = "line"

    def __len__(self) -> int:
        return len(self.places)


def format_of(file: str, given: str | None) -> str:
    """Return the format of a file: as given, otherwise by its name; JSON lines for a pipe."""
    if given:
        return given
    if file == "-":
        return "json"
    found = _SUFFIXES.get(Path(file).suffix.lower())
    if found is None:
        raise UsageError(
            f"the name of {file} does not tell its format",
            hint=f"--format {'|'.join(INPUT_FORMATS)}",
            option="format",
            path=file,
        )
    return found


def size_of(file: str) -> int | None:
    """Return the size of a file, for progress; None for a pipe."""
    return Path(file).stat().st_size if file != "-" and Path(file).is_file() else None


def read_chunks(
    file: str, kind: str, topic: TopicDefinition, chunk_rows: int, null: str = "", *, live: bool = False
) -> Iterator[InputChunk]:
    """Yield the rows of a file in chunks of `chunk_rows`, the last one smaller. With `live`, JSON lines of a pipe end a
    chunk early whenever no more input is available, so that a slow pipe is not delayed."""
    with click.open_file(file, "rb") as source:
        if kind == "json":
            lines = _arriving(source) if live and file == "-" else source
            yield from _json(lines, topic, chunk_rows)
        elif kind in ("csv", "tsv"):
            yield from _csv(source, topic, chunk_rows, "\t" if kind == "tsv" else ",", null)
        else:
            yield from _arrow(source, kind, chunk_rows)


def _arriving(source: IO[bytes]) -> Iterator[bytes]:
    """Yield lines as they arrive, and an empty line whenever no more input is available."""
    try:
        pipe = source.fileno()
    except (OSError, ValueError):
        yield from source
        return
    rest = b""
    while piece := os.read(pipe, 1 << 16):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if not select.select([pipe], [], [], 0)[0]:
            yield b""
    if rest:
        yield rest


def _json(source: Iterable[bytes], topic: TopicDefinition, chunk_rows: int) -> Iterator[InputChunk]:
    decoders = {f.name: (d, f) for f in topic.schema if (d := json_decoder(f.type))}
    given = InputRows(topic.name, _LINE)
    exact = any(_has_decimal(f.type) for f in topic.schema)
    rows: list[dict[str, Any]] = []
    places: list[int] = []
    done = number = 0
    for line in source:
        if not line and rows:
            yield InputChunk(rows, places, done)
            rows, places = [], []
        done += len(line)
        number += bool(line)
        if not line.strip():
            continue
        row = _object(line, number, topic, exact)
        for name in row.keys() & _IGNORED:
            del row[name]
        for name in row.keys() & decoders.keys():
            if row[name] is not None:
                decode, field = decoders[name]
                row[name] = decoded(decode, row[name], field, given, number)
        rows.append(row)
        places.append(number)
        if len(rows) == chunk_rows:
            yield InputChunk(rows, places, done)
            rows, places = [], []
    if rows:
        yield InputChunk(rows, places, done)


def _object(line: bytes, number: int, topic: TopicDefinition, exact: bool) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_float=Decimal) if exact else orjson.loads(line)
    except ValueError as error:
        raise BadRowError(
            f"line {number} for topic {topic.name!r} is not JSON: {error}",
            detail=_beginning(line),
            hint="write one JSON object per line; jq -c '.[]' converts an array",
            topic=topic.name,
            row=number,
        ) from None
    if not isinstance(row, dict):
        raise BadRowError(
            f"line {number} for topic {topic.name!r} is not a JSON object",
            detail=_beginning(line),
            hint="write one JSON object per line; jq -c '.[]' converts an array",
            topic=topic.name,
            row=number,
        )
    return row


def _beginning(line: bytes) -> str:
    return f"the line begins with {line[:100].decode(errors='replace').rstrip()}"


def _has_decimal(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _has_decimal(kind.key_type) or _has_decimal(kind.item_type)
    if pa.types.is_nested(kind):
        return any(_has_decimal(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_decimal(kind))


def _csv(
    source: IO[bytes], topic: TopicDefinition, chunk_rows: int, delimiter: str, null: str
) -> Iterator[InputChunk]:
    reader = csv.reader(_text_lines(source, topic), delimiter=delimiter, strict=True)
    try:
        header = next(reader, [])
        columns = [_csv_column(name, topic) for name in header]
        given = InputRows(topic.name, _LINE)
        while True:
            rows, places = [], []
            for record in islice(reader, chunk_rows):
                if record:
                    rows.append(_csv_row(record, columns, given, reader.line_num, null))
                    places.append(reader.line_num)
            if not rows:
                return
            yield InputChunk(rows, places, _position(source))
    except csv.Error as error:
        raise BadRowError(
            f"line {reader.line_num} for topic {topic.name!r} is not CSV: {error}",
            hint="put fields with quotes, separators or line breaks in double quotes",
            topic=topic.name,
            row=reader.line_num,
        ) from None


def _text_lines(source: IO[bytes], topic: TopicDefinition) -> Iterator[str]:
    """Yield the lines of a UTF-8 file. An error names the line, which a decoder that reads ahead could not do."""
    for number, line in enumerate(source, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise BadRowError(
                f"line {number} for topic {topic.name!r} is not UTF-8: {error.reason} at its byte {error.start}",
                detail=_beginning(line),
                hint="convert the file: iconv -f latin1 -t utf-8",
                topic=topic.name,
                row=number,
            ) from None
        yield from (
            io.StringIO(text, newline="") if "\r" in text[:-2] else (text,)
        )  # a lone CR ends a line too


def _position(source: IO[bytes]) -> int:
    try:
        return source.tell()
    except OSError:
        return 0


def _csv_column(
    name: str, topic: TopicDefinition
) -> tuple[str, Callable[[str], Any], pa.Field | None] | None:
    if name in _IGNORED:
        return None
    if name == "_op" and topic.keyed:
        return name, str, None
    if name not in topic.schema.names:
        raise UsageError(
            f"topic {topic.name!r} has no column {name!r}, which the header of the file names",
            hint=f"its columns are {', '.join(topic.schema.names)}",
            topic=topic.name,
            column=name,
        )
    field = topic.schema.field(name)
    return name, text_decoder(field.type), field


def _csv_row(
    record: list[str],
    columns: list[tuple[str, Callable[[str], Any], pa.Field | None] | None],
    given: InputRows,
    line: int,
    null: str,
) -> dict[str, Any]:
    if len(record) != len(columns):
        raise BadRowError(
            f"line {line} for topic {given.topic!r} has {len(record)} fields, the header has {len(columns)}",
            topic=given.topic,
            row=line,
        )
    row = {}
    for column, value in zip(columns, record, strict=True):
        if column is not None and value != null:
            name, decode, field = column
            row[name] = value if field is None else decoded(decode, value, field, given, line)
    return row


def _arrow(source: IO[bytes], kind: str, chunk_rows: int) -> Iterator[InputChunk]:
    done = 0
    buffered: Any = source if isinstance(source, io.BufferedReader) else io.BufferedReader(cast(Any, source))
    for batch in _batches(buffered, kind, chunk_rows):
        batch = batch.select([n for n in batch.schema.names if n not in _IGNORED])
        for at in range(0, batch.num_rows, chunk_rows):
            piece = batch.slice(at, chunk_rows)
            yield InputChunk(piece, range(done + 1, done + piece.num_rows + 1), _position(source), "row")
            done += piece.num_rows


def _batches(source: Any, kind: str, chunk_rows: int) -> Iterator[pa.RecordBatch]:
    try:
        if kind == "parquet":
            import pyarrow.parquet as pq

            yield from pq.ParquetFile(_seekable(source)).iter_batches(batch_size=chunk_rows)
            return
        if source.peek(6).startswith(b"ARROW1"):
            opened = pa.ipc.open_file(_seekable(source))
            yield from (opened.get_batch(i) for i in range(opened.num_record_batches))
        else:
            yield from pa.ipc.open_stream(source)
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"the input is not {_PROPER[kind]}", detail=str(error), expected=kind) from None


_PROPER = {"parquet": "Parquet", "arrow": "Arrow IPC"}


def _seekable(source: IO[bytes]) -> IO[bytes]:
    return source if source.seekable() else io.BytesIO(source.read())
