"""An engine that keeps going writes what silence means into the log; one that runs once does not."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import headwater as hw
from headwater.core.clock import ManualClock, to_us
from headwater.core.settings import LogSettings

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
PATIENCE_MS = 30_000.0
DECLARED = """
CREATE TOPIC clicks (user BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute')
  WITH (partitions = 2, partition_by = 'user', idle_after = '5 minutes');
CREATE TOPIC feed (n BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '0 seconds')
  WITH (watermark = 'producers', producer_timeout = '5 minutes');
CREATE MATERIALIZED VIEW per_user AS SELECT user, count(*) AS n FROM clicks GROUP BY user;
"""


def test_a_running_engine_speaks_for_what_is_idle_and_a_replay_finds_the_same(
    tmp_path: Path, spark: Any
) -> None:
    clock = ManualClock(to_us(NOON))
    settings = LogSettings(durability="os", maintenance_every_ms=0)
    with hw.open(tmp_path / "ws", spark=spark, clock=clock, settings=settings) as ws:
        ws.sql(DECLARED)
        clicks, feed = ws.topic("clicks"), ws.topic("feed")
        (busy,) = clicks.append([{"user": 1, "at": NOON}]).positions["clicks"]
        feed.punctuate(NOON, producer="a")
        feed.punctuate(NOON + timedelta(hours=1), producer="b")
        clock.advance("1 hour")
        ws.run()
        assert clicks.watermark(1 - busy) is None, "ws.run() writes none"

        with ws.start() as runner:
            clock.advance("4 minutes")
            feed.punctuate(NOON + timedelta(hours=2), producer="b")
            assert not ws.log.wait("clicks", ws.log.ends(["clicks"])["clicks"], 600)
            before = {topic: ws.log.ends([topic])[topic] for topic in ("clicks", "feed")}
            clock.advance("1 minute")
            for topic, ends in before.items():
                assert ws.log.wait(topic, ends, PATIENCE_MS)
            assert runner.running
        for p in (0, 1):
            assert clicks.watermark(p) == NOON + timedelta(hours=1, minutes=4)
        assert set(feed.producer_watermarks()) == {"b"}
        assert feed.watermark(0) == NOON + timedelta(hours=2)
        assert ws.query("SELECT * FROM per_user").to_pylist() == [{"user": 1, "n": 1}]
        assert ws.verify().ok
        found = [clicks.watermark(p, o) for p in (0, 1) for o in range(3)]

    with hw.open(tmp_path / "ws", spark=spark, clock=clock, settings=settings) as ws:
        ws.maintain()
        assert [ws.topic("clicks").watermark(p, o) for p in (0, 1) for o in range(3)] == found
        assert set(ws.topic("feed").producer_watermarks()) == {"b"}


def test_the_last_window_closes_without_another_event(tmp_path: Path, spark: Any) -> None:
    clock = ManualClock(to_us(NOON))
    settings = LogSettings(durability="os", maintenance_every_ms=0)
    with hw.open(tmp_path / "ws", spark=spark, clock=clock, settings=settings) as ws:
        ws.sql("""
            CREATE TOPIC readings (
              device_id STRING, occurred_at TIMESTAMP, sent_at TIMESTAMP,
              WATERMARK FOR corrected_at AS corrected_at - INTERVAL '1 minute'
            ) WITH (clock = 'device_id', partitions = 2, idle_after = '2 minutes');
            CREATE MATERIALIZED VIEW per_minute WITH (late = 'drop') AS
              SELECT window(corrected_at, '1 minute').start AS minute, count(*) AS n FROM readings
              GROUP BY window(corrected_at, '1 minute') EMIT ON WINDOW CLOSE;
        """)
        ahead = NOON + timedelta(hours=3)  # by a clock that is three hours ahead
        ws.topic("readings").append([{"device_id": "m1", "occurred_at": ahead, "sent_at": ahead}] * 2)
        ws.run()
        assert ws.query("SELECT * FROM per_minute").num_rows == 0
        with ws.start():
            ends = ws.log.ends(["readings"])["readings"]
            clock.advance("5 minutes")
            assert ws.log.wait("readings", ends, PATIENCE_MS)
        ws.run()
        assert ws.query("SELECT * FROM per_minute").to_pylist() == [{"minute": NOON, "n": 2}]
        assert ws.verify().ok
