"""The contract of sources, as tests: one class to subclass, for Headwater's own kinds and for users' sources.

    class TestClicks(SourceContract):
        def make_source(self, log):
            return declared(log, self.folder, "python", **{"class": "shop.sources:Clicks", "every": "0 s"})

        def grow(self, chance):
            self.pages.append(service.publish(chance.randrange(1, 5)))

        def expected(self):
            return {"clicks": [[row for page in self.pages for row in page]]}

Each test has an external system that grows, and processes that capture its rows and crash.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from headwater.catalog.connectors import SourceDefinition
from headwater.connectors.manage.source_schema_evolution import define
from headwater.core.clock import SystemClock
from headwater.core.errors import FencedError
from headwater.log.embedded.embedded_log import EmbeddedLog
from headwater.log.memory import MemoryLog
from headwater.log.protocol import Log, Stage
from headwater.sources.registry import DeclaredSource, open_source
from headwater.sources.source_runner import Capture, producer_of
from headwater.testing.faults import Crash, FaultyStorage

Row = dict[str, Any]
SOURCE = "outside"
"""Name of the source in every test."""


class CrashingLog:
    """A log that lets a process die at a step: when it stages rows, before a commit, or after it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.steps = 0
        self.on_step: Callable[[int], None] | None = None
        """Called before each step with its number, counted from 1."""
        self._crash_at = 0

    def crash_at(self, step: int) -> None:
        """Die at this step, counted from now; 0 for no step."""
        self.steps, self._crash_at = 0, step

    def step(self) -> None:
        """Count a step; raises `Crash` if it is the one to die at."""
        self.steps += 1
        if self.on_step is not None:
            self.on_step(self.steps)
        if self.steps == self._crash_at:
            raise Crash(f"the process died at step {self.steps}")

    def stage(self) -> Stage:
        """Return a stage as `Log.stage` does, with its calls counted as steps."""
        return _CrashingStage(self, self.log.stage())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)


class _CrashingStage:
    def __init__(self, log: CrashingLog, stage: Stage) -> None:
        self._log = log
        self._stage = stage

    def add(self, *arguments: Any) -> None:
        self._log.step()
        self._stage.add(*arguments)

    def commit(self, **arguments: Any) -> Any:
        self._log.step()
        receipt = self._stage.commit(**arguments)
        self._log.step()
        return receipt

    def abort(self) -> None:
        self._stage.abort()


