"""What the console is told: without a browser, and for topics without Spark."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pyarrow as pa
import pytest

import headwater as hw
from headwater.testing import inspect_workspace
from headwater.web import tokens
from headwater.web.console import console_data as data
from headwater.web.console import console_live
from headwater.web.console.console_files import files, open_paths
from headwater.web.console.console_live import Sampler
from headwater.web.console.console_ticks import TickHistory
from headwater.web.server import serve_in_thread
from headwater.web.server_context import ServedWorkspace
from headwater.web.server_settings import ServerSettings
from tests.web.serving import AppClient, client_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

API = "/console/api"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
CLICKS = "CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute')"


def at(minute: float) -> datetime:
    return NOON + timedelta(minutes=minute)


def found(client: AppClient, path: str, **query: Any) -> Any:
    answer = client.get(f"{API}/{path}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


# --- files ---------------------------------------------------------------------------------------------------------


def test_the_page_is_small_needs_no_internet_and_has_nothing_inline() -> None:
    assert sum(map(len, files().values())) < 200_000
    for name, body in files().items():
        text = body.decode("utf-8").replace("http://www.w3.org/", "")
        assert "http://" not in text, name
        assert "https://" not in text, name
        assert "innerHTML" not in text, name
    page = files()["index.html"].decode("utf-8")
    assert "<style" not in page
    assert page.count("<script") == page.count("<script src=") + page.count('<script type="module" src=')


def test_files_are_given_with_a_policy_and_once(ws: hw.Workspace) -> None:
    with client_of(ws) as client:
        for path in open_paths():
            answer = client.get(path)
            assert answer.status_code == 200, path
            assert answer.headers["content-security-policy"].startswith("default-src 'self';")
            assert "unsafe" not in answer.headers["content-security-policy"]
        again = client.get("/", headers={"if-none-match": client.get("/").headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get("/console/nope.js").status_code == 404
        assert client.get("/console/..%2fapp.py").status_code == 404


def test_with_tokens_the_page_is_given_to_all_and_what_it_asks_for_is_not(ws: hw.Workspace) -> None:
    reader = tokens.create(ws.log, "reader", ["read"])
    with client_of(ws) as client:
        assert client.get("/").status_code == client.get("/console/console.js").status_code == 200
        assert client.get(f"{API}/graph").status_code == client.get(f"{API}/live").status_code == 401
        mine = {"authorization": f"Bearer {reader}"}
        assert client.get(f"{API}/graph", headers=mine).status_code == 200
        assert client.post(f"{API}/dead", headers=mine, json={}).status_code == 403


# --- topics --------------------------------------------------------------------------------------------------------


def test_an_empty_workspace_has_an_empty_picture(ws: hw.Workspace) -> None:
    with client_of(ws) as client:
        assert found(client, "graph")["nodes"] == []
        assert found(client, "ticks") == {"kept": 0, "ticks": []}
        assert found(client, "dead") == {"total": 0, "silent": {}, "letters": []}
        sample = Sampler(client.app._here, TickHistory(inspect_workspace(ws).store)).take()
        assert (sample["figures"], sample["tick"], sample["engine"]) == ({}, None, None)


def test_a_topic_tells_all_of_itself(ws: hw.Workspace) -> None:
    ws.sql(CLICKS)
    ws.topic("clicks").append(
        [{"user": 7, "url": "<b>/a</b>", "at": at(0)}, {"user": 2**60, "url": None, "at": at(3)}]
    )
    ws.topic("clicks").cursor("mailer")
    with client_of(ws) as client:
        told = found(client, "topics/clicks")
        assert [c["name"] for c in told["columns"]] == ["user", "url", "at"]
        assert told["lateness_s"] == 60
        assert told["sql"].startswith("CREATE TOPIC clicks")
        assert [row[3:5] for row in told["sample"]["rows"]] == [[2**60, None], [7, "<b>/a</b>"]]
        assert [p["end"] for p in told["partitions"]] == [2]
        assert [c["lag_rows"] for c in told["cursors"]] == [2]
        assert client.get(f"{API}/topics/nope").status_code == 404
        assert client.get(f"{API}/topics/clicks?misspelt=1").status_code == 400


def test_late_rows_are_told_from_the_others_by_the_watermark_that_they_met(ws: hw.Workspace) -> None:
    ws.sql(CLICKS + "; CREATE TOPIC plain (a INT)")
    minutes = [0.2, 5, 3.5, 0.5, 4.5]
    ws.topic("clicks").append([{"user": n, "url": "/", "at": at(m)} for n, m in enumerate(minutes)])
    with client_of(ws) as client:
        told = found(client, "topics/clicks/time")
        assert told["is_late"] == [0, 0, 1, 1, 0]
        assert told["late"] == 2
        assert told["event"][1] == at(5).timestamp() * 1_000
        assert told["watermark"] == [None, *(at(m).timestamp() * 1_000 for m in (-0.8, 4, 4, 4))]
        assert found(client, "topics/clicks/time", rows=2)["offset"] == [3, 4]
        refused = client.get(f"{API}/topics/plain/time")
        assert (refused.status_code, "WATERMARK" in refused.json()["hint"]) == (400, True)


def test_a_table_with_tombstones_and_partitions_has_a_tail(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC people (id BIGINT, name STRING, PRIMARY KEY (id)) WITH (partitions = 4)")
    with client_of(ws) as client:
        tail = console_live.Tail(client.app._here, "people")
        assert tail.next() is None
        ws.topic("people").append([{"id": n, "name": "x" * 5_000} for n in range(9)])
        ws.topic("people").delete([{"id": 3}])
        told = orjson.loads(tail.next() or "")
        names = [column["name"] for column in told["columns"]]
        rows = [dict(zip(names, row, strict=True)) for row in told["rows"]]
        assert (told["received"], len(rows)) == (10, 10)
        assert [(row["id"], row["name"]) for row in rows if row["_op"] == "delete"] == [(3, None)]
        assert {len(row["name"]) for row in rows if row["name"]} == {2_001}, "long values are cut off"
        assert tail.next() is None


def test_values_of_every_shape_are_sorted_searched_and_shown() -> None:
    rows = pa.table(
        {
            "w": pa.array([{"start": 2}, {"start": 1}, None], pa.struct([("start", pa.int64())])),
            "tags": pa.array([["b"], [], None], pa.list_(pa.string())),
            "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
            "raw": pa.array([b"\x00", b"", None]),
            "flag": pa.array([True, False, None]),
        }
    )
    ordered = data._sorted(rows, None)
    assert ordered["w"].to_pylist() == [{"start": 1}, {"start": 2}, None]
    assert data._sorted(rows, "-w")["w"].to_pylist() == [{"start": 2}, {"start": 1}, None]
    assert rows.filter(data._matching(rows, "K")).num_rows == 1
    assert orjson.loads(orjson.dumps(data.rows_of(ordered)))[1] == [
        {"start": 2},
        ["b"],
        {"k": 1},
        "AA==",
        True,
    ]


def test_rates_are_those_of_the_last_seconds(ws: hw.Workspace, clock: Any) -> None:
    ws.sql(CLICKS)
    with client_of(ws) as client:
        sampler = Sampler(client.app._here, TickHistory(inspect_workspace(ws).store))
        assert sampler.take()["figures"]["topic:clicks"]["rate"] is None
        for seconds, rows, rate in ((1, 10, 10.0), (1, 30, 20.0), (10, 0, 0.0)):
            ws.topic("clicks").append([{"user": 1, "url": "/", "at": at(0)}] * rows)
            clock.advance(f"{seconds} seconds")
            sample = sampler.take()
            if rate:
                assert sample["figures"]["topic:clicks"]["rate"] == sample["rows_per_s"] == rate
        clock.advance("10 seconds")
        assert sampler.take()["figures"]["topic:clicks"]["rate"] == 0.0


def test_the_picture_changes_its_shape_with_what_is_declared_alone(ws: hw.Workspace) -> None:
    ws.sql(CLICKS)
    with client_of(ws) as client:
        before = found(client, "graph")["shape"]
        ws.topic("clicks").append([{"user": 1, "url": "/", "at": at(0)}])
        assert found(client, "graph")["shape"] == before
        ws.sql("CREATE TOPIC more (a INT)")
        assert found(client, "graph")["shape"] != before


def events(answer: httpx.Response, count: int) -> list[tuple[str, Any]]:
    told = []
    kind = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            kind = line[7:]
        if line.startswith("data: "):
            told.append((kind, orjson.loads(line[6:])))
            if len(told) == count:
                break
    return told


def test_all_who_look_share_one_sample_and_a_tail_shows_the_newest(tmp_path: Any) -> None:
    with hw.open(tmp_path / "ws") as ws, serve_in_thread(ws, ServerSettings(port=0)) as address:
        ws.sql(CLICKS)
        many = [{"user": n, "url": "/", "at": at(n / 1_000)} for n in range(1_000)]
        ws.topic("clicks").append(many)
        with httpx.Client(base_url=address, timeout=30) as client:
            with client.stream("GET", f"{API}/live") as one, client.stream("GET", f"{API}/live") as two:
                (mine, *_), (yours, *_) = events(one, 1), events(two, 1)
                assert mine[0] == yours[0] == "figures"
                assert mine[1]["at"] == yours[1]["at"], "one sample for both"
                assert mine[1]["figures"]["topic:clicks"]["rows"] == 1_000
            with client.stream("GET", f"{API}/topics/clicks/tail") as tail:
                ((kind, first),) = events(tail, 1)
        assert kind == "records"
        assert len(first["rows"]) == 60
        assert first["rows"][0][1] == 999
        assert [c["name"] for c in first["columns"]][:3] == ["_partition", "_offset", "_appended_at"]


def test_nothing_is_sampled_while_nobody_looks(ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_live, "EVERY_S", 0.01)

    async def look(pulse: console_live.Pulse) -> int:
        looking = pulse.follow()
        assert b"retry" in await anext(looking)
        assert b"event: figures" in await anext(looking)
        await looking.aclose()
        assert pulse._task is not None
        await pulse._task  # it ends, since nobody looks
        return pulse.samples

    async def scenario() -> None:
        here = ServedWorkspace(ws, ServerSettings())
        await here.open()
        pulse = console_live.Pulse(here)
        before = await look(pulse)
        assert await look(pulse) > before, "and begins again with the next"
        await here.close()

    asyncio.run(scenario())


# --- views ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path_factory.mktemp("console") / "shop", spark=spark) as ws:
        ws.sql("""
            CREATE TOPIC orders (id BIGINT, country STRING, amount STRING);
            CREATE MATERIALIZED VIEW priced WITH (on_error = 'divert') AS
              SELECT id, country, CAST(amount AS INT) AS amount FROM orders;
            CREATE MATERIALIZED VIEW revenue AS
              SELECT country, sum(amount) AS revenue FROM priced GROUP BY country;
            CREATE MATERIALIZED VIEW strict AS SELECT id, CAST(amount AS INT) AS amount FROM orders;
        """)
        for n, amounts in enumerate((["1", "2", "3"], ["40", "oops"], ["500"])):
            countries = ("ch", "at", "Zürich")
            rows = [{"id": 10 * n + i, "country": countries[i], "amount": a} for i, a in enumerate(amounts)]
            ws.topic("orders").append(rows)
            ws.run()
        yield ws


@pytest.fixture
def client(shop: hw.Workspace) -> Iterator[AppClient]:
    with client_of(shop) as made:
        yield made


def test_the_picture_has_an_edge_for_every_read(client: AppClient) -> None:
    picture = found(client, "graph")
    assert {(edge["from"], edge["to"]) for edge in picture["edges"]} == {
        ("topic:orders", "view:priced"),
        ("view:priced", "view:revenue"),
        ("topic:orders", "view:strict"),
    }


def test_a_view_tells_its_ledger_its_state_and_what_is_wrong(client: AppClient) -> None:
    priced = found(client, "views/priced")
    assert priced["ledger"] == {"orders": {"read": 6, "used": 5, "diverted": 0, "dropped": 0, "failed": 1}}
    assert priced["errors"]["total"] == 1
    assert [one["changed"] for one in priced["history"]] == [3, 1, 1]
    assert sum(one["bytes"] for one in priced["state"]) == priced["state_bytes"] > 0
    assert priced["readers"] == ["revenue"]
    stopped = found(client, "views/strict")
    assert (stopped["status"], stopped["last_tick"]) == ("stopped", 1)
    assert "oops" in stopped["reason"]
    assert "headwater rebuild strict" in stopped["hint"]


def test_rows_of_a_view_are_searched_sorted_and_read_at_any_kept_tick(client: AppClient) -> None:
    now = found(client, "views/revenue/rows")
    assert (now["tick"], now["total"]) == (3, 3)
    assert now["rows"] == [["Zürich", 3], ["at", 2], ["ch", 541]]
    assert found(client, "views/revenue/rows", as_of=1)["rows"] == [["Zürich", 3], ["at", 2], ["ch", 1]]
    assert found(client, "views/revenue/rows", sort="-revenue")["rows"][0] == ["ch", 541]
    searched = found(client, "views/revenue/rows", search="ZÜR")
    assert (searched["total"], searched["matching"], searched["rows"]) == (3, 1, [["Zürich", 3]])
    assert found(client, "views/priced.errors/rows")["total"] == 1
    assert client.get(f"{API}/views/revenue/rows?as_of=99").status_code == 404
    assert client.get(f"{API}/views/revenue/rows?sort=nope").status_code == 400


def test_a_tick_says_what_it_took_in_what_it_changed_and_what_it_cost(client: AppClient) -> None:
    listed = found(client, "ticks")
    assert [one["tick"] for one in listed["ticks"]] == [1, 2, 3]
    assert [one["rows"] for one in listed["ticks"]] == [3, 2, 1]
    assert all(one["seconds"] > 0 and "compute" in one["phases"] for one in listed["ticks"])
    second = found(client, "ticks/2")
    assert second["topics"] == [{"name": "orders", "rows": 2}]
    changed = {view["name"]: (view["status"], view["changed"]) for view in second["views"]}
    assert changed == {"priced": ("live", 1), "revenue": ("live", 2), "strict": ("stopped", 0)}
    assert client.get(f"{API}/ticks/99").status_code == 404
    assert client.get(f"{API}/ticks/<b>").status_code == 400


def test_a_dead_letter_is_edited_and_replayed_with_who_did_it(shop: hw.Workspace, client: AppClient) -> None:
    (letter,) = found(client, "dead")["letters"]
    assert (letter["owner"], letter["state"]) == ("priced", "open")
    told = found(client, "dead/letter", id=letter["id"])
    assert [column["name"] for column in told["columns"]] == ["id", "country", "amount"]
    order = {"letter": letter["id"], "action": "edit", "values": {"id": "x"}}
    assert client.post(f"{API}/dead", json=order).status_code == 422
    order |= {"values": {"amount": "9"}, "reason": "typo"}
    edited = client.post(f"{API}/dead", json=order).json()["letter"]
    assert (edited["state"], edited["actions"][0]["who"], edited["actions"][0]["reason"]) == (
        "edited",
        "console",
        "typo",
    )
    left = client.post(f"{API}/dead", json={"letter": letter["id"], "action": "replay"}).json()
    assert "strict" in left["left"][letter["id"]], "another view would see both"
    forced = {"letter": letter["id"], "action": "replay", "force": True}
    assert client.post(f"{API}/dead", json=forced).json()["taken"] == [letter["id"]]
    assert found(client, "dead")["total"] == 0
    assert client.post(f"{API}/dead", json={"action": "burn"}).status_code == 400
    assert client.post(f"{API}/dead", content=b"{}").status_code == 415
