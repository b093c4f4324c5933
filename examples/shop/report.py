"""The report at the end: what came in, how long it took, what was late, and whether everything is equal."""

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
    """What is told, and whether what should agree does."""

    told: dict[str, str]
    wrong: list[str]


def gather(demo: Demo, play: Play, probes: Probes) -> Facts:
    """Everything but the verification, while the engine still runs."""
    ws, wrong = demo.ws, []
    rows = {name: sum(p.rows for p in ws.topic(name).partitions().values()) for name in (*CAPTURED, "clicks")}
    prompt, waited = probes.latencies(play.commits, demo.away)
    late = ws.view("clicks_final").ledger()
    accounted = late["used"] + late["diverted"] + late["dropped"] + late["failed"]
    if not accounted == late["read"] == play.done["click"]:
        wrong.append(
            f"clicks: {play.done['click']} were sent, {late['read']} read, {accounted} accounted for"
        )
    said = ws.query("SELECT country, revenue, orders FROM revenue ORDER BY country").to_pylist()
    if [tuple(row.values()) for row in said] != truth(demo.shop_url)["revenue"]:
        wrong.append("revenue: the view and the shop's own database differ")
    fired, over = _alerts(demo)
    if not fired or not over:
        wrong.append(f"alerts: {fired} raised, {over} over")
    found = ws.sink("product_search").search("pen").num_rows
    told = {
        "captured": f"{sum(rows[name] for name in CAPTURED):,} rows of {len(CAPTURED)} tables in Postgres",
        "clicks": f"{rows['clicks']:,} over HTTP, each once",
        "ticks": f"{ws.newest_tick():,}",
        "commit to view": _latency(prompt),
        "every click": f"{late['read']:,} read = {late['used']:,} used + {late['diverted']:,} late, diverted",
        "alerts": f"{fired} raised, {over} over",
        "search for 'pen'": f"{found} found",
        "revenue": "as the shop's own database says" if len(wrong) == 0 else "see below",
    }
    for begin, end in demo.away:
        told["kill -9"] = f"back after {end - begin:.1f} s; {len(waited):,} orders had waited for it"
    return Facts(told, wrong)


def _alerts(demo: Demo) -> tuple[int, int]:
    """How many were raised, and how many of them are over; the last is waited for a little, since alerts are looked at twice a
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
        return "no order was seen while the engine ran"
    p99 = took[min(len(took) - 1, int(len(took) * 0.99))]
    return f"median {median(took) * 1000:,.0f} ms, p99 {p99 * 1000:,.0f} ms, of {len(took):,} orders"


def show(console: Console, facts: Facts, checked: dict[str, Any]) -> int:
    """Print it; the exit status: 0 only if everything is equal."""
    console.print()
    table = Table(width=min(console.width, WIDTH), title="Verified", title_justify="left")
    for name in ("", "", "equal"):
        table.add_column(name)
    for view in checked["views"]:
        table.add_row("view", view["view"], _equal(view["ok"], view["detail"]))
    for sink in checked["sinks"]:
        table.add_row(
            "follower", sink["sink"], _equal(sink["ok"], sink["detail"], f", {sink['rows']:,} rows")
        )
    console.print(table)
    ok = bool(checked["ok"]) and not facts.wrong and all(v["equal"] for v in checked["views"])
    ok = ok and all(sink["ok"] for sink in checked["sinks"])
    grid = Table.grid(padding=(0, 2))
    for name, value in facts.told.items():
        grid.add_row(f"[dim]{name}[/dim]", value)
    for line in [*facts.wrong, *(found["message"] for found in checked["differences"])]:
        grid.add_row("[red]wrong[/red]", line)
    title = "[green]all equal[/green]" if ok else "[red]something is wrong[/red]"
    console.print(Panel(grid, title=title, width=min(console.width, WIDTH), padding=(1, 2)))
    return 0 if ok else 1


def _equal(ok: bool | None, detail: str | None, more: str = "") -> str:
    return f"[green]yes[/green]{more}" if ok else f"[red]{detail or 'no'}[/red]"
