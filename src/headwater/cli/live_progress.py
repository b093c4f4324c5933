"""Shows the work of the engine: Spark starting, ticks, and the comparison of views."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import INTERRUPTED
from headwater.cli.logs import logger
from headwater.cli.output import PLAIN_LINE_SECONDS, progress
from headwater.cli.overview import Overview, table_of
from headwater.core.clock import SystemClock
from headwater.core.errors import HeadwaterError
from headwater.engine.row_errors.rejected_row_counts import since
from headwater.engine.tick.listener import Listener
from headwater.engine.tick.tick_engine import TickReport
from headwater.state.manifest import Manifest
from headwater.views.runner import Runner
from headwater.views.view_status import backfills, remaining_rows

if TYPE_CHECKING:
    from headwater.connectors.supervisor import Supervisor
    from headwater.log.protocol import Log
    from headwater.views.view_manager import Views

LIVE_LINE_SECONDS = 1.0
BAR_WIDTH = 20


class SparkStartNotice(Listener):
    """A listener that reports the start of Spark to a user at a terminal."""

    @contextmanager
    def starting_spark(self) -> Iterator[None]:
        """Show a spinner on a terminal, nothing in a script."""
        with leaving_at_once(), self._starting():
            yield

    def began_late(self, view: str, where: str) -> None:
        """Print where the view begins, also without a terminal."""
        click.echo(f"view {view} begins at {where}", err=True)

    def warned(self, view: str, messages: Sequence[str]) -> None:
        """Print the warnings, also without a terminal."""
        for warning in messages:
            click.echo(f"warning: view {view}: {warning}", err=True)

    def _starting(self) -> AbstractContextManager[None]:
        return _spinner("starting Spark ...") if sys.stderr.isatty() else nullcontext()


class TickProgress(SparkStartNotice):
    """A listener that shows ticks: as progress towards the end of the log, or as a line at intervals."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._guard = threading.Lock()
        self._last: tuple[TickReport, Manifest] | None = None
        self._manifest: Manifest | None = None
        self._rows = self._rows_shown = 0
        self._advance: Any = None

    def ticked(self, report: TickReport, manifest: Manifest) -> None:
        """Record and show a tick. Called by the engine's thread in a continuous run, by the main thread otherwise."""
        with self._guard:
            self._rows += report.rows
            self._last = report, manifest
            self._manifest = manifest
        facts = {"tick": report.tick, "rows": report.rows, "seconds": report.seconds}
        logger.debug("tick", extra={"facts": {**facts, "phases": dict(report.phases)}})
        for view, reason in report.stopped.items():
            logger.error("view %s stopped: %s", view, reason, extra={"facts": {"tick": report.tick}})
            click.echo(f"view {view} stopped: {reason}", err=True)
        if self._advance is not None:
            left = remaining_rows(self._log, manifest)
            behind = [v.name for v in manifest.views.values() if v.status == "backfilling"]
            note = f"backfilling {', '.join(behind)}" if behind else f"tick {report.tick:,}"
            self._advance(self._rows, note, self._rows + left)

    def _starting(self) -> AbstractContextManager[None]:
        """Report the start of Spark also without a terminal, because it takes seconds."""
        if not sys.stderr.isatty():
            click.echo("starting Spark ...", err=True)
        return super()._starting()

    @contextmanager
    def as_progress(self, manifest: Manifest | None) -> Iterator[None]:
        """Show ticks within the block as progress towards the end of the log."""
        with progress("updating views", remaining_rows(self._log, manifest), unit="rows") as advance:
            self._advance = advance
            try:
                yield
            finally:
                self._advance = None

    def follow(
        self, runner: Runner, asked: threading.Event, supervisor: Supervisor, begin: Manifest | None = None
    ) -> None:
        """Show ticks until the user asks to stop, or the engine ends by itself: as a live table on a terminal,
        otherwise as lines. `begin` is the tick at which the run began."""
        if sys.stderr.isatty():
            with self._guard:
                self._manifest = self._manifest or begin
            self._follow_live(runner, asked, supervisor)
            return
        clock, left_out = SystemClock(), _LeftOut(supervisor)
        printed_ms = clock.steady_ms()
        while runner.running and not asked.wait(LIVE_LINE_SECONDS):
            if clock.steady_ms() - printed_ms >= PLAIN_LINE_SECONDS * 1_000:
                parts = [self._line(), *left_out.new()]
                if line := "; ".join(filter(None, parts)):
                    printed_ms = clock.steady_ms()
                    click.echo(line, err=True)

    def _follow_live(self, runner: Runner, asked: threading.Event, supervisor: Supervisor) -> None:
        from rich.console import Console
        from rich.live import Live

        clock, overview, line = SystemClock(), Overview(self._log), "waiting for records"
        left_out = _LeftOut(supervisor)
        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            while runner.running:
                with self._guard:
                    manifest = self._manifest
                with suppress(HeadwaterError):  # a topic, view, source or sink was dropped at this moment
                    sources, sinks = supervisor.sources.facts(), supervisor.sinks.facts()
                    lines = overview.sample(manifest, sources, sinks, clock.steady_ms(), supervisor.health())
                    line = self._line() or line
                    live.update(table_of(lines, "\n".join([line, *left_out.total()])), refresh=True)
                if asked.wait(LIVE_LINE_SECONDS):
                    return

    def _line(self) -> str | None:
        """Return a line about the newest tick; None if it was shown before."""
        with self._guard:
            if self._last is None:
                return None
            (report, manifest), rows = self._last, self._rows - self._rows_shown
            self._last, self._rows_shown = None, self._rows
        lag = remaining_rows(self._log, manifest)
        line = f"tick {report.tick:,}: {rows:,} rows, {report.seconds * 1_000:,.0f} ms, lag {lag:,} rows"
        return "; ".join([line, *(_backfill(view, share) for view, share in backfills(self._log, manifest))])


