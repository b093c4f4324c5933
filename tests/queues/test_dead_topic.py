"""The dead messages of a queue are the topic `<queue>.dead`: read like any other, written by the queue alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import headwater as hw
from headwater.cli.program import cli
from tests.raising import raises
from tests.web.serving import client_of


def with_dead(ws: hw.Workspace) -> hw.Workspace:
    ws.topic("outbox", "id BIGINT, text STRING").append([{"id": n, "text": f"t{n}"} for n in range(3)])
    queue = ws.queue("emails", topic="outbox", deliveries=1)
    queue.nack(queue.receive(max=2), error="no such address")
    return ws


def test_they_are_read_by_queries_topics_and_statements(ws: hw.Workspace) -> None:
    with_dead(ws)
    found = ws.query("SELECT d.offset, error FROM Emails.dead d ORDER BY 1").to_pylist()
    assert found == [{"offset": n, "error": "no such address"} for n in (0, 1)]
    rows = [row for batch in ws.topic("emails.dead").read(columns=["row"]) for row in batch.to_pylist()]
    assert [json.loads(row["row"]) for row in rows] == [{"id": 0, "text": "t0"}, {"id": 1, "text": "t1"}]
    described = ws.sql("DESCRIBE emails.dead")
    assert described is not None
    assert "error" in described["column"].to_pylist()
    assert ws.verify().ok


def test_they_are_read_from_the_shell_and_over_http(tmp_path: Path) -> None:
    with with_dead(hw.open(tmp_path / "shop")) as ws, client_of(ws) as client:
        answer = client.request("GET", "/topics/emails.dead")
        assert answer.status_code == 200
        assert [row["error"] for row in answer.json()["rows"]] == ["no such address"] * 2
        assert client.request("POST", "/topics/emails.dead", json=[{"partition": 0}]).status_code == 400
    told = CliRunner().invoke(cli, ["-w", str(tmp_path / "shop"), "tail", "emails.dead", "--json"])
    assert [json.loads(line)["offset"] for line in told.output.splitlines()] == [0, 1]


def test_nobody_but_the_queue_makes_writes_or_drops_them(ws: hw.Workspace) -> None:
    with_dead(ws)
    dead = ws.topic("emails.dead")
    for write in (
        lambda: dead.append([{"partition": 0, "offset": 9, "deliveries": 1, "error": "", "row": ""}]),
        lambda: dead.delete([{"partition": 0, "offset": 0}]),
        lambda: ws.append({"emails.dead": []}),
    ):
        with pytest.raises(hw.UsageError, match="nobody else writes it"):
            write()
    with pytest.raises(hw.SchemaError, match="dead messages"):
        ws.topic("other.dead", "id BIGINT")
    with pytest.raises(hw.StatementError, match="belongs to queue emails"):
        ws.sql("DROP TOPIC emails.dead")
    with raises(hw.UsageError, topic="emails.dead"):
        ws.excise("emails.dead", "offset = 0")
    ws.drop_queue("emails")
    assert "emails.dead" not in ws.log.topics()
