"""How a subject is measured: repeated, alternatives taking turns in one run, best and median kept.

A subject is a module with a `TITLE` and `run(bench)`. It never decides whether a figure is good; goals are data.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Unit = Literal["records/s", "MB/s", "ms", "% of a core", "rows", "ticks/s", "MB"]
LOWER_IS_BETTER = frozenset({"ms", "% of a core", "MB"})


@dataclass(frozen=True)
class Row:
    """One figure: the best and the median of `runs`, with its goal and its ratio to the group's first row."""

    subject: str
    group: str
    name: str
    unit: Unit
    best: float
    median: float
    runs: int
    goal: float | None = None
    ratio: float | None = None

    @property
    def verdict(self) -> str:
        """Whether the goal is met by the median, only by the best run, or not at all; empty without a goal."""
        if self.goal is None:
            return ""
        if _reaches(self.median, self.goal, self.unit):
            return "met"
        return "met by the best run" if _reaches(self.best, self.goal, self.unit) else "missed"

    def to_json(self) -> dict[str, Any]:
        """A plain form; `Row(**plain)` reads it back."""
        return asdict(self)


def _reaches(value: float, goal: float, unit: Unit) -> bool:
    return value <= goal if unit in LOWER_IS_BETTER else value >= goal


@dataclass(frozen=True)
class Case:
    """One alternative: `work(prepared)` is timed and returns how much it did; `prepare` and `clean` are not timed."""

    name: str
    work: Callable[[Any], float]
    prepare: Callable[[], Any] = lambda: None
    clean: Callable[[Any], None] = lambda prepared: None
    goal: float | None = None


@dataclass
class Bench:
    """What a subject is given: where to write, how large to be, and where its rows go."""

    subject: str
    folder: Path
    quick: bool
    show: Callable[[Row], None]
    only: str = ""
    """What the names of cases must have in them, where only some are measured."""
    rows: list[Row] = field(default_factory=list)

    @property
    def runs(self) -> int:
        """How often each figure is taken."""
        return 2 if self.quick else 5

    def size(self, full: int, quick: int) -> int:
        """A size for a full run, or for one that only shows that it works."""
        return quick if self.quick else full

    def wants(self, case: str) -> bool:
        """Whether a case is to be measured."""
        return self.only in case

    @contextmanager
    def space(self) -> Iterator[Path]:
        """An empty folder that is gone afterwards."""
        path = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def compare(
        self,
        group: str,
        cases: Sequence[Case],
        *,
        unit: Unit = "records/s",
        runs: int | None = None,
        ratios: bool = True,
    ) -> None:
        """Measure alternatives in turns, so that a noisy moment hits all of them, and note a row for each.

        `work` returns records (or MB) done, and the figure is that per second; where the unit is `ms` it is the time.
        """
        figures: dict[str, list[float]] = {case.name: [] for case in cases}
        for _ in range(runs or self.runs):
            for case in cases:
                figures[case.name].append(self._once(case, unit))
        base = statistics.median(figures[cases[0].name])
        for case in cases:
            mine = statistics.median(figures[case.name])
            ratio = mine / base if ratios and len(cases) > 1 and base else None
            self.note(group, case.name, unit, figures[case.name], goal=case.goal, ratio=ratio)

    @staticmethod
    def _once(case: Case, unit: Unit) -> float:
        prepared = case.prepare()
        gc.collect()  # the garbage of others; what the work itself causes is part of its time
        try:
            started = time.perf_counter()
            done = case.work(prepared)
            seconds = time.perf_counter() - started
        finally:
            case.clean(prepared)
        return seconds * 1e3 if unit == "ms" else done / seconds

    def note(
        self,
        group: str,
        name: str,
        unit: Unit,
        figures: Sequence[float],
        *,
        goal: float | None = None,
        ratio: float | None = None,
    ) -> None:
        """Keep a figure that was taken some other way; `figures` are its repetitions."""
        best = min(figures) if unit in LOWER_IS_BETTER else max(figures)
        median = statistics.median(figures)
        row = Row(self.subject, group, name, unit, best, median, len(figures), goal, ratio)
        self.rows.append(row)
        self.show(row)
