"""Options of `CREATE SOURCE ... FROM POSTGRES WITH (...)`: parsed and checked, without access to the database."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pyarrow as pa

from headwater.catalog.connectors import SOURCE_OPTIONS
from headwater.core.arguments import text
from headwater.core.errors import UsageError
from headwater.core.settings import parse_bytes
from headwater.core.types import parse_type

FirstSnapshot = Literal["initial", "incremental", "none"]
OverBudget = Literal["warn", "stop", "drop_slot"]
OnGap = Literal["stop", "snapshot"]
SCHEMA = "public"
"""Schema of a table that is named without a schema."""
MESSAGES = "messages"
"""Value of the option `outbox` for an outbox without a table."""

_SLOT_NAME = re.compile(r"^[a-z0-9_]{1,63}\Z")
_PART = r'(?:"((?:[^"]|"")+)"|([A-Za-z_][A-Za-z0-9_$]*|\*))'
_TABLE = re.compile(
    rf"^\s*{_PART}(?:\s*\.\s*{_PART})?(?:\s+AS\s+([A-Za-z_][A-Za-z0-9_]*))?\s*$", re.IGNORECASE
)


@dataclass(frozen=True)
class TableName:
    """A table to be captured; `table` is `*` for all tables of the schema."""

    schema: str
    table: str
    topic: str
    """Topic of the table; by default it has the name of the table."""

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True)
class PostgresOptions:
    """The options of a source."""

    url: str
    tables: tuple[TableName, ...]
    slot: str
    publication: str
    slot_given: bool = False
    """Whether the user named the slot: such a slot is used as it is. A slot named by Headwater may be recreated before anything
    was read from it."""
    publication_given: bool = False
    """Whether the user named the publication: such a publication is used as it is, but missing tables are added."""
    snapshot: FirstSnapshot = "initial"
    """initial: all tables as of one point in time, in one append. incremental: in chunks while the stream is read. none:
    changes only."""
    failover: bool = False
    """Create the slot with failover to standbys (Postgres 17 and later)."""
    max_wal_bytes: int | None = None
    """Maximum number of bytes of WAL that the server may retain for the slot; None for no limit."""
    over_wal: OverBudget = "warn"
    on_gap: OnGap = "stop"
    """What to do if changes are missing: the server no longer has what follows the position, or is not the server of the
    position."""
    outbox: str | None = None
    """Table whose rows are events for other topics; 'messages' if events are written only with pg_logical_emit_message."""
    outbox_prefix: str = "outbox"
    chunk_rows: int = 50_000
    types: Mapping[str, Mapping[str, pa.DataType]] = field(default_factory=dict)
    """By table and column: types that the user chose instead of the default."""

    @property
    def outbox_table(self) -> TableName | None:
        """Table of the outbox; None for an outbox without a table."""
        return None if self.outbox in (None, MESSAGES) else read_table(str(self.outbox))


OPTION_NAMES = SOURCE_OPTIONS["postgres"]


def read_options(source: str, options: Mapping[str, Any]) -> PostgresOptions:
    """Return the checked options; UsageError names what is wrong."""
    for name in options:
        if name not in OPTION_NAMES:
            near = difflib.get_close_matches(name, OPTION_NAMES, 1)
            raise UsageError(
                f"{name!r} is not an option of a Postgres source",
                hint=f"did you mean {near[0]}?" if near else f"the options are {', '.join(OPTION_NAMES)}",
                source=source,
                option=name,
            )
    url = text(options.get("url"), "url", hint="write url = env('SHOP_URL')")
    own = re.sub(r"[^a-z0-9_]", "_", f"headwater_{source}".lower())[:63]
    slot = text(options.get("slot") or own, "slot")
    if not _SLOT_NAME.match(slot):
        raise UsageError(
            f"{slot!r} is not a valid name of a replication slot",
            hint="use lower-case letters, digits and underscores",
            source=source,
            option="slot",
            value=slot,
        )
    outbox = options.get("outbox")
    tables = read_tables_option(options.get("tables") or "")
    if not tables and outbox is None:
        raise UsageError(
            f"source {source!r} names no tables to capture",
            hint="write tables = 'public.orders, public.customers', or tables = 'public.*'",
            source=source,
            option="tables",
        )
    budget = options.get("max_wal")
    return PostgresOptions(
        url=url,
        tables=tables,
        slot=slot,
        publication=text(options.get("publication") or own, "publication"),
        slot_given=options.get("slot") is not None,
        publication_given=options.get("publication") is not None,
        snapshot=_choice(options.get("snapshot"), "snapshot", FirstSnapshot, "initial"),
        failover=_flag(options.get("failover"), "failover"),
        max_wal_bytes=None if budget is None else parse_bytes(budget),
        over_wal=_choice(options.get("over_wal"), "over_wal", OverBudget, "warn"),
        on_gap=_choice(options.get("on_gap"), "on_gap", OnGap, "stop"),
        outbox=None if outbox is None else text(outbox, "outbox"),
        outbox_prefix=text(options.get("outbox_prefix") or "outbox", "outbox_prefix"),
        chunk_rows=_rows(options.get("chunk_rows", 50_000)),
        types=read_types_option(options.get("types") or ""),
    )


def read_tables_option(said: Any) -> tuple[TableName, ...]:
    """Return the tables named by a text such as `orders, crm."Order" AS crm_orders, sales.*`."""
    parts = re.split(r',(?=(?:[^"]*"[^"]*")*[^"]*$)', text(said, "tables")) if said else []
    names = [read_table(part) for part in parts if part.strip()]
    topics: dict[str, TableName] = {}
    for name in names:
        other = topics.setdefault(name.topic.lower(), name)
        if other is not name and name.table != "*":
            raise UsageError(
                f"tables {other} and {name} have the same topic {name.topic!r}",
                hint=f"choose another topic for one of them: tables = '{name} AS {name.schema}_{name.topic}'",
                topic=name.topic,
                option="tables",
            )
    return tuple(names)


def read_types_option(said: Any) -> dict[str, dict[str, pa.DataType]]:
    """Return the types, by table and column, of a text such as `orders.amount DECIMAL(20, 4), crm.notes.body STRING`."""
    found: dict[str, dict[str, pa.DataType]] = {}
    for part in re.split(r",(?![^(<]*[)>])", text(said, "types")) if said else []:
        names, _, kind = part.strip().partition(" ")
        table, _, column = names.rpartition(".")
        if not table or not kind.strip():
            raise UsageError(
                f"{part.strip()!r} does not assign a type to a column",
                hint="write types = 'public.orders.amount DECIMAL(20, 4)'",
                option="types",
                value=part.strip(),
            )
        found.setdefault(str(read_table(table)), {})[column.strip('"')] = parse_type(kind)
    return found


def read_table(part: str) -> TableName:
    """Parse the name of one table: unquoted parts are folded to lower case, as in Postgres."""
    match = _TABLE.match(part)
    if not match:
        raise UsageError(
            f"{part.strip()!r} is not the name of a table",
            hint="write schema.table, with names that are not lower case in double quotes; AS names the topic",
            option="tables",
            value=part.strip(),
        )
    names = [
        quoted.replace('""', '"') if quoted else plain.lower()
        for quoted, plain in ((match[1], match[2]), (match[3], match[4]))
        if quoted or plain
    ]
    schema, table = names if len(names) == 2 else (SCHEMA, names[0])
    return TableName(schema, table, match[5] or table)


def _choice(value: Any, what: str, kind: Any, usual: str) -> Any:
    known = get_args(kind)
    if value is None:
        return usual
    if value not in known:
        raise UsageError(
            f"{what} must be {' or '.join(map(repr, known))}, not {value!r}",
            hint=f"write {what} = '{known[0]}'",
            option=what,
            value=value,
        )
    return value


def _flag(value: Any, what: str) -> bool:
    if value is None or isinstance(value, bool):
        return bool(value)
    if str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    raise UsageError(
        f"{what} must be true or false, not {value!r}", hint=f"write {what} = true", option=what, value=value
    )


def _rows(value: Any) -> int:
    number = int(value) if str(value).strip().isdecimal() else 0
    if number < 1:
        raise UsageError(
            f"chunk_rows must be a whole number of at least 1, not {value!r}",
            hint="write chunk_rows = 50000",
            option="chunk_rows",
            value=value,
        )
    return number
