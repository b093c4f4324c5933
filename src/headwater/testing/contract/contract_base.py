"""Base class of the contract's subjects: a log per test, and short methods to append and read."""

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
"""Base of the event times in tests."""

PLAIN = "n BIGINT, text STRING"
TIMED = "n BIGINT, at TIMESTAMP"
KEYED = "id BIGINT, name STRING"


class Refusal:
    """The error that a `refused` block raised."""

    error: HeadwaterError


@contextmanager
def refused(kind: type[HeadwaterError]) -> Iterator[Refusal]:
    """Assert that the block raises an error of exactly this class."""
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
    """Return the event time this many minutes after START."""
    return START + timedelta(minutes=count)


def columns(ddl: str) -> pa.Schema:
    """Return the schema of `name TYPE, name TYPE NOT NULL`; nested types go through `pa.schema` instead."""
    fields = []
    for part in ddl.split(", "):
        name, kind = part.split(" ", 1)
        fields.append(
            pa.field(name, parse_type(kind.removesuffix(" NOT NULL")), not kind.endswith(" NOT NULL"))
        )
    return pa.schema(fields)


class Bench:
    """The log and the clock of one test."""

    log: Log
    clock: ManualClock
    folder: Path

    def make_log(self, tmp_path: Path, clock: ManualClock) -> Log:
        """Return a new log, in this folder if it needs one. Backends override it."""
        raise NotImplementedError

    def reopen(self, log: Log) -> Log:
        """Close the log and return it reopened. Backends with a disk override it."""
        return log

    def setup_method(self) -> None:
        """Create the folder, clock and log of a test; called by pytest."""
        self._temporary = tempfile.TemporaryDirectory(prefix="headwater-")
        self.folder = Path(self._temporary.name)
        self.clock = ManualClock()
        self.log = self.make_log(self.folder, self.clock)

    def teardown_method(self) -> None:
        """Close the log and remove the folder of a test; called by pytest."""
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
        """Create a topic."""
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
        """Return rows conformed to a topic, as `append` takes them."""
        return conform(rows, self.log.topics()[topic], captured=True)

    def append(
        self, topic: str, rows: Any, *, expect: Any = None, producer: Producer | None = None
    ) -> Receipt:
        """Append rows to one topic."""
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
        """Append rows to several topics in one commit."""
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
        """Return the records in a range of a partition, by default the whole partition; None for an empty range."""
        bounds = self.log.partitions(topic)[partition]
        start, end = bounds.first if start is None else start, bounds.end if end is None else end
        batches = list(self.log.read(topic, partition, start, end, columns))
        assert all(batch.num_rows for batch in batches), "an empty batch was read"
        return pa.Table.from_batches(batches) if batches else None

    def column(self, topic: str, column: str, partition: int = 0, start: int | None = None) -> list[Any]:
        """Return the values of one column, in partition order."""
        table = self.table(topic, partition, start, columns=[column])
        return [] if table is None else table.column(column).to_pylist()

    def all_rows(self, topic: str) -> list[dict[str, Any]]:
        """Return every record of every partition, with all columns."""
        tables = [self.table(topic, partition) for partition in self.log.partitions(topic)]
        return [row for table in tables if table is not None for row in table.to_pylist()]

    def ends(self, topic: str) -> dict[int, int]:
        """Return the end of each partition."""
        return dict(self.log.ends([topic])[topic])

    def numbers(self, count: int, start: int = 0) -> list[dict[str, Any]]:
        """Return rows for a PLAIN topic."""
        return [{"n": n, "text": f"row {n}"} for n in range(start, start + count)]
