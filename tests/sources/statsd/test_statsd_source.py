"""StatsD over UDP: what is sent is appended once, what is lost is counted, and nothing is there twice."""

from __future__ import annotations

import os
import random
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import headwater as hw
from headwater.core.clock import SystemClock
from headwater.log.protocol import Log
from headwater.sources.log_lookup import Lookups
from headwater.sources.registry import DeclaredSource
from headwater.sources.source_runner import producer_of
from headwater.sources.statsd import statsd_lines
from headwater.sources.statsd import statsd_source as statsd
from headwater.sources.statsd.statsd_source import StatsdSource
from headwater.sources.statsd.udp_listener import UdpListener, bound
from headwater.testing import inspect_workspace
from headwater.testing.source_contract import SOURCE, Row, SourceContract
from tests.raising import raises

LOOPBACK = "127.0.0.1"


class TestStatsd(SourceContract):
    """Over a socket that outlives the processes: what one of them had taken dies with it."""

    keeps_all = False

    def setup_method(self) -> None:
        super().setup_method()
        self.receiving = bound(LOOPBACK, 0, 1 << 20)
        self.sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sent: list[Row] = []

    def teardown_method(self) -> None:
        super().teardown_method()
        self.receiving.close()
        self.sending.close()

    def make_source(self, log: Log) -> DeclaredSource:
        return StatsdSource(
            SOURCE,
            {"port": 0, "topic": "stats", "every": "0 s"},
            Lookups(log).definition,
            partial(log.producer, producer_of(SOURCE)),
            listening=self.receiving,
        )

    def grow(self, chance: random.Random) -> None:
        lines = []
        for _ in range(chance.randrange(1, 4)):
            number = len(self.sent)
            lines.append(f"m{number}:{number}|c|@0.5|#n:{number}|T{number}")
            self.sent.append(
                {
                    "name": f"m{number}",
                    "kind": "counter",
                    "value": float(number),
                    "rate": 0.5,
                    "tags": [("n", str(number))],
                    "at": datetime.fromtimestamp(number, ZoneInfo("UTC")),
                    "member": None,
                }
            )
        self.sending.sendto("\n".join(lines).encode(), self.receiving.getsockname())

    def expected(self) -> Mapping[str, Sequence[Sequence[Row]]]:
        return {"stats": [self.sent]}


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os") as made:
        yield made


@pytest.fixture
def sender() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        yield made


def start(ws: hw.Workspace) -> tuple[str, int]:
    """Keep sources going as an engine does; where it listens."""
    inspect_workspace(ws).reconcile_connectors()
    arrive(ws)
    found = re.search(r"listening at (.+):(\d+)", ws.source("app").status.state)
    assert found is not None
    return found[1], int(found[2])


def arrive(ws: hw.Workspace) -> None:
    """Wait until the log has all that was sent by now."""
    inspect_workspace(ws).sources.wait("app", SystemClock().now_us(), 30)


def names(ws: hw.Workspace) -> list[str]:
    return [name for batch in ws.topic("stats").read("earliest") for name in batch.column("name").to_pylist()]


def test_declared_in_sql_it_listens_beside_an_engine_and_its_losses_are_seen(
    ws: hw.Workspace, sender: socket.socket
) -> None:
    ws.sql("CREATE SOURCE app FROM STATSD WITH (port = 0, topic = 'stats', every = '10 ms')")
    assert ws.sql("SHOW SOURCES").to_pylist()[0]["state"] == "not running"
    where = start(ws)
    assert where[0] == LOOPBACK
    sender.sendto(b"hits:3|c|@0.1|#route:/a\nwhat is this\nqueue:-2|g", where)
    sender.sendto(b"users:ann|s", where)
    arrive(ws)
    assert names(ws) == ["hits", "queue", "users"]
    rows = ws.query(
        "SELECT name, kind, value / rate AS n, member FROM stats WHERE kind <> 'gauge_change'"
    ).to_pylist()
    assert rows[1] == {"name": "users", "kind": "set", "n": None, "member": "ann"}
    figures = ws.metrics()
    assert 'headwater_source_packets_total{source="app"} 2.0' in figures
    assert 'headwater_source_lines_total{outcome="taken",source="app"} 3.0' in figures
    assert 'headwater_source_lines_total{outcome="malformed",source="app"} 1.0' in figures
    assert 'headwater_source_dropped_packets_total{by="source",source="app"} 0.0' in figures
    explained = {row["property"]: row["value"] for row in ws.sql("EXPLAIN app").to_pylist()}
    assert explained["guarantee"].startswith("at most once")
    assert explained["last refused"] == "what is this"
    assert "3 lines, 1 malformed" in explained["counts"]


def test_what_was_received_is_appended_before_it_stops_and_counts_go_on_after(
    ws: hw.Workspace, sender: socket.socket
) -> None:
    ws.sql("CREATE SOURCE app FROM STATSD WITH (port = 0, topic = 'stats', every = '1 hour')")
    where = start(ws)
    for number in range(100):
        sender.sendto(b"n%d:1|c\n?" % number, where)
    inspect_workspace(ws).supervisor.stop_sources()
    assert names(ws) == [f"n{number}" for number in range(100)]
    where = start(ws)
    sender.sendto(b"?", where)
    ws.sql("ALTER SOURCE app SET (every = '1 ms')")  # begins anew where it is
    inspect_workspace(ws).reconcile_connectors()
    inspect_workspace(ws).sources.start()
    arrive(ws)
    counts = inspect_workspace(ws).sources.facts()["app"]["counts"]
    assert counts["lines"] == 100
    assert counts["malformed"] == 101, "also of a batch that has nothing else"


