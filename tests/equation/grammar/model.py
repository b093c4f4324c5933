"""What a random case is made of: topics, views, steps, and what the log holds after them. Pure data, no chance here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headwater.core.types import parse_type

Row = Mapping[str, Any]
Op = str
"""'upsert' or 'delete'."""


@dataclass(frozen=True)
class Column:
    """A column and what the grammar may do with it.

    `bound` is the largest magnitude of its numbers, in lists and structs too, so that arithmetic is made only where it
    cannot overflow.
    `exact` is false where only 1e-9 is promised (float sums, averages): such a value is passed on, but never grouped,
    joined or compared by. `floats` says which doubles it holds: 'dyadic' (multiples of 1/4, sums are exact in any
    order), 'positive' (sums agree to 1e-9), or '' (sums may depend on the order, so there are none).
    """

    name: str
    kind: str
    bound: int = 0
    exact: bool = True
    floats: str = ""


@dataclass(frozen=True)
class Topic:
    """A topic as CREATE TOPIC declares it; with a `key`, a table's changelog."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    partitions: int = 1

    @property
    def schema(self) -> pa.Schema:
        """The columns in Arrow."""
        return pa.schema([pa.field(c.name, parse_type(c.kind), c.name not in self.key) for c in self.columns])

    @property
    def ddl(self) -> str:
        """The statement that creates it."""
        lines = [f"{c.name} {c.kind}" for c in self.columns]
        if self.key:
            lines.append(f"PRIMARY KEY ({', '.join(self.key)})")
        return f"CREATE TOPIC {self.name} ({', '.join(lines)}) WITH (partitions = {self.partitions})"


@dataclass(frozen=True)
class View:
    """A view: its SELECT, what it reads by name, the columns that it should have, the features that it uses."""

    name: str
    select: str
    reads: tuple[str, ...]
    columns: tuple[Column, ...] = ()
    features: frozenset[str] = frozenset()

    @property
    def ddl(self) -> str:
        """The statement that creates it."""
        return f"CREATE MATERIALIZED VIEW {self.name} AS {self.select}"


@dataclass(frozen=True)
class Append:
    """Rows to a plain topic. The same `producer` and `sequence` again must write nothing."""

    topic: str
    rows: tuple[Row, ...]
    producer: str | None = None
    sequence: int | None = None


@dataclass(frozen=True)
class Upsert:
    """Rows to a keyed topic: of one key, the later wins, also within the append."""

    topic: str
    rows: tuple[Row, ...]
    producer: str | None = None
    sequence: int | None = None


@dataclass(frozen=True)
class Delete:
    """Tombstones for keys of a keyed topic; the key need not be there."""

    topic: str
    keys: tuple[Row, ...]


@dataclass(frozen=True)
class AtomicAppend:
    """One append over several topics, which no tick may split. Rows with `_op` 'delete' are tombstones."""

    rows: Mapping[str, tuple[Row, ...]]
    producer: str | None = None
    sequence: int | None = None


@dataclass(frozen=True)
class Tick:
    """`ws.run(tick_rows=rows)`; every view is then held against the oracle."""

    rows: int | None = None


@dataclass(frozen=True)
class CrashAndReopen:
    """The workspace is left as it is, nothing closed in good order, and opened anew."""


@dataclass(frozen=True)
class Compact:
    """Compaction of a keyed topic; no view may change."""

    topic: str


@dataclass(frozen=True)
class Retention:
    """Retention removes old records of a plain topic; no view may change, none over it is created after."""

    topic: str


@dataclass(frozen=True)
class CreateView:
    """A view made midway, over all that the log holds by then."""

    view: View


@dataclass(frozen=True)
class DropView:
    """A view that nothing reads goes."""

    name: str


Step = (
    Append
    | Upsert
    | Delete
    | AtomicAppend
    | Tick
    | CrashAndReopen
    | Compact
    | Retention
    | CreateView
    | DropView
)


@dataclass(frozen=True)
class Case:
    """A workspace and its life: topics and views at the start, then steps."""

    topics: tuple[Topic, ...]
    views: tuple[View, ...]
    steps: tuple[Step, ...]
    seed: int | None = None

    @property
    def all_views(self) -> tuple[View, ...]:
        """Every view there ever is, each after those that it reads."""
        return (*self.views, *(step.view for step in self.steps if isinstance(step, CreateView)))

    @property
    def features(self) -> frozenset[str]:
        """What the views use together; of topics and steps, see `generator.features_of`."""
        return frozenset().union(*(view.features for view in self.all_views))


@dataclass
class History:
    """What the log holds, and which views there are, after the steps applied so far."""

    topics: Mapping[str, Topic]
    log: dict[str, list[tuple[Row, Op]]] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    _sequences: set[tuple[str, int]] = field(default_factory=set)

    @classmethod
    def of(cls, case: Case, steps: int | None = None) -> History:
        """The history of a case after that many steps; after all of them if not said."""
        history = cls({topic.name: topic for topic in case.topics})
        history.log = {topic.name: [] for topic in case.topics}
        history.views = {view.name: view for view in case.views}
        for step in case.steps[:steps]:
            history.apply(step)
        return history

    def apply(self, step: Step) -> None:
        """Take one more step."""
        match step:
            case CreateView(view):
                self.views[view.name] = view
            case DropView(name):
                del self.views[name]
            case Append() | Upsert() | Delete() | AtomicAppend():
                for topic, row, op in self._written(step):
                    self.log[topic].append((row, op))

    def _written(self, step: Append | Upsert | Delete | AtomicAppend) -> Iterator[tuple[str, Row, Op]]:
        match step:
            case Delete(topic, keys):
                yield from ((topic, key, "delete") for key in keys)
                return
            case AtomicAppend(rows):
                written: Mapping[str, Sequence[Row]] = rows
            case Append(topic, rows) | Upsert(topic, rows):
                written = {topic: rows}
        if step.producer is not None and step.sequence is not None:
            if (step.producer, step.sequence) in self._sequences:
                return
            self._sequences.add((step.producer, step.sequence))
        for topic, rows in written.items():
            for row in rows:
                yield topic, {n: v for n, v in row.items() if n != "_op"}, row.get("_op", "upsert")

    def table(self, topic: str) -> pa.Table:
        """The rows that a view sees: all of a plain topic, of a keyed one the latest of each key."""
        definition = self.topics[topic]
        rows: list[Row] = [row for row, _ in self.log[topic]]
        if definition.key:
            latest: dict[tuple[Any, ...], Row | None] = {}
            for row, op in self.log[topic]:
                latest[tuple(_key(row[name]) for name in definition.key)] = None if op == "delete" else row
            rows = [row for row in latest.values() if row is not None]
        return pa.Table.from_pylist([dict(row) for row in rows], schema=definition.schema)


def _key(value: Any) -> Any:
    """A value as key columns compare it: all NaNs are one, and so are the zeros."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value
