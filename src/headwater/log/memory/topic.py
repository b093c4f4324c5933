"""A topic in memory: its definition and everything that goes when it is dropped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headwater.catalog import TopicDefinition
from headwater.errors import UsageError
from headwater.log.memory.groups import Group
from headwater.log.memory.partition import Partition, comparable
from headwater.log.protocol import CursorInfo, GroupInfo


@dataclass
class Topic:
    """The partitions, cursors and groups of one topic."""

    definition: TopicDefinition
    partitions: list[Partition] = field(init=False)
    versions: Counter[Any] = field(default_factory=Counter)
    """key -> number of its records, where the topic is versioned."""
    cursors: dict[str, CursorInfo] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.partitions = [Partition() for _ in range(self.definition.partitions)]

    def partition(self, number: int) -> Partition:
        """One partition, or UsageError."""
        if not 0 <= number < len(self.partitions):
            raise UsageError(
                f"topic {self.definition.name!r} has no partition {number}",
                hint=f"its partitions are 0 to {len(self.partitions) - 1}",
            )
        return self.partitions[number]

    def next_versions(self, batch: pa.RecordBatch) -> list[int] | None:
        """The ordinal of each row among its key's records, from 1, counting these in; None where not versioned."""
        if self.definition.versioned_by is None:
            return None
        versions = []
        for value in batch.column(self.definition.versioned_by).to_pylist():
            key = comparable([value])
            self.versions[key] += 1
            versions.append(self.versions[key])
        return versions

    def group_info(self, name: str) -> GroupInfo:
        """A group as callers see it."""
        group = self.groups[name]
        return GroupInfo(
            topic=self.definition.name,
            name=name,
            generation=group.generation,
            members=tuple(sorted(group.alive_until_ms)),
            owners=dict(group.owners),
            wanted=dict(group.wanted),
        )
