"""Progress of an engine and of statements, reported to programs that show it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from headwater.engine.tick.tick_engine import TickReport
from headwater.state.manifest import Manifest

_TO_THE_CALLER_OF_SQL = 7
"""Calls from `Listener.warned` up to the program that has a statement run."""


class Listener:
    """Told what goes on, for those who show it: override what is of interest. Nothing waits for an answer.

    `ticked` is called by the thread that makes ticks.
    """

    enough: bool = False
    """Set it to end `run` after the tick under way; the rest is left to the next."""

    def starting_spark(self) -> AbstractContextManager[None]:
        """Spark is needed for the first time in this workspace: it starts within the block, unless one is up already."""
        return nullcontext()

    def began_late(self, view: str, where: str) -> None:
        """A view was created over topics whose first records had been removed."""

    def warned(self, view: str, told: Sequence[str]) -> None:
        """A view is being created of whose SELECT this is told: what a part of it does not do."""
        for warning in told:
            warnings.warn(f"view {view}: {warning}", UserWarning, stacklevel=_TO_THE_CALLER_OF_SQL)

    def ticked(self, report: TickReport, manifest: Manifest) -> None:
        """A tick was committed."""

    def verifying(self, views: Sequence[str]) -> None:
        """These views are about to be computed in batch and compared."""

    def verified(self, view: str, difference: str | None, *, on_base: bool = False) -> None:
        """A view was compared with what its SELECT gives in batch; None if it is equal. `on_base`: records that it was
        made from were removed, so that it was computed from its base and the log after it."""
