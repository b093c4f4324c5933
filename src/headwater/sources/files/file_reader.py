"""How the content of one file is read: where its lines begin and end, and which rows they are."""

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
        """By the header of a file, if it has one."""
        self._topic: TopicDefinition | None = None

    def has_more(self, file: ChangedFile) -> bool:
        """Whether something of a file can be taken, or may have to be waited for."""
        if self.options.format == "parquet":
            return file.known is None
        try:
            with open_content(file.path, file.number, file.held) as content:
                for piece in read_blocks(content, file.offset, file.path, quoted=self.is_quoted):
                    if isinstance(piece, Block):
                        return True
                    return bool(piece) and (self.is_awaited(file) or self.is_line(piece, file))
        except (OSError, *UNREADABLE):
            return False
        return False

    @property
    def is_quoted(self) -> bool:
        """Whether line ends between quotes are none."""
        return self.options.format == "csv" and self.options.multiline

    def is_still(self, file: ChangedFile) -> bool:
        """Whether nothing has changed in a file for long enough."""
        return self._clock.now_us() - file.mtime_us >= self.options.settle_us

    def is_awaited(self, file: ChangedFile) -> bool:
        """Whether the end of a line is to be waited for before it is said that everything was taken."""
        return self._clock.now_us() - file.mtime_us < min(self.options.settle_us, SETTLE_US)

    def is_line(self, rest: bytes, file: ChangedFile) -> bool:
        """Whether bytes at the end of a file are a line though they do not end as one."""
        if self.options.format != "json":
            return self.is_still(file)
        try:
            return isinstance(orjson.loads(rest), dict)  # nothing that could follow would change its meaning
        except orjson.JSONDecodeError:
            return file.is_rotated and self.is_still(file)

    def topic(self) -> TopicDefinition:
        """The topic as it is declared now."""
        topic = self._definition(self.options.topic)
        if topic is None:
            raise TopicNotFoundError(
                f"there is no topic {self.options.topic!r}, which source {self.source!r} fills",
                hint=f"DROP SOURCE {self.source}, or make the topic again",
                topic=self.options.topic,
            )
        if topic != self._topic:
            self._topic = topic
            self._readers.clear()
        return topic

    def errors_topic(self) -> TopicDefinition:
        """The topic of the lines that are refused, as it is declared now: one that an earlier version made has no header."""
        usual = errors_topic(self.source)
        return self._definition(usual.name) or usual

    def header(self, content: IO[bytes]) -> bytes | None:
        """The first line of a file that has a header, nothing of others; None while it is not whole."""
        if self.options.format != "csv" or not self.options.header:
            return b""
        content.seek(0)
        first = split(read_exactly(content, HEADER_BYTES_MAX), 0, quoted=self.options.multiline)
        return first.part(0, 1).data if len(first) else None

    def rows(
        self, file: ChangedFile, header: bytes, block: Block
    ) -> Iterator[pa.RecordBatch | MalformedLine]:
        """The rows of some lines of a file, and the lines that are refused."""
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
