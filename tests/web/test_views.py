"""GET /views/{view} and its changes: by key, at a tick, after a write, as a stream that resumes."""

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.clock import from_us, timestamp
from headwater.testing import inspect_workspace
from headwater.web.server import serve_in_thread
from headwater.web.server_settings import ServerSettings
from tests.repo.tree import ROOT
from tests.web.serving import PROBLEM, AppClient, client_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = "CREATE TOPIC orders (id BIGINT, country STRING, amount INT)"
REVENUE = """CREATE MATERIALIZED VIEW revenue AS
  SELECT country, sum(amount) AS revenue, count(*) AS orders FROM orders GROUP BY country"""


@pytest.fixture(scope="module")
def shop(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path_factory.mktemp("web") / "ws", spark=spark) as ws:
        ws.sql(f"{ORDERS}; {REVENUE}")
        ws.topic("orders").append(
            [{"id": i, "country": c, "amount": i} for i, c in enumerate(["ch", "at", "it", "ch"])]
        )
        ws.run()
        ws.topic("orders").append(
            [{"id": 9, "country": "at", "amount": 100}, {"id": 10, "country": None, "amount": 7}]
        )
        ws.run()
        yield ws


@pytest.fixture
def client(shop: hw.Workspace) -> Iterator[AppClient]:
    with client_of(shop) as made:
        yield made


def by_country(answer: Any) -> dict[str, int]:
    assert answer.status_code == 200, answer.text
    return {row["country"]: row["revenue"] for row in answer.json()["rows"]}


def test_a_view_is_read_whole_and_by_its_columns(shop: hw.Workspace, client: AppClient) -> None:
    whole = client.get("/views/revenue")
    assert by_country(whole) == {"ch": 3, "at": 101, "it": 2, None: 7}
    assert whole.json() | {"rows": []} == {"view": "revenue", "tick": 2, "more": False, "rows": []}
    assert whole.headers["headwater-tick"] == "2"
    assert client.get("/views/REVENUE?country=ch").json()["rows"] == [
        {"country": "ch", "revenue": 3, "orders": 2}
    ]
    assert by_country(client.get("/views/revenue?country=ch&country=at&country=ch")) == {"ch": 3, "at": 101}
    assert by_country(client.get("/views/revenue?orders=2")) == {"ch": 3, "at": 101}
    assert by_country(client.get("/views/revenue?country=ch&revenue=4")) == {}
    assert by_country(client.get("/views/revenue?" + "&".join(f"revenue={n}" for n in range(102)))) == {
        "ch": 3,
        "at": 101,
        "it": 2,
        None: 7,
    }
    cut = client.get("/views/revenue?limit=2").json()
    assert (len(cut["rows"]), cut["more"]) == (2, True)


def test_an_earlier_tick_is_read_by_its_number_or_time(shop: hw.Workspace, client: AppClient) -> None:
    assert by_country(client.get("/views/revenue?as_of=1")) == {"ch": 3, "at": 1, "it": 2}
    moment = timestamp(from_us(inspect_workspace(shop).manifest(1).committed_at))
    assert by_country(client.get(f"/views/revenue?as_of={moment}&country=at")) == {"at": 1}
    queried = client.post("/query", json={"query": "SELECT sum(revenue) AS s FROM revenue", "as_of": 1})
    assert queried.json() == {"tick": 1, "more": False, "rows": [{"s": 6}]}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/views/revenues", 404),
        ("/views/revenue/changes?from=1", 400),
        ("/views/revenue/changes?since=x", 400),
        ("/views/revenue?city=x", 400),
        ("/views/revenue?orders=many", 400),
        ("/views/revenue?as_of=9", 404),
        ("/views/revenue?as_of=soon", 400),
        ("/views/revenue?as_of=1999-01-01", 404),
        ("/views/revenue?limit=-1", 400),
        ("/views/revenue?after=orders:0@0-99&timeout=1", 503),
        ("/views/revenue?after=orders:0", 400),
        ("/views/revenue?timeout=forever", 400),
        ("/views/revenue/changes?since=1&since=2&x=1", 400),
    ],
)
def test_what_cannot_be_read_is_a_problem(client: AppClient, path: str, status: int) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), answer.text


def test_a_view_over_arrow_has_its_types(client: AppClient) -> None:
    answer = client.get(
        "/views/revenue?country=at", headers={"accept": "application/vnd.apache.arrow.stream"}
    )
    with pa.ipc.open_stream(answer.content) as stream:
        assert stream.read_all().to_pylist() == [{"country": "at", "revenue": 101, "orders": 2}]


