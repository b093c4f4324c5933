"""Options of `CREATE SOURCE ... FROM FILES WITH (...)`: parsed and checked, without access to files."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.connectors import SOURCE_OPTIONS
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.arguments import span_us, text
from headwater.core.clock import Microseconds
from headwater.core.errors import UsageError
from headwater.sources.clock_positions import owned
from headwater.sql.parser import parse_columns

Format = Literal["json", "csv", "lines", "parquet"]
OnError = Literal["stop", "divert"]
Extra = Literal["refuse", "ignore"]

SETTLE_US = 5_000_000
LINE = "line"
"""Name of the only column of lines without a pattern."""

_ERRORS = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),
        pa.field("byte", pa.int64()),
        pa.field("line", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
"""First columns of the topic of rejected lines."""
OPTION_NAMES = SOURCE_OPTIONS["files"]
_SUFFIXES: Mapping[str, Format] = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".log": "lines",
    ".txt": "lines",
}
_ONLY_FOR: Mapping[str, tuple[Format, ...]] = {
    "pattern": ("lines",),
    "header": ("csv",),
    "delimiter": ("csv",),
    "multiline": ("csv",),
    "null": ("csv", "lines"),
    "time_format": ("csv", "lines", "json"),
    "extra": ("json", "csv", "parquet"),
}


@dataclass(frozen=True)
class FilesOptions:
    """The options of a source."""

    path: str
    """A file, a folder (all files in it), or a pattern with `*`, `?`, `[...]` and, for folders at any depth, `**`."""
    topic: str
    format: Format
    columns: str | None = None
    """Columns as in CREATE TOPIC, with PRIMARY KEY and WATERMARK if there are any."""
    key: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression (RE2) that a whole line matches; its named groups are columns."""
    header: bool = True
    delimiter: str = ","
    null: str = ""
    """Text that means NULL."""
    multiline: bool = False
    """Whether quoted fields may contain line ends."""
    time_format: str | None = None
    """Format of timestamps for strptime, with %z for the zone; by default ISO 8601."""
    extra: Extra = "refuse"
    """Handling of fields that are not columns of the topic."""
    on_error: OnError = "stop"
    settle_us: Microseconds = SETTLE_US
    """Time without changes after which a last line without a line end, or an incomplete file, is processed as it is."""


def read_options(source: str, options: Mapping[str, Any]) -> FilesOptions:
    """Return the checked options; UsageError names what is wrong."""
    for name in options:
        if name not in OPTION_NAMES:
            near = difflib.get_close_matches(name, OPTION_NAMES, 1)
            raise UsageError(
                f"{name!r} is not an option of a FILES source",
                hint=f"did you mean {near[0]}?" if near else f"the options are {', '.join(OPTION_NAMES)}",
                source=source,
                option=name,
            )
    path = text(options.get("path"), "path", hint="write path = 'logs/*.log'")
    if not path.strip():
        raise UsageError(
            f"the path of source {source!r} is empty",
            hint="write path = 'logs/*.log'",
            source=source,
            option="path",
        )
    kind = _format(options.get("format"), path)
    for name, kinds in _ONLY_FOR.items():
        if options.get(name) is not None and kind not in kinds:
            raise UsageError(
                f"{name} is an option of format {' or '.join(map(repr, kinds))}, not of {kind!r}",
                source=source,
                option=name,
                format=kind,
            )
    delimiter = text(options.get("delimiter") or ("\t" if _suffix(path) == ".tsv" else ","), "delimiter")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise UsageError(
            f"delimiter must be one character other than a quote or a line break, not {delimiter!r}",
            source=source,
            option="delimiter",
            value=delimiter,
        )
    pattern = None if options.get("pattern") is None else text(options["pattern"], "pattern")
    if pattern is not None:
        pattern_columns(pattern)
    settle = options.get("settle")
    return FilesOptions(
        path=os.path.expanduser(path),
        topic=text(options.get("topic") or source, "topic"),
        format=kind,
        columns=None if options.get("columns") is None else text(options["columns"], "columns"),
        key=tuple(k.strip() for k in text(options.get("key") or "", "key").split(",") if k.strip()),
        pattern=pattern,
        header=_flag(options.get("header"), "header", True),
        delimiter=delimiter,
        null=text(options.get("null") or "", "null"),
        multiline=_flag(options.get("multiline"), "multiline", False),
        time_format=None
        if options.get("time_format") is None
        else text(options["time_format"], "time_format"),
        extra=_choice(options.get("extra"), "extra", Extra, "refuse"),
        on_error=_choice(options.get("on_error"), "on_error", OnError, "stop"),
        settle_us=SETTLE_US if settle is None else span_us(settle, "settle"),
    )


