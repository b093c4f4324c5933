"""Steps of a script that change tables, partitions, replica identities and publications.

Each says in `note` whether the replication stream tells the source of it: a step that notes nothing has to be followed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.sources.postgres.model.model import (
    KINDS_UNPUBLISHED,
    NO_IDENTITY,
    RENAMED,
    TABLES,
    UNLOGGED,
    UNPUBLISHED,
    Model,
)
from tests.sources.postgres.model.steps import Read, Statements, Step
from tests.sources.postgres.model.world import PUBLICATION, World, publish

ALL_KINDS = "insert, update, delete, truncate"


@dataclass(frozen=True)
class AddColumn(Statements):
    """A new column; with a default, rows that are there have it at once."""

    table: str
    column: str
    type: str
    default: str | None = None

    def sql(self) -> Sequence[str]:
        default = "" if self.default is None else f" DEFAULT {self.default}"
        return [f"ALTER TABLE {self.table} ADD {self.column} {self.type}{default}"]


@dataclass(frozen=True)
class DropColumn(Statements):
    """A column that is gone: the topic keeps it."""

    table: str
    column: str

    def sql(self) -> Sequence[str]:
        return [f"ALTER TABLE {self.table} DROP {self.column}"]


@dataclass(frozen=True)
class RenameColumn(Statements):
    """A column under another name."""

    table: str
    column: str
    new: str

    def sql(self) -> Sequence[str]:
        return [f"ALTER TABLE {self.table} RENAME {self.column} TO {self.new}"]


@dataclass(frozen=True)
class RetypeColumn(Statements):
    """A column of a wider type: its values are the same."""

    table: str
    column: str
    type: str

    def sql(self) -> Sequence[str]:
        return [f"ALTER TABLE {self.table} ALTER {self.column} TYPE {self.type}"]


@dataclass(frozen=True)
class RewriteColumn(Statements):
    """A column whose values are computed anew: the stream does not have the new ones."""

    table: str
    column: str
    type: str

    def sql(self) -> Sequence[str]:
        using = f"USING {self.column} * 2 + 1"
        return [f"ALTER TABLE {self.table} ALTER {self.column} TYPE {self.type} {using}"]

    def note(self, model: Model) -> None:
        model.lose(f"column {self.column} was rewritten", [self.table])


@dataclass(frozen=True)
class RewriteTable(Step):
    """A table in new files, with the rows that it has."""

    table: str

    def apply(self, world: World) -> None:
        world.run_alone(str(self))

    def __str__(self) -> str:
        return f"VACUUM FULL {self.table}"


@dataclass(frozen=True)
class ReplicaIdentity(Statements):
    """What updates and deletes say of the row that was there."""

    table: str
    identity: str

    def sql(self) -> Sequence[str]:
        return [f"ALTER TABLE {self.table} REPLICA IDENTITY {self.identity}"]

    def note(self, model: Model) -> None:
        if self.identity == "NOTHING":
            model.lose(NO_IDENTITY, [self.table], by_hand=True)
        else:
            model.mend(self.table, NO_IDENTITY)


@dataclass(frozen=True)
class MakeAnother(Statements):
    """Another table in the place of one: by dropping it first, or by renames with the old one kept under another name."""

    table: str
    columns: str
    rows: str
    swaps: bool

    def sql(self) -> Sequence[str]:
        if not self.swaps:
            return [
                f"DROP TABLE {self.table}",
                f"CREATE TABLE {self.table} ({self.columns})",
                self._fill(self.table),
            ]
        new, old = f"{self.table}_new", f"{self.table}_old"
        return [
            f"DROP TABLE IF EXISTS {old}",
            f"CREATE TABLE {new} ({self.columns})",
            self._fill(new),
            f"ALTER TABLE {self.table} RENAME TO {old}",
            f"ALTER TABLE {new} RENAME TO {self.table}",
        ]

    def _fill(self, table: str) -> str:
        return f"INSERT INTO {table} (id, n) {self.rows}"

    def note(self, model: Model) -> None:
        model.lose("the table is another one", [self.table])
        model.mend(self.table, NO_IDENTITY, UNLOGGED)


@dataclass(frozen=True)
class RenameTable(Statements):
    """A table that goes away under another name, or comes back."""

    table: str
    comes_back: bool

    def sql(self) -> Sequence[str]:
        names = (self.table, f"{self.table}_away")
        old, new = reversed(names) if self.comes_back else names
        return [f"ALTER TABLE {old} RENAME TO {new}"]

    def note(self, model: Model) -> None:
        if self.comes_back:
            model.mend(self.table, RENAMED)
        else:
            model.lose(RENAMED, [self.table], by_hand=True)


@dataclass(frozen=True)
class Logged(Statements):
    """A table that stops writing to the server's log, or begins to again."""

    table: str
    is_logged: bool

    def sql(self) -> Sequence[str]:
        return [f"ALTER TABLE {self.table} SET {'LOGGED' if self.is_logged else 'UNLOGGED'}"]

    def note(self, model: Model) -> None:
        if self.is_logged:
            model.mend(self.table, UNLOGGED)
        else:
            model.lose(UNLOGGED, [self.table], by_hand=True)