class SourceContract:
    """The tests of a source. Subclass it as `class TestMySource(SourceContract)`, with `make_source`, `grow` and
    `expected`, and `transactions` if the external system has them. Every test has its own external system: create it in
    `setup_method`, after calling that of this class."""

    rounds: ClassVar[int] = 10
    """Number of crashes in each test that crashes repeatedly."""
    keeps_all: ClassVar[bool] = True
    """False if the external system cannot send rows again, as with datagrams: rows that a crashed process had received
    may then be missing, but no others, and no row may be captured twice."""

    # --- what a kind of source implements --------------------------------------------------------------------------

    def make_source(self, log: Log) -> DeclaredSource:
        """Return the source, as a starting process creates it. It should not wait long for rows when there are none."""
        raise NotImplementedError

    def grow(self, chance: random.Random) -> None:
        """Add rows to the external system: at least one, different from all before."""
        raise NotImplementedError

    def expected(self) -> Mapping[str, Sequence[Sequence[Row]]]:
        """Return all rows that the external system ever had: by topic, runs of rows whose order must be kept."""
        raise NotImplementedError

    def transactions(self) -> Sequence[Sequence[tuple[str, Row]]]:
        """Return the transactions of the external system: rows with their topics, visible together or not at all."""
        return ()

    # --- helpers of tests ------------------------------------------------------------------------------------------

    def setup_method(self) -> None:
        """Create the folder, log and random generator of a test; called by pytest."""
        self.folder = Path(tempfile.mkdtemp(prefix="headwater-source-"))
        self.chance = random.Random(7)
        self.log = CrashingLog(MemoryLog())
        self._sources: list[DeclaredSource] = []
        self._is_declared = False
        self._may_lack = False

    def teardown_method(self) -> None:
        """Close the sources and the log of a test; called by pytest."""
        for source in self._sources:
            source.close()
        self.log.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, log: CrashingLog | None = None) -> Capture:
        """Start a process that captures; the first one declares the source, as CREATE SOURCE does."""
        log = log or self.log
        made: Any = log
        source = self.make_source(made)
        self._sources.append(source)
        if not self._is_declared:
            for topic in source.check():
                define(made, _no_views, topic)
            self._is_declared = True
        return Capture(made, SOURCE, source, lambda topic: define(made, _no_views, topic), SystemClock())

    def catch_up(self, capture: Capture | None = None) -> Capture:
        """Capture all rows that the external system has now."""
        capture = capture or self.start()
        capture.run(until=capture.end())
        return capture

    def die_at(self, step: int) -> bool:
        """Start a process that captures and dies at a step; whether it reached the step."""
        self.log.crash_at(step)
        capture = None
        try:
            capture = self.start()
            self.catch_up(capture)
        except Crash:
            self._may_lack = not self.keeps_all
            return True
        finally:
            self.log.crash_at(0)
            if capture is not None:
                capture.close()
        return False

    def records(self, topic: str) -> list[Row]:
        """Return the records of a topic in log order, with `_sequence`, the number of each record's commit."""
        log, names = self.log.log, self.log.log.topic(topic).schema.names
        found: list[Row] = []
        for partition, info in log.partitions(topic).items():
            for batch in log.read(topic, partition, info.first, info.end, [*names, "_sequence"]):
                found += batch.to_pylist()
        return found

    def assert_all(self) -> None:
        """Assert that every row of the external system is in the log once and in order, and that no transaction is split."""
        commits: dict[str, list[tuple[str, int]]] = {}
        for topic, runs in self.expected().items():
            found = self.records(topic)
            commits[topic] = [(_text(row), row["_sequence"]) for row in found]
            there = [text for text, _ in commits[topic]]
            wanted = [_text(row) for run in runs for row in run]
            missing, more = set(wanted) - set(there), set(there) - set(wanted)
            assert self._may_lack or not missing, (
                f"{len(missing)} rows of {topic} are missing: {sorted(missing)[:3]}"
            )
            assert not more, (
                f"{len(more)} rows of {topic} do not exist in the external system: {sorted(more)[:3]}"
            )
            twice = len(there) - len(wanted) + len(missing)
            assert not twice, f"{twice} rows of {topic} are duplicated"
            places = {text: place for place, text in enumerate(there)}
            for run in runs:
                order = [places[text] for row in run if (text := _text(row)) in places]
                assert order == sorted(order), f"rows of {topic} are out of order"
        by_row = {(topic, text): commit for topic, rows in commits.items() for text, commit in rows}
        for transaction in self.transactions():
            found_in = {by_row.get((topic, _text(row))) for topic, row in transaction}
            assert len(found_in) == 1, f"a transaction was divided among the commits {found_in}"

    def total(self) -> int:
        """Return the number of records in all topics."""
        return sum(len(self.records(topic)) for topic in self.expected())

    # --- capturing -------------------------------------------------------------------------------------------------

    def test_all_that_is_there_is_taken_and_then_what_comes(self) -> None:
        for _ in range(3):
            self.grow(self.chance)
        capture = self.catch_up()
        self.assert_all()
        for _ in range(5):
            self.grow(self.chance)
            self.catch_up(capture)
            self.assert_all()

    def test_what_is_there_before_the_source_is_declared_is_taken(self) -> None:
        for _ in range(10):
            self.grow(self.chance)
        self.catch_up()
        self.assert_all()

    def test_with_nothing_new_a_run_returns_and_appends_nothing(self) -> None:
        self.grow(self.chance)
        self.catch_up()
        before = self.total()
        for _ in range(3):
            self.catch_up()
        assert self.total() == before
        self.assert_all()

    def test_a_source_with_nothing_in_it_is_read_to_its_end(self) -> None:
        self.catch_up()
        assert self.total() == 0

    def test_each_process_goes_on_where_the_one_before_was(self) -> None:
        for _ in range(8):
            self.grow(self.chance)
            self.catch_up().close()
            self.assert_all()

    def test_the_end_that_another_process_sees_is_reached(self) -> None:
        self.grow(self.chance)
        capture = self.catch_up()
        for _ in range(4):
            self.grow(self.chance)
            made: Any = self.log
            other = self.make_source(made)
            self._sources.append(other)
            capture.run(until=other.end())
            self.assert_all()

    def test_what_comes_while_it_is_read_is_not_missed(self) -> None:
        self.grow(self.chance)
        self.start().close()
        left = 12

        def grows(step: int) -> None:
            nonlocal left
            if left:
                left -= 1
                self.grow(self.chance)

        self.log.on_step = grows
        capture = self.start()
        for _ in range(4):
            self.grow(self.chance)
            self.catch_up(capture)
        self.log.on_step = None
        self.catch_up(capture)
        self.assert_all()

    def test_positions_are_plain_json(self) -> None:
        self.grow(self.chance)
        self.catch_up()
        known = self.log.log.producer(producer_of(SOURCE))
        assert known is not None
        assert known.note is not None
        assert json.loads(json.dumps(known.note)) == known.note

    # --- crashing --------------------------------------------------------------------------------------------------

    def test_dying_at_any_step_neither_loses_nor_repeats_a_row(self) -> None:
        for step in range(1, self.rounds + 1):
            self.grow(self.chance)
            self.die_at(step)
            self.grow(self.chance)
            self.catch_up().close()
            self.assert_all()

    def test_dying_again_and_again_neither_loses_nor_repeats_a_row(self) -> None:
        for _ in range(self.rounds * 2):
            for _ in range(self.chance.randrange(3)):
                self.grow(self.chance)
            self.die_at(self.chance.randrange(1, 7))
        self.catch_up()
        self.assert_all()

    def test_dying_after_a_commit_repeats_nothing(self) -> None:
        self.grow(self.chance)
        self.start().close()
        before = self.total()
        died_after = 0
        for step in range(1, 20):
            if not self.keeps_all:
                self.grow(self.chance)
            self.die_at(step)
            if self.total() > before:
                died_after = step
                break
        assert died_after, "nothing was committed"
        self.catch_up()
        self.assert_all()

    def test_no_death_shows_a_part_of_a_transaction(self) -> None:
        for step in range(1, self.rounds + 1):
            self.grow(self.chance)
            self.die_at(step)
            there = {(t, _text(row)) for t in self.expected() for row in self.records(t)}
            for transaction in self.transactions():
                seen = {(topic, _text(row)) in there for topic, row in transaction}
                assert len(seen) == 1, "a part of a transaction is visible"
        self.catch_up()
        self.assert_all()

    def test_a_process_that_was_replaced_writes_nothing_more(self) -> None:
        self.grow(self.chance)
        old = self.catch_up()
        new = self.start()
        self.grow(self.chance)
        with _raising(FencedError):
            self.catch_up(old)
        self._may_lack = not self.keeps_all
        old.close()
        self.catch_up(new)
        self.assert_all()

    def test_losing_the_disk_at_any_call_neither_loses_nor_repeats_a_row(self) -> None:
        storage = FaultyStorage(self.folder / "log")
        self.grow(self.chance)
        call = 1
        while call < self.rounds * 12:
            storage.crash_at(len(storage.calls) + call)
            log = None
            try:
                log = EmbeddedLog.open(storage.root, storage=storage)
                self.log = CrashingLog(log)
                self.catch_up().close()
            except Crash:
                self._may_lack = not self.keeps_all
            call += self.chance.randrange(1, 12)
            self.grow(self.chance)
            storage = storage.restart()
        self.log = CrashingLog(EmbeddedLog.open(storage.root, storage=storage))
        self._is_declared = False
        self.catch_up()
        self.assert_all()


def declared(log: Log, folder: Path, kind: str, **options: Any) -> DeclaredSource:
    """Return the source that CREATE SOURCE creates from these options."""
    return open_source(SourceDefinition(SOURCE, kind, options), log, folder)


def _text(row: Row) -> str:
    """Return a row as an identifying text: sorted by column, and without the commit number."""
    return repr(sorted((name, value) for name, value in row.items() if name != "_sequence"))


def _no_views() -> NoReturn:
    raise AssertionError("this test has no views")


@contextmanager
def _raising(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
