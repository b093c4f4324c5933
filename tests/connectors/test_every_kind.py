"""Every kind of sink, declared in SQL: it begins with what is there, follows, and is held against its view."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater.core.clock import SystemClock
from headwater.core.webhook_signatures import check
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = [{"country": c, "note": f"hello from {c}", "amount": n} for n, c in enumerate(("de", "fr", "it"), 1)]
SECOND = [
    {"country": "de", "note": "servus again", "amount": 10},
    {"country": "es", "note": "hola", "amount": 5},
]


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as workspace:
        workspace.sql(
            """
            CREATE TOPIC sales (country STRING, note STRING, amount BIGINT);
            CREATE MATERIALIZED VIEW revenue AS
              SELECT country, max(note) AS note, sum(amount) AS amount FROM sales GROUP BY country;
            CREATE MATERIALIZED VIEW large AS SELECT country, amount FROM sales WHERE amount > 1;
            """
        )
        workspace.topic("sales").append(FIRST)
        yield workspace


def rows(ws: hw.Workspace, view: str = "revenue") -> list[dict[str, Any]]:
    return sorted(ws.query(f"SELECT * FROM {view}").to_pylist(), key=lambda row: json.dumps(row))


def go_on(ws: hw.Workspace) -> None:
    """Follow a change; then the sink must be as the view is."""
    ws.run()
    ws.topic("sales").append(SECOND)
    ws.run()


def checked(ws: hw.Workspace) -> None:
    found = ws.verify()
    assert found.ok, found.differences
    assert [check.ok for check in found.sinks] == [True]
    assert ws.sql("SHOW SINKS").to_pylist()[0]["behind"] == 0


def test_an_index_is_searched(ws: hw.Workspace) -> None:
    ws.sql("CREATE SINK notes FROM revenue INTO SEARCH WITH (text = 'note')")
    go_on(ws)
    checked(ws)
    found = ws.sink("notes").search("again").to_pylist()
    assert [(row["country"], row["amount"]) for row in found] == [("de", 11)]
    assert ws.sink("notes").search("hello").num_rows == 2


def test_a_table_of_a_lake_is_kept(ws: hw.Workspace, tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    ws.sql(
        f"CREATE SINK lake FROM revenue INTO LAKE WITH (warehouse = '{tmp_path / 'lake'}', table = 'shop.revenue')"
    )
    go_on(ws)
    checked(ws)
    catalog = load_catalog("headwater", type="sql", uri=f"sqlite:///{tmp_path / 'lake'}/catalog.db")
    table = catalog.load_table("shop.revenue").scan().to_arrow()
    assert sorted(table.to_pylist(), key=lambda row: json.dumps(row)) == rows(ws)


def test_files_of_changes_are_added(ws: hw.Workspace, tmp_path: Path) -> None:
    ws.sql(f"CREATE SINK files FROM large INTO PARQUET WITH (path = '{tmp_path / 'out'}', mode = 'append')")
    go_on(ws)
    checked(ws)
    parts = [pq.read_table(path) for path in (tmp_path / "out").rglob("*.parquet")]
    together = pa.concat_tables(parts).select(["country", "amount"])
    assert sorted(together.to_pylist(), key=lambda row: json.dumps(row)) == rows(ws, "large")


def test_a_view_that_takes_rows_back_is_not_appended(ws: hw.Workspace, tmp_path: Path) -> None:
    with raises(hw.StatementError, sink="f", view="revenue", mode="append"):
        ws.sql(f"CREATE SINK f FROM revenue INTO PARQUET WITH (path = '{tmp_path / 'out'}', mode = 'append')")


def test_a_topic_is_filled_which_views_read_in_a_later_tick(ws: hw.Workspace) -> None:
    ws.sql("CREATE SINK again FROM revenue INTO TOPIC WITH (topic = 'totals', key = 'country')")
    ws.run()
    ws.sql("CREATE MATERIALIZED VIEW most AS SELECT max(amount) AS most FROM totals")
    go_on(ws)
    ws.run()
    checked(ws)
    assert rows(ws, "totals") == rows(ws)
    assert rows(ws, "most") == [{"most": 11}]


def test_a_function_is_called_with_every_change(ws: hw.Workspace) -> None:
    held: dict[str, Any] = {}
    keys: list[str] = []

    def follow(change: pa.Table, key: str) -> None:
        keys.append(key)
        for row in change.to_pylist():
            if row["_op"] == "delete":
                held.pop(row["country"], None)
            else:
                held[row["country"]] = row["amount"]

    ws.sink_function("follow", follow)
    ws.sql("CREATE SINK called FROM revenue INTO PYTHON WITH (function = 'follow', key = 'country')")
    go_on(ws)
    assert held == {row["country"]: row["amount"] for row in rows(ws)}
    assert len(set(keys)) == len(keys)


Request = tuple[dict[str, str], bytes]


@contextlib.contextmanager
def receiver(answer: Callable[[bytes], int]) -> Iterator[tuple[str, list[Request]]]:
    """A web server that answers as told; its address, and what it was sent."""
    got: list[Request] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(answer(body))
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/changes", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_hook_is_told_of_every_change(ws: hw.Workspace) -> None:
    with receiver(lambda _: 200) as (url, got):
        ws.sql(f"CREATE SINK hook FROM revenue INTO WEBHOOK WITH (url = '{url}', key = 'country')")
        go_on(ws)
    assert len({headers["idempotency-key"] for headers, _ in got}) == len(got)
    assert any(b"hola" in body for _, body in got)


def test_a_hook_that_refuses_one_row_has_the_others_signed_and_the_row_is_a_dead_letter(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEW_SECRET", "the new one")
    monkeypatch.setenv("OLD_SECRET", "the old one")
    with receiver(lambda body: 400 if b"from fr" in body else 204) as (url, got):
        ws.sql(f"""CREATE SINK hook FROM revenue INTO WEBHOOK WITH (
            url = '{url}', key = 'country', secret = env('NEW_SECRET'), previous_secret = env('OLD_SECRET'),
            on_error = 'divert', open_after = 2, open_for = '1 minute')""")
        go_on(ws)
        taken = {
            row["country"] for _, body in got for row in json.loads(body)["upserts"] if b"from fr" not in body
        }
        assert taken == {"de", "es", "it"}
        for headers, body in got:
            for secret in (b"the new one", b"the old one"):
                check("standard", headers, body, [secret], SystemClock().now_us(), 600_000_000)
    (letter,) = ws.dead().list().to_pylist()
    assert letter["error"] == "400"
    status = ws.sink("hook").status
    assert (status.withheld, status.circuit) == (1, "closed")
    assert "the new one" not in str(ws.sql("SHOW SINKS").to_pylist()) + str(
        ws.sql("EXPLAIN hook").to_pylist()
    )
