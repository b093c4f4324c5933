"""`headwater append`: load a file or a pipe into a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headwater.cli.output import print_json, progress
from headwater.cli.session import Session, json_option, pass_session, topic_argument
from headwater.errors import AlreadyWrittenError, BadRowError, ConflictError, HeadwaterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater.cli.inputs import Chunk
    from headwater.log.topic import Topic

FORMATS = ("json", "csv", "tsv", "parquet", "arrow")
CHUNK_ROWS = 10_000


class _Load:
    """One run of the command: what is done so far."""

    def __init__(self, topic: Topic, producer: str | None, advance: Callable[[int, str], None]) -> None:
        self.topic = topic
        self.producer = producer
        self.rows = 0
        self.skipped = 0
        self.appends = 0
        self._advance = advance
        self._ends = {p: info.end for p, info in topic.partitions().items()}

    def by_chunk(self, chunks: Iterator[Chunk]) -> None:
        """One append per chunk; under a producer's name, chunks that are there already are passed over."""
        for sequence, chunk in enumerate(chunks, start=1):
            try:
                self._append(chunk, sequence)
            except BadRowError as error:
                raise self._placed(error, chunk) from None
            self._advance(chunk.bytes_done, f"{self.rows + self.skipped:,} rows")

    def _append(self, chunk: Chunk, sequence: int) -> None:
        if self.producer is None:
            self.rows += self.topic.append(chunk.rows).rows
            self.appends += 1
            return
        try:
            receipt = self.topic.append(chunk.rows, producer=self.producer, sequence=sequence)
        except AlreadyWrittenError:
            self.skipped += len(chunk)
            return
        if receipt.rows != len(chunk):
            raise ConflictError(
                f"producer {self.producer!r} has written other rows as its chunk {sequence}",
                detail=f"it wrote {receipt.rows:,} rows, this chunk has {len(chunk):,}; nothing of it was written",
                hint="use one producer name per file, and the same --chunk-rows when resuming",
            )
        parts = receipt.positions.get(self.topic.name, {})
        if all(end <= self._ends[p] for p, (_, end) in parts.items()):
            self.skipped += len(chunk)
        else:
            self.rows += len(chunk)
            self.appends += 1

    def atomically(self, chunks: Iterator[Chunk]) -> None:
        """All chunks in one append."""
        seen: list[Chunk] = []
        sequence = None if self.producer is None else 1
        try:
            self.rows = self.topic.append(
                self._rows(chunks, seen), producer=self.producer, sequence=sequence
            ).rows
            self.appends = 1
        except BadRowError as error:
            raise self._placed(error, seen[-1] if seen else None) from None

    def _rows(self, chunks: Iterator[Chunk], seen: list[Chunk]) -> Iterator[Any]:
        """Batches, converted here so that an error names a place in the file."""
        from headwater.records import conform

        done = 0
        for chunk in chunks:
            seen[:] = [chunk]
            yield conform(chunk.rows, self.topic.definition)
            done += len(chunk)
            self._advance(chunk.bytes_done, f"{done:,} rows")

    def _placed(self, error: BadRowError, chunk: Chunk | None) -> HeadwaterError:
        """The error with the place in the file in place of the row's number in its chunk."""
        message = error.message
        row: int = error.facts.get("row", 0)
        if chunk is not None and f"row {row} " in message:
            message = message.replace(f"row {row} ", f"{chunk.place_name} {chunk.places[row]} ", 1)
        kept = (
            f"the {self.rows + self.skipped:,} rows before its chunk are in the topic"
            if self.rows + self.skipped
            else None
        )
        hint = error.hint
        if self.rows and self.producer is not None:
            hint = "correct the file and run the same command again: what is there is passed over"
        return BadRowError(message, detail=kept or "nothing was appended", hint=hint, **error.facts)


@click.command()
@topic_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), help="Default: by the file's name; JSON lines for a pipe."
)
@click.option("--producer", metavar="NAME", help="Resumable: run again, rows that are there are passed over.")
@click.option(
    "--chunk-rows", default=CHUNK_ROWS, show_default=True, type=click.IntRange(1), help="Rows per append."
)
@click.option("--atomic", is_flag=True, help="One append for the whole file: all of it or nothing.")
@click.option("--null", default="", metavar="TEXT", help="How CSV writes NULL. Default: an empty field.")
@json_option
@pass_session
def append(session: Session, /, topic: str, file: str, **options: Any) -> None:
    """Append the rows of FILE ("-" for a pipe) to TOPIC.

    JSON lines, CSV, TSV, Parquet or Arrow. In JSON and CSV, timestamps and dates are ISO text, binary is base64,
    and nested values are JSON.

    With --producer the chunks are numbered, and one that was written under that name before is passed over: run the
    same command again after a crash. Use one name per file.
    """
    from headwater.cli.inputs import format_of, read_chunks, size_of

    kind = format_of(file, options["kind"])
    with session.open() as ws:
        handle = ws.topic(topic)
        with progress(f"appending to {topic}", size_of(file)) as advance:
            load = _Load(handle, options["producer"], advance)
            live = options["producer"] is None and not options["atomic"]
            chunks = read_chunks(
                file, kind, handle.definition, options["chunk_rows"], options["null"], live=live
            )
            if options["atomic"]:
                load.atomically(chunks)
            else:
                load.by_chunk(chunks)
    if options["as_json"]:
        print_json({"topic": topic, "rows": load.rows, "skipped": load.skipped, "appends": load.appends})
    else:
        were = f"; {load.skipped:,} were there already" if load.skipped else ""
        click.echo(f"appended {load.rows:,} rows to {topic}{were}")
