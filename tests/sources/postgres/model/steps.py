"""Steps of a script that change rows, each of which the topic must follow.

A step is a value: what it does is fixed when the script is generated, so that a script can be printed, replayed and shortened. The
server may refuse a step whose table or column an earlier step has removed; a refused step changes nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tests.sources.postgres.model.model import Model
from tests.sources.postgres.model.world import World

End = Literal["commit", "rollback", "prepare"]


class Step(ABC):
    """One line of a script."""

    @abstractmethod
    def apply(self, world: World) -> None:
        """Do it."""

    @abstractmethod
    def __str__(self) -> str:
        """The line as it is printed."""


class Statements(Step):
    """Statements that are one transaction."""

    @abstractmethod
    def sql(self) -> Sequence[str]:
        """The statements."""

    def note(self, model: Model) -> None:
        """What the model has to know once they are committed; by default nothing."""

    def apply(self, world: World) -> None:
        """Run them, and note what they mean."""
        if world.run(*self.sql()):
            self.note(world.model)

    def __str__(self) -> str:
        return "; ".join(self.sql())


@dataclass(frozen=True)
class Change(Statements):
    """One statement that changes rows."""

    statement: str

    def sql(self) -> Sequence[str]:
        return [self.statement]


@dataclass(frozen=True)
class Savepoint:
    """Statements within a transaction that may be undone without it."""

    statements: tuple[str, ...]
    is_undone: bool

    def __str__(self) -> str:
        end = "ROLLBACK TO s" if self.is_undone else "RELEASE s"
        return "; ".join(("SAVEPOINT s", *self.statements, end))


@dataclass(frozen=True)
class Transaction(Step):
    """Several statements and savepoints that are committed, rolled back or prepared together."""

    items: tuple[str | Savepoint, ...]
    end: End
    name: str = ""
    """Of a prepared transaction."""

    def apply(self, world: World) -> None:
        lines = ["BEGIN"]
        for item in self.items:
            lines += str(item).split("; ") if isinstance(item, Savepoint) else [item]
            undone = (
                isinstance(item, Savepoint)
                and item.is_undone
                and ("ALTER" in str(item) or "TRUNCATE" in str(item))
            )
            world.model.may_fail = world.model.may_fail or undone
        lines.append(self._last())
        if not all(world.run_alone(line) for line in lines):
            world.run_alone("ROLLBACK")

    def _last(self) -> str:
        return f"PREPARE TRANSACTION '{self.name}'" if self.end == "prepare" else self.end.upper()

    def __str__(self) -> str:
        return "; ".join(("BEGIN", *map(str, self.items), self._last()))


@dataclass(frozen=True)
class EndPrepared(Step):
    """The end of a transaction that was prepared; without a name, of all of them."""

    commits: bool
    name: str | None = None

    def apply(self, world: World) -> None:
        for name in world.prepared() if self.name is None else [self.name]:
            world.run_alone(f"{self._verb} PREPARED '{name}'")

    @property
    def _verb(self) -> str:
        return "COMMIT" if self.commits else "ROLLBACK"

    def __str__(self) -> str:
        return f"{self._verb} PREPARED {'all' if self.name is None else repr(self.name)}"


@dataclass(frozen=True)
class Read(Step):
    """The capturing process takes some events and is left where it is, perhaps within a transaction."""

    events: int

    def apply(self, world: World) -> None:
        for _ in range(self.events):
            if not world.take_event():
                return

    def __str__(self) -> str:
        return f"the capturing process takes {self.events} events"
