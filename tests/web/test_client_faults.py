"""Requests whose fault is the client's: each is answered with a status of 4xx that names it, and never with a 5xx."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import httpx
import orjson
import pyarrow as pa
import pytest

import headwater as hw
from headwater.core import errors
from headwater.web.problems import problem_of
from headwater.web.server import serve_in_thread
from headwater.web.server_settings import ServerSettings
from tests.web import hostile
from tests.web.serving import ARROW, AppClient, client_of

LAST_US = 2**63 - 1
TOPIC = """CREATE TOPIC moments (id BIGINT, at TIMESTAMP, plain TIMESTAMP_NTZ, day DATE, times ARRAY<TIMESTAMP>,
  place STRUCT<at: TIMESTAMP, n: INT NOT NULL>, by_day MAP<DATE, TIMESTAMP_NTZ>)"""
LAST, LAST_DAY = "294247-01-10T04:00:54.775807", "5881580-07-11"


@pytest.fixture
def client(ws: hw.Workspace) -> Iterator[AppClient]:
    ws.sql(TOPIC)
    with client_of(ws) as made:
        yield made


# --- what is not there ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lost/orders-0-1", "lost", "/", "", "a/b/c", "é"])
def test_a_dead_letter_that_is_not_there_is_not_found(client: AppClient, name: str) -> None:
    answer = client.get("/console/api/dead/letter", params={"id": name})
    assert answer.status_code in (400, 404) if not name else answer.status_code == 404, answer.text
    for action in ("replay", "drop", "edit"):
        order = {"action": action, "letter": name, "values": {}}
        answer = client.post("/console/api/dead", json=order)
        assert 400 <= answer.status_code < 500, answer.text


def test_dead_letters_of_nobody_are_not_found(client: AppClient) -> None:
    assert client.get("/console/api/dead", params={"of": "lost"}).status_code == 404


def test_every_error_that_something_is_not_there_is_404() -> None:
    kinds = [
        kind for name, kind in inspect.getmembers(errors, inspect.isclass) if name.endswith("NotFoundError")
    ]
    assert len(kinds) > 5
    for kind in kinds:
        assert problem_of(kind("there is none")).status == 404, kind


# --- times ---------------------------------------------------------------------------------------------------------


def _moments() -> bytes:
    at = pa.array([LAST_US], pa.timestamp("us", "UTC"))
    day = pa.array([2**31 - 1], pa.int32()).cast(pa.date32())
    plain = at.cast(pa.timestamp("us"))
    return hostile.stream(
        hostile.batch_of(
            id=pa.array([1]),
            at=at,
            plain=plain,
            day=day,
            times=pa.ListArray.from_arrays([0, 1], at),
            place=pa.StructArray.from_arrays([at, pa.array([1], pa.int32())], ["at", "n"]),
            by_day=pa.MapArray.from_arrays([0, 1], day, plain),
        )
    )


def test_a_time_beyond_the_years_of_python_is_taken_and_served(client: AppClient) -> None:
    assert client.post("/topics/moments", content=_moments(), headers=ARROW).status_code == 200
    answer = client.get("/topics/moments")
    assert answer.status_code == 200, answer.text
    (row,) = answer.json()["rows"]
    assert (row["at"], row["plain"], row["day"]) == (f"{LAST}Z", LAST, LAST_DAY)
    assert (row["times"], row["place"]["at"], row["by_day"]) == ([f"{LAST}Z"], f"{LAST}Z", [[LAST_DAY, LAST]])
    lines = client.get("/topics/moments", headers={"accept": "application/x-ndjson"})
    assert orjson.loads(lines.text) == row
    for path in ("/console/api/topics/moments", "/topics/moments?columns=times,at"):
        assert client.get(path).status_code == 200
    query = client.post("/query", json={"query": "SELECT at, id FROM moments"})
    assert query.status_code in (200, 422), query.text


def test_a_time_beyond_the_years_of_python_below_a_missing_struct_is_taken(client: AppClient) -> None:
    times = pa.array([LAST_US, LAST_US], pa.timestamp("us", "UTC"))
    parts = [pa.field("at", times.type), pa.field("n", pa.int32(), nullable=False)]
    children = [times, pa.array([None, 1], pa.int32())]
    place = pa.StructArray.from_arrays(children, fields=parts, mask=pa.array([True, False]))
    answer = client.post(
        "/topics/moments", content=hostile.stream(hostile.batch_of(place=place)), headers=ARROW
    )
    assert answer.status_code == 200, answer.text
    assert [row["place"] for row in client.get("/topics/moments").json()["rows"]] == [
        None,
        {"at": f"{LAST}Z", "n": 1},
    ]


@pytest.mark.parametrize(
    "time", [LAST + "Z", "10000-01-01", "0000-01-01", "0001-01-01T00:00:00+14:00", "2026-02-30"]
)
def test_a_time_that_python_does_not_know_is_refused_in_text(client: AppClient, time: str) -> None:
    for query in ({"from": time}, {"from": time, "by": "event"}):
        assert client.get("/topics/moments", params=query).status_code in (200, 400)
    for column in ("at", "plain", "day"):
        answer = client.post("/topics/moments", json={column: time})
        assert answer.status_code in (200, 422), answer.text


# --- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", ["9" * 19, "9" * 30, "9" * 5_000, "٣"], ids=["19", "30", "5000", "arabic"])
def test_a_position_of_too_many_digits_is_refused(client: AppClient, digits: str) -> None:
    for query in ({"from": f"0@{digits}"}, {"from": digits}, {"limit": digits}, {"partition": digits}):
        answer = client.get("/topics/moments", params=query)
        assert answer.status_code == 400, (query, answer.text)
    answer = client.get("/topics/moments?follow", headers={"last-event-id": f"0@{digits}".encode()})
    assert answer.status_code == 400
    for after in (f"moments:0@0-{digits}", f"moments:{digits}@0-1"):
        answer = client.post("/query", json={"query": "SELECT 1", "after": after})
        assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("SELECT " + "9" * 5_000, 400),
        ("SELECT id FROM moments LIMIT " + "9" * 5_000, 400),
        ("SELECT substring('a')", 422),
        ("SELECT if(true, 1)", 422),
    ],
    ids=["a number", "a limit", "substring", "if"],
)
def test_a_query_that_means_nothing_is_refused(client: AppClient, said: str, status: int) -> None:
    answer = client.post("/query", content=said, headers={"content-type": "application/sql"})
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.status_code in (status, 400)


@pytest.mark.parametrize("exponent", ["9" * 20, "-" + "9" * 20])
@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_a_number_with_an_exponent_beyond_every_type_is_refused(
    client: AppClient, ws: hw.Workspace, kind: str, exponent: str
) -> None:
    ws.sql("CREATE TOPIC prices (id BIGINT, price DECIMAL(10, 2), places MAP<STRING, STRING>)")
    body = f'{{"id": 1, "price": 1.5, "places": {{"a": 1e{exponent}}}}}'
    answer = client.post("/topics/prices", content=body.encode(), headers={"Content-Type": kind})
    assert answer.status_code == 400, answer.text
    assert "exponent" in answer.text


def test_members_that_are_nested_deeply_are_refused(client: AppClient) -> None:
    deep = "[" * 1_000 + "]" * 1_000
    for member in ("limit", "as_of", "after"):
        body = f'{{"query": "SELECT 1", "{member}": {deep}}}'
        answer = client.post("/query", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, answer.text
    for member in ("letter", "reason", "expect", "values"):
        body = f'{{"action": "edit", "letter": "a/b", "{member}": {deep}}}'
        answer = client.post("/console/api/dead", content=body, headers={"content-type": "application/json"})
        assert 400 <= answer.status_code < 500, answer.text


@pytest.mark.parametrize("zone", ["Europe/Zurikh", "Europe/Z\0", "Nowhere"])
def test_a_value_of_an_unknown_time_zone_is_refused_where_it_does_not_fit(
    client: AppClient, zone: str
) -> None:
    body = hostile.stream(hostile.batch_of(id=pa.array([1], pa.timestamp("us", zone))))
    answer = client.post("/topics/moments", content=body, headers=ARROW)
    assert (answer.status_code, answer.json()["column"]) == (422, "id"), answer.text


def test_a_dictionary_that_arrow_does_not_decode_is_refused(client: AppClient) -> None:
    kind = pa.dictionary(pa.int8(), pa.float16())
    for schema in (pa.schema([("id", kind)]), pa.schema([("id", pa.dictionary(pa.int8(), pa.bool_()))])):
        answer = client.post("/topics/moments", content=hostile.stream(schema=schema), headers=ARROW)
        assert answer.status_code == 400, answer.text


# --- HTTP ----------------------------------------------------------------------------------------------------------


def test_head_of_a_stream_is_answered_and_leaves_the_connection_free(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        ws.sql(TOPIC)
        with (
            serve_in_thread(ws, ServerSettings(port=0)) as url,
            httpx.Client(base_url=url, timeout=10) as web,
        ):
            for path in ("/console/api/live", "/topics/moments?follow", "/console/api/topics/moments/tail"):
                answer = web.head(path)
                assert (answer.status_code, answer.content) == (200, b"")
                assert web.get("/health").status_code == 200
