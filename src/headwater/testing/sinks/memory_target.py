"""The simplest target that keeps the contract: a dictionary. It is the specification of the others."""

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
    """What outlives targets, and what tests do to it: rows by key, or records, and where it stands."""

    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    records: list[Row] = field(default_factory=list)
    stand: SinkCheckpoint | None = None
    is_down: bool = False
    refuses: Callable[[Row], str | None] = lambda row: None
    applied: int = 0
    others: dict[Version, MemoryPlace] = field(default_factory=dict)
    """Versions beside the one in force."""


class MemoryTarget:
    """A place in memory."""

    guarantee: ClassVar[str] = "exactly once: rows and position are assigned together"

    def __init__(self, place: MemoryPlace) -> None:
        self._place = place
        self._shape: TargetShape | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The key of the shape."""
        assert self._shape is not None
        return self._shape.key

    def prepare(self, shape: TargetShape) -> None:
        """See `Target`."""
        self._there()
        self._shape = shape

    def held(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows themselves."""
        return rows

    def stand(self) -> SinkCheckpoint | None:
        """See `Target`."""
        return self._there().stand

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """See `Target`."""
        place = self._there()
        if place.stand != before:
            raise CheckpointConflictError("the place is not where it was left", found=place.stand)
        upserts, added = change.upserts.to_pylist(), change.records.to_pylist()
        refused = [
            RefusedRow(at, why) for at, row in enumerate(upserts or added) if (why := place.refuses(row))
        ]
        if refused:
            raise RowsRefusedError("the place refuses rows", refused=refused)
        rows = dict(place.rows)
        for row in change.deletes.to_pylist():
            rows.pop(tuple(row.values()), None)
        for row in upserts:
            rows[tuple(row[name] for name in self.key)] = row
        place.rows, place.records, place.stand = rows, place.records + added, after
        place.applied += 1

    def contents(self) -> Iterator[pa.RecordBatch]:
        """See `Target`."""
        assert self._shape is not None
        place, schema = self._there(), self._shape.schema
        if self._shape.mode == "changelog":
            schema = schema.append(WEIGHT)
        rows = list(place.rows.values()) or [
            {name: row[name] for name in schema.names} for row in place.records
        ]
        yield from pa.Table.from_pylist(rows, schema=schema).to_batches()

    def versions(self) -> MemoryVersions:
        """See `headwater.sinks.base.blue_green`."""
        return MemoryVersions(self._place)

    def close(self) -> None:
        """Nothing is open."""

    def _there(self) -> MemoryPlace:
        if self._place.is_down:
            raise TargetDownError("the place is down")
        return self._place


class MemoryVersions:
    """Places beside a place."""

    def __init__(self, place: MemoryPlace) -> None:
        self._place = place

    def there(self) -> list[Version]:
        """See `Versions`."""
        return list(self._place.others)

    def beside(self, version: Version) -> MemoryTarget:
        """See `Versions`."""
        place = self._place
        made = MemoryPlace(type(place.rows)(), type(place.records)(), refuses=place.refuses)
        return MemoryTarget(self._place.others.setdefault(version, made))

    def switch(self, version: Version, stand: SinkCheckpoint) -> None:
        """See `Versions`."""
        place = self._place
        if version == "new" and "old" in place.others:
            refuse_kept("memory", self.named("old"))
        chosen = place.others[version]
        refuse_moved("memory", stand, chosen.stand, place.stand)
        del place.others[version]
        place.others["old"] = MemoryPlace(place.rows, place.records, place.stand, refuses=place.refuses)
        place.rows, place.records, place.stand = chosen.rows, chosen.records, chosen.stand

    def drop(self, version: Version) -> None:
        """See `Versions`."""
        self._place.others.pop(version, None)

    def named(self, version: Version) -> str:
        """See `Versions`."""
        return f"the {version} place"
