"""A range of a topic, as the input of a stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headwater.core.positions import Ends
from headwater.engine.collections.collections import Collection
from headwater.engine.dataflow.executor import LogScan, Rows
from headwater.engine.input.log_input import Inputs
from headwater.engine.metrics import phases
from headwater.engine.metrics.phases import Phases
from headwater.engine.metrics.rows_taken import ReadSpan


class LogRange:
    """The records of a topic between two cuts, with the columns that a collection reads; they are read at first use."""

    def __init__(
        self, inputs: Inputs, unit: Collection, topic: str, start: Ends, end: Ends, watch: Phases
    ) -> None:
        self.unit = unit
        self.topic = topic
        self.start: Mapping[int, int] = start.get(topic, {})
        """The first offset of each partition; partitions that are missing here are read from their first record on."""
        self.end: Mapping[int, int] = end[topic]
        self._inputs = inputs
        self._phases = watch
        self._rows: Rows | None = None
        self._weight: int | None = None

    @property
    def is_empty(self) -> bool:
        return all(self.start.get(partition) == end for partition, end in self.end.items())

    def load(self) -> Rows:
        if self._rows is None:
            with self._phases(phases.READ):
                start, end = {self.topic: self.start}, {self.topic: self.end}
                self._rows = self._inputs.read(self.unit, self.topic, start, end)
        return self._rows

    def weight(self) -> int:
        if self._weight is None:
            rows = self.load()
            self._weight = rows.num_rows if isinstance(rows, pa.RecordBatch) else int(rows.weights.sum())
        return self._weight

    def scan(self) -> LogScan | None:
        """See `LogRows`."""
        return None if self._rows is not None else self._inputs.scan(self.topic, self.start, self.end)

    def was_scanned(self, scan: LogScan, rows: Mapping[int, int]) -> None:
        """See `LogRows`."""
        incarnation = self._inputs.definition(self.topic).incarnation
        self.was_read([ReadSpan(self.topic, incarnation, *span, rows.get(span[0], 0)) for span in scan.spans])

    def was_read(self, reads: Sequence[ReadSpan]) -> None:
        """Record that another process has read the records, and how many there were in each partition."""
        self._weight = sum(read.rows for read in reads)
        self._inputs.take_in(reads)


def log_ranges(
    inputs: Inputs, unit: Collection, start: Ends, end: Ends, watch: Phases
) -> dict[str, LogRange]:
    """Return the ranges of all topics of a collection between two cuts, by the topic's name in the graph."""
    return {name: LogRange(inputs, unit, topic, start, end, watch) for topic, name in unit.named.items()}