def pattern_columns(pattern: str) -> tuple[str, ...]:
    """Return the columns that a pattern names; UsageError if the pattern is not valid."""
    try:
        found = pc.extract_regex(pa.array([""]), whole_line(pattern))
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"the pattern is not a valid regular expression: {error}",
            detail=pattern,
            hint="use RE2 syntax, without lookaround and back references; name every group: (?P<name>...)",
            option="pattern",
            reason="syntax",
        ) from None
    names = tuple(found.type.field(i).name for i in range(found.type.num_fields))
    if not names or len(set(names)) < len(names):
        raise UsageError(
            "the pattern must name every column exactly once",
            detail=pattern,
            hint="write a named group for each column, such as (?P<status>\\d+)",
            option="pattern",
            reason="group-names",
        )
    return names


def whole_line(pattern: str) -> str:
    """Return the expression that a whole line has to match."""
    return f"^(?:{pattern})$"


def columns_topic(source: str, options: FilesOptions) -> TopicDefinition | None:
    """Return the topic declared by the options; None if they declare no columns."""
    ddl = options.columns
    if ddl is None and options.format == "lines" and options.pattern is None:
        ddl = f"{LINE} STRING NOT NULL"
    if ddl is None:
        return None
    said = parse_columns(ddl)
    if options.key and said.key and options.key != said.key:
        raise UsageError(
            f"the key of source {source!r} differs from the PRIMARY KEY in its columns",
            hint="omit one of them",
            source=source,
            option="key",
        )
    if said.private:
        refuse_plain_lines(source, options)
    made = define_topic(
        options.topic,
        said.schema,
        key=options.key or said.key,
        time=said.time,
        lateness=said.lateness_us,
        private=said.private,
    )
    return owned(source, made)


def refuse_plain_lines(source: str, options: FilesOptions) -> None:
    """Raise UsageError if a source diverts rejected lines although its topic has private columns."""
    if options.on_error == "divert":
        raise UsageError(
            f"source {source!r} has private columns, and diverted lines would be stored unencrypted",
            hint="remove PRIVATE BY or on_error = 'divert'",
            source=source,
            option="on_error",
        )


def errors_topic(source: str) -> TopicDefinition:
    """Return the topic of rejected lines. Its column `header` stores the first line of a CSV file with a header, so that a line
    can be parsed again."""
    return owned(source, define_topic(f"{source}_errors", pa.schema([*_ERRORS, ("header", pa.string())])))


def is_errors_topic(topic: TopicDefinition) -> bool:
    """Whether a topic is the topic of rejected lines of a files source. Earlier versions stored no header."""
    return (
        topic.captured_by is not None
        and topic.name == f"{topic.captured_by}_errors"
        and topic.schema.names[: len(_ERRORS)] == _ERRORS.names
    )


def _suffix(path: str) -> str:
    return os.path.splitext(re.sub(r"\.gz$", "", path.lower()))[1]


def _format(said: Any, path: str) -> Format:
    if said is not None:
        chosen: Format = _choice(said, "format", Format, "lines")
        return chosen
    found = _SUFFIXES.get(_suffix(path))
    if found is None:
        raise UsageError(
            f"the format of {path} cannot be inferred from its name",
            hint="write format = 'json', 'csv', 'parquet' or 'lines'",
            option="format",
            file=str(path),
        )
    return found


def _choice(value: Any, name: str, choices: Any, usual: str) -> Any:
    if value is None:
        return usual
    if value not in get_args(choices):
        known = ", ".join(repr(choice) for choice in get_args(choices))
        raise UsageError(f"{name} must be one of {known}, not {value!r}", option=name, value=value)
    return value


def _flag(value: Any, name: str, usual: bool) -> bool:
    if value is None:
        return usual
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be true or false, not {value!r}", option=name, value=value)
    return value
