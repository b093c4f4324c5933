"""What the subjects of the contract share: a log per test, and short ways to append and read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.clock import ManualClock
from headwater.core.errors import HeadwaterError
from headwater.core.positions import Receipt
from headwater.core.types import parse_type
from headwater.log.protocol import Append, CursorMove, Log, Producer

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
"""An event time to count from."""

PLAIN = "n BIGINT, text STRING"
TIMED = "n BIGINT, at TIMESTAMP"
KEYED = "id BIGINT, name STRING"


class Refusal:
    """Holds the error that a block of code was to raise."""

    error: HeadwaterError


@contextmanager
def refused(kind: type[HeadwaterError]) -> Iterator[Refusal]:
    """The block must raise an error of this very kind."""
    refusal = Refusal()
    try:
        yield refusal
    except kind as error:
        refusal.error = error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")
    if type(refusal.error) is not kind:
        raise AssertionError(f"{type(refusal.error).__name__} instead of {kind.__name__}") from refusal.error


def minutes(count: float) -> datetime:
    """An event time so many minutes after START."""
    return START + timedelta(minutes=count)


def columns(ddl: str) -> pa.Schema:
    """A schema from `name TYPE, name TYPE NOT NULL`; nested types go through `pa.schema` instead."""
    fields = []
    for part in ddl.split(", "):
        name, kind = part.split(" ", 1)
        fields.append(
            pa.field(name, parse_type(kind.removesuffix(" NOT NULL")), not kind.endswith(" NOT NULL"))
        )
    return pa.schema(fields)


class Bench:
    """One test's log and clock."""

    log: Log
    clock: ManualClock
    folder: Path

    def make_log(self, tmp_path: Path, clock: ManualClock) -> Log:
        """A new log, in this folder if it needs one. Backends override it."""
        raise NotImplementedError

    def reopen(self, log: Log) -> Log:
        """The same log after an orderly close. Backends with a disk override it."""
        return log

    def setup_method(self) -> None:
        """Called by pytest before each test."""
        self._temporary = tempfile.TemporaryDirectory(prefix="headwater-")
        self.folder = Path(self._temporary.name)
        self.clock = ManualClock()
        self.log = self.make_log(self.folder, self.clock)

    def teardown_method(self) -> None:
        """Called by pytest after each test."""
        try:
            self.log.close()
        finally:
            self._temporary.cleanup()

    def create(
        self,
        name: str,
        schema: str | pa.Schema = PLAIN,
        *,
        key: str | None = None,
        time: str | None = None,
        lateness: Any = 0,
        **options: Any,
    ) -> TopicDefinition:
        """A new topic."""
        definition = define_topic(
            name,
            columns(schema) if isinstance(schema, str) else schema,
            key=(key,) if key else (),
            time=time,
            lateness=lateness,
            options=options,
        )
        self.log.create_topic(definition)
        return definition

    def batch(self, topic: str, rows: Any) -> pa.RecordBatch:
        """Rows as the log takes them."""
        return conform(rows, self.log.topics()[topic], captured=True)

    def append(
        self, topic: str, rows: Any, *, expect: Any = None, producer: Producer | None = None
    ) -> Receipt:
        """One append to one topic."""
        return self.append_all(
            {topic: rows}, expect={} if expect is None else {topic: expect}, producer=producer
        )

    def append_all(
        self,
        rows: Mapping[str, Any],
        *,
        expect: Mapping[str, Any] | None = None,
        producer: Producer | None = None,
        moves: tuple[CursorMove, ...] = (),
    ) -> Receipt:
        """One append to several topics."""
        batches = {topic: [self.batch(topic, some)] for topic, some in rows.items()}
        return self.log.append(Append(batches, producer, expect or {}, moves))

    def table(
        self,
        topic: str,
        partition: int = 0,
        start: int | None = None,
        end: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table | None:
        """A range of a partition, all that is kept of it if no range is given; None where there is no record."""
        bounds = self.log.partitions(topic)[partition]
        start, end = bounds.first if start is None else start, bounds.end if end is None else end
        batches = list(self.log.read(topic, partition, start, end, columns))
        assert all(batch.num_rows for batch in batches), "an empty batch was read"
        return pa.Table.from_batches(batches) if batches else None

    def column(self, topic: str, column: str, partition: int = 0, start: int | None = None) -> list[Any]:
        """The values of one column, in the order of the partition."""
        table = self.table(topic, partition, start, columns=[column])
        return [] if table is None else table.column(column).to_pylist()

    def all_rows(self, topic: str) -> list[dict[str, Any]]:
        """Every record of every partition, with all columns."""
        tables = [self.table(topic, partition) for partition in self.log.partitions(topic)]
        return [row for table in tables if table is not None for row in table.to_pylist()]

    def ends(self, topic: str) -> dict[int, int]:
        """The end of each partition."""
        return dict(self.log.ends([topic])[topic])

    def numbers(self, count: int, start: int = 0) -> list[dict[str, Any]]:
        """Rows for a PLAIN topic."""
        return [{"n": n, "text": f"row {n}"} for n in range(start, start + count)]
