"""What every source must do, as tests: one class to subclass, for the kinds that come with Headwater and for your own.

    class TestClicks(SourceContract):
        def make_source(self, log):
            return declared(log, self.folder, "python", **{"class": "shop.sources:Clicks", "every": "0 s"})

        def grow(self, chance):
            self.pages.append(service.publish(chance.randrange(1, 5)))

        def expected(self):
            return {"clicks": [[row for page in self.pages for row in page]]}

Each test is a short story of an outside that grows, and of processes that capture it and die.
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
"""The name of the source in every test."""


class CrashingLog:
    """A log that lets a process die at a step: as it hands over rows, before a commit, or after it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.steps = 0
        self.on_step: Callable[[int], None] | None = None
        """Called before each step with its number, from 1."""
        self._crash_at = 0

    def crash_at(self, step: int) -> None:
        """Die at the step of that number from now on; 0: at none."""
        self.steps, self._crash_at = 0, step

    def step(self) -> None:
        """One step more."""
        self.steps += 1
        if self.on_step is not None:
            self.on_step(self.steps)
        if self.steps == self._crash_at:
            raise Crash(f"the process died at step {self.steps}")

    def stage(self) -> Stage:
        """As Log.stage."""
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
    """Subclass it as `class TestMySource(SourceContract)`, with `make_source`, `grow` and `expected`, and `transactions` where
    the outside has them. Every test has an outside of its own: make it in `setup_method`, after that of this class.
    """

    rounds: ClassVar[int] = 10
    """How often a process is made to die in each of the tests that do so again and again."""
    keeps_all: ClassVar[bool] = True
    """False where the outside cannot be asked again, as for datagrams: what a process had taken that died may be missing then, and
    nothing else may; nothing may be there twice in any case."""

    # --- what a kind of source says of itself ----------------------------------------------------------------------

    def make_source(self, log: Log) -> DeclaredSource:
        """The source, as a process makes it when it starts; it should not wait long where there is nothing."""
        raise NotImplementedError

    def grow(self, chance: random.Random) -> None:
        """Let there be more outside: at least one row, of which there has been no equal one."""
        raise NotImplementedError

    def expected(self) -> Mapping[str, Sequence[Sequence[Row]]]:
        """All rows that there have been outside, by topic, in runs: the rows of a run come in that order."""
        raise NotImplementedError

    def transactions(self) -> Sequence[Sequence[tuple[str, Row]]]:
        """Rows, each with its topic, that belong together: a reader sees all of them or none."""
        return ()

    # --- what tests are made of ------------------------------------------------------------------------------------

    def setup_method(self) -> None:
        """Called by pytest before each test."""
        self.folder = Path(tempfile.mkdtemp(prefix="headwater-source-"))
        self.chance = random.Random(7)
        self.log = CrashingLog(MemoryLog())
        self._sources: list[DeclaredSource] = []
        self._is_declared = False
        self._may_lack = False

    def teardown_method(self) -> None:
        """Called by pytest after each test."""
        for source in self._sources:
            source.close()
        self.log.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, log: CrashingLog | None = None) -> Capture:
        """A process that captures; the first one declares the source, as CREATE SOURCE does."""
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
        """Have the log hold everything that is outside by now."""
        capture = capture or self.start()
        capture.run(until=capture.end())
        return capture

    def die_at(self, step: int) -> bool:
        """Start a process that captures and dies at a step; whether it got so far."""
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
        """The records of a topic in the order of the log, with `_sequence`, the commit that each came with."""
        log, names = self.log.log, self.log.log.topic(topic).schema.names
        found: list[Row] = []
        for partition, info in log.partitions(topic).items():
            for batch in log.read(topic, partition, info.first, info.end, [*names, "_sequence"]):
                found += batch.to_pylist()
        return found

    def assert_all(self) -> None:
        """Every row that there has been outside is in the log once, in order, and no transaction is in pieces."""
        commits: dict[str, list[tuple[str, int]]] = {}
        for topic, runs in self.expected().items():
            found = self.records(topic)
            commits[topic] = [(_text(row), row["_sequence"]) for row in found]
            there = [text for text, _ in commits[topic]]
            wanted = [_text(row) for run in runs for row in run]
            lacking, more = set(wanted) - set(there), set(there) - set(wanted)
            assert self._may_lack or not lacking, (
                f"{len(lacking)} rows of {topic} are missing: {sorted(lacking)[:3]}"
            )
            assert not more, f"{len(more)} rows of {topic} were never outside: {sorted(more)[:3]}"
            twice = len(there) - len(wanted) + len(lacking)
            assert not twice, f"{twice} rows of {topic} are there twice"
            places = {text: place for place, text in enumerate(there)}
            for run in runs:
                order = [places[text] for row in run if (text := _text(row)) in places]
                assert order == sorted(order), f"rows of {topic} are out of order"
        by_row = {(topic, text): commit for topic, rows in commits.items() for text, commit in rows}
        for transaction in self.transactions():
            found_in = {by_row.get((topic, _text(row))) for topic, row in transaction}
            assert len(found_in) == 1, f"a transaction came in commits {found_in}"

    def total(self) -> int:
        """How many records all topics have."""
        return sum(len(self.records(topic)) for topic in self.expected())

    # --- taking ----------------------------------------------------------------------------------------------------

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

    # --- dying -----------------------------------------------------------------------------------------------------

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
        assert died_after, "nothing was committed at all"
        self.catch_up()
        self.assert_all()

    def test_no_death_shows_a_part_of_a_transaction(self) -> None:
        for step in range(1, self.rounds + 1):
            self.grow(self.chance)
            self.die_at(step)
            there = {(t, _text(row)) for t in self.expected() for row in self.records(t)}
            for transaction in self.transactions():
                seen = {(topic, _text(row)) in there for topic, row in transaction}
                assert len(seen) == 1, "a part of a transaction can be seen"
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
    """The source that CREATE SOURCE makes of these options."""
    return open_source(SourceDefinition(SOURCE, kind, options), log, folder)


def _text(row: Row) -> str:
    """A row by which it can be found: without the number of its commit, in one order of columns."""
    return repr(sorted((name, value) for name, value in row.items() if name != "_sequence"))


def _no_views() -> NoReturn:
    raise AssertionError("there are no views here")


@contextmanager
def _raising(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
