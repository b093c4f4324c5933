"""What people see while the engine works: Spark coming up, ticks going by, views being compared."""

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
from headwater.cli.overview import Overview, drawn
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
    """Says that Spark starts, to someone who sits at a terminal and waits."""

    @contextmanager
    def starting_spark(self) -> Iterator[None]:
        """Something that moves on a terminal, nothing for a script."""
        with leaving_at_once(), self._starting():
            yield

    def began_late(self, view: str, where: str) -> None:
        """Always said."""
        click.echo(f"view {view} begins at {where}", err=True)

    def warned(self, view: str, told: Sequence[str]) -> None:
        """Always said."""
        for warning in told:
            click.echo(f"warning: view {view}: {warning}", err=True)

    def _starting(self) -> AbstractContextManager[None]:
        return _moving("starting Spark ...") if sys.stderr.isatty() else nullcontext()


class TickProgress(SparkStartNotice):
    """Shows ticks: as progress towards what the log holds, or as a line so often."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._guard = threading.Lock()
        self._last: tuple[TickReport, Manifest] | None = None
        self._manifest: Manifest | None = None
        self._rows = self._rows_shown = 0
        self._advance: Any = None

    def ticked(self, report: TickReport, manifest: Manifest) -> None:
        """Called by the engine's thread when it keeps going, by our own otherwise."""
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
        """Always said: it takes seconds."""
        if not sys.stderr.isatty():
            click.echo("starting Spark ...", err=True)
        return super()._starting()

    @contextmanager
    def as_progress(self, manifest: Manifest | None) -> Iterator[None]:
        """Within the block ticks are progress towards what the log holds."""
        with progress(
            "bringing views up to date", remaining_rows(self._log, manifest), unit="rows"
        ) as advance:
            self._advance = advance
            try:
                yield
            finally:
                self._advance = None

    def follow(
        self, runner: Runner, asked: threading.Event, outside: Supervisor, standing: Manifest | None = None
    ) -> None:
        """Show what goes on until the end is asked for, or the engine ends by itself: one table at a terminal, else lines.
        `standing` is the tick that it began at."""
        if sys.stderr.isatty():
            with self._guard:
                self._manifest = self._manifest or standing
            self._follow_live(runner, asked, outside)
            return
        clock, left_out = SystemClock(), _LeftOut(outside)
        told_ms = clock.steady_ms()
        while runner.running and not asked.wait(LIVE_LINE_SECONDS):
            if clock.steady_ms() - told_ms >= PLAIN_LINE_SECONDS * 1_000:
                news = [self._line(), *left_out.news()]
                if line := "; ".join(filter(None, news)):
                    told_ms = clock.steady_ms()
                    click.echo(line, err=True)

    def _follow_live(self, runner: Runner, asked: threading.Event, outside: Supervisor) -> None:
        from rich.console import Console
        from rich.live import Live

        clock, overview, line = SystemClock(), Overview(self._log), "waiting for records"
        left_out = _LeftOut(outside)
        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            while runner.running:
                with self._guard:
                    manifest = self._manifest
                with suppress(HeadwaterError):  # something was dropped just now
                    sources, sinks = outside.sources.facts(), outside.sinks.facts()
                    lines = overview.look(manifest, sources, sinks, clock.steady_ms(), outside.health())
                    line = self._line() or line
                    live.update(drawn(lines, "\n".join([line, *left_out.so_far()])), refresh=True)
                if asked.wait(LIVE_LINE_SECONDS):
                    return

    def _line(self) -> str | None:
        """The newest tick, unless it was told before."""
        with self._guard:
            if self._last is None:
                return None
            (report, manifest), rows = self._last, self._rows - self._rows_shown
            self._last, self._rows_shown = None, self._rows
        lag = remaining_rows(self._log, manifest)
        line = f"tick {report.tick:,}: {rows:,} rows, {report.seconds * 1_000:,.0f} ms, lag {lag:,} rows"
        return "; ".join([line, *(_backfill(view, share) for view, share in backfills(self._log, manifest))])


class _LeftOut:
    """Tells the rows that were left out since it was made."""

    def __init__(self, outside: Supervisor) -> None:
        self._outside = outside
        self._begin = self._told = outside.rejected()

    def so_far(self) -> list[str]:
        """All of them, a sentence for each owner."""
        return [one.sentence for one in since(self._begin, self._outside.rejected())]

    def news(self) -> list[str]:
        """Those since this was last asked; none where something was dropped just now."""
        with suppress(HeadwaterError):
            now = self._outside.rejected()
            before, self._told = self._told, now
            return [one.sentence for one in since(before, now)]
        return []


class Verifying(SparkStartNotice):
    """Shows the two halves of `verify`: bytes, then views."""

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
        """So much of the log was read."""
        self._advance(done_bytes, "")

    def _starting(self) -> AbstractContextManager[None]:
        """The progress says it."""
        return nullcontext()

    def verifying(self, views: Sequence[str]) -> None:
        """The bytes are done."""
        self._stack.close()
        if views:
            what = f"computing {len(views)} {'view' if len(views) == 1 else 'views'} in batch"
            if not sys.stderr.isatty():
                click.echo(what, err=True)
            self._advance = self._stack.enter_context(progress(what, len(views), unit="views"))
            self._advance(0, "starting Spark")

    def verified(self, view: str, difference: str | None, *, on_base: bool = False) -> None:
        """One is compared."""
        del difference, on_base
        self._compared += 1
        self._advance(self._compared, view)


def _backfill(view: str, share: float) -> str:
    done = int(share * BAR_WIDTH)
    return f"backfilling {view} {'━' * done}{'┄' * (BAR_WIDTH - done)} {share:.0%}"


@contextmanager
def _moving(what: str) -> Iterator[None]:
    """Something that moves on a terminal while the block runs; nothing of it stays."""
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def start_spark(views: Views) -> None:
    """Bring Spark up, and say where its own pages are."""
    address = views.start_spark()
    if address is not None:
        click.echo(f"Spark's own pages: {address}", err=True)


@contextmanager
def leaving_at_once() -> Iterator[None]:
    """Within the block Ctrl-C ends the process there and then; after it, it does what it did before the block.

    For the start of Spark, which takes an exception in the middle of it badly. Nothing of a statement is done by then, and
    the JVM ends when it finds us gone.
    """

    def leave(*_: Any) -> None:
        # written past all buffers: whatever was being printed may hold them
        # a spinner's line goes, and the cursor that it hid comes back
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
    """Within the block Ctrl-C and SIGTERM ask for an end, which comes after the tick under way; again, and it is now.

    Spark has to be up: `leaving_at_once` has Ctrl-C while it starts.
    """
    asked = threading.Event()

    def ask(number: int, *_: Any) -> None:
        if asked.is_set() and number == signal.SIGINT:
            os._exit(INTERRUPTED)  # nothing of the tick under way is seen by anyone
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
