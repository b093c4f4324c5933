"""An older copy of a workspace is put back and goes on in another way: whoever has seen more is brought level again, or stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.errors import OtherHistoryError, SinkError, TickNotKeptError
from headwater.web.server import serve_in_thread
from headwater.web.server_settings import ServerSettings
from tests.connectors.test_every_kind import receiver
from tests.raising import raises
from tests.web.test_views import following

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEWS = """
CREATE TOPIC sales (country STRING, amount BIGINT);
CREATE MATERIALIZED VIEW revenue AS SELECT country, sum(amount) AS amount FROM sales GROUP BY country;
CREATE MATERIALIZED VIEW large AS SELECT country, amount FROM sales WHERE amount > 0;
"""


class Table:
    """What somebody holds who was given a view's changes, and takes the key of a piece for what it is."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.keys: set[str] = set()

    def take(self, key: str, gone: list[dict[str, Any]], come: list[dict[str, Any]], *, begins: bool) -> None:
        if key in self.keys:
            return
        self.keys.add(key)
        if begins:
            self.rows.clear()
        for row in gone:
            self.rows.pop(row["country"], None)
        self.rows |= {row["country"]: row["amount"] for row in come}

    def call(self, change: pa.Table, key: str) -> None:
        rows = change.to_pylist()
        by = {op: [row for row in rows if row["_op"] == op] for op in ("delete", "upsert")}
        self.take(key, by["delete"], by["upsert"], begins=change.schema.metadata[b"snapshot"] == b"true")

    def post(self, body: bytes, key: str) -> None:
        said = json.loads(body)
        self.take(key, said["deletes"], said["upserts"], begins=said["begins"])


def sell(ws: hw.Workspace, country: str, amount: int) -> hw.Receipt:
    """An append, and a tick."""
    receipt = ws.topic("sales").append([{"country": country, "amount": amount}])
    ws.run()
    return receipt


def numbers(ws: hw.Workspace) -> list[int]:
    return sorted(ws.query("SELECT n FROM numbers").column("n").to_pylist())


