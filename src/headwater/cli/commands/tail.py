"""`headwater tail`: prints the newest records of a topic, and further ones as they are appended."""

from __future__ import annotations

import json
import re
import shutil
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.session import CommandSession, json_option, pass_session, topic_argument
from headwater.core.clock import timestamp
from headwater.core.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.log.reader import Start
    from headwater.log.topic import Topic

_OFFSET = re.compile(r"^(?:(\d+)@)?(\d+)$")
_HIDDEN = ("_partition", "_offset", "_appended_at")


@click.command()
@topic_argument
@click.option("-f", "--follow", is_flag=True, help="Wait for new records and print them, until Ctrl-C.")
@click.option(
    "-n",
    "count",
    default=10,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Number of records.",
)
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    help="Begin at earliest, latest, OFFSET, PARTITION@OFFSET or an append time in ISO 8601.",
)
@json_option
@pass_session
def tail(
    session: CommandSession, topic: str, follow: bool, count: int, start: str | None, as_json: bool
) -> None:
    """Print the newest records of TOPIC.

    A record per line, in the order of appending: partition@offset, append time and values. A terminal cuts long lines;
    a pipe and --json get whole records.
    """
    with session.open() as ws:
        handle = ws.topic(topic)
        show = _Printer(handle, as_json)
        try:
            if start is None:
                positions = _print_last(handle, count, show)
            else:
                positions = _print_from(handle, _start(handle, start), show)
            if follow:
                for batch in handle.read(positions, follow=True, columns=show.columns):
                    show.batch(batch)
        except KeyboardInterrupt:
            pass


def _print_last(topic: Topic, count: int, show: _Printer) -> dict[int, int]:
    """Print the last `count` records over all partitions; returns the positions after them."""
    infos = topic.partitions()
    ends = {p: info.end for p, info in infos.items()}
    found: list[tuple[Any, ...]] = []
    for partition, info in infos.items():
        found += _last_of(topic, partition, info.first, info.end, count, show)
    for *_, row in sorted(found, key=lambda f: f[:3])[-count:] if count else []:
        show.row(row)
    return ends


def _last_of(
    topic: Topic, partition: int, first: int, end: int, count: int, show: _Printer
) -> list[tuple[Any, ...]]:
    """Return the last records of one partition, with their sort keys; reads further back if there are gaps."""
    reach = count
    while True:
        begin = max(first, end - reach)
        reader = topic.read(
            {partition: begin},
            partitions=[partition],
            columns=[*show.columns, "_sequence"],
            on_gap="earliest",
        )
        rows = [
            (row.pop("_sequence"), row["_partition"], row["_offset"], row)
            for batch in reader
            for row in batch.to_pylist()
            if row["_offset"] < end
        ]
        if len(rows) >= count or begin == first:
            return rows[-count:] if count else []
        reach *= 4


def _print_from(topic: Topic, start: Start, show: _Printer) -> dict[int, int]:
    reader = topic.read(start, columns=show.columns)
    for batch in reader:
        show.batch(batch)
    return reader.positions


def _start(topic: Topic, text: str) -> Start:
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    if match := _OFFSET.match(text):
        infos = topic.partitions()
        chosen = [int(match[1])] if match[1] is not None else list(infos)
        ends = {p: info.end for p, info in infos.items()}
        return {**ends, **{p: min(int(match[2]), ends.get(p, int(match[2]))) for p in chosen}}
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is not a position in a topic",
            hint="use earliest, latest, an offset such as 17, PARTITION@OFFSET such as 0@17, or a time such as 2026-01-31T12:00:00Z",
            option="from",
            value=text,
        ) from None


class _Printer:
    """Prints records, a line each: JSON, or position, time and values cut to the terminal's width."""

    def __init__(self, topic: Topic, as_json: bool) -> None:
        from headwater.core.json_csv import json_encoder

        definition = topic.definition
        self.columns = [*definition.schema.names, *_HIDDEN, *(["_op"] if definition.keyed else [])]
        self._encoders = {f.name: e for f in definition.schema if (e := json_encoder(f.type))}
        self._as_json = as_json
        self._width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def batch(self, batch: pa.RecordBatch) -> None:
        """Print the records of a batch."""
        for row in batch.to_pylist():
            self.row(row)

    def row(self, row: dict[str, Any]) -> None:
        """Print one record, without buffering."""
        values = {
            n: v if v is None or n not in self._encoders else self._encoders[n](v) for n, v in row.items()
        }
        values["_appended_at"] = timestamp(row["_appended_at"])
        if self._as_json:
            click.echo(json.dumps(values, ensure_ascii=False))
            return
        place = f"{values.pop('_partition')}@{values.pop('_offset')}"
        line = f"{place:<10} {values.pop('_appended_at'):<27} {json.dumps(values, ensure_ascii=False)}"
        click.echo(line if self._width is None or len(line) <= self._width else line[: self._width - 1] + "…")
