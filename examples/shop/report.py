"""The report at the end: rows, latencies, late rows, alerts, and the result of the verification."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from .play import Play, truth
from .watch import Probes

if TYPE_CHECKING:
    from .demo import Demo

WIDTH = 80
ALERT_SECONDS = 15.0
CAPTURED = ("customers", "products", "stock", "orders", "payments")


@dataclass(frozen=True)
class Facts:
    """Lines of the report, and differences that were found."""

    lines: dict[str, str]
    wrong: list[str]


def gather(demo: Demo, play: Play, probes: Probes) -> Facts:
    """Collect everything but the verification, while the engine still runs."""
    ws, wrong = demo.ws, []
    rows = {name: sum(p.rows for p in ws.topic(name).partitions().values()) for name in (*CAPTURED, "clicks")}
    prompt, waited = probes.latencies(play.commits, demo.outages)
    late = ws.view("clicks_final").ledger()
    accounted = late["used"] + late["diverted"] + late["dropped"] + late["failed"]
    if not accounted == late["read"] == play.done["click"]:
        wrong.append(f"clicks: {play.done['click']} sent, {late['read']} read, {accounted} accounted for")
    said = ws.query("SELECT country, revenue, orders FROM revenue ORDER BY country").to_pylist()
    if [tuple(row.values()) for row in said] != truth(demo.shop_url)["revenue"]:
        wrong.append("revenue: the view and the shop's own database differ")
    fired, over = _alerts(demo)
    if not fired or not over:
        wrong.append(f"alerts: {fired} fired, {over} resolved")
    found = ws.sink("product_search").search("pen").num_rows
    lines = {
        "captured": f"{sum(rows[name] for name in CAPTURED):,} rows of {len(CAPTURED)} tables in Postgres",
        "clicks": f"{rows['clicks']:,} over HTTP, each exactly once",
        "ticks": f"{ws.newest_tick():,}",
        "commit to view": _latency(prompt),
        "every click": f"{late['read']:,} read = {late['used']:,} used + {late['diverted']:,} late and diverted",
        "alerts": f"{fired} fired, {over} resolved",
        "search for 'pen'": f"{found} products",
        "revenue": "equal to a query of the shop's database" if len(wrong) == 0 else "see below",
    }
    for begin, end in demo.outages:
        lines["kill -9"] = f"running again after {end - begin:.1f} s; {len(waited):,} orders waited meanwhile"
    return Facts(lines, wrong)


def _alerts(demo: Demo) -> tuple[int, int]:
    """Return how many alerts fired, and how many of them are resolved; waits a little, since alerts are checked twice a
    second."""
    deadline = time.monotonic() + ALERT_SECONDS
    while True:
        topic = demo.ws.topic("notices")
        events = [e for batch in topic.read("earliest") for e in batch.column("event").to_pylist()]
        fired, over = events.count("fired"), events.count("over")
        if (fired and over) or time.monotonic() > deadline:
            return fired, over
        time.sleep(0.2)


def _latency(took: list[float]) -> str:
    if not took:
        return "no order reached a view while the engine ran"
    p99 = took[min(len(took) - 1, int(len(took) * 0.99))]
    return f"median {median(took) * 1000:,.0f} ms, p99 {p99 * 1000:,.0f} ms, of {len(took):,} orders"


def show(console: Console, facts: Facts, checked: dict[str, Any]) -> int:
    """Print the report. Return the exit status: 0 only if everything is equal."""
    console.print()
    table = Table(width=min(console.width, WIDTH), title="Verified", title_justify="left")
    for name in ("", "", "equal"):
        table.add_column(name)
    for view in checked["views"]:
        table.add_row("view", view["view"], _equal(view["ok"], view["detail"]))
    for sink in checked["sinks"]:
        table.add_row("sink", sink["sink"], _equal(sink["ok"], sink["detail"], f", {sink['rows']:,} rows"))
    console.print(table)
    ok = bool(checked["ok"]) and not facts.wrong and all(v["equal"] for v in checked["views"])
    ok = ok and all(sink["ok"] for sink in checked["sinks"])
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.lines.items():
        grid.add_row(f"[dim]{name}[/dim]", value)
    for line in [*facts.wrong, *(found["message"] for found in checked["differences"])]:
        grid.add_row("[red]difference[/red]", line)
    title = "[green]all equal[/green]" if ok else "[red]there are differences[/red]"
    console.print(Panel(grid, title=title, width=min(console.width, WIDTH), padding=(1, 2)))
    return 0 if ok else 1


def _equal(ok: bool | None, detail: str | None, more: str = "") -> str:
    return f"[green]yes[/green]{more}" if ok else f"[red]{detail or 'no'}[/red]"
