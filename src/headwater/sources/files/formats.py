"""Converts lines to rows of a topic: whole blocks at once; a block with invalid lines is split until these lines are isolated.

Arrow parses and checks a block. If this fails, the block is halved until the invalid lines are found. So the result for a line
does not depend on the lines that are parsed with it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import BadRowError, UsageError
from headwater.core.json_csv import as_json, json_encoder
from headwater.core.parallel import side_by_side
from headwater.core.types import TIMESTAMP, format_type
from headwater.core.values import UNFIT
from headwater.sources.clock_positions import rows_of
from headwater.sources.files.lines import Block
from headwater.sources.files.options import LINE, FilesOptions, pattern_columns, whole_line

PARSE_BYTES = 1 << 20
"""Number of bytes that one thread parses at a time."""
BOM = b"\xef\xbb\xbf"

_ZONE = r"(?:Z|[+-]\d\d(?::?\d\d)?)$"


class NoFit(Exception):
    """Some of the lines are invalid. The reason applies only if the block has a single line, or if `lines` names the invalid
    ones."""

    def __init__(self, reason: str, lines: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.lines = lines


@dataclass(frozen=True)
class MalformedLine:
    """A line that cannot be converted to a row."""

    byte: int
    """Offset of the line in the file; for a Parquet file, the index of the row."""
    line: str | None
    reason: str


class LineReader:
    """Converts the lines of one file to rows."""

    def __init__(self, options: FilesOptions, topic: TopicDefinition, header: bytes | None = None) -> None:
        """`header` is the first line of a CSV file with a header."""
        self._options = options
        self._topic = rows_of(topic)
        fields = [pa.field(f.name, f.type) for f in self._topic.given.schema]
        if topic.keyed:
            fields.append(pa.field("_op", pa.string()))
        self._schema = pa.schema(fields)
        self._parse: Callable[[Block], pa.Table]
        if options.format == "json":
            self._parse = self._json
        elif options.format == "csv":
            self._names = (
                self._header(header) if header is not None else self._schema.names[: len(topic.given.schema)]
            )
            self._parse = self._csv
        else:
            self._columns = line_columns(options, topic)
            self._parse = self._lines

    def rows(self, block: Block) -> Iterator[pa.RecordBatch | MalformedLine]:
        """Yield the rows and the rejected lines of a block, in the order of the lines."""
        if not len(block):
            return
        try:
            batch = conform(self._parse(block), self._topic, captured=True)
            if batch.num_rows:
                yield batch
        except (NoFit, BadRowError, *UNFIT) as error:
            if len(block) == 1:
                reason = error.message if isinstance(error, BadRowError) else str(error)
                yield MalformedLine(block.begin, block.text, reason)
                return
            if isinstance(error, NoFit) and len(error.lines):
                bounds = sorted({0, *error.lines, *(line + 1 for line in error.lines), len(block)})
            else:
                bounds = [0, len(block) // 2, len(block)]
            for begin, end in pairwise(bounds):
                yield from self.rows(block.part(begin, end))

    # --- JSON ------------------------------------------------------------------------------------------------------

    def _json(self, block: Block) -> pa.Table:
        blank = block.blank()
        expected = len(block) - int(blank.sum())
        if not expected:
            return self._schema.empty_table()
        # Arrow accepts an object that spans several lines, and crashes on a line that is just null.
        others = np.flatnonzero(~(block.enclosed(b"{", b"}") | blank))
        if len(others):
            raise NoFit("a line is one JSON object", others.tolist())
        options = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([pa.field(f.name, self._json_type(f)) for f in self._schema]),
            unexpected_field_behavior="ignore" if self._options.extra == "ignore" else "error",
        )
        table = pyarrow.json.read_json(
            pa.BufferReader(block.data),
            read_options=pyarrow.json.ReadOptions(block_size=max(PARSE_BYTES, block.longest + 1)),
            parse_options=options,
        )
        if table.num_rows != expected:
            raise NoFit("a line is one JSON object")
        return self._typed(table)

    def _json_type(self, field: pa.Field) -> pa.DataType:
        """Return the type as which Arrow reads a column: string if Arrow cannot parse the type itself."""
        kind = field.type
        is_text = pa.types.is_date(kind) or pa.types.is_binary(kind)
        return pa.string() if is_text or (kind == TIMESTAMP and self._options.time_format) else kind

    # --- CSV -------------------------------------------------------------------------------------------------------

    def _header(self, line: bytes) -> list[str]:
        """Return the column names in the header of a CSV file."""
        reader = pyarrow.csv.open_csv(
            pa.BufferReader(line.removeprefix(BOM).rstrip(b"\r\n") + b"\n"),
            read_options=pyarrow.csv.ReadOptions(autogenerate_column_names=True),
            parse_options=pyarrow.csv.ParseOptions(delimiter=self._options.delimiter),
            convert_options=pyarrow.csv.ConvertOptions(
                strings_can_be_null=False, default_column_type=pa.string()
            ),
        )
        given = [str(v[0]).strip() for v in reader.read_all().to_pydict().values()]
        known = {name.lower(): name for name in self._schema.names}
        names = [known.get(name.lower(), name) for name in given]
        unknown = [name for name in names if name not in self._schema.names]
        if unknown and self._options.extra == "refuse":
            raise UsageError(
                f"the header has a column {unknown[0]!r} that topic {self._topic.name!r} does not have",
                hint=f"the columns are {', '.join(self._topic.schema.names)}; extra = 'ignore' skips others",
                topic=self._topic.name,
                column=unknown[0],
            )
        if len(set(names)) < len(names):
            raise UsageError(
                "the header names a column twice",
                detail=line.decode(errors="replace"),
                column=next(name for name in names if names.count(name) > 1),
            )
        return names

    def _csv(self, block: Block) -> pa.Table:
        expected = len(block) - int(block.blank().sum())
        if not expected:
            return self._schema.empty_table()
        last = block.part(len(block) - 1, len(block)).data
        # Append the last line once more: an open quote before it swallows the copy, which the number of rows reveals.
        end = b"" if last.endswith(b"\n") else b"\n"
        table = pyarrow.csv.read_csv(
            pa.BufferReader(block.data + end + last),
            read_options=pyarrow.csv.ReadOptions(
                column_names=self._names, block_size=max(PARSE_BYTES, 2 * block.longest + 1)
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=self._options.delimiter, newlines_in_values=self._options.multiline
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={
                    name: self._csv_type(self._schema.field(name))
                    if name in self._schema.names
                    else pa.string()
                    for name in self._names
                },
                include_columns=[name for name in self._names if name in self._schema.names],
                null_values=[self._options.null],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        extra = int(bool(last.strip()))
        if table.num_rows != expected + extra:
            raise NoFit("a quote is not closed" if len(block) == 1 else "lines and rows do not correspond")
        return self._typed(table.slice(0, expected))

    def _csv_type(self, field: pa.Field) -> pa.DataType:
        kind = field.type
        return pa.string() if pa.types.is_timestamp(kind) or pa.types.is_binary(kind) else kind

    # --- lines -----------------------------------------------------------------------------------------------------

    def _lines(self, block: Block) -> pa.Table:
        offsets = pa.py_buffer(block.starts.astype(np.int32))
        lines = pa.StringArray.from_buffers(len(block), offsets, pa.py_buffer(block.data))
        lines.validate(full=True)
        lines = pc.ascii_rtrim(lines, "\r\n")
        if self._options.pattern is None:
            return self._typed(pa.table([lines], names=self._columns))
        half = (len(lines) + 1) // 2
        parts = [lines.slice(0, half), lines.slice(half)]
        made = side_by_side(self._matched, parts, size=len(block.data))
        unmatched = [line + at * half for at, (_, others) in enumerate(made) for line in others]
        if unmatched:
            raise NoFit("it does not match the pattern", unmatched)
        return pa.concat_tables([table for table, _ in made])

    def _matched(self, lines: pa.StringArray) -> tuple[pa.Table, list[int]]:
        """Return the columns that the pattern matches in the lines, or the indices of the lines that it does not match."""
        found = pc.extract_regex(lines, whole_line(self._options.pattern or ""))
        if found.null_count:
            has_text = pc.not_equal(lines, "")
            unmatched = np.flatnonzero(pc.and_(found.is_null(), has_text))
            if len(unmatched):
                return self._schema.empty_table(), unmatched.tolist()
            found = found.filter(has_text)
        null = self._options.null
        columns = [pc.if_else(pc.equal(c, null), pa.scalar(None, pa.string()), c) for c in found.flatten()]
        return self._typed(pa.table(columns, names=self._columns)), []

    # --- values ----------------------------------------------------------------------------------------------------

    def _typed(self, table: pa.Table) -> pa.Table:
        """Convert the columns that are still text to the types of the topic."""
        for place, name in enumerate(table.column_names):
            wanted = self._schema.field(name).type
            column = table.column(place)
            if column.type != wanted and pa.types.is_string(column.type):
                try:
                    typed = self._of_text(column, wanted)
                except UNFIT as error:
                    raise NoFit(f"column {name!r} is not {format_type(wanted)}: {error}") from None
                table = table.set_column(place, name, typed)
        return table

    def _of_text(self, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
        if kind == TIMESTAMP:
            return self._timestamps(column)
        if pa.types.is_binary(kind):
            return pa.chunked_array([pa.array(list(map(_decoded, column.to_pylist())), kind)])
        if pa.types.is_integer(kind) and any(pc.any(pc.match_substring(column, x)).as_py() for x in "xX"):
            raise pa.ArrowInvalid("it is not a decimal number")  # Arrow reads 0x10 as 16
        return column.cast(kind)

    def _timestamps(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Parse timestamps; those without a zone are UTC."""
        if self._options.time_format is not None:
            parsed = pc.strptime(column, format=self._options.time_format, unit="us")
            return parsed if parsed.type.tz else pc.assume_timezone(parsed, "UTC")
        zoned = pc.match_substring_regex(column, _ZONE)
        zoned = pc.and_(zoned, pc.greater(pc.utf8_length(column), 10))  # the day of a date is no zone
        if pc.all(zoned).as_py():
            return column.cast(TIMESTAMP)
        nothing = pa.scalar(None, pa.string())
        with_zone = pc.if_else(zoned, column, nothing).cast(TIMESTAMP)
        without = pc.if_else(zoned, nothing, column).cast(pa.timestamp("us"))
        return pc.coalesce(with_zone, pc.assume_timezone(without, "UTC"))


