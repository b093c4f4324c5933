"""The example of alerts by webhook: a real server is told of every match, and of those that are taken back."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from examples import standing_alerts

pytestmark = pytest.mark.slow


@pytest.fixture
def receiver() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    told: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            told.append(json.loads(body) | {"signature": self.headers["webhook-signature"]})
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/alerts", told
    server.shutdown()
    server.server_close()
    thread.join()


def test_each_article_that_somebody_waits_for_is_posted(
    tmp_path: Path, spark: Any, receiver: tuple[str, list[dict[str, Any]]]
) -> None:
    url, told = receiver
    with hw.open(tmp_path / "news", spark=spark, durability="os") as ws:
        standing_alerts.declare(ws, url, "a secret of some length")
        standing_alerts.subscribe(ws)
        standing_alerts.publish(ws)
        assert ws.verify().ok
    upserts = [row for request in told for row in request["upserts"]]
    assert sorted((row["owner"], row["document_id"], row["title"]) for row in upserts) == [
        ("ann", 1, "Spark streams"),
        ("bob", 1, "Spark streams"),
    ]
    (alert,) = [row for row in upserts if row["owner"] == "ann"]
    marked = [alert["title"][h["start"] : h["end"]] for h in alert["highlights"] if h["field"] == "title"]
    assert marked == ["Spark", "streams"]
    deletes = [row for request in told for row in request["deletes"]]
    assert sorted(row["query_id"] for row in deletes) == ["long reads", "spark"]
    assert all(request["signature"].startswith("v1,") for request in told)