class _LeftOut:
    """Reports the rows that were left out since its creation."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._begin = self._reported = supervisor.rejected()

    def total(self) -> list[str]:
        """Return all rows left out, as a sentence for each owner."""
        return [one.sentence for one in since(self._begin, self._supervisor.rejected())]

    def new(self) -> list[str]:
        """Return the rows left out since the last call; empty if an object is being dropped at this moment."""
        with suppress(HeadwaterError):
            now = self._supervisor.rejected()
            before, self._reported = self._reported, now
            return [one.sentence for one in since(before, now)]
        return []


class Verifying(SparkStartNotice):
    """A listener that shows the two phases of `verify`: bytes, then views."""

    def __init__(self) -> None:
        self._compared = 0
        self._stack = ExitStack()
        self._advance: Any = None

    @contextmanager
    def shown(self, total_bytes: int) -> Iterator[None]:
        """Show progress within the block."""
        with self._stack:
            self._advance = self._stack.enter_context(progress("checking bytes", total_bytes))
            yield

    def checked(self, done_bytes: int) -> None:
        """Report how many bytes of the log were read."""
        self._advance(done_bytes, "")

    def _starting(self) -> AbstractContextManager[None]:
        """Show nothing: the progress of the views reports the start of Spark."""
        return nullcontext()

    def verifying(self, views: Sequence[str]) -> None:
        """Begin the second phase, the comparison of views."""
        self._stack.close()
        if views:
            what = f"recomputing {len(views)} {'view' if len(views) == 1 else 'views'} in batch"
            if not sys.stderr.isatty():
                click.echo(what, err=True)
            self._advance = self._stack.enter_context(progress(what, len(views), unit="views"))
            self._advance(0, "starting Spark")

    def verified(self, view: str, difference: str | None, *, on_base: bool = False) -> None:
        """Count and show a compared view."""
        del difference, on_base
        self._compared += 1
        self._advance(self._compared, view)


def _backfill(view: str, share: float) -> str:
    filled = int(share * BAR_WIDTH)
    return f"backfilling {view} {'━' * filled}{'┄' * (BAR_WIDTH - filled)} {share:.0%}"


@contextmanager
def _spinner(text: str) -> Iterator[None]:
    """Show a spinner on the terminal during the block, and remove it at the end."""
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


def start_spark(views: Views) -> None:
    """Start Spark, and print the address of its web pages."""
    address = views.start_spark()
    if address is not None:
        click.echo(f"Spark UI: {address}", err=True)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process at once within the block, and restore the signal's handler after it.

    For the start of Spark, which does not tolerate an exception in between. No statement has been run by then, and the
    JVM exits when this process has.
    """

    def leave(*_: Any) -> None:
        # written directly to the descriptor, because printing in progress may hold the locks of buffers; clears a
        # spinner's line and shows the cursor again
        clear = "\r\x1b[K\x1b[?25h" if sys.stderr.isatty() else ""
        os.write(2, f"{clear}interrupted\n".encode())
        os._exit(INTERRUPTED)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def asked_to_stop(listener: Listener | None = None) -> Iterator[threading.Event]:
    """Set the returned event on Ctrl-C or SIGTERM within the block, so that the run ends after the current tick. A
    second Ctrl-C ends the process at once.

    Spark must be running: `leaving_at_once` handles Ctrl-C while it starts.
    """
    asked = threading.Event()

    def ask(number: int, *_: Any) -> None:
        if asked.is_set() and number == signal.SIGINT:
            os._exit(INTERRUPTED)  # no part of the current tick is visible to readers
        asked.set()
        if listener is not None:
            listener.enough = True

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
