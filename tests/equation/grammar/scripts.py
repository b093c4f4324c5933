"""Random scripts: appends, tombstones, repetitions, ticks, crashes, upkeep, and views that come and go."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.equation.grammar.model import (
    Append,
    AtomicAppend,
    Compact,
    CrashAndReopen,
    CreateView,
    Delete,
    DropView,
    Retention,
    Row,
    Step,
    Tick,
    Topic,
    Upsert,
    View,
)
from tests.equation.grammar.values import random_row

PRODUCER = "loader"


class Script:
    """Makes the steps of one case; remembers what was written, so that it can be written again."""

    def __init__(
        self,
        rng: random.Random,
        topics: Sequence[Topic],
        views: Sequence[View],
        midway: Sequence[View],
        features: frozenset[str],
    ) -> None:
        self.rng = rng
        self.topics = list(topics)
        self.views = {view.name: view for view in views}
        self.midway = list(midway)
        self.features = features
        self._written: dict[str, list[Row]] = {topic.name: [] for topic in topics}
        self._numbered: list[Append | Upsert] = []

    def steps(self, count: int, rows_max: int) -> list[Step]:
        """About that many steps, a tick at the end; views that wait to be created are, before it."""
        kinds: list[tuple[float, str | None, Callable[[], Step | None]]] = [
            (5, None, lambda: self._append(rows_max)),
            (1, "delete", self._delete),
            (1.2, "atomic_append", lambda: self._atomic(rows_max)),
            (0.8, "same_sequence", self._again),
            (2.5, None, self._tick),
            (0.7, "crash", CrashAndReopen),
            (0.5, "compaction", self._compact),
            (0.3, "retention", self._retention),
            (1, "create_view", self._create),
            (0.3, "drop_view", self._drop),
        ]
        allowed = [kind for kind in kinds if kind[1] is None or kind[1] in self.features]
        made: list[Step] = [self._append(rows_max, topic) for topic in self.topics]
        while len(made) < count:
            _, _, make = self.rng.choices(allowed, [weight for weight, _, _ in allowed])[0]
            step = make()
            if step is not None:
                made.append(step)
        while step := self._create():
            made.append(step)
        return [*made, Tick()]

    def _rows(self, topic: Topic, rows_max: int) -> tuple[Row, ...]:
        rows = [random_row(self.rng, topic, self.features) for _ in range(self.rng.randint(1, rows_max))]
        before = self._written[topic.name]
        if before and "same_row" in self.features and self.rng.random() < 0.3:
            rows += self.rng.choices(before, k=self.rng.randint(1, 2))
        before += rows
        return tuple(rows)

    def _append(self, rows_max: int, topic: Topic | None = None) -> Step:
        topic = topic or self.rng.choice(self.topics)
        options: dict[str, Any] = {}
        if "same_sequence" in self.features and self.rng.random() < 0.3:
            options = {"producer": PRODUCER, "sequence": len(self._numbered) + 1}
        kind = Upsert if topic.key else Append
        step = kind(topic.name, self._rows(topic, rows_max), **options)
        if options:
            self._numbered.append(step)
        return step

    def _again(self) -> Step | None:
        return self.rng.choice(self._numbered) if self._numbered else None

    def _keys(self, topic: Topic) -> tuple[Row, ...]:
        rows = [random_row(self.rng, topic, self.features) for _ in range(1)] + self._written[topic.name]
        chosen = self.rng.sample(rows, min(len(rows), self.rng.randint(1, 4)))
        return tuple({name: row[name] for name in topic.key} for row in chosen)

    def _delete(self) -> Step | None:
        keyed = [topic for topic in self.topics if topic.key]
        if not keyed:
            return None
        topic = self.rng.choice(keyed)
        return Delete(topic.name, self._keys(topic))

    def _atomic(self, rows_max: int) -> Step | None:
        if len(self.topics) < 2:
            return None
        written: dict[str, tuple[Row, ...]] = {}
        for topic in self.rng.sample(self.topics, self.rng.randint(2, len(self.topics))):
            rows = list(self._rows(topic, rows_max))
            if topic.key and "delete" in self.features and self.rng.random() < 0.5:
                rows += [{**key, "_op": "delete"} for key in self._keys(topic)]
            written[topic.name] = tuple(rows)
        return AtomicAppend(written)

    def _tick(self) -> Step:
        bounded = "tick_rows" in self.features and self.rng.random() < 0.5
        return Tick(self.rng.choice((1, 3, 10)) if bounded else None)

    def _compact(self) -> Step | None:
        keyed = [topic.name for topic in self.topics if topic.key]
        return Compact(self.rng.choice(keyed)) if keyed else None

    def _retention(self) -> Step | None:
        """Not where a view is still to come: it would begin at the oldest records kept, which only the log knows."""
        waiting = {name for view in self.midway for name in self._below(view)}
        plain = [topic.name for topic in self.topics if not topic.key and topic.name not in waiting]
        return Retention(self.rng.choice(plain)) if plain else None

    def _below(self, view: View) -> set[str]:
        views = {**self.views, **{v.name: v for v in self.midway}}
        names = set(view.reads)
        for name in view.reads:
            if name in views:
                names |= self._below(views[name])
        return names

    def _create(self) -> Step | None:
        if not self.midway:
            return None
        view = self.midway.pop(0)
        self.views[view.name] = view
        return CreateView(view)

    def _drop(self) -> Step | None:
        read = {name for view in [*self.views.values(), *self.midway] for name in view.reads}
        free = sorted(self.views.keys() - read)
        if len(self.views) < 2 or not free:
            return None
        name = self.rng.choice(free)
        del self.views[name]
        return DropView(name)
