"""Versions of a target: another one is built beside the one in force, takes its place in one step, and the old one is kept.

A kind whose targets can do that implements `Versioned` beside `Target`, for a target that is prepared. The version
that is built is called 'new', the one that was replaced 'old'; each is a target of the same kind, with a stand of its own, and
`there` says which of them there are. Building is in `rebuilding`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, NoReturn, Protocol, runtime_checkable

from headwater.core.errors import CheckpointConflictError, UsageError
from headwater.sinks.base.target import SinkCheckpoint, Target

Version = Literal["new", "old"]


class TargetVersions(Protocol):
    """What there is beside a target that is in force. Errors are those of `Target`."""

    def there(self) -> Collection[Version]:
        """The versions that are there, whole or not: a crash may have left a new one half full."""
        ...

    def beside(self, version: Version) -> Target:
        """That version as a target, which is not prepared yet: to prepare 'new' makes it."""
        ...

    def switch(self, version: Version, stand: SinkCheckpoint) -> None:
        """Put a version in the place of the one in force, which is 'old' then, in one step: whoever reads the place sees
        the whole of one or of the other, and its stand is that of what is there. 'old' is not there before 'new' takes
        its place; 'old' itself changes places with the one in force.

        CheckpointConflictError if the version does not stand at `stand`, or the one in force is at a later tick of the same
        history: then nothing was done. UsageError if 'old' is there when 'new' is to take its place: another process was
        faster."""
        ...

    def drop(self, version: Version) -> None:
        """Remove a version, if it is there. What a crash leaves of it is removed by another call."""
        ...

    def named(self, version: Version) -> str:
        """What a person finds it by."""
        ...


@runtime_checkable
class Versioned(Protocol):
    """A target that another version can be built beside."""

    def versions(self) -> TargetVersions:
        """The versions of the target: the one in use, and another that is built or kept."""
        ...


def versions_of(target: Target, sink: str) -> TargetVersions:
    """The versions of a target that is prepared; UsageError if nothing can be beside it."""
    if not isinstance(target, Versioned):
        raise UsageError(
            f"sink {sink!r} cannot be built anew: it holds nothing that another version could take the place of",
            detail="what it has sent is with whoever received it",
            hint="DROP SINK and CREATE it again: it begins with all rows of the view",
            sink=sink,
        )
    return target.versions()


def refuse_moved(
    sink: str, expected: SinkCheckpoint, found: SinkCheckpoint | None, in_force: SinkCheckpoint | None
) -> None:
    """CheckpointConflictError unless a version stands where it should, and not behind the one in force."""
    if found != expected:
        raise CheckpointConflictError(
            f"the new version of sink {sink!r} is not where it was left", found=found, sink=sink
        )
    if (
        in_force is not None
        and in_force.whole
        and in_force.history == expected.history
        and in_force.tick > expected.tick
    ):
        raise CheckpointConflictError(
            f"the version of sink {sink!r} that is in force is ahead", found=in_force, sink=sink
        )


def refuse_kept(sink: str, old: str) -> NoReturn:
    """UsageError: an old version is kept, and another would take its place."""
    raise UsageError(
        f"the version of sink {sink!r} from before its last rebuild is still kept, as {old}",
        hint=f"`headwater rebuild {sink} --drop-old` removes it, `--back` puts it in force again",
        sink=sink,
    )
