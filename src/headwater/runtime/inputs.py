"""The records of the log that a tick takes in, each span read once however many views read it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from headwater.log.protocol import Log
from headwater.operators.delta import Delta, concat_rows
from headwater.positions import Ends
from headwater.runtime.units import Unit


class Inputs:
    """Reads topics between two cuts."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._read: dict[tuple[str, str], pa.RecordBatch] = {}

    @property
    def rows(self) -> int:
        """Records that were taken in."""
        return sum(batch.num_rows for batch in self._read.values())

    def read(self, unit: Unit, topic: str, start: Ends, end: Ends) -> Delta | pa.RecordBatch:
        """The records of a topic between two cuts: in the order of the log for a table, as a change for a view."""
        begins, stops = start.get(topic, {}), end[topic]
        known = (topic, f"{unit.is_table}{sorted(begins.items())}{sorted(stops.items())}")
        if known not in self._read:
            self._read[known] = self._records(unit, topic, begins, stops)
        records = self._read[known]
        return records if unit.is_table else Delta.of(records)

    def clip(self, topic: str, start: Ends, end: Ends, sequence: int) -> dict[int, int]:
        """Positions of a topic at a commit of the log, where a cut went beyond it."""
        clipped: dict[int, int] = {}
        for partition, stop in end[topic].items():
            begin = start.get(topic, {}).get(partition)
            if begin is None:
                begin = self._log.partitions(topic)[partition].first
            clipped[partition] = stop
            for batch in self._log.read(topic, partition, begin, stop, ["_offset", "_sequence"]):
                later = np.flatnonzero(batch.column("_sequence").to_numpy() > sequence)
                if len(later):
                    clipped[partition] = int(batch.column("_offset")[int(later[0])].as_py())
                    break
        return clipped

    def _records(
        self, unit: Unit, topic: str, begins: Mapping[int, int], stops: Mapping[int, int]
    ) -> pa.RecordBatch:
        schema = self._log.topic(topic).schema
        columns = [*schema.names, "_op"] if unit.is_table else list(schema.names)
        batches: list[pa.RecordBatch] = []
        for partition, stop in sorted(stops.items()):
            begin = begins.get(partition)
            if begin is None:
                begin = self._log.partitions(topic)[partition].first
            if begin < stop:
                batches += self._log.read(topic, partition, begin, stop, columns)
        if not batches:
            full = pa.schema([*schema, pa.field("_op", pa.string())]) if unit.is_table else schema
            return Delta.empty(full).rows
        return concat_rows(batches, batches[0].schema)
