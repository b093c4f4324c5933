"""Reads files by their format: finds the lines of a file, and converts lines to rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import IO

import orjson
import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Clock
from headwater.core.errors import TopicNotFoundError, UsageError
from headwater.sources.files.contents import UNREADABLE, open_content, read_exactly
from headwater.sources.files.formats import LineReader, MalformedLine
from headwater.sources.files.lines import Block, read_blocks, split
from headwater.sources.files.options import SETTLE_US, FilesOptions, errors_topic
from headwater.sources.files.tracking import ChangedFile

HEADER_BYTES_MAX = 1 << 20


class FileReader:
    """Reads the files of one source."""

    def __init__(
        self,
        source: str,
        options: FilesOptions,
        definition: Callable[[str], TopicDefinition | None],
        clock: Clock,
    ) -> None:
        self.source = source
        self.options = options
        self._definition = definition
        self._clock = clock
        self._readers: dict[bytes, LineReader] = {}
        """Readers by header of the file; the key is empty for files without a header."""
        self._topic: TopicDefinition | None = None

    def has_more(self, file: ChangedFile) -> bool:
        """Whether a file has content to read, or an incomplete line that may have to be waited for."""
        if self.options.format == "parquet":
            return file.known is None
        try:
            with open_content(file.path, file.number, file.open_descriptor) as content:
                for piece in read_blocks(content, file.offset, file.path, quoted=self.is_quoted):
                    if isinstance(piece, Block):
                        return True
                    return bool(piece) and (self.is_awaited(file) or self.is_line(piece, file))
        except (OSError, *UNREADABLE):
            return False
        return False

    @property
    def is_quoted(self) -> bool:
        """Whether line ends within quotes belong to the field."""
        return self.options.format == "csv" and self.options.multiline

    def is_still(self, file: ChangedFile) -> bool:
        """Whether a file has been unchanged for the option `settle`."""
        return self._clock.now_us() - file.mtime_us >= self.options.settle_us

    def is_awaited(self, file: ChangedFile) -> bool:
        """Whether to wait for the end of an incomplete line before the source reports that everything was read."""
        return self._clock.now_us() - file.mtime_us < min(self.options.settle_us, SETTLE_US)

    def is_line(self, rest: bytes, file: ChangedFile) -> bool:
        """Whether bytes at the end of a file are a complete line although the line end is missing."""
        if self.options.format != "json":
            return self.is_still(file)
        try:
            return isinstance(orjson.loads(rest), dict)  # no further bytes could change its meaning
        except orjson.JSONDecodeError:
            return file.is_rotated and self.is_still(file)

    def topic(self) -> TopicDefinition:
        """Return the current definition of the topic."""
        topic = self._definition(self.options.topic)
        if topic is None:
            raise TopicNotFoundError(
                f"topic {self.options.topic!r}, which source {self.source!r} writes to, does not exist",
                hint=f"create the topic again, or DROP SOURCE {self.source}",
                source=self.source,
                topic=self.options.topic,
            )
        if topic != self._topic:
            self._topic = topic
            self._readers.clear()
        return topic

    def errors_topic(self) -> TopicDefinition:
        """Return the current definition of the topic of rejected lines. A topic created by an earlier version has no column
        `header`."""
        usual = errors_topic(self.source)
        return self._definition(usual.name) or usual

    def header(self, content: IO[bytes]) -> bytes | None:
        """Return the first line of a file with a header, b"" for other files; None while the line is incomplete."""
        if self.options.format != "csv" or not self.options.header:
            return b""
        content.seek(0)
        first = split(read_exactly(content, HEADER_BYTES_MAX), 0, quoted=self.options.multiline)
        return first.part(0, 1).data if len(first) else None

    def rows(
        self, file: ChangedFile, header: bytes, block: Block
    ) -> Iterator[pa.RecordBatch | MalformedLine]:
        """Yield the rows of some lines of a file, and the rejected lines."""
        reader = self._readers.get(header)
        if reader is None:
            try:
                reader = self._readers[header] = LineReader(self.options, self.topic(), header or None)
            except UsageError as error:
                for at in range(len(block)):
                    line = block.part(at, at + 1)
                    yield MalformedLine(line.begin, line.text, error.message)
                return
        yield from reader.rows(block)
