"""What the log adds to the rows of devices, against the definition written out row by row."""

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.catalog.conform import adapt, conform
from headwater.catalog.definitions import TopicDefinition, define_topic, drop_not_null
from headwater.core.clock import ManualClock, from_us, to_us
from headwater.core.settings import LogSettings
from headwater.log.device_clocks import Devices, read_back
from headwater.log.embedded import EmbeddedLog
from headwater.log.memory import MemoryLog
from headwater.log.protocol import Append, Log
from tests.raising import raises

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW = to_us(NOON)
SECOND = 1_000_000
YEARS = 3650 * 86_400 * SECOND
TIMESTAMP = pa.timestamp("us", tz="UTC")
COLUMNS = pa.schema([("device", pa.string()), ("occurred_at", TIMESTAMP), ("sent_at", TIMESTAMP)])
METERS = define_topic("meters", COLUMNS, time="corrected_at", options={"clock": "device", "partitions": 2})

READ = pa.schema(
    [
        ("device", pa.string()),
        ("sent_at", TIMESTAMP),
        ("clock_flag", pa.string()),
        ("_appended_at", TIMESTAMP),
    ]
)

spans = st.one_of(
    st.integers(-30, 30),
    st.sampled_from([-7200, 3600, 86_400]),
    st.sampled_from([-YEARS // SECOND - 1, YEARS // SECOND, YEARS // SECOND + 1, 10**12]),
)
rows = st.tuples(st.sampled_from("abc"), st.none() | spans, st.none() | st.integers(-3, 60))
"""A device, the offset of its clock in seconds, and how long before sending it occurred."""
appends = st.lists(st.tuples(st.lists(rows, max_size=12), st.integers(1, 90)), max_size=12)


def made(some: list[tuple[str, int | None, int | None]], now: int) -> list[dict[str, Any]]:
    """Rows of an append at `now`."""
    found = []
    for device, offset, age in some:
        sent = None if offset is None else now - offset * SECOND
        occurred = None if sent is None or age is None else sent - age * SECOND
        found.append({"device": device, "occurred_at": shown(occurred), "sent_at": shown(sent)})
    return found


def shown(moment: int | None) -> datetime | None:
    try:
        return None if moment is None else from_us(moment)
    except OverflowError:
        return datetime(1, 1, 1, tzinfo=UTC)


class Definition:
    """The text of the module, one row at a time."""

    def __init__(self) -> None:
        self.samples: dict[str, list[int]] = {}
        self.latest: dict[str, tuple[int, int]] = {}

    def add(self, row: dict[str, Any], now: int) -> tuple[int, int | None, str]:
        occurred, sent = (None if row[c] is None else to_us(row[c]) for c in ("occurred_at", "sent_at"))
        if occurred is None or sent is None or sent < occurred or abs(now - sent) > YEARS:
            return now, None, "impossible"
        device = row["device"]
        known = self.samples.setdefault(device, [])
        if self.latest.get(device) != (sent, now):
            known.append(now - sent)
            self.latest[device] = (sent, now)
        window = known[-9:]
        offset = sorted(window)[(len(window) - 1) // 2]
        spread = sorted(abs(o - offset) for o in window)[(len(window) - 1) // 2]
        far = abs(window[-1] - offset) > max(10 * SECOND, 5 * spread)
        flag = "outlier" if far and len(window) >= 4 else "ok"
        return min(occurred + offset, now), offset, flag


def filled(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    columns = [batch.column(n).to_pylist() for n in ("corrected_at", "clock_offset", "clock_flag")]
    return [(to_us(at), offset, flag) for at, offset, flag in zip(*columns, strict=True)]


@settings(max_examples=100, deadline=None)
@given(appends, st.integers(1, 7))
def test_rows_are_given_what_the_definition_says(script: list[Any], size: int) -> None:
    """Also by someone who reads back what was stored, in batches of any size, and goes on from there."""
    devices, definition, now, stored = Devices(), Definition(), NOW, []
    for some, seconds in script:
        now += seconds * SECOND
        given_rows = made(some, now)
        batch = adapt(conform(given_rows, METERS), METERS.row_schema)
        found, change = devices.correct(batch, METERS, now)
        assert filled(found) == [definition.add(row, now) for row in given_rows]
        devices.advance(change)
        at = pa.array(np.full(found.num_rows, now), pa.int64()).view(TIMESTAMP)
        stored.append(found.append_column("_appended_at", at).select(read_back(METERS)).cast(READ))
    again, later = Devices(), adapt(conform(made([("a", 1, 2), ("b", 3, 4)], now), METERS), METERS.row_schema)
    for table_batch in pa.Table.from_batches(stored, READ).combine_chunks().to_batches(max_chunksize=size):
        again.absorb(table_batch, METERS)
    assert again.correct(later, METERS, now)[0].equals(devices.correct(later, METERS, now)[0])


def test_what_is_not_committed_changes_nothing() -> None:
    devices = Devices()
    batch = adapt(conform(made([("a", 5, 0), ("b", 7, 0)], NOW), METERS), METERS.row_schema)
    first, _ = devices.correct(batch, METERS, NOW)
    second, change = devices.correct(batch, METERS, NOW)
    assert first.equals(second)
    devices.advance(change)
    devices.advance(devices.correct(batch, METERS, NOW)[1])
    assert filled(devices.correct(batch, METERS, NOW)[0]) == filled(first)


def test_a_late_delivery_of_many_rows_counts_once() -> None:
    devices, definition = Devices(), Definition()
    for turn in range(5):
        rows_now = made([("a", 2, 0)], NOW + turn * SECOND)
        _append(devices, rows_now, NOW + turn * SECOND)
        definition.add(rows_now[0], NOW + turn * SECOND)
    delayed = made([("a", 3600, age) for age in range(100)], NOW + 99 * SECOND)
    found = filled(_append(devices, delayed, NOW + 99 * SECOND))
    assert {(offset, flag) for _, offset, flag in found} == {(2 * SECOND, "outlier")}


def _append(devices: Devices, some: list[dict[str, Any]], now: int) -> pa.RecordBatch:
    batch, change = devices.correct(adapt(conform(some, METERS), METERS.row_schema), METERS, now)
    devices.advance(change)
    return batch


def test_a_clock_that_was_set_anew_is_followed_after_most_of_nine() -> None:
    devices, now = Devices(), NOW
    offsets = []
    for turn in range(20):
        now += SECOND
        found = filled(_append(devices, made([("a", 0 if turn < 10 else 3600, 0)], now), now))
        offsets.append(found[0][1:])
    assert offsets[9:] == [(0, "ok"), *[(0, "outlier")] * 4, *[(3600 * SECOND, "ok")] * 6]


def test_no_corrected_time_is_later_than_the_append() -> None:
    devices, now = Devices(), NOW
    for _ in range(9):
        now += SECOND
        _append(devices, made([("a", 60, 0)], now), now)
    ((corrected, offset, flag),) = filled(_append(devices, made([("a", -86_400, 0)], now), now))
    assert (corrected, offset, flag) == (now, 60 * SECOND, "outlier")


# --- in a log --------------------------------------------------------------------------------------------------------


def test_device_times_are_corrected_from_the_statement_to_the_watermark(tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with hw.open(tmp_path / "ws", clock=clock) as ws:
        ws.sql("""
            CREATE TOPIC readings (
              device_id BIGINT, value DOUBLE, occurred_at TIMESTAMP, sent_at TIMESTAMP,
              WATERMARK FOR corrected_at AS corrected_at - INTERVAL '10 seconds'
            ) WITH (clock = 'device_id', partitions = 2)
        """)
        readings = ws.topic("readings")
        assert readings.schema.names[-3:] == ["corrected_at", "clock_offset", "clock_flag"]
        assert readings.definition.routing == ("device_id",)
        ahead = NOON + timedelta(hours=3)  # its clock is three hours ahead
        sent = [
            {"device_id": 7, "value": 1.0, "occurred_at": ahead - timedelta(minutes=1), "sent_at": ahead},
            {"device_id": 7, "value": 2.0, "occurred_at": ahead, "sent_at": ahead},
            {"device_id": 7, "value": 3.0, "occurred_at": ahead, "sent_at": None},
        ]
        (p,) = readings.append(sent).positions["readings"]
        (batch,) = readings.read(columns=["value", "corrected_at", "clock_offset", "clock_flag"])
        hours = -3 * 3600 * SECOND
        assert [tuple(row.values()) for row in batch.to_pylist()] == [
            (1.0, NOON - timedelta(minutes=1), hours, "ok"),
            (2.0, NOON, hours, "ok"),
            (3.0, NOON, None, "impossible"),
        ]
        assert readings.watermark(p) == NOON - timedelta(seconds=10)
        with raises(hw.BadRowError, row=0, column="corrected_at", expected="no value"):
            readings.append([{"device_id": 7, "corrected_at": NOON}])
        with raises(hw.BadRowError, row=0, column="device_id", value=None):
            readings.append([{"value": 1.0, "occurred_at": NOON, "sent_at": NOON}])
        made_again = readings.definition
        ws.sql("DROP TOPIC readings")
        ws.sql(made_again.to_sql())
        assert ws.topic("readings").definition == made_again


def test_a_tombstone_without_times_is_given_none() -> None:
    log = MemoryLog(ManualClock(NOW))
    topic = define_topic(
        "devices", COLUMNS, key=("device",), time="corrected_at", options={"clock": "device"}
    )
    log.create_topic(topic)
    some = [{"device": "a", "occurred_at": NOON, "sent_at": NOON}, {"device": "a", "_op": "delete"}]
    log.append(Append({"devices": [conform(some, topic)]}))
    (batch,) = log.read("devices", 0, 0, 9, ["corrected_at", "clock_offset", "clock_flag"])
    assert batch.to_pylist() == [
        {"corrected_at": NOON, "clock_offset": 0, "clock_flag": "ok"},
        {"corrected_at": None, "clock_offset": None, "clock_flag": None},
    ]


scripts = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(rows, min_size=1, max_size=6), st.integers(0, 60)),
        st.tuples(st.sampled_from(["crash", "reopen", "maintain", "elsewhere"])),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None)
@given(scripts)
def test_a_killed_process_goes_on_as_if_it_had_lived(script: list[tuple[Any, ...]]) -> None:
    """What is stored is what a log in memory stores, whoever appends, and however often it starts anew."""
    clock = ManualClock(NOW)
    model = MemoryLog(clock)
    tiny = LogSettings(durability="os", segment_bytes_max=3_000, checkpoint_bytes=4_000, inline_bytes_max=500)
    with tempfile.TemporaryDirectory(prefix="headwater-") as folder:

        def opened() -> EmbeddedLog:
            return EmbeddedLog.open(Path(folder), settings=tiny, clock=clock)

        log, other = opened(), opened()
        try:
            for each in (model, log):
                each.create_topic(METERS)
            for what, *how in script:
                if what == "append":
                    clock.advance(timedelta(seconds=how[1]))
                    batch = conform(made(how[0], clock.now_us()), METERS)
                    for each in (model, log):
                        each.append(Append({"meters": [batch]}))
                elif what == "elsewhere":
                    log, other = other, log
                elif what == "maintain":
                    log.maintain(force=True)
                else:
                    log.abandon() if what == "crash" else log.close()
                    log = opened()
            assert contents(log) == contents(model)
        finally:
            log.close()
            other.close()


def contents(log: Log) -> list[Any]:
    tables = [
        pa.Table.from_batches(batches)
        for p, info in log.partitions("meters").items()
        if (batches := list(log.read("meters", p, info.first, info.end)))
    ]
    watermarks = [info.watermark for info in log.partitions("meters").values()]
    return [watermarks, [table.drop_columns(["_sequence"]).to_pylist() for table in tables]]


def test_an_append_of_devices_must_fit_in_memory(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path, settings=LogSettings(staging_bytes_max=100), clock=ManualClock(NOW))
    log.create_topic(METERS)
    stage = log.stage()
    with raises(hw.UsageError, topic="meters", reason="too-large-to-stage"):
        stage.add("meters", conform(made([("a", 1, 1)] * 50, NOW), METERS))
    stage.abort()
    log.close()


def topic(columns: pa.Schema = COLUMNS, **options: Any) -> TopicDefinition:
    return define_topic("t", columns, options={"clock": "device", **options})


def test_columns_may_have_other_names_and_the_stored_ones_may_be_declared() -> None:
    columns = pa.schema(
        [
            ("corrected_at", TIMESTAMP),
            ("device", pa.int32()),
            ("happened", TIMESTAMP),
            ("left", TIMESTAMP),
        ]
    )
    found = topic(columns, occurred="happened", sent="left")
    assert found.schema.names == [*columns.names, "clock_offset", "clock_flag"]
    assert found.given.schema.names == ["device", "happened", "left"]
    assert found.options() == {
        "partitions": "1",
        "partition_by": "'device'",
        "clock": "'device'",
        "occurred": "'happened'",
        "sent": "'left'",
    }


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"clock": "nothing"}, {"column": "nothing", "reason": "no-such-column"}),
        ({"sent": "device"}, {"column": "device", "reason": "not-timestamp"}),
        ({"occurred": "corrected_at"}, {"column": "corrected_at", "reason": "computed-column"}),
        (
            {"partitions": 2, "partition_by": "sent_at"},
            {"option": "partition_by", "reason": "not-clock"},
        ),
        ({"clock": None, "sent": "sent_at"}, {"option": "sent", "reason": "missing-option"}),
        (
            {"columns": COLUMNS.append(pa.field("clock_flag", pa.int64()))},
            {"column": "clock_flag", "reason": "computed-column"},
        ),
    ],
)
def test_a_clock_that_does_not_fit_is_refused(change: dict[str, Any], facts: dict[str, Any]) -> None:
    with raises(hw.SchemaError, **facts):
        topic(**change)


def test_the_clock_column_stays_not_null() -> None:
    assert not topic().schema.field("device").nullable
    with raises(hw.SchemaError, column="device", reason="clock-column"):
        drop_not_null(topic(), "device")
