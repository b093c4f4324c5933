"""Progress of an engine and of statements, reported to programs that show it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from headwater.engine.tick.tick_engine import TickReport
from headwater.state.manifest import Manifest

_TO_THE_CALLER_OF_SQL = 7
"""Stack depth from `Listener.warned` to the program that executes a statement."""


class Listener:
    """Receives progress reports of an engine, for programs that show them. Override the methods of interest.

    The engine expects no reply. `ticked` is called by the thread that runs ticks.
    """

    enough: bool = False
    """Set it to end `run` after the tick under way; the remaining work is left to the next run."""

    def starting_spark(self) -> AbstractContextManager[None]:
        """Return a context in which Spark starts, because it is needed for the first time in this workspace, unless it
        runs already."""
        return nullcontext()

    def began_late(self, view: str, where: str) -> None:
        """Report that a view was created over topics whose first records had been removed."""

    def warned(self, view: str, messages: Sequence[str]) -> None:
        """Report warnings about the SELECT of a view that is being created: parts of it that have no effect."""
        for warning in messages:
            warnings.warn(f"view {view}: {warning}", UserWarning, stacklevel=_TO_THE_CALLER_OF_SQL)

    def ticked(self, report: TickReport, manifest: Manifest) -> None:
        """Report a committed tick."""

    def verifying(self, views: Sequence[str]) -> None:
        """Report that these views are about to be computed in batch and compared."""

    def verified(self, view: str, difference: str | None, *, on_base: bool = False) -> None:
        """Report the comparison of a view with the batch result of its SELECT; `difference` is None if they are equal.

        `on_base`: records from which the view was built have been removed, so the batch result was computed from the
        view's base and the log after it.
        """
