"""What the demo shows while the shop is open: the latency from commit to view, and rows of the views."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.table import Table

import headwater as hw

from .play import Play

PLAIN_LINE_SECONDS = 10.0
REFRESH_SECONDS = 2.0
PROBED = "order_book"
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens URLs of the demo's own server, without a proxy."""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT")
QUERIES = {
    "revenue": "SELECT country, revenue FROM revenue ORDER BY revenue DESC LIMIT 4",
    "top_products": "SELECT product, sold FROM top_products ORDER BY revenue DESC LIMIT 2",
    "conversion": "SELECT channel, percent FROM conversion ORDER BY channel",
    "clicks_per_minute": "SELECT minute, clicks FROM clicks_per_minute ORDER BY minute DESC LIMIT 3",
    "clicks_final.late": "SELECT count(*) AS n FROM clicks_final.late",
    "paid_orders": "SELECT count(*) AS n FROM paid_orders",
    "unpaid_orders": "SELECT count(*) AS n FROM unpaid_orders",
    "stray_payments": "SELECT count(*) AS n FROM stray_payments",
    "stock_alerts": "SELECT product, quantity FROM stock_alerts ORDER BY quantity LIMIT 3",
}
"""Query whose result is shown for each view; the server answers it from memory-mapped state."""


class Probes:
    """Records when each order arrives in a view, in a thread of its own."""

    def __init__(self, ws: hw.Workspace) -> None:
        self._seen: dict[int, float] = {}
        self._changes = ws.view(PROBED).changes(follow=True, resync=True)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for change in self._changes:
            now = time.monotonic()
            for number in change.column("id").to_pylist():
                self._seen.setdefault(number, now)

    def close(self) -> None:
        """Stop following the view."""
        self._changes.close()
        self._thread.join(10)

    def latencies(
        self, commits: dict[int, float], outages: list[tuple[float, float]]
    ) -> tuple[list[float], list[float]]:
        """Return the seconds from commit to view, sorted: of orders that were not delayed by an outage of the engine, and of
        those that were.

        An order that was cancelled before the next tick is in no view, and is not counted.
        """
        prompt: list[float] = []
        waited: list[float] = []
        for number, committed in commits.items():
            seen = self._seen.get(number)
            if seen is not None:
                delayed = any(committed <= end and seen >= begin for begin, end in outages)
                (waited if delayed else prompt).append(seen - committed)
        return sorted(prompt), sorted(waited)


@dataclass
class Figures:
    """The live display's content while the shop is open."""

    console_address: str
    play: Play
    ws: hw.Workspace
    engine: str = "running"

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of each view as text, from the server; for a view that cannot be read yet, the error."""
        found = []
        for view, query in QUERIES.items():
            request = urllib.request.Request(
                f"{self.console_address}query", query.encode(), {"Content-Type": "application/sql"}
            )
            try:
                with DIRECTLY.open(request, timeout=2) as answer:
                    rows = json.load(answer)["rows"]
            except urllib.error.HTTPError as error:
                found.append((view, json.load(error).get("detail", "")))
            except OSError as error:
                found.append((view, str(error)))
            else:
                found.append((view, "  ".join(" ".join(map(_shown, row.values())) for row in rows) or "none"))
        return found

    def line(self) -> str:
        """Return a line with the number of events so far, the newest tick and the state of the engine."""
        done = self.play.done
        events = f"{done['order']:,} orders, {done['payment']:,} payments, {done['click']:,} clicks"
        return f"{self.play.seconds:4.0f} s: {events}; tick {self.ws.newest_tick():,}; engine {self.engine}"


def _shown(value: str | float) -> str:
    if not isinstance(value, str):
        return f"{value:,}"
    return value[11:16] if _TIME.match(value) else value


class Screen(AbstractContextManager["Screen"]):
    """A live table on a terminal, a line every few seconds elsewhere; events are printed above it."""

    def __init__(self, console: Console, figures: Figures) -> None:
        self._console, self._figures = console, figures
        self._stack = ExitStack()
        self._live: Live | None = None
        self._refreshed = self._printed = 0.0

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live = self._stack.enter_context(live)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def refresh(self) -> None:
        """Update the table or print a line, if it is time to."""
        now = time.monotonic()
        if self._live is not None and now - self._refreshed >= REFRESH_SECONDS:
            self._refreshed = now
            table = Table(
                title=self._figures.line(), caption=self._figures.console_address, title_justify="left"
            )
            table.add_column("view")
            table.add_column("rows", width=max(20, min(self._console.width, 110) - 26), no_wrap=True)
            for view, rows in self._figures.rows():
                table.add_row(view, rows)
            self._live.update(table, refresh=True)
        elif self._live is None and now - self._printed >= PLAIN_LINE_SECONDS:
            self._printed = now
            self._console.print(self._figures.line())
