"""A topic in memory: its definition and everything that is removed when it is dropped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Microseconds
from headwater.core.errors import UsageError
from headwater.log.device_clocks import Devices
from headwater.log.memory.memory_groups import Group
from headwater.log.memory.memory_partition import Partition, comparable
from headwater.log.protocol import CursorInfo, GroupInfo, ProducerWatermark


@dataclass
class MemoryTopic:
    """The partitions, cursors and groups of one topic."""

    definition: TopicDefinition
    created_at: Microseconds
    partitions: list[Partition] = field(init=False)
    versions: Counter[Any] = field(default_factory=Counter)
    """key -> number of its records, if the topic is versioned."""
    cursors: dict[str, CursorInfo] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    devices: list[Devices] = field(init=False)
    """State of the devices by partition, if device clocks are corrected."""
    watermarks_by_producer: dict[str, ProducerWatermark] = field(default_factory=dict)
    """Watermarks by producer, if the topic takes producer watermarks."""

    def __post_init__(self) -> None:
        self.devices = [Devices() for _ in range(self.definition.partitions)]
        self.partitions = [Partition(heard_at=self.created_at) for _ in range(self.definition.partitions)]

    def partition(self, number: int) -> Partition:
        """Return one partition, or raise UsageError."""
        if not 0 <= number < len(self.partitions):
            raise UsageError(
                f"topic {self.definition.name!r} has no partition {number}",
                hint=f"its partitions are 0 to {len(self.partitions) - 1}",
                topic=self.definition.name,
                partition=number,
            )
        return self.partitions[number]

    def corrected(self, p: int, batch: pa.RecordBatch, now: Microseconds) -> pa.RecordBatch:
        """Return the rows of one commit to one partition, with timestamps corrected by their devices' clocks."""
        if self.definition.clock is None:
            return batch
        batch, change = self.devices[p].correct(batch, self.definition, now)
        self.devices[p].advance(change)
        return batch

    def next_versions(self, batch: pa.RecordBatch) -> list[int] | None:
        """Return the ordinal of each row among its key's records, from 1, counting these in; None if not versioned."""
        if self.definition.versioned_by is None:
            return None
        versions = []
        for value in batch.column(self.definition.versioned_by).to_pylist():
            key = comparable([value])
            self.versions[key] += 1
            versions.append(self.versions[key])
        return versions

    def group_info(self, name: str) -> GroupInfo:
        """Return a group in the form of the protocol."""
        group = self.groups[name]
        return GroupInfo(
            topic=self.definition.name,
            name=name,
            generation=group.generation,
            members=tuple(sorted(group.alive_until_ms)),
            owners=dict(group.owners),
            wanted=dict(group.wanted),
        )