def line_columns(options: FilesOptions, topic: TopicDefinition) -> tuple[str, ...]:
    """Return the columns of text lines: the groups of the pattern, or else one column, the topic's only column or `line`."""
    if options.pattern is not None:
        return pattern_columns(options.pattern)
    own = topic.given.schema.names
    return (own[0],) if len(own) == 1 else (LINE,)


def check_readable(options: FilesOptions, topic: TopicDefinition, source: str) -> None:
    """Raise UsageError if lines of the format can never be rows of the topic."""
    if options.format == "parquet":
        return
    for field in topic.given.schema:
        if options.format == "json":
            fits = not _has(field.type, pa.types.is_map) and not (
                pa.types.is_nested(field.type)
                and _has(field.type, lambda t: pa.types.is_date(t) or pa.types.is_binary(t))
            )
        else:
            fits = not pa.types.is_nested(field.type)
        if not fits:
            raise UsageError(
                f"source {source!r} cannot read column {field.name!r}, which is {format_type(field.type)}, "
                f"from {options.format}",
                hint="declare it STRING and parse it in a view with from_json",
                source=source,
                column=field.name,
                format=options.format,
            )
    if options.format == "lines":
        unknown = [name for name in line_columns(options, topic) if name not in topic.given.schema.names]
        if unknown:
            raise UsageError(
                f"topic {topic.name!r} of source {source!r} has no column {unknown[0]!r}, "
                + ("to which lines are written" if options.pattern is None else "which the pattern names"),
                hint=f"its columns are {', '.join(topic.schema.names)}",
                source=source,
                topic=topic.name,
                column=unknown[0],
            )
    if options.time_format is not None:
        try:
            pc.strptime(pa.array([], pa.string()), format=options.time_format, unit="us")
        except pa.ArrowException as error:
            raise UsageError(
                f"time_format {options.time_format!r} is not valid: {error}",
                option="time_format",
                value=options.time_format,
            ) from None


