"""A keyed topic that random steps change, and what Python makes of its rows: a view's contents, computed another way."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import headwater as hw

Row = dict[str, Any]
Contents = Iterable[tuple[Any, ...]]

TOPIC = "CREATE TOPIC items (id BIGINT, price DOUBLE, name STRING, PRIMARY KEY (id)) WITH (partitions = 2)"
_NAMES = (None, "", "a", "ab", "abc", "b", "ba", "bab")


class Table:
    """The rows that the topic `items` holds, and a source of changes to it."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.rows: dict[int, Row] = {}

    def change(self, ws: hw.Workspace) -> None:
        """Insert, update and delete some rows, in several appends."""
        topic = ws.topic("items")
        for _ in range(self._random.randint(1, 4)):
            if self.rows and self._random.random() < 0.3:
                gone = self._random.sample(sorted(self.rows), min(len(self.rows), 2))
                topic.delete([{"id": i} for i in gone])
                for i in gone:
                    del self.rows[i]
            else:
                made = [self._row() for _ in range(self._random.randint(1, 5))]
                topic.append(made)
                self.rows |= {row["id"]: row for row in made}

    def clear(self, ws: hw.Workspace) -> None:
        """Delete every row."""
        ws.topic("items").delete([{"id": i} for i in self.rows])
        self.rows.clear()

    def tick_rows(self) -> int | None:
        """How many records a tick may take."""
        return self._random.choice([None, 4])

    def _row(self) -> Row:
        return {
            "id": self._random.randint(1, 12),
            "price": self._random.choice([None, *map(float, range(-3, 9))]),
            "name": self._random.choice(_NAMES),
        }


def holds(ws: hw.Workspace, view: str, expected: Contents) -> None:
    """Compare a view with rows computed another way."""
    have = Counter(tuple(row.values()) for row in ws.view(view).read().to_pylist())
    assert have == Counter(expected), view


def play(
    ws: hw.Workspace,
    table: Table,
    views: Mapping[str, Callable[[list[Row]], Contents]],
    *,
    verify: bool,
) -> None:
    """Change the topic and run, several times and to the end, with every view held against Python at every turn, and
    against Spark once if told to."""
    for turn in range(5):
        if turn == 4:
            table.clear(ws)
        else:
            table.change(ws)
        assert ws.run(tick_rows=table.tick_rows()).stopped == {}
        for view, compute in views.items():
            holds(ws, view, compute(list(table.rows.values())))
        if verify and turn == 2:
            assert ws.verify().ok
