"""Versions of an Iceberg table as branches: the staging version is a branch, and one catalog commit sets 'main' to it.

The previous version stays as the branch `headwater_old`, which any engine reads: `SELECT * FROM t VERSION AS OF
'headwater_old'`. Its files are kept as long as the branch exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from headwater.core.errors import CheckpointConflictError
from headwater.sinks.base.blue_green import Version, refuse_kept, refuse_moved
from headwater.sinks.base.target import SinkCheckpoint, Target
from headwater.sinks.iceberg.table_commit import head_of, point

MAIN = "main"
NEW, OLD = "headwater_new", "headwater_old"
OURS = frozenset((NEW, OLD))


def branch_of(version: Version | None) -> str:
    """Return the branch of a version; None is 'main'."""
    return MAIN if version is None else NEW if version == "new" else OLD


@dataclass(frozen=True)
class LakeVersions:
    """The versions of one table. `fresh` returns the table with its current metadata, `checkpoint` the checkpoint of a branch,
    and `asked` runs an operation with the errors of a target."""

    sink: str
    make: Callable[[Version], Target]
    checkpoint: Callable[[Any, str], SinkCheckpoint | None]
    fresh: Callable[[], Any]
    asked: Callable[[Callable[[], Any]], Any]

    def existing(self) -> Collection[Version]:
        """See `TargetVersions`."""
        both: tuple[Version, Version] = ("new", "old")
        refs = self.asked(self.fresh).metadata.refs
        return [version for version in both if branch_of(version) in refs]

    def target(self, version: Version) -> Target:
        """See `TargetVersions`."""
        return self.make(version)

    def switch(self, version: Version, checkpoint: SinkCheckpoint) -> None:
        """Point the branches to other snapshots in one commit of the catalog, which writes no snapshot."""

        def act() -> None:
            table, chosen = self.fresh(), branch_of(version)
            if version == "new" and OLD in table.metadata.refs:
                refuse_kept(self.sink, self.named("old"))
            refuse_moved(self.sink, checkpoint, self.checkpoint(table, chosen), self.checkpoint(table, MAIN))
            seen = {name: head_of(table, name) for name in (MAIN, chosen)}
            heads = {MAIN: seen[chosen], chosen: None, OLD: seen[MAIN]}
            wanted = {name: head for name, head in heads.items() if head is not None or name == NEW}
            if not point(table, wanted, seen):
                raise CheckpointConflictError(
                    f"another process committed to the table of sink {self.sink!r}", found=None
                )

        self.asked(act)

    def drop(self, version: Version) -> None:
        """Remove the branch; its snapshots and files expire as others do."""

        def act() -> None:
            table, branch = self.fresh(), branch_of(version)
            while branch in table.metadata.refs:
                if not point(table, {branch: None}, {branch: head_of(table, branch)}):
                    table = self.fresh()

        self.asked(act)

    def named(self, version: Version) -> str:
        """See `TargetVersions`."""
        return f"branch {branch_of(version)}"
