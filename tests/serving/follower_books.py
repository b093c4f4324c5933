"""A random history of a small workspace, and the books that a follower keeps of what it was told."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headwater import Workspace

TOPICS = """
CREATE TOPIC orders (id BIGINT, customer BIGINT, amount BIGINT) WITH (partitions = 2);
CREATE TOPIC customers (id BIGINT, country STRING, PRIMARY KEY (id));
"""
VIEWS = {
    "large": "SELECT id, customer, amount FROM orders WHERE amount > 4",
    "revenue": "SELECT customer, sum(amount) AS amount, count(*) AS n FROM orders GROUP BY customer",
    "places": "SELECT country, count(*) AS n FROM customers GROUP BY country",
    "named": "SELECT o.id, c.country FROM orders o LEFT JOIN customers c ON o.customer = c.id",
}


def counted(rows: pa.Table) -> Counter[str]:
    """A table as a multiset."""
    return Counter(repr(tuple(row.values())) for row in rows.to_pylist())


def weighed(rows: pa.Table, tick: int) -> Counter[str]:
    """A table of changes as weights; AssertionError if it is not netted, or of another tick."""
    found: Counter[str] = Counter()
    for row in rows.to_pylist():
        weight, of = row.pop("_weight"), row.pop("_tick")
        text = repr(tuple(row.values()))
        assert of == tick
        assert weight != 0
        assert text not in found, f"{text} is twice in the changes of tick {tick}"
        found[text] = weight
    return found


def plus(a: Mapping[str, int], b: Mapping[str, int], sign: int = 1) -> Counter[str]:
    """The sum, or difference, of two multisets, weights below zero kept."""
    total = Counter(a)
    for row, weight in b.items():
        total[row] += sign * weight
    return Counter({row: weight for row, weight in total.items() if weight})


class Books:
    """What a follower knows: the sum of what it was told, and what it was told of each tick."""

    def __init__(self) -> None:
        self.held: Counter[str] = Counter()
        self.told: dict[int, Counter[str]] = {}
        self.at: dict[int, Counter[str]] = {}
        self.snapshots: list[int] = []

    def take(self, rows: pa.Table, tick: int, *, snapshot: bool) -> None:
        """Enter a table of changes."""
        assert tick not in self.told or snapshot, f"tick {tick} was told twice"
        change = weighed(rows, tick)
        self.held = change if snapshot else plus(self.held, change)
        self.told[tick] = change
        if snapshot:
            self.snapshots.append(tick)
        self.at[tick] = self.held

    def contents(self, tick: int) -> Counter[str]:
        """What it had after a tick."""
        known = [t for t in self.at if t <= tick]
        return self.at[max(known)] if known else Counter()

    def check(self, contents: Mapping[int, Counter[str]], what: str) -> None:
        """Hold it against the contents of the ticks since the last beginning, both ways."""
        first = self.snapshots[-1] if self.snapshots else min(contents, default=1)
        ticks = sorted(tick for tick in contents if tick >= first)
        for before, tick in zip([None, *ticks], ticks, strict=False):
            assert self.contents(tick) == contents[tick], f"{what}: what was told up to tick {tick}"
            if before is not None and tick not in self.snapshots:
                difference = plus(contents[tick], contents[before], -1)
                assert self.told.get(tick, Counter()) == difference, f"{what}: the change of tick {tick}"


class History:
    """Appends, updates and deletes as a seed says."""

    def __init__(self, ws: Workspace, seed: int) -> None:
        self._ws = ws
        self._random = random.Random(seed)
        self._orders = 0

    def go_on(self) -> None:
        """One or a few appends, then ticks: all in one, or a few records each."""
        for _ in range(self._random.randint(1, 3)):
            self._step()
        self._ws.run(tick_rows=self._random.choice([None, None, 2, 5]))

    def _step(self) -> None:
        choose = self._random
        kind = choose.random()
        if kind < 0.5:
            self._ws.topic("orders").append(self._new_orders())
        elif kind < 0.75:
            self._ws.topic("customers").append(self._new_customers())
        elif kind < 0.9:
            self._ws.topic("customers").delete([{"id": choose.randrange(5)}])
        else:
            self._ws.append({"orders": self._new_orders(), "customers": self._new_customers()})

    def _new_orders(self) -> list[dict[str, Any]]:
        choose, first = self._random, self._orders
        self._orders += choose.randint(1, 4)
        return [
            {"id": n, "customer": choose.randrange(5), "amount": choose.randrange(10)}
            for n in range(first, self._orders)
        ]

    def _new_customers(self) -> list[dict[str, Any]]:
        choose = self._random
        return [
            {"id": choose.randrange(5), "country": choose.choice(["at", "ch", "de"])}
            for _ in range(choose.randint(1, 3))
        ]
