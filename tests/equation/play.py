"""Plays a random case on a real workspace, and holds every view against the batch oracle at every tick.

A case is a script; where a view differs, the script is printed with an arrow at the step, and the difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headwater as hw
from headwater import Workspace
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.testing import inspect_workspace
from tests.equation.generator import (
    Append,
    AtomicAppend,
    Case,
    Compact,
    CrashAndReopen,
    CreateView,
    Delete,
    DropView,
    History,
    Retention,
    Step,
    Tick,
    Upsert,
    View,
)
from tests.equation.oracle import Oracle, compare

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)


@dataclass
class Player:
    """A workspace that a case is being played on."""

    case: Case
    folder: Path
    oracle: Oracle
    spark: Any
    every_tick: bool = False
    """Hold every tick of a bounded run against the oracle, not only one of them and the last."""
    history: History = field(init=False)
    ws: Workspace = field(init=False)
    clock: ManualClock = field(default_factory=ManualClock)
    checked: int = 0
    removed: bool = False
    """Whether retention has removed something."""
    records: dict[tuple[str, int], list[pa.RecordBatch]] = field(default_factory=dict)
    """Everything that was ever in the log, by topic and partition."""

    def __post_init__(self) -> None:
        self.history = History.of(self.case, 0)
        self.ws = self._open()

    def _open(self) -> Workspace:
        return hw.open(self.folder, settings=SETTINGS, spark=self.spark, clock=self.clock)

    def play(self) -> None:
        """Every step, then a last tick. AssertionError, with the script, at the first view that differs."""
        place = -1
        try:
            for topic in self.case.topics:
                self.ws.sql(topic.ddl)
            for view in self.case.views:
                self.ws.sql(view.ddl)
            for step in (*self.case.steps, Tick()):
                place += 1
                self._take(step)
                self.history.apply(step)
                self._record()
                if isinstance(step, Tick):
                    self._check_all()
        except Exception as error:
            raise AssertionError(f"{error}\n\n{script(self.case, place)}") from error
        finally:
            self.ws.close()

    def _take(self, step: Step) -> None:
        match step:
            case Append(topic, rows, producer, sequence) | Upsert(topic, rows, producer, sequence):
                self.ws.topic(topic).append(list(rows), **_idempotent(producer, sequence))
            case Delete(topic, keys):
                self.ws.topic(topic).delete(list(keys))
            case AtomicAppend(rows, producer, sequence):
                self.ws.append({t: list(r) for t, r in rows.items()}, **_idempotent(producer, sequence))
            case Tick(rows):
                first = self._last_tick()
                report = self.ws.run(tick_rows=rows)
                assert not report.stopped, f"views stopped: {dict(report.stopped)}"
                self._check_between(first, report.tick)
            case CrashAndReopen():
                self.ws.log.close()  # nothing of the engine is closed in good order
                self.ws = self._open()
            case CreateView(view):
                self.ws.sql(view.ddl)
            case DropView(name):
                self.ws.sql(f"DROP VIEW {name}")
            case Compact():
                self.ws.maintain()
            case Retention(topic):
                self.clock.advance("2 hours")
                self.ws.sql(f"ALTER TOPIC {topic} SET (retention = '1 hour')")
                self.ws.maintain()
                self.removed |= any(info.first for info in self.ws.log.partitions(topic).values())

    def _record(self) -> None:
        for topic in self.history.topics:
            for partition, info in self.ws.log.partitions(topic).items():
                known = self.records.setdefault((topic, partition), [])
                start = int(known[-1].column("_offset")[-1].as_py()) + 1 if known else 0
                if start < info.end:
                    known += self.ws.log.read(topic, partition, max(start, info.first), info.end)

    def _last_tick(self) -> int:
        return self.ws.newest_tick()

    def _check_all(self) -> None:
        expected = self.oracle.evaluate(self.history)
        for name, want in expected.items():
            self._compare(name, self.ws.view(name).read(), want, "at the newest tick")

    def _check_between(self, first: int, last: int) -> None:
        """The ticks that a bounded run made on its way, by the positions of their own cuts: all, or one of them."""
        between = range(first + 1, last)
        if between and not self.every_tick:
            between = between[self.checked % len(between) :][:1]
        for tick in between:
            self._check_tick(tick)

    def _check_tick(self, tick: int) -> None:
        manifest = inspect_workspace(self.ws).manifest(tick)
        live = [
            v
            for n, v in self.history.views.items()
            if manifest.views.get(n) and manifest.views[n].status == "live"
        ]
        tables = {t: self._table(t, manifest.positions.get(t, {})) for t in self.history.topics}
        for name, want in self.oracle.run(tables, _closed(live)).items():
            have = self.ws.view(name).read(as_of=manifest.tick)
            self._compare(name, have, want, f"at tick {manifest.tick}")

    def _table(self, topic: str, cut: Mapping[int, int]) -> pa.Table:
        definition = self.history.topics[topic]
        pieces = [definition.schema.empty_table()]
        for partition, end in cut.items():
            if known := self.records.get((topic, partition)):
                table = pa.Table.from_batches(known)
                pieces.append(table.filter(pc.less(table.column("_offset"), end)))
        table = pa.concat_tables(pieces[1:]) if len(pieces) > 1 else pieces[0]
        if not table.num_rows:
            return definition.schema.empty_table()
        if definition.key:
            latest: dict[Any, int] = {}
            for i, key in enumerate(zip(*(table.column(k).to_pylist() for k in definition.key), strict=True)):
                latest[str(key)] = i
            table = table.take(sorted(latest.values()))
            table = table.filter(pc.not_equal(table.column("_op"), "delete"))
        # Spark takes no table without a chunk
        return (
            table.select(definition.schema.names).cast(definition.schema)
            if table.num_rows
            else definition.schema.empty_table()
        )

    def _compare(self, name: str, have: pa.Table, want: pa.Table, when: str) -> None:
        self.checked += 1
        told = compare(have, want)
        if told is not None:
            raise AssertionError(f"{name} {when}: {told}")


def _closed(views: list[View]) -> list[View]:
    """Views whose inputs are all among them or topics, each after what it reads."""
    names = {v.name for v in views}
    return [v for v in views if all(r in names or r.startswith("t") for r in v.reads)]


def _idempotent(producer: str | None, sequence: int | None) -> dict[str, Any]:
    return {} if producer is None else {"producer": producer, "sequence": sequence}


def script(case: Case, place: int) -> str:
    """A case as text, with an arrow at a step."""
    lines = [f"seed {case.seed}", *(t.ddl + ";" for t in case.topics), *(v.ddl + ";" for v in case.views)]
    for i, step in enumerate((*case.steps, Tick())):
        lines.append(("--> " if i == place else "    ") + str(step))
    return "\n".join(lines)
