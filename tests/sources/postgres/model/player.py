"""Plays a script against a real server, and checks it where the script says so: each topic equals its table, or stands stopped for a
reason that the model knows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from headwater.core.errors import HeadwaterError
from headwater.sources.base import Commit, Quiet
from tests.postgres import PostgresServer
from tests.sources.pipelines import Row
from tests.sources.postgres.model.model import SOURCE, TABLES, UNPUBLISHED
from tests.sources.postgres.model.steps import Step
from tests.sources.postgres.model.world import World

LOOKS_MAX = 60
"""How often a topic is looked at that does not change and is not its table, while nothing is copied, before that is a failure."""
WAIT_S = 60.0
"""How long a topic may take to become its table, while something is copied all the time."""


@dataclass(frozen=True)
class Script:
    """Steps, and the options of the source that they are played with."""

    steps: Sequence[Step]
    options: dict[str, Any] = field(default_factory=dict)
    streaming: str = "buffered"
    name: str = "script"
    published: str = "tables"
    """What the publication names: `tables`, `schema`, or `all`."""
    kinds: frozenset[str] = frozenset()
    """The kinds of steps that were chosen for it."""

    def told(self, failed: int | None = None, notes: dict[int, str] | None = None) -> str:
        """The script as text, with an arrow at the step that failed."""
        options = ", ".join(f"{name} = {value!r}" for name, value in self.options.items())
        lines = [
            f"{self.name}: {options or 'no options'}; transactions are sent {self.streaming}; published: {self.published}"
        ]
        for number, step in enumerate(self.steps):
            refused = f"   -- refused: {(notes or {})[number]}" if number in (notes or {}) else ""
            lines.append(f"{'-->' if number == failed else '   '} {number:3}  {step}{refused}")
        return "\n".join(lines)


class ScriptError(AssertionError):
    """A script whose topic is not its table, or whose source has stopped for no reason; prints the script."""

    def __init__(self, script: Script, step: int, what: str, notes: dict[int, str]) -> None:
        super().__init__(f"{what}\n{script.told(step, notes)}")
        self.script = script
        self.step = step
        self.what = what


@dataclass(frozen=True)
class Check(Step):
    """Everything that is committed is read: the topics are the tables, or the source or a table has stopped for a reason that the
    model knows. What has stopped is told to restart, and then its topic has to be its table."""

    def apply(self, world: World) -> None:
        deadline = time.monotonic() + WAIT_S
        looks, seen = 0, ""
        while (found := self._read(world, deadline) or self._look(world)) is not None:
            looks = looks + 1 if found == seen and not world.capture.is_copying else 0
            seen = found
            assert looks < LOOKS_MAX, found
            assert time.monotonic() < deadline, found

    def _read(self, world: World, deadline: float) -> str | None:
        """Everything that is committed by now; what has ended the reading, if anything has."""
        try:
            until = (world.capture.source or world.capture.open()).end()
            while time.monotonic() < deadline:
                event = world.capture.step()
                if isinstance(event, (Quiet, Commit)) and (event.sequence or -1) >= until:
                    return None
                if waits_for_prepared(world):
                    return None
        except HeadwaterError as error:
            source = world.capture.source
            world.capture.close()
            if error.retryable:
                return f"the source has ended: {error}"
            if source is None or not source.restarts(error):
                expect_stop(world, error)
                follow_hint(world, error, TABLES)
            return f"the source has stopped: {error}" if restart(world) else None
        assert world.capture.source is not None
        return f"the source does not get there: {world.capture.source.status.state}"

    def _look(self, world: World) -> str | None:
        """What is not as it should be, None if nothing; a table that has stopped is told to restart."""
        source = world.capture.source
        if source is None or waits_for_prepared(world):
            return None
        if not source._progress.orders.empty():
            return "it was told something that it has not taken up yet"
        for name, error in source.stopped.items():
            table = name.removeprefix("public.")
            assert world.model.may_stop(table), f"table {table} has stopped, and could go on: {error}"
            assert table in str(error), f"the reason does not name table {table}: {error}"
            world.stops += 1
            follow_hint(world, error, [table])
            if not world.model.is_open(table):
                world.model.restarted([table])
                source.retry(table)
                return f"table {table} has stopped: {error}"
        different = [
            f"{table}: {told}"
            for table in TABLES
            if f"public.{table}" not in source.stopped and (told := difference(world, table)) is not None
        ]
        return None if not different else f"{'; '.join(different)} (the source: {source.status.state})"

    def __str__(self) -> str:
        return "check"


def expect_stop(world: World, error: HeadwaterError) -> None:
    """See that a source that has stopped had to, and says which source or table it is about."""
    fails = (
        world.model.may_fail and world.model.on_gap == "stop" and error.facts.get("reason") == "undecodable"
    )
    lost = [table for table in TABLES if fails or world.model.may_stop(table)]
    assert lost, f"the source has stopped, and could go on: {error}"
    named = [name for name in (SOURCE, *lost) if name in str(error)]
    assert named, f"the reason names neither the source nor a table: {error}"
    world.stops += 1


def restart(world: World) -> bool:
    """ALTER SOURCE ... RESTART: everything is made and copied anew. False if a table is not fit for it, and says so."""
    try:
        world.capture.restart()
    except HeadwaterError as error:
        if not any(map(world.model.is_open, TABLES)):
            raise AssertionError(f"the source cannot be restarted: {error}") from error
        world.capture.close()
        return False
    world.model.restarted()
    return True


def follow_hint(world: World, error: HeadwaterError, tables: Sequence[str]) -> None:
    """Run the statement that the reason of a stop gives, if it gives one."""
    statement = (error.hint or "").partition("; then")[0]
    if statement.startswith("ALTER PUBLICATION") and world.run(statement):
        for table in tables:
            world.model.mend(table, UNPUBLISHED)


def waits_for_prepared(world: World) -> bool:
    """Whether the source says that it waits for transactions under way, and there are some that are prepared."""
    source = world.capture.source
    return source is not None and "transaction" in source.status.state and bool(world.prepared())


def difference(world: World, table: str) -> str | None:
    """How a topic differs from its table in the columns that the table has; None if it does not."""
    try:
        stored, found = world.rows(table), world.topic(table)
    except psycopg.errors.LockNotAvailable:
        assert world.prepared(), f"nobody has table {table} to himself, and it cannot be read"
        return None
    if stored is None:
        return None if not found else f"there is no table, and the topic has {len(found)} rows"
    lines = []
    for key in sorted(stored.keys() | found.keys(), key=repr):
        mine, other = stored.get(key), found.get(key)
        if mine is None or other is None:
            lines.append(
                f"row {key} is {'not ' if mine is None else ''}in the table and {'not ' if other is None else ''}in the topic"
            )
            continue
        lines += [_cell(key, name, mine, other) for name in mine if mine[name] != other.get(name)]
    return None if not lines else f"{len(lines)} differences: {', '.join(lines[:3])}"


def _cell(key: Any, name: str, mine: Row, other: Row) -> str:
    values = [repr(row.get(name))[:40] for row in (mine, other)]
    return f"column {name} of row {key} is {values[0]} in the table and {values[1]} in the topic"


def play(server: PostgresServer, script: Script, folder: Path) -> int:
    """Play a script on a new database; how often something had to be told to restart. ScriptError if a step fails."""
    world = World(server, folder, script.options, script.streaming, script.published)
    notes: dict[int, str] = {}
    try:
        for number, step in enumerate(script.steps):
            world.refused = None
            try:
                step.apply(world)
                if world.stopped is not None:
                    expect_stop(world, world.stopped)
                    world.stopped = None
            except (AssertionError, HeadwaterError) as failed:
                raise ScriptError(script, number, f"{type(failed).__name__}: {failed}", notes) from failed
            if world.refused is not None:
                notes[number] = world.refused
    finally:
        world.close()
    return world.stops
