"""Watching the shop: how long an order takes from its commit into a view, and what the views say meanwhile."""

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
LOOK_SECONDS = 2.0
PROBED = "order_book"
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""To our own server, by no proxy."""
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
"""What is shown of each view; the server answers them, from memory-mapped state."""


class Probes:
    """Sees every order come into a view, in a thread of its own, and keeps when."""

    def __init__(self, ws: hw.Workspace) -> None:
        self._seen: dict[int, float] = {}
        self._follower = ws.view(PROBED).changes(follow=True, resync=True)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for change in self._follower:
            now = time.monotonic()
            for number in change.column("id").to_pylist():
                self._seen.setdefault(number, now)

    def close(self) -> None:
        """Look no more."""
        self._follower.close()
        self._thread.join(10)

    def latencies(
        self, commits: dict[int, float], away: list[tuple[float, float]]
    ) -> tuple[list[float], list[float]]:
        """Seconds from commit to view, sorted: of the orders that did not have to wait for an engine that was away, and of
        those that had to.

        An order that was cancelled before a tick saw it is in no view, and is not counted.
        """
        prompt: list[float] = []
        waited: list[float] = []
        for number, committed in commits.items():
            seen = self._seen.get(number)
            if seen is not None:
                held_up = any(committed <= end and seen >= begin for begin, end in away)
                (waited if held_up else prompt).append(seen - committed)
        return sorted(prompt), sorted(waited)


@dataclass
class Figures:
    """What is shown while the shop is open."""

    console_address: str
    play: Play
    ws: hw.Workspace
    engine: str = "running"

    def rows(self) -> list[tuple[str, str]]:
        """What each view says now, as the server answers; a view that cannot be read yet says so."""
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
        """The same in a line."""
        done = self.play.done
        made = f"{done['order']:,} orders, {done['payment']:,} payments, {done['click']:,} clicks"
        return f"{self.play.seconds:4.0f} s: {made}; tick {self.ws.newest_tick():,}; engine {self.engine}"


def _shown(value: str | float) -> str:
    if not isinstance(value, str):
        return f"{value:,}"
    return value[11:16] if _TIME.match(value) else value


class Screen(AbstractContextManager["Screen"]):
    """One live table on a terminal, a line now and then elsewhere; what happens is said above it."""

    def __init__(self, console: Console, figures: Figures) -> None:
        self._console, self._figures = console, figures
        self._stack = ExitStack()
        self._live: Live | None = None
        self._looked = self._told = 0.0

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            live = Live(console=self._console, auto_refresh=False, transient=True)
            self._live = self._stack.enter_context(live)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def look(self) -> None:
        """Show what is new, if it is time to."""
        now = time.monotonic()
        if self._live is not None and now - self._looked >= LOOK_SECONDS:
            self._looked = now
            table = Table(
                title=self._figures.line(), caption=self._figures.console_address, title_justify="left"
            )
            table.add_column("view")
            table.add_column("says", width=max(20, min(self._console.width, 110) - 26), no_wrap=True)
            for view, says in self._figures.rows():
                table.add_row(view, says)
            self._live.update(table, refresh=True)
        elif self._live is None and now - self._told >= PLAIN_LINE_SECONDS:
            self._told = now
            self._console.print(self._figures.line())
