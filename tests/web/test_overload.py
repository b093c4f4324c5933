"""Under slow clients, idle streams and a flood of posts other clients are served, and the server's memory is bounded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwater as hw
from benchmarks.overload import Load, felt, served
from benchmarks.serving import TOPIC, VIEW, _table
from headwater.web.problems import Problem
from headwater.web.server_settings import ServerSettings
from tests.web.serving import client_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

USERS, REQUESTS = 1_000, 24
LATE_S = 20.0
"""No request waits as long as for a slow client to be cut off, on a busy machine either."""
MEMORY_MB = 1_500
"""256 MB of bodies, 256 MB of answers, and what is made of some of them at a time."""


@pytest.mark.slow
def test_other_clients_are_served_under_slow_clients_idle_streams_and_a_flood(
    tmp_path: Path, spark: SparkSession
) -> None:
    with hw.open(tmp_path / "ws", spark=spark) as ws:
        ws.sql(f"{TOPIC}; {VIEW}")
        ws.topic("clicks").append(_table(USERS))
        ws.run()
    load = Load(slow=16, streams=200, flood=24, flood_rows=10_000)
    with served(tmp_path / "ws") as (port, pid):
        found = felt(port, pid, load, requests=REQUESTS, users=USERS)
    assert (len(found.posts), len(found.reads)) == (REQUESTS, REQUESTS), "each of them with 200"
    assert max(found.posts[-1], found.reads[-1]) < LATE_S
    assert found.peak_mb < MEMORY_MB
    assert found.answers["streams 200"] == 200
    assert "streams ended" not in found.answers
    assert set(found.answers) >= {"slow head", "slow body", "slow answer"}


def test_large_posts_leave_room_for_small_ones(ws: hw.Workspace) -> None:
    with client_of(ws, ServerSettings(in_flight_bytes_max=8 << 20)) as client:
        ingest = client.app._here.ingest
        ingest.reserve(7 << 20, 7 << 20)
        with pytest.raises(Problem) as refused:
            ingest.check(1, 1 << 20)
        assert refused.value.status == 429
        ingest.check(1_000)
        ingest.release(7 << 20)
