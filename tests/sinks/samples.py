"""Rows to follow: of every type, with what is odd in each; and a history whose contents at every tick are known."""

import datetime as dt
from collections.abc import Iterable
from decimal import Decimal

import numpy as np
import pyarrow as pa

from headwater.operators.zset.delta import Delta, consolidate, row_hashes
from headwater.sinks.base.checksums import tally
from headwater.sinks.base.net_changes import as_records
from headwater.sinks.base.target import SinkCheckpoint, Target, TargetChange, TargetShape

EVERYTHING = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int8()),
        ("short", pa.int16()),
        ("whole", pa.int32()),
        ("single", pa.float32()),
        ("double", pa.float64()),
        ("yes", pa.bool_()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("price", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(38, 6)),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.float64()), ("name", pa.string())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def everything() -> pa.RecordBatch:
    """Ordinary values, extremes, odd ones, and NULLs."""
    nan, inf = float("nan"), float("inf")
    utc = dt.UTC
    rows = [
        [
            *(1, 1, 2, 3, 0.5, 2.25, True, "a quick fox", b"\x00\xff", dt.date(2024, 2, 29)),
            *(dt.datetime(2024, 1, 1, 12, 0, 0, 1, utc), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)),
            *(Decimal("12.34"), Decimal("1.000001"), ["red", "blue"], {"x": 1.5, "name": "here"}, [("a", 1)]),
        ],
        [
            *(2, -128, -32768, -(2**31), nan, nan, False, "", b"", dt.date(1, 1, 1)),
            *(dt.datetime(1, 1, 1, tzinfo=utc), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)),
            *(
                Decimal("-99999999.99"),
                Decimal("-" + "9" * 32 + ".999999"),
                [],
                {"x": None, "name": None},
                [],
            ),
        ],
        [3, *[None] * 16],
        [
            *(
                4,
                127,
                32767,
                2**31 - 1,
                inf,
                -inf,
                True,
                "schöne Grüße 🌊 <b>&",
                b"a" * 300,
                dt.date(9999, 12, 31),
            ),
            *(dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, utc), dt.datetime(1, 1, 1)),
            *(
                Decimal("0.01"),
                Decimal("9" * 32 + ".999999"),
                [None, "x", ""],
                None,
                [("a", None), ("b", 2**63 - 1)],
            ),
        ],
        [
            *(5, 0, 0, 0, -0.0, -0.0, False, "fox " * 200, b"b", dt.date(1970, 1, 1)),
            *(dt.datetime(1970, 1, 1, tzinfo=utc), dt.datetime(1970, 1, 1)),
            *(Decimal("0.00"), Decimal("0.000000"), None, {"x": nan, "name": 'a "quoted" \n line'}, None),
        ],
        [-(2**63), *[None] * 16],
    ]
    columns = [
        pa.array(values, field.type)
        for values, field in zip(zip(*rows, strict=True), EVERYTHING, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=EVERYTHING)


def same_rows(one: Iterable[pa.RecordBatch], other: Iterable[pa.RecordBatch]) -> bool:
    """Whether both have the same rows, bit by bit, in any order."""

    def hashes(batches: Iterable[pa.RecordBatch]) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for batch in batches:
            high, low = row_hashes(batch)
            found += zip(high.tolist(), low.tolist(), strict=True)
        return sorted(found)

    return hashes(one) == hashes(other)


def upsert(rows: pa.RecordBatch, key: tuple[str, ...], deletes: pa.RecordBatch | None = None) -> TargetChange:
    """A change that upserts rows, after deleting the keys of others."""
    gone = rows.slice(0, 0) if deletes is None else deletes
    return TargetChange.of_keys(gone.select(list(key)), rows)


def checkpoint_of(tick: int, rows: pa.RecordBatch, history: str = "h") -> SinkCheckpoint:
    """The checkpoint of a target that holds these rows."""
    counted = tally(rows)
    return SinkCheckpoint(tick, history, counted.checksum, counted.rows)


# --- a history -----------------------------------------------------------------------------------------------------

KEYS = 60
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("n", pa.int64())])


def shape(sink: str = "s", mode: str = "upsert") -> TargetShape:
    """Of the rows of the history."""
    return TargetShape(sink, "v", SCHEMA, ("id",) if mode == "upsert" else (), mode)  # type: ignore[arg-type]


def _touched(tick: int) -> list[int]:
    return sorted({(tick * 7 + i * i) % KEYS for i in range(20)})


def _row(tick: int, key: int) -> dict[str, object] | None:
    """What tick `tick` makes of a key that it touches; None if it deletes it."""
    if (tick + key) % 3 == 0:
        return None
    return {"id": key, "word": f"word{(tick + key) % 5} tick{tick}", "n": tick}


def _batch(rows: Iterable[dict[str, object] | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row for row in rows if row is not None], SCHEMA)


def contents_at(tick: int) -> pa.RecordBatch:
    """All rows at a tick of the history."""
    rows: dict[int, dict[str, object] | None] = {}
    for passed in range(1, tick + 1):
        for key in _touched(passed):
            rows[key] = _row(passed, key)
    return _batch(rows.values())


def change_at(tick: int) -> TargetChange:
    """What a tick changes."""
    gone = _batch({"id": k, "word": None, "n": None} for k in _touched(tick) if _row(tick, k) is None)
    return upsert(_batch(_row(tick, key) for key in _touched(tick)), ("id",), gone)


def records_at(tick: int) -> TargetChange:
    """The same as a changelog."""
    before, after = contents_at(tick - 1), contents_at(tick)
    parts = [(before, -1), (after, 1)]
    rows = pa.concat_tables([pa.Table.from_batches([part]) for part, _ in parts]).combine_chunks()
    weights = [weight for part, weight in parts for _ in range(part.num_rows)]
    batch = rows.to_batches()[0] if rows.num_rows else SCHEMA.empty_table().to_batches()[0]
    return TargetChange.of_records(as_records(consolidate(Delta(batch, np.array(weights, np.int64))), tick))


def follow(target: Target, ticks: range) -> SinkCheckpoint | None:
    """Apply ticks of the history to a prepared target, as far as it does not have them; where it stands then."""
    mode = "upsert" if target.key else "changelog"
    checkpoint = target.checkpoint()
    for tick in ticks:
        if checkpoint is None or tick > checkpoint.tick:
            after = checkpoint_of(tick, contents_at(tick))
            target.apply(change_at(tick) if mode == "upsert" else records_at(tick), checkpoint, after)
            checkpoint = after
    return checkpoint
