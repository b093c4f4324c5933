"""Views of private columns while the service that wraps the master key fails: others go on, and nothing that is forgotten stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from tests.engine.test_deletions_in_views import holding
from tests.raising import raises

pytestmark = pytest.mark.slow


class Service:
    """A service that can be taken away."""

    def __init__(self) -> None:
        self.down = False

    def wrap(self, key: bytes) -> bytes:
        return self.unwrap(key)

    def unwrap(self, wrapped: bytes) -> bytes:
        if self.down:
            raise ConnectionError("no route to host")
        return bytes(byte ^ 0x5A for byte in wrapped)


def test_a_tick_goes_on_without_the_views_whose_keys_cannot_be_had(tmp_path: Path, spark: Any) -> None:
    service = Service()

    def opened() -> hw.Workspace:
        return hw.open(tmp_path / "ws", durability="os", spark=spark, kms=service)

    def visit(ws: hw.Workspace, *users: int) -> None:
        rows = [{"user": user, "ip": f"ip-{user}-secret", "url": "/"} for user in users]
        ws.topic("clicks").append(rows)

    with opened() as ws:
        ws.sql("""
            CREATE TOPIC clicks (user BIGINT NOT NULL, ip STRING PRIVATE BY (user), url STRING);
            CREATE MATERIALIZED VIEW by_ip AS SELECT ip, count(*) AS c FROM clicks GROUP BY ip;
            CREATE MATERIALIZED VIEW above AS SELECT max(ip) AS m FROM by_ip;
            CREATE MATERIALIZED VIEW by_url AS SELECT url, count(*) AS c FROM clicks GROUP BY url;
        """)
        visit(ws, 1, 2, 2)
        ws.run()
        visit(ws, 3)
    service.down = True
    with opened() as ws:
        # forgetting needs no service; the rows of others do
        ws.forget(2)
        with pytest.raises(hw.KeyServiceError) as told:
            visit(ws, 4)
        assert told.value.retryable
        assert isinstance(told.value.__cause__, ConnectionError)
        report = ws.run()
        assert set(report.stopped) == {"by_ip", "above"}
        assert "ConnectionError: no route to host" in report.stopped["by_ip"]
        assert ws.query("SELECT c FROM by_url").to_pylist() == [{"c": 4}], "what is private to nobody goes on"
        with raises(hw.ViewUnavailableError, view="by_ip", status="stopped"):
            ws.query("SELECT * FROM by_ip")
        assert holding(tmp_path / "ws", "ip-2-secret") == [], "what was forgotten goes all the same"
        with pytest.raises(hw.KeyServiceError):
            list(ws.topic("clicks").read(columns=["ip"]))
        assert sum(batch.num_rows for batch in ws.topic("clicks").read(columns=["url"])) == 4

        service.down = False
        visit(ws, 1)
        assert not ws.run().stopped
        assert {(r["ip"], r["c"]) for r in ws.query("SELECT * FROM by_ip").to_pylist()} == {
            (None, 2),
            ("ip-1-secret", 2),
            ("ip-3-secret", 1),
        }
        assert ws.query("SELECT m FROM above").to_pylist() == [{"m": "ip-3-secret"}]
        assert ws.deletions()[-1].done
        assert ws.verify().ok
