"""Deleted data that an Iceberg table retains: older snapshots, and rows in its files that are only marked as deleted."""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from headwater.core.clock import from_us
from headwater.sinks.base.target import Since, SinkCheckpoint, TargetPast
from headwater.sinks.iceberg.table_commit import head_of, referenced
from headwater.sinks.iceberg.versions import MAIN


def past_of(
    table: Table, sink: str, since: Since, checkpoint: Callable[[Snapshot], SinkCheckpoint | None]
) -> TargetPast:
    """Return what a table retains from before a deletion. `checkpoint` returns the checkpoint in a snapshot."""
    name = ".".join(table.name()[-2:])
    newer = [one for one in table.metadata.snapshots if _is_newer(checkpoint(one), one, since)]
    begin = min((one.sequence_number or 0 for one in newer), default=None)
    older = [s for s in table.metadata.snapshots if begin is None or (s.sequence_number or 0) < begin]
    marked = _marked(table, begin or 0)
    if marked:
        count = f"{marked} data file{'' if marked == 1 else 's'}"
        return TargetPast(
            None,
            f"rows that are marked as deleted in {count} of table {name}: `headwater rebuild {sink}`, then `headwater rebuild "
            f"{sink} --drop-old`, rewrites the files; older snapshots have to be expired afterwards",
        )
    if older:
        until = from_us(max(one.timestamp_ms for one in older) * 1000 + 1000)
        count = f"{len(older)} older snapshot{'' if len(older) == 1 else 's'}"
        return TargetPast(
            None,
            f"{count} of table {name}: `ALTER SINK {sink} SET (snapshots = 1)` has the next change expire them, or in Spark "
            f"`CALL system.expire_snapshots(table => '{name}', older_than => TIMESTAMP '{until:%Y-%m-%d %H:%M:%S.%f%z}', "
            "retain_last => 1)`",
        )
    return TargetPast(table.metadata.last_updated_ms * 1000, f"no older snapshot of table {name} is left")


def _is_newer(checkpoint: SinkCheckpoint | None, snapshot: Snapshot, since: Since) -> bool:
    """Whether the checkpoint of a snapshot is at the tick of the deletion or later, and the snapshot was also written after
    the deletion by the clock: a workspace restored from a copy uses tick numbers again."""
    return (
        checkpoint is not None
        and checkpoint.tick >= since.tick
        and snapshot.timestamp_ms * 1000 >= since.deleted_at
    )


def _marked(table: Table, begin: int) -> int:
    """Return the number of files of the table that are older than a sequence number and have rows deleted by position."""
    head = head_of(table, MAIN)
    entries = [
        entry
        for manifest in ([] if head is None else head.manifests(table.io))
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]
    deleted = {referenced(e.data_file) for e in entries if e.data_file.content != DataFileContent.DATA}
    older = [
        entry.data_file.file_path
        for entry in entries
        if entry.data_file.content == DataFileContent.DATA and (entry.sequence_number or 0) < begin
    ]
    return len(older) if None in deleted else len(deleted & set(older))
