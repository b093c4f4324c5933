"""The reference implementation of a sink target: a dictionary. It is the specification of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from headwater.sinks.base.blue_green import Version, refuse_kept, refuse_moved
from headwater.sinks.base.target import (
    WEIGHT,
    CheckpointConflictError,
    RefusedRow,
    RowsRefusedError,
    SinkCheckpoint,
    TargetChange,
    TargetDownError,
    TargetShape,
)

Row = dict[str, Any]


@dataclass
class MemoryPlace:
    """The external system in memory, which outlives targets and which tests manipulate: rows by key, or records, and
    the checkpoint."""

    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    records: list[Row] = field(default_factory=list)
    checkpoint: SinkCheckpoint | None = None
    is_down: bool = False
    refuses: Callable[[Row], str | None] = lambda row: None
    applied: int = 0
    others: dict[Version, MemoryPlace] = field(default_factory=dict)
    """The inactive versions."""


class MemoryTarget:
    """A sink target that writes to a `MemoryPlace`."""

    guarantee: ClassVar[str] = "exactly once: rows and position are assigned together"

    def __init__(self, place: MemoryPlace) -> None:
        self._place = place
        self._shape: TargetShape | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns of the prepared shape."""
        assert self._shape is not None
        return self._shape.key

    def prepare(self, shape: TargetShape) -> None:
        """Store the shape; see `Target`."""
        self._there()
        self._shape = shape

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows unchanged: they are stored as they are."""
        return rows

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the stored checkpoint; see `Target`."""
        return self._there().checkpoint

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """Apply a change and the checkpoint together; see `Target`."""
        place = self._there()
        if place.checkpoint != before:
            raise CheckpointConflictError(
                "the checkpoint was changed by another process", found=place.checkpoint
            )
        upserts, added = change.upserts.to_pylist(), change.records.to_pylist()
        refused = [
            RefusedRow(at, why) for at, row in enumerate(upserts or added) if (why := place.refuses(row))
        ]
        if refused:
            raise RowsRefusedError("the target rejects rows", refused=refused)
        rows = dict(place.rows)
        for row in change.deletes.to_pylist():
            rows.pop(tuple(row.values()), None)
        for row in upserts:
            rows[tuple(row[name] for name in self.key)] = row
        place.rows, place.records, place.checkpoint = rows, place.records + added, after
        place.applied += 1

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Yield the stored rows; see `Target`."""
        assert self._shape is not None
        place, schema = self._there(), self._shape.schema
        if self._shape.mode == "changelog":
            schema = schema.append(WEIGHT)
        rows = list(place.rows.values()) or [
            {name: row[name] for name in schema.names} for row in place.records
        ]
        yield from pa.Table.from_pylist(rows, schema=schema).to_batches()

    def versions(self) -> MemoryVersions:
        """Return the versions of the place; see `headwater.sinks.base.blue_green`."""
        return MemoryVersions(self._place)

    def close(self) -> None:
        """Do nothing: a place in memory has nothing to release."""

    def _there(self) -> MemoryPlace:
        if self._place.is_down:
            raise TargetDownError("the target is down", reason="down")
        return self._place


class MemoryVersions:
    """The versions of a `MemoryPlace` besides the active one."""

    def __init__(self, place: MemoryPlace) -> None:
        self._place = place

    def existing(self) -> list[Version]:
        """Return the versions that exist; see `Versions`."""
        return list(self._place.others)

    def target(self, version: Version) -> MemoryTarget:
        """Return a version as a target, created if it does not exist; see `Versions`."""
        place = self._place
        made = MemoryPlace(type(place.rows)(), type(place.records)(), refuses=place.refuses)
        return MemoryTarget(self._place.others.setdefault(version, made))

    def switch(self, version: Version, checkpoint: SinkCheckpoint) -> None:
        """Make a version the active one, and the active one 'old'; see `Versions`."""
        place = self._place
        if version == "new" and "old" in place.others:
            refuse_kept("memory", self.named("old"))
        chosen = place.others[version]
        refuse_moved("memory", checkpoint, chosen.checkpoint, place.checkpoint)
        del place.others[version]
        place.others["old"] = MemoryPlace(place.rows, place.records, place.checkpoint, refuses=place.refuses)
        place.rows, place.records, place.checkpoint = chosen.rows, chosen.records, chosen.checkpoint

    def drop(self, version: Version) -> None:
        """Drop a version; see `Versions`."""
        self._place.others.pop(version, None)

    def named(self, version: Version) -> str:
        """Return the name of a version; see `Versions`."""
        return f"the {version} version in memory"