@pytest.mark.parametrize(
    "more",
    [
        pytest.param(3, id="to the tick that was seen"),
        pytest.param(1, id="to less", marks=pytest.mark.long),
        pytest.param(6, id="past it", marks=pytest.mark.long),
    ],
)
def test_what_has_seen_more_is_equal_again_or_stopped(more: int, tmp_path: Path, spark: SparkSession) -> None:
    folder, copy, lines = tmp_path / "ws", tmp_path / "copy", tmp_path / "lines"
    lines.mkdir()
    hooked, called = Table(), Table()

    def opened() -> hw.Workspace:
        ws = hw.open(folder, durability="os", spark=spark)
        ws.sink_function("take", called.call)
        return ws

    def write(name: str, *found: int) -> None:
        (lines / name).write_text("".join(f'{{"n": {n}}}\n' for n in found))

    with receiver(lambda _: 200) as (url, got):
        with opened() as ws:
            ws.sql(VIEWS)
            ws.sql(f"""
            CREATE SOURCE numbers FROM FILES WITH (path = '{lines}/*.json', columns = 'n BIGINT');
            CREATE SINK files FROM revenue INTO PARQUET WITH (path = '{tmp_path / "out"}', key = 'country');
            CREATE SINK hook FROM revenue INTO WEBHOOK WITH (url = '{url}', key = 'country');
            CREATE SINK called FROM revenue INTO PYTHON WITH (function = 'take', key = 'country');
            CREATE SINK grown FROM large INTO PARQUET WITH (path = '{tmp_path / "grown"}', mode = 'append');
            """)
            write("a.json", 1, 2)
            sell(ws, "ch", 1)
            mailer = ws.topic("sales").cursor("mailer")
            assert sum(batch.num_rows for batch in mailer.read()) == 1
            mailer.commit()
        shutil.copytree(folder, copy)

        with opened() as ws:
            write("b.json", 3)
            for amount in (2, 3, 4):
                receipt = sell(ws, "de", amount)
            assert numbers(ws) == [1, 2, 3]
            followed = ws.view("revenue").changes(follow=True, timeout=0)
            list(followed)
            subscribed = ws.subscribe("SELECT country FROM sales", timeout=0)
            list(subscribed)
            assert followed.token == subscribed.token
            token, seen = str(followed.token), followed.tick
            assert seen is not None
            mailer = ws.topic("sales").cursor("mailer")
            assert sum(batch.num_rows for batch in mailer.read()) == 3
            mailer.commit()
            assert ws.query("SELECT * FROM revenue", as_of=token, after=receipt).num_rows == 2
            assert ws.view("revenue").changes(token).num_rows == 0
            with (
                serve_in_thread(ws, ServerSettings(port=0)) as address,
                httpx.Client(base_url=address) as client,
            ):
                page = client.get("/topics/sales").json()["next"]
                assert client.get("/topics/sales", params={"from": page}).json()["rows"] == []
                with following(client, "/views/revenue/changes") as events:
                    assert events.next()[1] == token

        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        with opened() as ws:
            with raises(SinkError, view="large", reason="extra-rows"):
                sell(ws, "fr", 10)
            ws.sql("DROP SINK grown")
            for amount in range(1, more):
                sell(ws, "fr" if amount % 2 else "de", amount)
            ws.run()
            tick = ws.view("revenue").changes().column("_tick").to_pylist()[-1]
            assert (tick > seen) - (tick < seen) == {1: -1, 3: 0, 6: 1}[more]
            found = ws.verify()
            assert found.ok, found.differences
            rows = {row["country"]: row["amount"] for row in ws.query("SELECT * FROM revenue").to_pylist()}
            assert hooked_by(got, hooked) == rows
            assert called.rows == rows
            assert numbers(ws) == [1, 2, 3]
            mailer = ws.topic("sales").cursor("mailer")
            assert sum(batch.num_rows for batch in mailer.read()) == more
            refused(ws, token, receipt)
            with (
                serve_in_thread(ws, ServerSettings(port=0)) as address,
                httpx.Client(base_url=address) as client,
            ):
                assert client.get("/topics/sales", params={"from": page}).status_code == 410
                answer = client.get("/views/revenue", params={"as_of": token})
                assert answer.status_code in (404, 410), answer.text
                answer = client.get("/views/revenue", params={"after": str(receipt)})
                assert (answer.status_code, answer.json()["title"]) == (410, "other history")
                headers = {"Last-Event-ID": token}
                with following(client, "/views/revenue/changes", **headers) as events:
                    assert events.next()[0] == "reset"
                    kind, _, data = events.next()
                    assert kind == "snapshot"
                    assert {row["country"]: row["amount"] for row in data["rows"]} == rows


def hooked_by(got: list[tuple[dict[str, str], bytes]], table: Table) -> dict[str, int]:
    """What the receiver makes of all that it was sent."""
    for headers, body in got:
        table.post(body, headers["idempotency-key"])
    return table.rows


def refused(ws: hw.Workspace, token: str, receipt: hw.Receipt) -> None:
    """Tokens and receipts of the history that is gone are errors, and those who can begin anew do."""
    view = ws.view("revenue")
    with pytest.raises(TickNotKeptError):
        view.changes(token)
    with pytest.raises(TickNotKeptError):
        list(view.changes(token, follow=True, timeout=0))
    with pytest.raises(TickNotKeptError):
        view.read(as_of=token)
    for given in (receipt, hw.Receipt.parse(str(receipt))):
        with raises(OtherHistoryError, token=str(receipt).rpartition("~")[2]) as told:
            ws.query("SELECT * FROM revenue", after=given)
        assert told.value.hint
    newest = view.changes(follow=True, timeout=0)
    list(newest)
    assert newest.tick is not None
    if newest.tick < int(token.partition("-")[0]):
        return
    with pytest.raises(OtherHistoryError):
        view.changes(token)
    again = view.changes(token, follow=True, timeout=0, resync=True)
    rows = list(again)
    assert [part.num_rows for part in rows] == [view.read().num_rows]
    (first,) = list(ws.subscribe("SELECT country FROM sales", since=token, timeout=0))
    assert first.snapshot
