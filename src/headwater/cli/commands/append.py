"""`headwater append`: load a file or a pipe into a topic."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import INTERRUPTED
from headwater.cli.output import INPUT_FORMATS, ReportAdvance, print_json, progress
from headwater.cli.session import CommandSession, json_option, pass_session, topic_argument
from headwater.core.errors import (
    AlreadyWrittenError,
    BadRowError,
    ConflictError,
    HeadwaterError,
    SequenceReusedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headwater.cli.inputs import InputChunk
    from headwater.core.positions import Receipt
    from headwater.log.topic import Topic

CHUNK_ROWS = 10_000


class _Interrupts:
    """Delays Ctrl-C until the append in progress has finished, so that its outcome is known; a second Ctrl-C interrupts at
    once."""

    def __init__(self) -> None:
        self._whole = self._asked = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle Ctrl-C here within the block."""
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
            yield  # only the main thread gets signals; a shell's background job ignores SIGINT
            return
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def begin(self) -> None:
        """Delay interrupts from here on."""
        self._whole = True

    def end(self) -> None:
        """Allow interrupts again; KeyboardInterrupt if one was delayed."""
        self._whole = False
        if self._asked:
            raise KeyboardInterrupt

    def _handle(self, *_: Any) -> None:
        if self._asked or not self._whole:
            raise KeyboardInterrupt
        self._asked = True


class _Load:
    """The state of one run of the command: rows and appends so far."""

    def __init__(self, topic: Topic, producer: str | None, advance: ReportAdvance) -> None:
        self.topic = topic
        self.producer = producer
        self.rows = 0
        self.skipped = 0
        self.appends = 0
        self._advance = advance
        self._interrupts = _Interrupts()
        self._ends = {p: info.end for p, info in topic.partitions().items()}

    @property
    def done(self) -> int:
        """Number of rows of the file that are in the topic, appended by this run or an earlier one."""
        return self.rows + self.skipped

    def run(self, chunks: Iterator[InputChunk], *, atomic: bool) -> None:
        """Append all chunks. The detail of an error, also of one in reading the file, states what the topic contains by then."""
        try:
            with self._interrupts.caught():
                if atomic:
                    self._atomically(chunks)
                else:
                    self._by_chunk(chunks)
        except HeadwaterError as error:
            raise self._with_outcome(error) from None

    def _by_chunk(self, chunks: Iterator[InputChunk]) -> None:
        """Append chunk by chunk; with a producer, chunks that an earlier run appended are skipped."""
        for sequence, chunk in enumerate(chunks, start=1):
            self._interrupts.begin()
            try:
                self._append(chunk, sequence)
            except BadRowError as error:
                raise _placed(error, chunk) from None
            self._interrupts.end()
            self._advance(chunk.bytes_done, f"{self.done:,} rows")

    def _append(self, chunk: InputChunk, sequence: int) -> None:
        if self.producer is None:
            self.rows += self.topic.append(chunk.rows).rows
            self.appends += 1
            return
        try:
            receipt = self.topic.append(chunk.rows, producer=self.producer, sequence=sequence)
        except AlreadyWrittenError:
            self.skipped += len(chunk)
            return
        except SequenceReusedError:
            raise self._other_rows(f"chunk {sequence}", f"this chunk has {len(chunk):,} rows") from None
        self._count(receipt, len(chunk), f"chunk {sequence}")

    def _atomically(self, chunks: Iterator[InputChunk]) -> None:
        """Append the whole file in one commit."""
        given = _Given()
        sequence = None if self.producer is None else 1
        try:
            receipt = self.topic.append(self._rows(chunks, given), producer=self.producer, sequence=sequence)
        except AlreadyWrittenError:
            self.skipped = given.rows
        except SequenceReusedError:
            raise self._other_rows("file", f"this file has {given.rows:,} rows") from None
        else:
            self._count(receipt, given.rows, "file")
        self._interrupts.end()

    def _rows(self, chunks: Iterator[InputChunk], given: _Given) -> Iterator[Any]:
        """Yield batches, conformed here so that an error names a place in the file."""
        from headwater.catalog.conform import conform

        for chunk in chunks:
            try:
                yield conform(chunk.rows, self.topic.definition)
            except BadRowError as error:
                raise _placed(error, chunk) from None
            given.rows += len(chunk)
            self._advance(chunk.bytes_done, f"{given.rows:,} rows")
        self._interrupts.begin()

    def _other_rows(self, what: str, differs: str) -> ConflictError:
        return ConflictError(
            f"producer {self.producer!r} has written other rows to topic {self.topic.name!r} as its {what}",
            detail=f"{differs}; none of it was written",
            hint="use one producer name per file, and the same --chunk-rows when resuming",
            topic=self.topic.name,
            producer=self.producer,
            reason="other-rows",
        )

    def _count(self, receipt: Receipt, rows: int, what: str) -> None:
        """Count rows as appended, or as skipped if their receipt is that of an earlier run."""
        if self.producer is not None and receipt.rows != rows:
            raise self._other_rows(what, f"it wrote {receipt.rows:,} rows, this {what} has {rows:,}")
        parts = receipt.positions.get(self.topic.name, {})
        if self.producer is not None and all(end <= self._ends[p] for p, (_, end) in parts.items()):
            self.skipped += rows
        else:
            self.rows += rows
            self.appends += 1

    def _with_outcome(self, error: HeadwaterError) -> HeadwaterError:
        """Return the error with the topic's name, and with what the topic contains instead of what one append wrote."""
        message, name = error.message, self.topic.name
        if repr(name) not in message:
            message = f"{message} (appending to topic {name!r})"
        kept = (
            f"the {self.done:,} rows before the failed chunk are in the topic"
            if self.done
            else "nothing was appended"
        )
        own = (error.detail or "").removesuffix("nothing of this append was written").rstrip("; ")
        hint = error.hint
        if error.facts.get("outcome") == "unknown":
            kept = f"{kept}, and perhaps this chunk, too" if self.done else "its rows may be in the topic"
            if self.producer is not None:
                hint = "run the same command again: rows that are in the topic are skipped"
        if self.done and self.producer is not None and isinstance(error, BadRowError):
            hint = "correct the file and run the same command again: rows that are in the topic are skipped"
        return type(error)(message, detail=f"{kept}; {own}" if own else kept, hint=hint, **error.facts)


