"""One commit of an Iceberg table: files added and removed make one snapshot and one swap of the table's metadata.

A snapshot lists manifests, and manifests list files. Manifests from which nothing is removed are reused, the others are
rewritten, and many small ones are merged. Snapshots beyond the retained number are expired in the same commit, and the files
that only they referenced are removed after it.

A commit is to a branch: 'main' is the table as all readers see it; staging and previous versions are branches of ours, which
may be written at the same time.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)

from headwater.sinks.iceberg.table_files import PATH_ID, LiveFile

_MANIFESTS_MAX = 16
"""Minimum number of manifests of a kind for a merge into one."""
_COMPRESSION: Literal["deflate"] = "deflate"


@dataclass(frozen=True)
class Edit:
    """The files that a commit adds to a table and removes from it."""

    operation: Operation
    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    properties: dict[str, str] = field(default_factory=dict)


class _DeleteManifestWriter(ManifestWriterV2):
    """Writes manifests of delete files, which pyiceberg reads but does not write."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class Manifests:
    """The manifests of a table, each read once: they never change."""

    def __init__(self) -> None:
        self._entries: dict[str, list[ManifestEntry]] = {}

    def entries(self, table: Table, manifest: ManifestFile) -> list[ManifestEntry]:
        """Return the entries of a manifest without the removed ones."""
        path = manifest.manifest_path
        if path not in self._entries:
            self._entries[path] = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        return self._entries[path]

    def live(self, table: Table, branch: str) -> list[LiveFile]:
        """Return the files of the newest snapshot of a branch."""
        snapshot = head_of(table, branch)
        manifests = [] if snapshot is None else snapshot.manifests(table.io)
        known = {manifest.manifest_path for manifest in manifests}
        self._entries = {path: entries for path, entries in self._entries.items() if path in known}
        data: list[ManifestEntry] = []
        deletes: dict[str | None, list[ManifestEntry]] = {}
        for manifest in manifests:
            for entry in self.entries(table, manifest):
                if entry.data_file.content == DataFileContent.DATA:
                    data.append(entry)
                else:
                    deletes.setdefault(referenced(entry.data_file), []).append(entry)
        return [
            _live(entry, [*deletes.get(entry.data_file.file_path, ()), *deletes.get(None, ())])
            for entry in data
        ]


def head_of(table: Table, branch: str) -> Snapshot | None:
    """Return the newest snapshot of a branch; None if the branch has none."""
    if branch == MAIN_BRANCH:
        return table.current_snapshot()
    ref = table.metadata.refs.get(branch)
    return None if ref is None else table.metadata.snapshot_by_id(ref.snapshot_id)


def point(table: Table, heads: Mapping[str, Snapshot | None], seen: Mapping[str, Snapshot | None]) -> bool:
    """Set branches to other snapshots, or remove them, in one step. Return False, with nothing done, if a branch is not at
    the snapshot in `seen`."""
    here: list[Any] = [AssertTableUUID(uuid=table.metadata.table_uuid)]
    for name, snapshot in seen.items():
        here.append(_at(name, snapshot))
    updates: list[TableUpdate] = []
    for name, snapshot in heads.items():
        gone: dict[str, Any] = {"ref-name": name}
        updates.append(
            RemoveSnapshotRefUpdate(**gone) if snapshot is None else _ref(name, snapshot.snapshot_id)
        )
    try:
        answer = table.catalog.commit_table(table, tuple(here), tuple(updates))
    except CommitFailedException:
        return False
    table.metadata, table.metadata_location = answer.metadata, answer.metadata_location
    return True