@dataclass(frozen=True)
class AttachPartition(Statements):
    """A new partition of `parts`, which has rows already."""

    number: int
    rows: str

    def sql(self) -> Sequence[str]:
        name, begin = f"parts_{self.number}", self.number * 100
        return [
            f"CREATE TABLE {name} (LIKE parts INCLUDING ALL)",
            f"CREATE UNIQUE INDEX {name}_code ON {name} (code)",
            f"INSERT INTO {name} {self.rows}",
            f"ALTER TABLE parts ATTACH PARTITION {name} FOR VALUES FROM ({begin}) TO ({begin + 100})",
        ]


@dataclass(frozen=True)
class DetachPartition(Statements):
    """A partition that leaves `parts` with its rows, and is dropped."""

    number: int

    def sql(self) -> Sequence[str]:
        name = f"parts_{self.number}"
        return [f"ALTER TABLE parts DETACH PARTITION {name}", f"DROP TABLE {name}"]


@dataclass(frozen=True)
class EmptyPartition(Statements):
    """A partition that is emptied by itself."""

    number: int

    def sql(self) -> Sequence[str]:
        return [f"TRUNCATE parts_{self.number}"]


@dataclass(frozen=True)
class Publish(Statements):
    """A table that leaves the publication, or comes back."""

    table: str
    is_published: bool

    def sql(self) -> Sequence[str]:
        verb = "ADD" if self.is_published else "DROP"
        return [f"ALTER PUBLICATION {PUBLICATION} {verb} TABLE {self.table}"]

    def note(self, model: Model) -> None:
        if self.is_published:
            model.mend(self.table, UNPUBLISHED)
        else:
            model.lose(UNPUBLISHED, [self.table], by_hand=True)


@dataclass(frozen=True)
class PublishKinds(Statements):
    """Which kinds of changes are published: not all of them for a while."""

    kinds: str

    def sql(self) -> Sequence[str]:
        return [f"ALTER PUBLICATION {PUBLICATION} SET (publish = '{self.kinds}')"]

    def note(self, model: Model) -> None:
        model.lose(KINDS_UNPUBLISHED, by_hand=self.kinds != ALL_KINDS)
        if self.kinds == ALL_KINDS:
            for table in TABLES:
                model.mend(table, KINDS_UNPUBLISHED)


@dataclass(frozen=True)
class RemakePublication(Statements):
    """The publication is dropped, and made again in the same transaction, or not."""

    published: str | None

    def sql(self) -> Sequence[str]:
        made = [] if self.published is None else [publish(self.published)]
        return [f"DROP PUBLICATION {PUBLICATION}", *made]

    def note(self, model: Model) -> None:
        model.lose("the publication was dropped")
        for table in TABLES:
            model.mend(table, UNPUBLISHED, KINDS_UNPUBLISHED)


@dataclass(frozen=True)
class Meanwhile(Step):
    """Rows change while something is so that the stream does not tell of them; then it is as it was before."""

    begin: str
    changes: tuple[str, ...]
    end: str
    tables: tuple[str, ...]
    reads: int
    """So many events are taken before the end."""
    by_hand: bool

    def apply(self, world: World) -> None:
        if not world.run(self.begin):
            return
        for statement in self.changes:
            world.run(statement)
        Read(self.reads).apply(world)
        is_ended = world.run(self.end)
        world.model.lose(self.begin, self.tables, by_hand=self.by_hand or not is_ended)
        if is_ended:
            for table in self.tables:
                world.model.mend(table, self.begin)

    def __str__(self) -> str:
        return "; ".join((self.begin, *self.changes, str(Read(self.reads)), self.end))