class _Given:
    """The number of rows read from a file so far."""

    rows = 0


def _placed(error: BadRowError, chunk: InputChunk) -> BadRowError:
    """Return the error with the row's place in the file instead of its number in the chunk."""
    row: int = error.facts.get("row", 0)
    message = error.message.replace(f"row {row} ", f"{chunk.place_name} {chunk.places[row]} ", 1)
    return BadRowError(message, detail=error.detail, hint=error.hint, **error.facts)


@click.command()
@topic_argument
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option(
    "--format",
    "kind",
    type=click.Choice(INPUT_FORMATS),
    help="Default: by the file's name; json (a JSON object per line) for a pipe.",
)
@click.option(
    "--producer",
    metavar="NAME",
    help="Append under this producer: a second run skips rows that are in the topic.",
)
@click.option(
    "--chunk-rows",
    default=CHUNK_ROWS,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="Rows per append.",
)
@click.option("--atomic", is_flag=True, help="Append the whole file at once: all rows or none.")
@click.option("--null", default="", metavar="TEXT", help="The text for NULL in CSV. Default: an empty field.")
@json_option
@pass_session
def append(session: CommandSession, /, topic: str, file: str, **options: Any) -> None:
    """Append the rows of a file or a pipe to TOPIC.

    FILE is JSON (an object per line), CSV, TSV, Parquet or Arrow; "-" is stdin. In JSON and CSV, timestamps and dates are
    ISO 8601 text, binary is base64, and nested values are JSON.

    With --producer the chunks are numbered, and a chunk that was already written under that name is skipped: run the
    same command again after a crash. Use one name per file. Ctrl-C ends after the current chunk, prints how many rows
    are in the topic, and gives exit status 130.
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
            try:
                load.run(chunks, atomic=options["atomic"])
            except KeyboardInterrupt:
                click.echo(f"interrupted: {load.done:,} rows of the file are in topic {topic}", err=True)
                click.get_current_context().exit(INTERRUPTED)
    if options["as_json"]:
        print_json({"topic": topic, "rows": load.rows, "skipped": load.skipped, "appends": load.appends})
    else:
        skipped = f"; skipped {load.skipped:,} that were in it already" if load.skipped else ""
        click.echo(f"appended {load.rows:,} rows to {topic}{skipped}")