def _ref(branch: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    head: dict[str, Any] = {"ref-name": branch, "type": SnapshotRefType.BRANCH, "snapshot-id": snapshot_id}
    return SetSnapshotRefUpdate(**head)


def _at(branch: str, snapshot: Snapshot | None) -> AssertRefSnapshotId:
    left: dict[str, Any] = {"ref": branch, "snapshot-id": None if snapshot is None else snapshot.snapshot_id}
    return AssertRefSnapshotId(**left)


def commit(table: Table, edit: Edit, manifests: Manifests, keep: int, branch: str, ours: Set[str]) -> None:
    """Commit an edit as one snapshot. CommitFailedException if the branch is no longer at `table`'s snapshot, or another
    snapshot was written meanwhile. `ours` are the branches besides 'main' that belong to the sink."""
    metadata, parent = table.metadata, head_of(table, branch)
    snapshot_id, name = metadata.new_snapshot_id(), uuid.uuid4()
    before = [] if parent is None else parent.manifests(table.io)
    writing = _Writing(table, edit, manifests, snapshot_id, name)
    written = writing.files
    after = [
        manifest
        for content in (ManifestContent.DATA, ManifestContent.DELETES)
        for manifest in _rewritten(writing, before, content)
    ]
    location = f"{table.location()}/metadata/snap-{snapshot_id}-0-{name}.avro"
    written.append(location)
    sequence = metadata.next_sequence_number()
    parent_id = None if parent is None else parent.snapshot_id
    output = table.io.new_output(location)
    with write_manifest_list(2, output, snapshot_id, parent_id, sequence, _COMPRESSION) as listed:
        listed.add_manifests(after)
    # These classes declare their fields by the names in the JSON of the format.
    facts: dict[str, Any] = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": parent_id,
        "manifest-list": location,
        "sequence-number": sequence,
        "schema-id": metadata.current_schema_id,
    }
    snapshot = Snapshot(**facts, summary=_summary(table, edit, parent))
    updates: list[TableUpdate] = [AddSnapshotUpdate(snapshot=snapshot), _ref(branch, snapshot_id)]
    expired = _expired(table, keep, branch, ours)
    if expired:
        old: dict[str, Any] = {"snapshot-ids": [one.snapshot_id for one in expired]}
        updates.append(RemoveSnapshotsUpdate(**old))
    here, same = _at(branch, parent), AssertTableUUID(uuid=metadata.table_uuid)
    try:
        answer = table.catalog.commit_table(table, (here, same), tuple(updates))
    except CommitFailedException:
        _remove(table, written)
        raise
    except ValueError as error:  # a snapshot of another branch has taken the sequence number
        if "sequence number" not in str(error):
            raise
        _remove(table, written)
        raise CommitFailedException(str(error)) from error
    logged = {entry.metadata_file for entry in metadata.metadata_log}
    table.metadata, table.metadata_location = answer.metadata, answer.metadata_location
    if expired:
        _clean(table, expired)
    _remove(table, logged - {entry.metadata_file for entry in table.metadata.metadata_log})


@dataclass(frozen=True)
class _Writing:
    """The state of a snapshot that is being written."""

    table: Table
    edit: Edit
    manifests: Manifests
    snapshot_id: int
    name: uuid.UUID
    files: list[str] = field(default_factory=list)
    """Files written so far, which are removed again if the snapshot is not committed."""


def _rewritten(
    writing: _Writing, before: Iterable[ManifestFile], content: ManifestContent
) -> list[ManifestFile]:
    """Return the manifests of one kind after an edit."""
    table, edit = writing.table, writing.edit
    gone = {file.file_path for file in edit.removed}
    mine = [m for m in before if m.content == content and (m.has_added_files() or m.has_existing_files())]
    added = [
        f for f in edit.added if (f.content == DataFileContent.DATA) == (content == ManifestContent.DATA)
    ]
    merge = len(mine) >= _MANIFESTS_MAX
    kept: list[ManifestFile] = []
    entries: list[ManifestEntry] = []
    for manifest in mine:
        named = writing.manifests.entries(table, manifest)
        if merge or any(entry.data_file.file_path in gone for entry in named):
            entries += named
        else:
            kept.append(manifest)
    if not entries and not added:
        return kept
    location = f"{table.location()}/metadata/{writing.name}-m{int(content)}.avro"
    writing.files.append(location)
    kind = ManifestWriterV2 if content == ManifestContent.DATA else _DeleteManifestWriter
    output = table.io.new_output(location)
    with kind(table.spec(), table.schema(), output, writing.snapshot_id, _COMPRESSION) as writer:
        for file in added:
            writer.add(ManifestEntry.from_args(data_file=file))
        for entry in entries:
            if entry.data_file.file_path in gone:
                writer.delete(entry)
            else:
                writer.existing(entry)
    return [writer.to_manifest_file(), *kept]


