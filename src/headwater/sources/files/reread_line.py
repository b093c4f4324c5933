"""Parses a rejected line of a files source again: after an edit of the line, or after a change of the topic or the source.

The line is parsed with the current format and options of the source and the current definition of the topic. A row of a Parquet
file was stored as a JSON object, and is parsed as JSON.
"""

from __future__ import annotations

import pyarrow as pa

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import BadRowError, UsageError
from headwater.core.json_csv import InputRows, decoded, json_decoder, read_json
from headwater.sources.clock_positions import rows_of
from headwater.sources.files.contents import UNREADABLE, open_content, read_exactly
from headwater.sources.files.file_reader import HEADER_BYTES_MAX
from headwater.sources.files.formats import LineReader, MalformedLine
from headwater.sources.files.lines import last_line, split
from headwater.sources.files.options import FilesOptions

REPLACED = "\N{REPLACEMENT CHARACTER}"
"""Character that replaces bytes that are not UTF-8 in a rejected line."""


def row_of(options: FilesOptions, topic: TopicDefinition, line: str, header: str | None) -> pa.RecordBatch:
    """Return the one row of a line, conformed to `rows_of(topic)`; BadRowError or UsageError says why the line is not one valid
    row."""
    if options.format == "parquet":
        return _of_json(line, topic)
    reader = LineReader(options, topic, None if header is None else header.encode())
    data = f"{line}\n".encode()
    if not options.multiline and len(split(data, 0)) > 1:
        raise BadRowError(
            "the edited text has more than one line",
            hint="replace the rejected line with one line",
            reason="lines",
        )
    rows = list(reader.rows(last_line(data, 0)))
    for made in rows:
        if isinstance(made, MalformedLine):
            raise BadRowError(made.reason)
    batches = [made for made in rows if isinstance(made, pa.RecordBatch)]
    if sum(batch.num_rows for batch in batches) != 1:
        raise BadRowError(
            "the edited line does not contain exactly one row",
            hint="replace the rejected line with one line",
            reason="rows",
        )
    return batches[0]


def header_of(path: str, byte: int, line: str, options: FilesOptions) -> str:
    """Return the header of the CSV file of a line, for lines that were stored without one. UsageError if the file no longer
    exists, or has other content at that byte."""
    try:
        with open_content(path) as content:
            content.seek(byte)
            is_same = read_exactly(content, len(line.encode())) == line.encode()
            content.seek(0)
            first = split(read_exactly(content, HEADER_BYTES_MAX), 0, quoted=options.multiline)
    except (OSError, *UNREADABLE):
        is_same, first = False, split(b"", 0)
    if not is_same or not len(first):
        raise UsageError(
            f"the header of {path} is unknown: the file was removed or has changed",
            hint="append the line to a file that the source reads, below its header, and drop the dead letter",
            file=str(path),
        )
    return first.part(0, 1).text


def _of_json(line: str, topic: TopicDefinition) -> pa.RecordBatch:
    """Return the row of a Parquet file that was stored as JSON."""
    try:
        given = read_json(line.encode(), exact=True)
    except ValueError as error:
        raise BadRowError(
            f"the edited row is not valid JSON: {error}", hint='write {"id": 1, "name": "x"}', reason="json"
        ) from None
    if not isinstance(given, dict):
        raise BadRowError(
            "the edited row is not a JSON object", hint='write {"id": 1, "name": "x"}', reason="json-object"
        )
    row, rows = dict(given), InputRows(topic.name, "the row")
    for field in topic.given.schema:
        decode = json_decoder(field.type)
        if decode is not None and row.get(field.name) is not None:
            row[field.name] = decoded(decode, row[field.name], field, rows)
    return conform([row], rows_of(topic), captured=True)
