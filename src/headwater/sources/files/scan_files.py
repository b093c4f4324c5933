"""One scan of all files: yields their new content and the offset reached in each."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.catalog.conform import conform
from headwater.core.errors import SourceError, UsageError
from headwater.sources.base import Commit, Event, Rows
from headwater.sources.clock_positions import ClockPositions, captured, rows_of
from headwater.sources.files.contents import HEAD_BYTES, UNREADABLE, head_of, open_content
from headwater.sources.files.file_reader import FileReader
from headwater.sources.files.formats import BOM, MalformedLine, table_rows
from headwater.sources.files.lines import Block, last_line, read_blocks
from headwater.sources.files.tracking import ChangedFile, KnownFile, Number, Tracker, parquet_known

COMMIT_BYTES = 8 << 20
"""Number of bytes after which a commit is made within a scan."""
PARQUET_ROWS = 65_536


class FileScan:
    """One scan of all files. The caller makes the last commit."""

    def __init__(
        self,
        reader: FileReader,
        tracker: Tracker,
        moments: ClockPositions,
        moment: int,
        waiting: dict[Number, int],
    ) -> None:
        """`waiting` is filled with the files whose last line is incomplete, and their sizes."""
        self.has_taken = False
        """Whether content was read since the last commit."""
        self._reader = reader
        self._options = reader.options
        self._tracker = tracker
        self._moments = moments
        self._moment = moment
        self._waiting = waiting
        self.files = 0
        """Number of files that may have changed."""
        self._gathered = 0

    def events(self) -> Iterator[Event]:
        """Yield everything that is found, with a commit after each part but the last."""
        files = self._tracker.scan(self._moment)
        self.files = len(files)
        for file in files:
            yield from self._parquet(file) if self._options.format == "parquet" else self._lines(file)
        for file in self._tracker.unfit:
            yield from self._unfit(file)

    # --- lines -----------------------------------------------------------------------------------------------------

    def _lines(self, file: ChangedFile) -> Iterator[Event]:
        try:
            with open_content(file.path, file.number, file.open_descriptor) as content:
                yield from self._content(file, content)
        except FileNotFoundError:
            return  # renamed or removed since it was listed
        except UNREADABLE:
            self._tracker.exhausted(file)

    def _content(self, file: ChangedFile, content: IO[bytes]) -> Iterator[Event]:
        header = self._reader.header(content)
        if header is None:
            self._wait_for(file)
            return
        if len(header) > file.offset:
            file = self._took(file, self._extended(file, content, header[file.offset :]))
        for piece in read_blocks(content, file.offset, file.path, quoted=self._reader.is_quoted):
            if isinstance(piece, Block):
                block = piece
            elif piece and self._reader.is_line(piece, file):
                block = last_line(piece, file.offset)
            else:
                if piece:
                    self._wait_for(file)
                else:
                    self._tracker.exhausted(file)
                return
            place = content.tell()
            if file.known is not None and head_of(content, file.offset) != file.known.head:
                return  # truncated meanwhile
            yield from self._block(file, content, header, block)
            file = self._took(file, self._extended(file, content, block.data))
            content.seek(place)
            if self._gathered >= COMMIT_BYTES:
                yield self._commit()

    def _block(self, file: ChangedFile, content: IO[bytes], header: bytes, block: Block) -> Iterator[Event]:
        """Yield the rows of a block. With on_error = 'stop', the content before a rejected line is committed before the source
        stops."""
        topic = self._reader.topic()
        refused: list[MalformedLine] = []
        for made in self._reader.rows(file, header, _without_bom(block)):
            if isinstance(made, pa.RecordBatch):
                yield Rows(topic.name, captured(made, topic, self._moment, file.mtime_us))
                continue
            refused.append(made)
            before = block.data[: made.byte - block.begin]
            if self._options.on_error == "stop" and before:
                self._took(file, self._extended(file, content, before))
            if self._options.on_error == "stop":
                break
        yield from self._refuse(file, refused, header)

    def _extended(self, file: ChangedFile, content: IO[bytes], data: bytes) -> KnownFile:
        """Return the state of a file after the given bytes, which follow what was read of it."""
        known = file.known or KnownFile(file.path, 0, "", 0)
        offset, head = known.offset + len(data), known.head
        if known.offset < HEAD_BYTES:
            head = head_of(content, offset)
        return replace(known, path=file.path, offset=offset, head=head, crc=zlib.crc32(data, known.crc))

    # --- Parquet ---------------------------------------------------------------------------------------------------

    def _parquet(self, file: ChangedFile) -> Iterator[Event]:
        if file.known is not None:
            self._tracker.exhausted(file)
            return
        try:
            known = parquet_known(file)
            with open_content(file.path, file.number) as content, pq.ParquetFile(content) as parquet:
                if self.has_taken and parquet.metadata.num_rows > PARQUET_ROWS:
                    yield self._commit()  # Commit first: rows yielded in parts cannot be withdrawn separately
                yield from self._table(file, parquet)
        except FileNotFoundError:
            return
        except (pa.ArrowException, UsageError) as error:
            reason = error.message if isinstance(error, UsageError) else str(error)
            yield from self._refuse(file, [MalformedLine(0, None, f"the file cannot be read: {reason}")])
        self._gathered += file.size
        self._took(file, known)
        if self._gathered >= COMMIT_BYTES:
            yield self._commit()

    def _table(self, file: ChangedFile, parquet: pq.ParquetFile) -> Iterator[Event]:
        topic = self._reader.topic()
        wanted = [*topic.given.schema.names, *(["_op"] if topic.keyed else [])]
        names = parquet.schema_arrow.names
        unknown = [name for name in names if name not in wanted]
        if unknown and self._options.extra == "refuse":
            raise UsageError(
                f"the file has a column {unknown[0]!r} that topic {topic.name!r} does not have",
                topic=topic.name,
                column=unknown[0],
            )
        begin = 0
        for batch in parquet.iter_batches(PARQUET_ROWS, columns=[n for n in names if n in wanted]):
            made = list(table_rows(batch, topic, begin)) if batch.num_rows else []
            refused = [one for one in made if isinstance(one, MalformedLine)]
            yield from self._refuse(file, refused)
            for one in made:
                if isinstance(one, pa.RecordBatch):
                    yield Rows(topic.name, captured(one, topic, self._moment, file.mtime_us))
            begin += batch.num_rows

    # --- what was read ----------------------------------------------------------------------------------------------

    def _took(self, file: ChangedFile, known: KnownFile) -> ChangedFile:
        self.has_taken = True
        self._gathered += known.offset - file.offset
        return self._tracker.took(file, known)

    def _commit(self) -> Commit:
        """Return a commit that is not the last of this scan."""
        self.has_taken, self._gathered = False, 0
        return Commit(self._moments.within(), self._tracker.position())

    def _wait_for(self, file: ChangedFile) -> None:
        """Record that the last line of a file is incomplete."""
        if self._reader.is_awaited(file):
            self._waiting[file.number] = file.size

    def _unfit(self, file: ChangedFile) -> Iterator[Event]:
        """Reject a file that can only be processed as a whole, and is incomplete."""
        kind = "Parquet" if self._options.format == "parquet" else "gzip"
        yield from self._refuse(file, [MalformedLine(0, None, f"the file is not a complete {kind} file")])
        with open(file.path, "rb") as content:
            nothing = head_of(content, 0)
        self._took(file, replace(parquet_known(file), offset=0, head=nothing))

    def _refuse(
        self, file: ChangedFile, refused: list[MalformedLine], header: bytes = b""
    ) -> Iterator[Event]:
        """Write rejected lines to the errors topic; or, with on_error = 'stop', commit what came before and raise."""
        if refused and self._options.on_error == "stop":
            if self.has_taken:
                yield self._commit()
            raise self._refusal(file, refused[0])
        if refused:
            topic = self._reader.errors_topic()
            first = {"header": header.decode(errors="replace").rstrip("\r\n") or None}
            first = first if "header" in topic.schema.names else {}
            rows = [
                {"file": file.path, "byte": r.byte, "line": r.line, "reason": r.reason, **first}
                for r in refused
            ]
            batch = conform(rows, rows_of(topic), captured=True)
            yield Rows(topic.name, captured(batch, topic, self._moment, file.mtime_us))

    def _refusal(self, file: ChangedFile, refused: MalformedLine) -> SourceError:
        name = self._reader.source
        place = "row" if self._options.format == "parquet" else "byte"
        return SourceError(
            f"source {name!r} cannot read {file.path} at {place} {refused.byte}: {refused.reason}",
            detail=None if not refused.line else f"the rejected line begins: {refused.line[:100]}",
            hint=f"correct the file, or CREATE OR REPLACE SOURCE {name} ... on_error = 'divert' to write such rows to {name}_errors",
            source=name,
            file=file.path,
            byte=refused.byte,
            reason=refused.reason,
        )


def _without_bom(block: Block) -> Block:
    """Return a block without the byte order mark with which some programs begin a file."""
    if block.begin or not block.data.startswith(BOM):
        return block
    starts = block.starts - len(BOM)
    starts[0] = 0
    return Block(block.data[len(BOM) :], len(BOM), starts)