def _summary(table: Table, edit: Edit, parent: Snapshot | None) -> Summary:
    counted = SnapshotSummaryCollector()
    for file in edit.added:
        counted.add_file(file, table.schema())
    for file in edit.removed:
        counted.remove_file(file, table.schema())
    # pyiceberg counts the totals of a 'replace' only under another operation.
    counted_as = Operation.OVERWRITE if edit.operation == Operation.REPLACE else edit.operation
    made = update_snapshot_summaries(
        Summary(counted_as, **counted.build(), **edit.properties), None if parent is None else parent.summary
    )
    return Summary(edit.operation, **made.additional_properties)


def _expired(table: Table, keep: int, branch: str, ours: Set[str]) -> list[Snapshot]:
    """Return the oldest snapshots beyond the number to keep, several at a time; none while branches or tags of others exist."""
    refs = table.metadata.refs
    if branch != MAIN_BRANCH or set(refs) - {MAIN_BRANCH} - ours:
        return []
    named = {ref.snapshot_id for name, ref in refs.items()}
    snapshots = _by_age(s for s in table.metadata.snapshots if s.snapshot_id not in named)
    beyond = len(snapshots) + 1 - keep
    return snapshots[:beyond] if beyond > keep // 10 else []


def _by_age(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    return sorted(snapshots, key=lambda one: one.sequence_number or 0)


def _clean(table: Table, expired: Sequence[Snapshot]) -> None:
    """Remove the files that only expired snapshots referenced. This is best effort: a crash leaves orphaned files.

    If each snapshot descends from the one before, a file removed by one does not reappear in a later one, and only the
    oldest retained snapshot has to be examined. With branches, or after a rollback, all retained snapshots are.
    """
    kept = _by_age(table.metadata.snapshots)
    # The parent of a retained snapshot is None if it was expired.
    parents = list(pairwise([*expired, *kept]))
    is_line = not any(child.parent_snapshot_id not in (None, parent.snapshot_id) for parent, child in parents)
    is_line = is_line and sum(one.parent_snapshot_id is None for one in kept) <= 1
    with contextlib.suppress(OSError):
        staying = {
            manifest.manifest_path: manifest
            for snapshot in (kept[:1] if is_line else kept)
            for manifest in snapshot.manifests(table.io)
        }
        stay = set(staying)
        living = {
            entry.data_file.file_path
            for manifest in staying.values()
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        }
        gone: set[str] = set()
        for snapshot in expired:
            for manifest in snapshot.manifests(table.io):
                if manifest.manifest_path not in stay | gone:
                    gone.add(manifest.manifest_path)
                    gone |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io, True)}
            gone.add(snapshot.manifest_list)
        _remove(table, gone - living)


def _remove(table: Table, paths: Iterable[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            table.io.delete(path)


def referenced(deletes: DataFile) -> str | None:
    """Return the data file that a delete file applies to; None if it may apply to several."""
    lower = (deletes.lower_bounds or {}).get(PATH_ID)
    upper = (deletes.upper_bounds or {}).get(PATH_ID)
    return None if lower is None or lower != upper else lower.decode()


def _live(data: ManifestEntry, deletes: Sequence[ManifestEntry]) -> LiveFile:
    """Return a data file with the delete files that are not older than it."""
    since = data.sequence_number or 0
    files = [entry.data_file for entry in deletes if (entry.sequence_number or 0) >= since]
    own = tuple(file for file in files if referenced(file) is not None)
    return LiveFile(data.data_file, own, tuple(file for file in files if referenced(file) is None))
