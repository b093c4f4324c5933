"""A life of a workspace in steps, told to a log; and the truth after each step, to hold a crashed one against.

A failure shows the script with an arrow at the step that was under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from headwater.catalog.conform import conform
from headwater.catalog.definitions import add_column, define_topic
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Append, CursorMove, Finding, Producer

SETTINGS = LogSettings(
    segment_bytes_max=5_000,
    inline_bytes_max=2_500,
    staging_bytes_max=600,
    checkpoint_bytes=3_500,
    maintenance_every_ms=0,
)
TIMESTAMP = pa.timestamp("us", tz="UTC")
CLICKS = define_topic(
    "clicks",
    pa.schema([pa.field("user", pa.int64()), pa.field("n", pa.int64()), pa.field("at", TIMESTAMP)]),
    time="at",
    lateness="1 minute",
    options={"partitions": 2, "partition_by": "user"},
)
ORDERS = define_topic("orders", pa.schema([pa.field("n", pa.int64())]), options={"retention": "1 hour"})
CUSTOMERS = define_topic(
    "customers",
    pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())]),
    key=("id",),
    options={"cleanup": "compact"},
)
LOOSE = define_topic("loose", pa.schema([pa.field("n", pa.int64())]), options={"durability": "os"})
FEED = define_topic(
    "feed",
    pa.schema([pa.field("n", pa.int64()), pa.field("at", TIMESTAMP)]),
    time="at",
    options={"partitions": 2, "watermark": "producers"},
)
METERS = define_topic(
    "meters",
    pa.schema(
        [pa.field("id", pa.int64()), pa.field("occurred_at", TIMESTAMP), pa.field("sent_at", TIMESTAMP)]
    ),
    time="corrected_at",
    options={"clock": "id"},
)
HOUR = "1 hour"


@dataclass(frozen=True)
class Step:
    """One thing done to the log. `soft`: acknowledged, and yet not safe from a loss of power. `upkeep`: removes
    records, and may be stopped half-way. `repeatable`: doing it again after a crash completes it, once."""

    told: str
    do: Callable[[EmbeddedLog, ManualClock], Any]
    soft: bool = False
    upkeep: bool = False
    repeatable: bool = False


def clicks(start: int, count: int, text_times: int = 1) -> list[dict[str, Any]]:
    base = 1_700_000_000_000_000
    return [
        {"user": n % 5, "n": n, "at": (base + n * 1_000_000 * text_times)}
        for n in range(start, start + count)
    ]


def batch(log: EmbeddedLog, topic: str, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    definition = log.topics()[topic]
    if topic == "clicks":
        schema = pa.schema([f for f in definition.schema if f.name in rows[0]])
        rows_table = pa.Table.from_pylist(rows, schema=schema)
        return conform(rows_table, definition)
    return conform(rows, definition)


def append(log: EmbeddedLog, rows: dict[str, list[dict[str, Any]]], **options: Any) -> Any:
    return log.append(Append({t: [batch(log, t, r)] for t, r in rows.items()}, **options))


def stage(log: EmbeddedLog, rows: dict[str, list[dict[str, Any]]], **options: Any) -> Any:
    staged = log.stage()
    for topic, given in rows.items():
        for start in range(0, len(given), 30):
            staged.add(topic, batch(log, topic, given[start : start + 30]))
    return staged.commit(**options)


def numbers(start: int, count: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(start, start + count)]


def people(start: int, count: int, version: str) -> list[dict[str, Any]]:
    return [{"id": n % 4, "name": f"{version}-{n}"} for n in range(start, start + count)]


def fed(start: int, count: int) -> dict[str, list[dict[str, Any]]]:
    """Rows of a producer who promises, and of devices."""
    times = [datetime.fromtimestamp(1_700_000_000 - n, UTC) for n in range(start, start + count)]
    return {
        "feed": [{"n": n, "at": at} for n, at in enumerate(times)],
        "meters": [{"id": n % 2, "occurred_at": at, "sent_at": at} for n, at in enumerate(times)],
    }


def _alter(log: EmbeddedLog, _: ManualClock) -> None:
    old = log.topics()["clicks"]
    if "referrer" not in old.schema.names:
        log.alter_topic(old, add_column(old, pa.field("referrer", pa.string())))


def _create(definition: Any) -> Callable[[EmbeddedLog, ManualClock], Any]:
    return lambda log, _: log.topics().get(definition.name) or log.create_topic(definition)


def _move(position: int) -> tuple[CursorMove, ...]:
    return (CursorMove("orders", "mailer", {0: position}),)


SCRIPT = [
    Step("create clicks", _create(CLICKS), repeatable=True),
    Step("create orders", _create(ORDERS), repeatable=True),
    Step("create customers", _create(CUSTOMERS), repeatable=True),
    Step("create loose", _create(LOOSE), repeatable=True),
    Step("one order", lambda log, _: append(log, {"orders": numbers(0, 1)})),
    Step("clicks to both partitions", lambda log, _: append(log, {"clicks": clicks(0, 20)})),
    Step("a cursor", lambda log, _: log.create_cursor("orders", "mailer", {0: 0}, False), repeatable=True),
    Step(
        "sequence 1 of a producer",
        lambda log, _: append(log, {"orders": numbers(1, 4)}, producer=Producer("loader", 1)),
        repeatable=True,
    ),
    Step(
        "several topics and a cursor in one",
        lambda log, _: append(
            log,
            {"orders": numbers(5, 3), "clicks": clicks(20, 7), "customers": people(0, 3, "a")},
            moves=_move(2),
            producer=Producer("loader", 2),
        ),
        repeatable=True,
    ),
    Step("many clicks, too many for the journal", lambda log, _: append(log, {"clicks": clicks(27, 90)})),
    Step("loose rows, many", lambda log, _: append(log, {"loose": numbers(0, 300)}), soft=True),
    Step("an order after them", lambda log, _: append(log, {"orders": numbers(8, 2)})),
    Step("the cursor moves", lambda log, _: log.move_cursor(_move(4)[0]), repeatable=True),
    Step(
        "punctuate",
        lambda log, _: log.punctuate("clicks", {0: 1_700_001_000_000_000, 1: 1_700_002_000_000_000}),
    ),
    Step("a column more", _alter, repeatable=True),
    Step("clicks of the new schema", lambda log, _: append(log, {"clicks": clicks(117, 10)})),
    Step(
        "a staged append",
        lambda log, _: stage(
            log,
            {"orders": numbers(10, 40), "clicks": clicks(127, 40)},
            producer=Producer("loader", 3),
            moves=_move(8),
        ),
        repeatable=True,
    ),
    Step("customers again", lambda log, _: append(log, {"customers": people(0, 20, "b")})),
    Step("loose rows, few", lambda log, _: append(log, {"loose": numbers(300, 3)}), soft=True),
    Step("upkeep: seal, compact", lambda log, _: log.maintain(force=True), upkeep=True, repeatable=True),
    Step(
        "an hour passes, an order",
        lambda log, clock: (clock.advance(HOUR), append(log, {"orders": numbers(50, 2)})),
    ),
    Step(
        "customers, third",
        lambda log, _: append(log, {"customers": people(0, 9, "c"), "orders": numbers(52, 1)}),
    ),
    Step("an hour passes", lambda log, clock: clock.advance(HOUR)),
    Step(
        "upkeep: retention, compaction", lambda log, _: log.maintain(force=True), upkeep=True, repeatable=True
    ),
    Step(
        "the last order",
        lambda log, _: append(log, {"orders": numbers(53, 2)}, producer=Producer("loader", 9)),
        repeatable=True,
    ),
]


TIME_SCRIPT = [
    Step("create feed", _create(FEED), repeatable=True),
    Step("create meters", _create(METERS), repeatable=True),
    Step("a producer promises", lambda log, _: log.declare_watermark("feed", "a", 1_000), repeatable=True),
    Step(
        "another appends, which holds the watermark; devices too",
        lambda log, _: append(log, fed(0, 3), producer=Producer("b", 1)),
        repeatable=True,
    ),
    Step(
        "the first promises more", lambda log, _: log.declare_watermark("feed", "a", 2_000), repeatable=True
    ),
    Step("the other retires", lambda log, _: log.retire("feed", "b"), repeatable=True),
    Step(
        "silence",
        lambda log, _: log.punctuate("feed", {0: 3_000, 1: 3_000}, idle_at=log.ends(["feed"])["feed"]),
        repeatable=True,
    ),
    Step("devices again", lambda log, _: append(log, fed(3, 5))),
    Step("upkeep: seal", lambda log, _: log.maintain(force=True), upkeep=True, repeatable=True),
    Step(
        "a minute passes, and another promise",
        lambda log, clock: (clock.advance("1 minute"), log.declare_watermark("feed", "a", 9_000)),
    ),
]
"""The same for what is said of time: promises, silence, device clocks."""


def told(script: list[Step], at: int, what: str) -> str:
    """The script with an arrow."""
    lines = [f"{'-->' if n == at else '   '} {n:2d} {step.told}" for n, step in enumerate(script)]
    return "\n".join([what, *lines])


def contents(log: EmbeddedLog) -> dict[str, Any]:
    """All that a user can see of a log."""
    seen: dict[str, Any] = {}
    for name, definition in log.topics().items():
        partitions = log.partitions(name)
        seen[name] = {
            "schema": definition.schema.names,
            "ends": {p: (i.end, i.watermark) for p, i in partitions.items()},
            "heard": ({p: i.heard_at for p, i in partitions.items()}, dict(log.producer_watermarks(name))),
            "rows": {
                p: [row for piece in log.read(name, p, i.first, i.end) for row in _rows(piece)]
                for p, i in partitions.items()
            },
            "watermarks": {
                p: [log.watermark(name, p, o) for o in range(i.end - 3, i.end + 1) if o >= i.first]
                for p, i in partitions.items()
            },
        }
    seen["cursors"] = {c.name: dict(c.positions) for c in log.cursors()}
    return seen


def _rows(piece: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as they are compared, moments as numbers: it is done thousands of times, and this takes a fourth of the time."""
    columns: list[list[Any]] = []
    for column in piece.columns:
        plain = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
        is_lane = pa.types.is_integer(plain.type) and not plain.null_count
        columns.append(plain.to_numpy().tolist() if is_lane else plain.to_pylist())
    return [dict(zip(piece.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def agrees(found: dict[str, Any], before: dict[str, Any], after: dict[str, Any], upkeep: bool) -> bool:
    """Whether a log is as before or as after a step; between them, if the step removes records one by one."""
    if found in (before, after):
        return True
    if not upkeep or found.keys() != before.keys() or found["cursors"] != before["cursors"]:
        return False
    for name in found.keys() - {"cursors"}:
        if found[name]["ends"] != before[name]["ends"]:
            return False
        for p, rows in found[name]["rows"].items():
            kept, there = after[name]["rows"][p], before[name]["rows"][p]
            offsets = {r["_offset"] for r in rows}
            if [r for r in there if r["_offset"] in offsets] != rows or not all(r in rows for r in kept):
                return False
    return True


def problems(log: EmbeddedLog) -> list[Finding]:
    """What verification finds."""
    return [found for found in log.verify() if isinstance(found, Finding)]
