"""Contract of device clocks: the log corrects the times of a device's rows, and stores the correction with each row."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from headwater.core.clock import from_us, to_us
from headwater.testing.contract.contract_base import Bench

DEVICES = "device STRING, occurred_at TIMESTAMP, sent_at TIMESTAMP"
STORED = ["corrected_at", "clock_offset", "clock_flag"]
SECOND = 1_000_000


class DeviceContract(Bench):
    """Tests of the columns that the log fills on a topic `WITH (clock = ...)`."""

    def create_meters(self, **options: Any) -> None:
        """Create a topic with device clocks, whose watermark is based on the corrected time."""
        self.create("meters", DEVICES, time="corrected_at", clock="device", **options)

    def send(self, device: str, offset: float | None, *, age: float = 0) -> None:
        """Append a row of a device whose clock is `offset` seconds slow; the event occurred `age` seconds before it was
        sent."""
        now = from_us(self.clock.now_us())
        sent = None if offset is None else now - timedelta(seconds=offset)
        occurred = (now if sent is None else sent) - timedelta(seconds=age)
        self.append("meters", [{"device": device, "occurred_at": occurred, "sent_at": sent}])

    def clock_columns(self, partition: int = 0) -> list[tuple[float, float | None, str]]:
        """Return, by record, the seconds from its corrected time to its append, the clock offset in seconds, and the flag."""
        table = self.table("meters", partition, columns=[*STORED, "_appended_at"])
        return [
            (
                (row["_appended_at"] - row["corrected_at"]).total_seconds(),
                None if row["clock_offset"] is None else row["clock_offset"] / SECOND,
                row["clock_flag"],
            )
            for row in ([] if table is None else table.to_pylist())
        ]

    def test_the_log_fills_in_the_corrected_time_the_offset_and_the_flag(self) -> None:
        self.create_meters()
        self.send("a", 3600, age=5)
        self.send("b", -60, age=7)
        assert self.clock_columns() == [(5, 3600, "ok"), (7, -60, "ok")]

    def test_the_offset_is_the_median_of_what_a_device_showed_lately(self) -> None:
        self.create_meters()
        for offset in (10, 12, 14, 900, 11):
            self.clock.advance("1 second")
            self.send("a", offset)
        assert [offset for _, offset, _ in self.clock_columns()] == [10, 10, 12, 12, 12]
        assert [flag for *_, flag in self.clock_columns()] == ["ok", "ok", "ok", "outlier", "ok"]

    def test_an_impossible_clock_gives_way_to_the_append_time(self) -> None:
        self.create_meters()
        self.send("a", None)
        self.send("a", 0, age=-1)
        self.send("a", 11 * 365 * 86_400)
        self.send("a", 30, age=2)
        assert self.clock_columns() == [(0, None, "impossible")] * 3 + [(2, 30, "ok")]

    def test_the_corrected_time_raises_the_watermark(self) -> None:
        self.create_meters()
        now = self.clock.now_us()
        self.send("a", -86_400, age=60)
        assert self.log.partitions("meters")[0].watermark == now - 60 * SECOND
        self.send("a", None)
        assert self.column("meters", "_watermark") == [None, from_us(now - 60 * SECOND)]
        assert self.log.watermark("meters", 0, 2) == now

    def test_what_is_known_of_devices_is_found_again_after_sealing_and_reopening(self) -> None:
        self.create_meters()
        for offset in (10, 12, 14, 16):
            self.clock.advance("1 second")
            self.send("a", offset)
            self.log.maintain(force=True)
            self.log = self.reopen(self.log)
        self.clock.advance("1 second")
        self.send("a", 7200)
        assert self.clock_columns()[-1] == (7186, 14, "outlier")

    def test_rows_of_a_device_share_a_partition(self) -> None:
        self.create_meters(partitions=4)
        for turn in range(12):
            self.send("abc"[turn % 3], 10)
        found = [set(self.column("meters", "device", p)) for p in range(4)]
        assert sum(len(devices) for devices in found) == 3

    def test_rows_sent_together_are_one_look_at_a_clock(self) -> None:
        self.create_meters()
        for _ in range(4):
            self.clock.advance("1 second")
            self.send("a", 10)
        now = self.clock.now_us()
        sent = from_us(now - 3600 * SECOND)
        row = {"device": "a", "occurred_at": sent, "sent_at": sent}
        self.append("meters", [row] * 20)
        assert set(self.clock_columns()[4:]) == {(3590, 10, "outlier")}
        assert to_us(self.column("meters", "corrected_at")[-1]) == now - 3590 * SECOND
