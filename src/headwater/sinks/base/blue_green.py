"""Versions of a target: a staging version is built next to the active one and replaces it in one step; the previous version
is kept.

Kinds that support this implement `Versioned` in addition to `Target`; `versions` needs a prepared target. The staging
version is called 'new', the previous one 'old'. Each is a target of the same kind with its own checkpoint, and
`TargetVersions.existing` says which of them exist. The build itself is in `sink_rebuild`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NoReturn, Protocol, runtime_checkable

from headwater.core.errors import CheckpointConflictError, UsageError
from headwater.sinks.base.target import SinkCheckpoint, Target

Version = Literal["new", "old"]


class TargetVersions(Protocol):
    """The versions of a target apart from the active one. Errors are those of `Target`."""

    def existing(self) -> Collection[Version]:
        """Return the versions that exist, complete or not: a crash may have left a half-filled 'new'."""
        ...

    def target(self, version: Version) -> Target:
        """Return a version as a target that is not prepared yet; preparing 'new' creates it."""
        ...

    def switch(self, version: Version, checkpoint: SinkCheckpoint) -> None:
        """Make a version the active one, in one step; the version that was active becomes 'old'. A reader of the location
        sees the whole of one version or of the other, with the checkpoint that belongs to it. 'new' becomes active only
        while there is no 'old'; 'old' swaps places with the active version.

        CheckpointConflictError if the checkpoint of the version is not `checkpoint`, or the active version is at a later tick of
        the same history; then nothing was changed. UsageError if 'old' exists when 'new' is to become active: another
        process was faster.
        """
        ...

    def drop(self, version: Version) -> None:
        """Remove a version, if it exists. If a crash interrupts the removal, another call completes it."""
        ...

    def named(self, version: Version) -> str:
        """Return the name by which a person finds the version, such as the name of a folder or table."""
        ...


@runtime_checkable
class Versioned(Protocol):
    """A target that can have a staging and a previous version."""

    def versions(self) -> TargetVersions:
        """Return the versions of the target: the staging version being built, or the previous one that is kept."""
        ...


def versions_of(target: Target, sink: str) -> TargetVersions:
    """Return the versions of a prepared target; UsageError if its kind has none."""
    if not isinstance(target, Versioned):
        raise UsageError(
            f"sink {sink!r} cannot be rebuilt: its target keeps no contents that a new version could replace",
            detail="sent changes cannot be recalled from their receivers",
            hint="DROP SINK and CREATE SINK again: the new sink begins with all rows of the view",
            sink=sink,
        )
    return target.versions()


def refuse_moved(
    sink: str, expected: SinkCheckpoint, found: SinkCheckpoint | None, active: SinkCheckpoint | None
) -> None:
    """Raise CheckpointConflictError unless a version is at its expected checkpoint and not behind the active version."""
    if found != expected:
        raise CheckpointConflictError(
            f"the checkpoint of the new version of sink {sink!r} was changed by another process",
            found=found,
            sink=sink,
        )
    if (
        active is not None
        and active.whole
        and active.history == expected.history
        and active.tick > expected.tick
    ):
        raise CheckpointConflictError(
            f"the active version of sink {sink!r} is ahead of the new version", found=active, sink=sink
        )


def refuse_kept(sink: str, old: str) -> NoReturn:
    """Raise UsageError: a previous version is kept, and another would take its place."""
    raise UsageError(
        f"the previous version of sink {sink!r}, from before its last rebuild, still exists as {old}",
        hint=f"`headwater rebuild {sink} --drop-old` removes it, `--back` makes it active again",
        sink=sink,
        reason="previous-version-kept",
    )