def test_a_batch_is_one_append_of_so_many_rows_or_of_so_long(
    ws: hw.Workspace, sender: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statsd_lines, "PIECE_BYTES", 1)  # also if it is parsed in many
    ws.sql("CREATE SOURCE app FROM STATSD WITH (port = 0, topic = 'stats', every = '1 hour', rows = 50)")
    where = start(ws)
    for _ in range(50):
        sender.sendto(b"n:1|c", where)
    before = inspect_workspace(ws).sources.sequence("app")
    inspect_workspace(ws).sources.wait("app", before + 1, 30)
    sequences = [
        s for b in ws.topic("stats").read("earliest", columns=["_sequence"]) for s in b.column(0).to_pylist()
    ]
    assert (len(sequences), len(set(sequences))) == (50, 1)


def test_a_port_that_is_taken_is_waited_for(
    ws: hw.Workspace, sender: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statsd, "RETRY_S", 0.01)
    monkeypatch.setattr(statsd, "QUIET_S", 0.01)
    taken = bound(LOOPBACK, 0, 1 << 16)
    port = taken.getsockname()[1]
    ws.sql(f"CREATE SOURCE app FROM STATSD WITH (port = {port}, topic = 'stats', every = '1 ms')")
    told: list[str] = []
    source = StatsdSource(
        "app",
        {"port": port, "every": "0 s"},
        lambda _: None,
        lambda: None,
        sleep=lambda _: told.append(source.status.state) or taken.close(),  # type: ignore[func-returns-value]
    )
    reading = source.read(None, -1)
    for _ in range(20):
        next(reading)
    assert told[0].startswith(f"waiting to connect: cannot bind UDP port {port} of 127.0.0.1")
    assert source.status.state == f"listening at 127.0.0.1:{port}"
    source.close()
    assert start(ws) == (LOOPBACK, port)


def test_what_the_kernel_drops_is_counted(sender: socket.socket) -> None:
    receiving = bound(LOOPBACK, 0, 1)  # the smallest queue that there is
    for _ in range(2_000):
        sender.sendto(b"n:1|c" * 50, receiving.getsockname())
    listener = UdpListener(receiving, SystemClock(), 1 << 20)
    taken = sum(blob.count(b"\n") + 1 for _, blob in listener.take())
    if os.path.exists("/proc/net/udp"):
        assert listener.dropped() == 2_000 - taken > 0
    else:
        assert listener.dropped() is None
    listener.close()


def test_what_there_is_no_room_for_here_is_counted(sender: socket.socket) -> None:
    receiving = bound(LOOPBACK, 0, 1 << 20)
    listener = UdpListener(receiving, SystemClock(), 100)
    for _ in range(10):
        sender.sendto(b"x" * 60, receiving.getsockname())
        listener.lines()
    assert (listener.packets, listener.overflowed) == (10, 9)
    assert listener.take()[0][1] == b"x" * 60
    listener.close()


@pytest.mark.parametrize(
    ("options", "error", "facts"),
    [
        ("topic = 'stats'", hw.StatementError, {"line": 1, "column": 15}),
        ("port = 'x'", hw.UsageError, {"argument": "port", "value": "x"}),
        ("port = 65536", hw.UsageError, {"option": "port", "value": 65536}),
        ("port = 8125, every = 5", hw.UsageError, {"argument": "every", "value": 5}),
        ("port = 8125, rows = 0", hw.UsageError, {"argument": "rows", "value": 0}),
        ("port = 8125, prefix = 'a'", hw.StatementError, {"line": 1, "column": 50}),
    ],
)
def test_a_wrong_declaration_is_refused_and_leaves_nothing(
    ws: hw.Workspace, options: str, error: type[hw.HeadwaterError], facts: dict[str, object]
) -> None:
    with raises(error, **facts):
        ws.sql(f"CREATE SOURCE app FROM STATSD WITH ({options})")
    assert ws.sql("SHOW SOURCES").num_rows == 0
    assert ws.log.topics() == {}


def test_with_no_engine_there_is_nothing_to_catch_up_with(ws: hw.Workspace) -> None:
    ws.sql("CREATE SOURCE app FROM STATSD WITH (port = 0)")
    inspect_workspace(ws).sources.catch_up(5)
    assert "app" not in inspect_workspace(ws).sources.facts()


def test_it_binds_where_it_is_told(ws: hw.Workspace, sender: socket.socket) -> None:
    ws.sql(
        "CREATE SOURCE app FROM STATSD WITH (port = 0, host = '127.0.0.2', topic = 'stats', every = '1 ms')"
    )
    where: Any = start(ws)
    assert where[0] == "127.0.0.2"
    sender.sendto(b"a:1|c", where)
    arrive(ws)
    assert names(ws) == ["a"]
