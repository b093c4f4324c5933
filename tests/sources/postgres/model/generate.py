"""Makes scripts from seeds: the same seed gives the same script.

A `Shape` follows what the steps do to the tables, so that most steps are such as the server takes.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.sources.postgres.model import ddl, faults
from tests.sources.postgres.model.player import Check, Script
from tests.sources.postgres.model.steps import (
    Change,
    End,
    EndPrepared,
    Read,
    Savepoint,
    Statements,
    Step,
    Transaction,
)
from tests.sources.postgres.model.world import ORDERS, PUBLICATION

LARGE = "(SELECT string_agg(md5((i * {0})::text), '') FROM generate_series(1, 100) i)"
"""A value that Postgres keeps outside of the row, and does not send again while it is unchanged."""
TYPES = {
    "int": "{0}",
    "bigint": "{0}::bigint * 10000000000",
    "text": "'text {0}'",
    "numeric(10,2)": "{0} / 4.0",
    "bool": "{0} % 2 = 0",
    "timestamptz": "'2024-01-01Z'::timestamptz + interval '{0} hours'",
}
WIDER = {"int": "bigint", "numeric(10,2)": "numeric(14,2)"}


@dataclass
class Shape:
    """The tables as the steps so far have left them, if the server has taken all of them."""

    published: str = "tables"
    """What the publication names: `tables`, `schema`, or `all`."""
    columns: dict[str, dict[str, str]] = field(
        default_factory=lambda: {"orders": {"n": "int", "body": "text"}, "parts": {"n": "int"}}
    )
    """By table: the columns beside the key, with their types."""
    partitions: set[int] = field(default_factory=lambda: {0, 1})
    gone: dict[str, dict[str, str]] = field(default_factory=lambda: {"orders": {}, "parts": {}})
    """By table: columns that were dropped or renamed, with their types."""
    named: int = 0
    is_away: bool = False
    is_unlogged: bool = False
    prepared: list[str] = field(default_factory=list)
    unpublished: list[str] = field(default_factory=list)
    copied: Shape | None = None


Make = Callable[[random.Random, Shape], Step | None]


def change(chance: random.Random, shape: Shape) -> str:
    """A statement that changes rows of one of the tables."""
    if chance.random() < 0.3:
        return _change_parts(chance, shape)
    key, low = chance.randint(1, 30), chance.randint(1, 20)
    kinds = [
        *_changes("orders", key, chance, shape),
        _insert("orders", "i", chance, shape, f" FROM generate_series({low}, {low + 9}) i"),
        f"DELETE FROM orders WHERE id % 9 = {key % 9}",
        _move("orders", key, key + 100),
        _move("orders", key + 100, key),
    ]
    return "TRUNCATE orders" if chance.random() < 0.1 else chance.choice(kinds)


def _change_parts(chance: random.Random, shape: Shape) -> str:
    key, other = (
        chance.choice(sorted(shape.partitions or {0})) * 100 + chance.randint(0, 99) for _ in range(2)
    )
    kinds = [
        *_changes("parts", key, chance, shape),
        f"DELETE FROM parts WHERE id % 11 = {key % 11}",
        _move("parts", "(SELECT max(id) FROM parts)", other),
        _insert("parts", str(key), chance, shape),
    ]
    return "TRUNCATE parts" if chance.random() < 0.04 else chance.choice(kinds)


def _changes(table: str, key: int, chance: random.Random, shape: Shape) -> list[str]:
    """Statements that change a row of a table, or some rows."""
    columns = shape.columns[table]
    made = [f"DELETE FROM {table} WHERE id = {key}"]
    if columns:
        column, value = _assigned(table, chance, shape)
        made += [
            f"{_insert(table, str(key), chance, shape, '')[: -len(_NOTHING)]}UPDATE SET {column} = {value}"
        ]
        made += [f"UPDATE {table} SET {column} = {value} WHERE id = {key}"] * 2
        made += [f"UPDATE {table} SET {column} = {value} WHERE id % 5 = {key % 5}"] * 2
    return made


def _assigned(table: str, chance: random.Random, shape: Shape) -> tuple[str, str]:
    column = chance.choice(list(shape.columns[table]))
    return column, _value(chance, shape.columns[table][column], chance.randint(0, 999))


_NOTHING = "NOTHING"


def _insert(table: str, key: str, chance: random.Random, shape: Shape, source: str = "") -> str:
    number, columns = chance.randint(0, 999), shape.columns[table]
    values = ", ".join([key, *(_value(chance, kind, number) for kind in columns.values())])
    names = ", ".join(["id", *columns])
    return f"INSERT INTO {table} ({names}) SELECT {values}{source} ON CONFLICT (id) DO {_NOTHING}"


def _move(table: str, key: int | str, to: int) -> str:
    return (
        f"UPDATE {table} SET id = {to} WHERE id = {key} AND NOT EXISTS (SELECT FROM {table} WHERE id = {to})"
    )


def _value(chance: random.Random, kind: str, number: int) -> str:
    if chance.random() < 0.1:
        return "NULL"
    if kind == "text" and chance.random() < 0.5:
        return LARGE.format(number)
    return TYPES.get(kind, "{0}").format(number)


def _one(chance: random.Random, shape: Shape) -> Step:
    return Change(change(chance, shape))


def _transaction(chance: random.Random, shape: Shape) -> Step:
    """Of changes of rows, and now and then of columns; the shape stays as it is where it is undone."""
    end: End = chance.choices(("commit", "rollback", "prepare"), (6, 1, 2))[0]
    inside = copy.deepcopy(shape)
    items: list[str | Savepoint] = []
    for _ in range(chance.randint(1, 4)):
        within = copy.deepcopy(inside)
        statements = [
            statement
            for _ in range(chance.randint(1, 2))
            for statement in _statements(chance, within, 0.02 if end == "prepare" else 0.15)
        ]
        is_undone = False
        if chance.random() < 0.3:
            is_undone = chance.random() < 0.5
            items.append(Savepoint(tuple(statements), is_undone))
        else:
            items += statements
        if is_undone:
            inside.named = within.named
        else:
            inside = within
    if end == "rollback":
        shape.named = inside.named
    else:
        shape.__dict__.update(inside.__dict__)
    shape.named += 1
    name = f"p{shape.named}" if end == "prepare" else ""
    if name:
        shape.prepared.append(name)
    return Transaction(tuple(items), end, name)


def _statements(chance: random.Random, shape: Shape, ddl_share: float) -> Sequence[str]:
    if chance.random() < ddl_share:
        step = chance.choice(COLUMNS)(chance, shape)
        if step is not None:
            return step.sql()
    return [change(chance, shape)]


def _end_prepared(chance: random.Random, shape: Shape) -> Step | None:
    if not shape.prepared:
        return None
    return EndPrepared(chance.random() < 0.7, shape.prepared.pop(chance.randrange(len(shape.prepared))))


def _table(chance: random.Random) -> str:
    return chance.choice(("orders", "orders", "parts"))


def _name(chance: random.Random, shape: Shape, table: str, kind: str) -> str:
    """A name that no column has, now and then of one that is gone and had the type."""
    gone = sorted(
        name for name, was in shape.gone[table].items() if was == kind and name not in shape.columns[table]
    )
    if gone and chance.random() < 0.4:
        return chance.choice(gone)
    shape.named += 1
    return f"c{shape.named}"


def _add_column(chance: random.Random, shape: Shape) -> Statements:
    return _add(chance, shape, None)


def _add_default(chance: random.Random, shape: Shape) -> Statements:
    return _add(chance, shape, chance.randint(0, 99))


def _add(chance: random.Random, shape: Shape, default: int | None) -> Statements:
    table, kind = _table(chance), chance.choice(list(TYPES))
    name = _name(chance, shape, table, kind)
    shape.columns[table][name] = kind
    return ddl.AddColumn(table, name, kind, None if default is None else TYPES[kind].format(default))


def _drop_column(chance: random.Random, shape: Shape) -> Statements | None:
    table = _table(chance)
    if not shape.columns[table]:
        return None
    name = chance.choice(list(shape.columns[table]))
    shape.gone[table][name] = shape.columns[table].pop(name)
    return ddl.DropColumn(table, name)


def _rename_column(chance: random.Random, shape: Shape) -> Statements | None:
    table = _table(chance)
    columns = shape.columns[table]
    if not columns:
        return None
    old = chance.choice(list(columns))
    new = _name(chance, shape, table, columns[old])
    columns[new] = shape.gone[table][old] = columns.pop(old)
    return ddl.RenameColumn(table, old, new)


def _retype_column(chance: random.Random, shape: Shape) -> Statements | None:
    table = _table(chance)
    fit = [name for name, kind in shape.columns[table].items() if kind in WIDER]
    if not fit:
        return None
    name = chance.choice(fit)
    shape.columns[table][name] = WIDER[shape.columns[table][name]]
    return ddl.RetypeColumn(table, name, shape.columns[table][name])


COLUMNS: tuple[Callable[[random.Random, Shape], Statements | None], ...] = (
    _add_column,
    _add_default,
    _drop_column,
    _rename_column,
    _retype_column,
)
"""Changes of columns that may be part of a transaction."""


def _rewrite_column(chance: random.Random, shape: Shape) -> Step | None:
    table = _table(chance)
    fit = [name for name, kind in shape.columns[table].items() if kind == "int"]
    if not fit:
        return None
    name = chance.choice(fit)
    shape.columns[table][name] = "bigint"
    return ddl.RewriteColumn(table, name, "bigint")


def _retype_key(chance: random.Random, shape: Shape) -> Step:
    return ddl.RetypeColumn("orders", "id", "bigint")


def _identity(chance: random.Random, shape: Shape) -> Step:
    table = _a_table(chance, shape)
    return ddl.ReplicaIdentity(table, chance.choice(("FULL", "FULL", "DEFAULT", f"USING INDEX {table}_pkey")))


def _a_table(chance: random.Random, shape: Shape) -> str:
    """A table that has rows itself."""
    parts = [f"parts_{number}" for number in sorted(shape.partitions)]
    return chance.choice(("orders", "orders", "parts", *parts))


def _no_identity(chance: random.Random, shape: Shape) -> Step:
    return ddl.ReplicaIdentity("orders", chance.choice(("NOTHING", "DEFAULT")))


def _vacuum(chance: random.Random, shape: Shape) -> Step:
    return ddl.RewriteTable("orders")


def _attach(chance: random.Random, shape: Shape) -> Step | None:
    free = sorted({2, 3, 4} - shape.partitions)
    if not free:
        return None
    number = chance.choice(free)
    shape.partitions.add(number)
    names = ", ".join(["id", *shape.columns["parts"]])
    values = [_value(chance, kind, number) for kind in shape.columns["parts"].values()]
    rows = f"({names}) SELECT {', '.join([f'{number * 100} + i * 7', *values])} FROM generate_series(1, 5) i"
    return ddl.AttachPartition(number, rows)


def _detach(chance: random.Random, shape: Shape) -> Step | None:
    if len(shape.partitions) < 2:
        return None
    number = chance.choice(sorted(shape.partitions))
    shape.partitions.remove(number)
    return ddl.DetachPartition(number)


def _empty_partition(chance: random.Random, shape: Shape) -> Step:
    return ddl.EmptyPartition(chance.choice(sorted(shape.partitions or {0})))


def _make_another(chance: random.Random, shape: Shape) -> Step | None:
    if shape.is_away:
        return None
    shape.columns["orders"] = {"n": "int", "body": "text"}
    begin = chance.randint(1, 20)
    rows = f"SELECT i, i * 3 FROM generate_series({begin}, {begin + 6}) i"
    return ddl.MakeAnother("orders", ORDERS, rows, chance.random() < 0.5)


def _rename_table(chance: random.Random, shape: Shape) -> Step:
    shape.is_away = not shape.is_away
    return ddl.RenameTable("orders", not shape.is_away)


def _logged(chance: random.Random, shape: Shape) -> Step:
    shape.is_unlogged = not shape.is_unlogged
    return ddl.Logged("orders", not shape.is_unlogged)


def _publish(chance: random.Random, shape: Shape) -> Step:
    table = chance.choice(("orders", "parts"))
    if table in shape.unpublished:
        shape.unpublished.remove(table)
        return ddl.Publish(table, True)
    shape.unpublished.append(table)
    return ddl.Publish(table, False)


def _publish_kinds(chance: random.Random, shape: Shape) -> Step:
    return ddl.PublishKinds(chance.choice(("insert", "insert, update, delete", ddl.ALL_KINDS)))


def _remake_publication(chance: random.Random, shape: Shape) -> Step:
    return ddl.RemakePublication(shape.published if chance.random() < 0.5 else None)


def _another_identity(chance: random.Random, shape: Shape) -> Step:
    """An identity without the key for a while: an update that changes the key does not say what it was."""
    table = _a_table(chance, shape)
    if table == "parts":
        table = "parts_0"
    return _meanwhile(
        chance, shape, f"ALTER TABLE {table} REPLICA IDENTITY USING INDEX {table}_code",
        f"ALTER TABLE {table} REPLICA IDENTITY {chance.choice(('DEFAULT', 'FULL'))}", table.split("_")[0], by_hand=True,
    )  # fmt: skip


def _reattach(chance: random.Random, shape: Shape) -> Step | None:
    if not shape.partitions:
        return None
    number = chance.choice(sorted(shape.partitions))
    name = f"parts_{number}"
    changes = [
        f"DELETE FROM {name} WHERE id % 3 = {number % 3}",
        f"UPDATE {name} SET id = id + 1 WHERE id = (SELECT max(id) FROM {name}) AND id % 100 < 99",
    ]
    end = f"ALTER TABLE parts ATTACH PARTITION {name} FOR VALUES FROM ({number * 100}) TO ({number * 100 + 100})"
    return _meanwhile(chance, shape, f"ALTER TABLE parts DETACH PARTITION {name}", end, "parts", changes)


def _publish_less(chance: random.Random, shape: Shape) -> Step:
    """Some rows or columns of a table are not published for a while."""
    less = chance.choice(("orders WHERE (id > 15)", "orders (id, code)"))
    alter = f"ALTER PUBLICATION {PUBLICATION} SET TABLE"
    return _meanwhile(
        chance, shape, f"{alter} {less}, parts", f"{alter} orders, parts", "orders", also=["parts"]
    )


def _publish_partitions(chance: random.Random, shape: Shape) -> Step:
    alter = f"ALTER PUBLICATION {PUBLICATION} SET (publish_via_partition_root = {{}})"
    return _meanwhile(
        chance, shape, alter.format("false"), alter.format("true"), "parts", also=["orders"], by_hand=True
    )


def _rename_key(chance: random.Random, shape: Shape) -> Step:
    changes = [
        "DELETE FROM orders WHERE ident % 4 = 0",
        "UPDATE orders SET ident = ident + 1000 WHERE ident % 4 = 1",
    ]
    begin, end = "ALTER TABLE orders RENAME id TO ident", "ALTER TABLE orders RENAME ident TO id"
    return _meanwhile(chance, shape, begin, end, "orders", changes, by_hand=True)


def _meanwhile(
    chance: random.Random, shape: Shape, begin: str, end: str, table: str, changes: Sequence[str] = (), *,
    also: Sequence[str] = (), by_hand: bool = False,
) -> Step:  # fmt: skip
    made = changes or [change(chance, shape) for _ in range(chance.randint(1, 4))]
    return ddl.Meanwhile(begin, tuple(made), end, (table, *also), chance.choice((0, 0, 3, 15)), by_hand)


def _copy_server(chance: random.Random, shape: Shape) -> Step | None:
    if shape.copied is not None:  # a copy takes seconds
        return None
    shape.copied = copy.deepcopy(shape)
    return faults.CopyServer()


def _set_back(chance: random.Random, shape: Shape) -> Step | None:
    copied = shape.copied
    if copied is None:
        return None
    shape.__dict__.update(copy.deepcopy(copied.__dict__), copied=copied, named=shape.named)
    return faults.SetServerBack(chance.random() < 0.4)


FOLLOWED: dict[str, tuple[int, Make]] = {
    "change": (10, _one),
    "transaction": (6, _transaction),
    "end prepared": (2, _end_prepared),
    "add column": (1, _add_column),
    "add column with default": (1, _add_default),
    "drop column": (1, _drop_column),
    "rename column": (1, _rename_column),
    "retype column": (1, _retype_column),
    "retype key": (1, _retype_key),
    "identity": (1, _identity),
    "vacuum": (1, _vacuum),
    "attach": (1, _attach),
    "detach": (1, _detach),
    "empty partition": (1, _empty_partition),
    "read": (4, lambda chance, shape: Read(chance.randint(1, 12))),
    "kill": (2, lambda chance, shape: faults.CrashCapture()),
    "cut": (1, lambda chance, shape: faults.CutConnections()),
    "restart server": (1, lambda chance, shape: faults.RestartServer(chance.random() < 0.6)),
    "promote": (1, lambda chance, shape: faults.PromoteServer()),
    "check": (3, lambda chance, shape: Check()),
}
"""Kinds of steps after which the topic equals the table whatever `on_gap` says, each with how often it comes."""

GAPS: dict[str, tuple[int, Make]] = {
    "rewrite column": (1, _rewrite_column),
    "no identity": (1, _no_identity),
    "make another": (1, _make_another),
    "rename table": (1, _rename_table),
    "rename key": (1, _rename_key),
    "another identity": (1, _another_identity),
    "reattach": (1, _reattach),
    "publish less": (1, _publish_less),
    "publish partitions": (1, _publish_partitions),
    "logged": (1, _logged),
    "publish": (1, _publish),
    "publish kinds": (1, _publish_kinds),
    "remake publication": (1, _remake_publication),
    "drop slot": (1, lambda chance, shape: faults.DropSlot(chance.random() < 0.5, chance.random() < 0.5)),
    "invalidate slot": (1, lambda chance, shape: faults.InvalidateSlot()),
    "advance slot": (1, lambda chance, shape: faults.AdvanceSlot()),
    "copy server": (1, _copy_server),
    "set server back": (2, _set_back),
}
"""Kinds of steps that the stream does not tell of: with on_gap = 'stop' the source may stop there."""


BEGUN = frozenset({"no identity", "another identity", "rename key"})
"""Kinds of steps that only come once the source has begun: one that begins after them makes a topic of another key, or without one."""

NOT_YET: frozenset[str] = frozenset()
"""Kinds of steps that scripts leave out, because the topic is not its table behind them and nothing stops."""


def generate(seed: int, gaps: Sequence[str] | None = None, steps: int = 25) -> Script:
    """The script of a seed. `gaps` are the kinds of `GAPS` that are among its steps; if none are given, the seed chooses."""
    chance = random.Random(seed)
    chosen = _gaps(chance) if gaps is None else list(gaps)
    kinds = {
        **FOLLOWED,
        **{name: (2 * weight, make) for name, (weight, make) in GAPS.items() if name in chosen},
    }
    names, weights = list(kinds), [weight for weight, _ in kinds.values()]
    options = {
        "on_gap": chance.choice(("snapshot", "snapshot", "snapshot", "stop")),
        "chunk_rows": chance.choice((3, 50_000)),
        "snapshot": chance.choice(("initial", "initial", "incremental")),
    }
    streaming = chance.choice(("buffered", "immediate"))
    shape = Shape(chance.choice(("tables", "tables", "schema", "all")))
    if shape.published != "tables":
        options["publication"] = PUBLICATION
    is_late = BEGUN.isdisjoint(chosen) and chance.random() < 0.3
    made: list[Step] = [] if is_late else [Check()]
    used = set()
    while len(made) < steps:
        kind = chance.choices(names, weights)[0]
        step = kinds[kind][1](chance, shape)
        if step is not None:
            made.append(step)
            used.add(kind)
    made += [EndPrepared(commits=chance.random() < 0.5), Check()]
    return Script(made, options, streaming, f"seed {seed}", shape.published, frozenset(used))


def _gaps(chance: random.Random) -> list[str]:
    """No kind of gap in half of the scripts, and a few of them in the others."""
    known = sorted(GAPS.keys() - NOT_YET)
    found = chance.sample(known, min(chance.choice((0, 0, 0, 1, 2, 3)), len(known)))
    return [*found, "copy server"] if "set server back" in found else found