def table_rows(
    batch: pa.RecordBatch, topic: TopicDefinition, begin: int
) -> Iterator[pa.RecordBatch | MalformedLine]:
    """Convert rows of a Parquet file to rows of a topic; rejected rows are yielded with their index in the file."""
    try:
        yield conform(batch, rows_of(topic), captured=True)
    except (BadRowError, *UNFIT) as error:
        if batch.num_rows == 1:
            reason = error.message if isinstance(error, BadRowError) else str(error)
            yield MalformedLine(begin, _as_json(batch), reason)
            return
        middle = batch.num_rows // 2
        yield from table_rows(batch.slice(0, middle), topic, begin)
        yield from table_rows(batch.slice(middle), topic, begin + middle)


def _as_json(batch: pa.RecordBatch) -> str:
    """Return the only row of a batch as JSON, in the form that `reread_line` reads."""
    encoders = {field.name: json_encoder(field.type) for field in batch.schema}
    row = batch.to_pylist()[0]
    given = {n: e(row[n]) if (e := encoders[n]) is not None and row[n] is not None else row[n] for n in row}
    return as_json(given)


def _decoded(value: str | None) -> bytes | None:
    try:
        return None if value is None else base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"it is not base64: {error}") from None


def _has(kind: pa.DataType, what: Callable[[pa.DataType], bool]) -> bool:
    if what(kind):
        return True
    parts: Sequence[pa.DataType] = (
        [kind.field(i).type for i in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    )
    return any(_has(part, what) for part in parts)