def test_after_without_an_engine_says_that_none_runs(shop: hw.Workspace, client: AppClient) -> None:
    assert by_country(client.get("/views/revenue?after=orders:0@0-6&country=it")) == {"it": 2}
    answer = client.get("/views/revenue?after=orders:0@6-7")
    assert (answer.status_code, answer.json()["title"]) == (503, "no engine")


def test_reading_views_imports_no_spark(shop: hw.Workspace) -> None:
    code = f"""
import sys
import headwater as hw
from tests.web.serving import client_of
with hw.open({str(shop.path)!r}, create=False) as ws, client_of(ws) as client:
    assert client.get("/views/revenue?country=it").json()["rows"][0]["revenue"] == 2
    assert len(client.get("/views/revenue?as_of=1").json()["rows"]) == 3
    assert client.post("/query", json={{"query": "SELECT sum(revenue) AS s FROM revenue"}}).json()["rows"] == [{{"s": 113}}]
    assert client.get("/views/revenue?after=orders:0@0-6").status_code == 200
    assert client.get("/views/revenue?after=orders:0@0-7").status_code == 503
    assert client.post("/topics/orders", json=[]).status_code == 200
    for path in ("/metrics", "/health/ready", "/plain", "/docs"):
        assert client.get(path).status_code == 200, path
assert not {{"pyspark", "py4j"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# --- beside an engine ------------------------------------------------------------------------------------------------


class Events:
    """A stream of server-sent events, read one by one."""

    def __init__(self, answer: httpx.Response) -> None:
        assert answer.status_code == 200
        self._lines = answer.iter_lines()

    def next(self) -> tuple[str, str | None, Any]:
        """The next event: its kind, its id and its data."""
        kind, identity, data = "", None, None
        for line in self._lines:
            if line == "" and kind:
                return kind, identity, data
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "id":
                identity = value
            elif name == "data":
                data = orjson.loads(value)
        raise EOFError


@contextlib.contextmanager
def following(client: httpx.Client, path: str, **headers: str) -> Iterator[Events]:
    with client.stream("GET", path, headers=headers) as answer:
        yield Events(answer)


@pytest.fixture
def running(spark: "SparkSession", tmp_path: Path) -> Iterator[tuple[hw.Workspace, httpx.Client]]:
    with hw.open(tmp_path / "ws", spark=spark, keep_ticks=5) as ws:
        ws.sql(f"{ORDERS}; {REVENUE}")
        ws.topic("orders").append([{"id": 1, "country": "ch", "amount": 1}])
        ws.run()
        with ws.start(), serve_in_thread(ws, ServerSettings(port=0, keep_alive_s=2)) as url:
            with httpx.Client(base_url=url, timeout=60) as client:
                yield ws, client


def sale(client: httpx.Client, country: str, amount: int) -> str:
    answer = client.post("/topics/orders", json={"id": amount, "country": country, "amount": amount})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["receipt"])


def test_a_write_is_seen_after_it_and_changes_resume_without_loss(
    running: tuple[hw.Workspace, httpx.Client],
) -> None:
    _, client = running
    for amount in (1, 2):
        receipt = sale(client, "at", amount)
        found = client.get("/views/revenue", params={"country": "at", "after": receipt})
        assert found.json()["rows"] == [
            {"country": "at", "revenue": amount * (amount + 1) // 2, "orders": amount}
        ]
    asked = client.post(
        "/query", json={"query": "SELECT revenue FROM revenue WHERE country = 'at'", "after": receipt}
    )
    assert asked.json()["rows"] == [{"revenue": 3}]

    state: dict[str, int] = {}

    def take(event: tuple[str, str | None, Any]) -> str:
        kind, identity, data = event
        assert identity is not None
        assert identity.startswith(f"{data['tick']}-")
        for row in sorted(data["rows"], key=lambda row: row["_weight"]):
            if row["_weight"] < 0:
                assert state.pop(row["country"]) == row["revenue"]
            else:
                state[row["country"]] = row["revenue"]
        assert kind == ("snapshot" if len(state) and not seen else "change")
        seen.append(identity)
        return identity

    seen: list[str] = []
    with following(client, "/views/revenue/changes") as events:
        take(events.next())
        assert state == {"ch": 1, "at": 3}
        sale(client, "ch", 10)
        last = take(events.next())
    for amount in (5, 6, 7):  # while nobody follows
        receipt = sale(client, "it", amount)
        client.get("/views/revenue", params={"after": receipt}).raise_for_status()
    with following(client, "/views/revenue/changes", **{"Last-Event-ID": last}) as events:
        while state.get("it") != 18:
            take(events.next())
        receipt = sale(client, "ch", 100)
        take(events.next())
    assert state == {"ch": 111, "at": 3, "it": 18}
    whole = client.get("/views/revenue", params={"after": receipt}).json()
    assert {row["country"]: row["revenue"] for row in whole["rows"]} == state
    ticks = [int(token.partition("-")[0]) for token in seen]
    assert ticks == sorted(set(ticks))

    # a tick that is kept no more, and one that is not made yet: what the client has is void
    for amount in range(20, 32):
        receipt = sale(client, "at", amount)
        client.get("/views/revenue", params={"after": receipt}).raise_for_status()
    for since in ("1", "99999"):
        with following(client, f"/views/revenue/changes?since={since}") as events:
            kind, identity, data = events.next()
            assert (kind, identity) == ("reset", None)
            assert data["reason"]
            kind, identity, data = events.next()
            assert kind == "snapshot"
            assert {row["country"] for row in data["rows"]} == {"ch", "at", "it"}
    with following(client, "/views/revenue/changes?since=latest") as events:
        sale(client, "ch", 1)
        kind, _, data = events.next()
        assert kind == "change"
        assert len(data["rows"]) == 2


def test_followers_are_told_when_the_view_goes_and_when_the_server_stops(
    spark: "SparkSession", tmp_path: Path
) -> None:
    with hw.open(tmp_path / "ws", spark=spark) as ws:
        ws.sql(f"{ORDERS}; {REVENUE}")
        ws.topic("orders").append([{"id": i, "country": str(i), "amount": 1} for i in range(2_500)])
        ws.run()
        told: list[tuple[str, Any]] = []
        ready = threading.Event()
        with serve_in_thread(ws, ServerSettings(port=0)) as url:

            def follow() -> None:
                with httpx.Client(base_url=url, timeout=60) as client:
                    with following(client, "/views/revenue/changes") as events:
                        parts = [events.next() for _ in range(3)]
                        told.extend(((i or "").partition("-")[0], len(data["rows"])) for _, i, data in parts)
                        ready.set()
                        kind, _, data = events.next()
                        told.append((kind, data["reason"]))

            thread = threading.Thread(target=follow)
            thread.start()
            assert ready.wait(60)
        thread.join(60)
        assert told == [("", 1_000), ("", 1_000), ("1", 500), ("end", "the server stops")]


def test_a_view_that_was_not_run_is_not_ready(spark: "SparkSession", tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", spark=spark) as ws:
        ws.sql(f"{ORDERS}; {REVENUE}")
        with client_of(ws) as client:
            read, ready = client.get("/views/revenue"), client.get("/health?ready")
    assert (read.status_code, read.json()["occasion"], read.headers["retry-after"]) == (
        503,
        "backfilling",
        "1",
    )
    assert (ready.status_code, ready.json()["reasons"]) == (
        503,
        ["there are views, and no tick was made yet"],
    )


def test_an_index_is_searched(spark: "SparkSession", tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", spark=spark) as ws:
        ws.sql("""
            CREATE TOPIC products (id BIGINT, name STRING, price INT, PRIMARY KEY (id));
            CREATE MATERIALIZED VIEW catalogue AS SELECT id, name, price FROM products;
            CREATE SINK found FROM catalogue INTO SEARCH WITH (key = 'id');
        """)
        names = ["red shoe", "blue shoe", "red hat", "a <b>bold</b> shoe"]
        ws.topic("products").append([{"id": i, "name": n, "price": i * 10} for i, n in enumerate(names)])
        ws.run()
        with client_of(ws) as client:

            def ids(query: str) -> list[int]:
                answer = client.get(f"/sinks/found/search?{query}")
                assert answer.status_code == 200, answer.text
                return sorted(row["id"] for row in answer.json()["rows"])

            assert ids("q=shoe") == [0, 1, 3]
            assert ids("q=red shoe&filter=price<=10") == [0, 1]
            assert ids("q=red&filter=price>0&filter=price!=30") == [2]
            assert ids("filter=name=red hat") == [2]
            assert len(ids("limit=2")) == len(ids("limit=2&offset=2")) == 2
            (hit,) = client.get("/sinks/FOUND/search?q=hat&highlight").json()["rows"]
            assert hit["_highlight"]["name"] == "red <b>hat</b>"
            assert hit["_score"] > 0
            for query in ("q=(", "filter=price", "filter=nope=1", "filter=price<cheap", "limit=0", "query=x"):
                assert client.get(f"/sinks/found/search?{query}").status_code == 400, query
            assert client.get("/sinks/lost/search").status_code == 404
