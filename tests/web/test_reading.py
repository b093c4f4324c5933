"""GET /topics/{topic} and POST /query: without a view, and without Spark."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.web.server_settings import ServerSettings
from tests.web.serving import PROBLEM, AppClient, client_of


@pytest.fixture
def client(ws: hw.Workspace, clock: ManualClock) -> Iterator[AppClient]:
    ws.sql("CREATE TOPIC parted (user BIGINT, n INT) WITH (partitions = 3, partition_by = 'user')")
    ws.sql("CREATE TOPIC people (id BIGINT, name STRING, PRIMARY KEY (id))")
    ws.sql("CREATE TOPIC empty (a INT, b STRING)")
    for n in range(10):
        ws.topic("parted").append([{"user": user, "n": n} for user in range(20)])
        clock.advance(timedelta(minutes=1))
    ws.topic("people").append([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 1, "name": "c"}])
    with client_of(ws) as made:
        yield made


def rows(client: AppClient, path: str) -> list[dict[str, Any]]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()["rows"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("limit", [1, 7, 50, 1_000])
def test_pages_of_a_topic_are_all_of_it_once(client: AppClient, limit: int) -> None:
    found, place, more = [], "earliest", True
    while more:
        page = client.get(f"/topics/parted?limit={limit}&from={place}").json()
        assert len(page["rows"]) <= limit
        found += [(row["_partition"], row["_offset"], row["user"], row["n"]) for row in page["rows"]]
        place, more = page["next"], page["more"]
    assert len(found) == len(set(found)) == 200
    assert sorted((user, n) for _, _, user, n in found) == [(u, n) for u in range(20) for n in range(10)]


def test_a_read_begins_where_it_is_told_to(ws: hw.Workspace, client: AppClient) -> None:
    ends = {p: info.end for p, info in ws.topic("parted").partitions().items()}
    assert rows(client, "/topics/parted?from=latest") == []
    assert len(rows(client, "/topics/parted?from=-2")) == 6
    assert len(rows(client, f"/topics/parted?from=0@{ends[0] - 1},1@{ends[1]}&limit=1000")) == 1 + ends[2]
    assert len(rows(client, f"/topics/parted?from={ends[1] - 4}&partition=1")) == 4
    assert {row["n"] for row in rows(client, "/topics/parted?from=2023-11-14T22:21:20Z")} == {8, 9}
    assert rows(client, "/topics/people?columns=name,_op&from=1") == [
        {"name": "b", "_op": "upsert"},
        {"name": "c", "_op": "upsert"},
    ]


def test_rows_come_as_the_client_asks_for_them(client: AppClient) -> None:
    lines = client.get("/topics/people?columns=id,name", headers={"accept": "application/x-ndjson"})
    assert lines.text == '{"id":1,"name":"a"}\n{"id":2,"name":"b"}\n{"id":1,"name":"c"}\n'
    assert lines.headers["headwater-next"].startswith("0@3~")
    arrow = client.get("/topics/parted", headers={"accept": "application/vnd.apache.arrow.stream"})
    with pa.ipc.open_stream(arrow.content) as stream:
        assert stream.read_all().num_rows == 200
    for path, columns in (("/topics/empty", 4), ("/topics/people?from=latest", 5)):
        nothing = client.get(path, headers={"accept": "application/vnd.apache.arrow.stream"})
        with pa.ipc.open_stream(nothing.content) as stream:
            assert stream.read_all().num_columns == columns
    refused = client.get("/topics/people", headers={"accept": "image/png"})
    assert (refused.status_code, refused.headers["content-type"]) == (406, PROBLEM)


@pytest.mark.parametrize(
    "path",
    [
        "/topics/parted?from=sometime",
        "/topics/parted?from=7",
        "/topics/parted?from=9@0",
        "/topics/parted?from=0@999999",
        "/topics/parted?limit=0",
        "/topics/parted?limit=ten",
        "/topics/parted?limit=100001",
        "/topics/parted?columns=nope",
        "/topics/parted?partition=3",
        "/topics/parted?on_gap=jump",
        "/topics/parted?by=event&from=2026-01-01",
        "/topics/parted?form=earliest",
        "/topics/parted?follow=maybe",
    ],
)
def test_a_parameter_that_means_nothing_is_refused(client: AppClient, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (400, PROBLEM), answer.text


# --- queries ---------------------------------------------------------------------------------------------------------


def ask(client: AppClient, query: str, **said: Any) -> Any:
    return client.post("/query", json={"query": query, **said})


def test_a_query_reads_topics(client: AppClient) -> None:
    answer = ask(
        client,
        "SELECT p.name, count(*) AS n FROM parted c JOIN people p ON c.user = p.id GROUP BY p.name ORDER BY name",
    )
    assert answer.json() == {
        "tick": None,
        "more": False,
        "rows": [{"name": "b", "n": 10}, {"name": "c", "n": 10}],
    }
    plain = client.post(
        "/query", content=b"SELECT id FROM people WHERE id = 2", headers={"content-type": "application/sql"}
    )
    assert plain.json()["rows"] == [{"id": 2}]
    cut = ask(client, "SELECT user, user FROM parted", limit=3).json()
    assert (len(cut["rows"]), cut["more"], list(cut["rows"][0])) == (3, True, ["user", "user_2"])


@pytest.mark.parametrize(
    "query",
    [
        "DROP TOPIC people",
        "CREATE TOPIC t (a INT)",
        "SELECT 1; SELECT 2",
        "SHOW TOPICS",
        "EXPLAIN people",
        "INSERT INTO people VALUES (1, 'a')",
        "",
        "SELEC 1",
    ],
)
def test_only_one_select_is_a_query(ws: hw.Workspace, client: AppClient, query: str) -> None:
    assert ask(client, query).status_code == 400
    assert "people" in ws.log.topics()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT reflect('java.lang.System', 'getProperty', 'user.dir')",
        "SELECT java_method('java.lang.Runtime', 'getRuntime')",
        "SELECT try_reflect('java.lang.System', 'exit', 1) FROM people",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_parquet('https://example.org/x.parquet')",
        "SELECT * FROM csv.`/etc/passwd`",
        "SELECT * FROM parquet.`/tmp`",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM information_schema.tables",
        "SELECT getenv('HOME')",
        "SELECT current_setting('access_mode')",
        "SELECT input_file_name() FROM people",
        "FROM people INSERT OVERWRITE DIRECTORY '/tmp/x' SELECT *",
        "WITH x AS (SELECT * FROM glob('/etc/*')) SELECT * FROM x",
        "SELECT (SELECT content FROM read_blob('/etc/passwd'))",
        "SELECT transform(id) USING 'cat' AS x FROM people",
    ],
)
def test_no_query_reaches_beyond_topics_and_views(client: AppClient, query: str) -> None:
    answer = ask(client, query)
    assert answer.status_code in (400, 404, 422), answer.text
    assert answer.headers["content-type"] == PROBLEM


def test_a_query_that_only_spark_answers_is_refused_with_the_reason(client: AppClient) -> None:
    answer = ask(client, "SELECT name, sentences(name) FROM people")
    assert answer.status_code == 422
    assert answer.json()["reason"] == "the function sentences"
    failing = ask(client, "SELECT id / (id - id) AS x FROM people")
    assert failing.status_code == 422
    assert (
        client.post("/query", json={"query": "SELECT * FROM peeple"}).json()["hint"] == "did you mean people?"
    )


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"sql": "SELECT 1"}', "application/json", 400),
        (b'{"query": "SELECT 1", "limits": 1}', "application/json", 400),
        (b'{"query": "SELECT 1", "limit": 0}', "application/json", 400),
        (b'{"query": "SELECT 1", "as_of": []}', "application/json", 400),
        (b'{"query": "SELECT 1", "as_of": "soon"}', "application/json", 400),
        (b'{"query": "SELECT 1", "after": 5}', "application/json", 400),
        (b'{"query": "SELECT 1", "as_of": 4}', "application/json", 404),
        (b'{"query": "SELECT 1", "after": "nope:0@0-1"}', "application/json", 400),
        (b'{"query": "SELECT 1", "after": "0/16B3748"}', "application/json", 400),
        (b"\xff", "application/sql", 400),
        (b"SELECT 1", "text/plain", 415),
        (b"SELECT " + b"1" * 100_001, "application/sql", 413),
    ],
)
def test_a_question_that_cannot_be_read_is_refused(
    client: AppClient, body: bytes, kind: str, status: int
) -> None:
    answer = client.post("/query", content=body, headers={"content-type": kind})
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), answer.text


def test_reads_and_queries_that_wait_are_bounded_apart(ws: hw.Workspace) -> None:
    with client_of(ws, ServerSettings(queries_waiting_max=0)) as client:
        refused = ask(client, "SELECT 1 AS one")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert client.get("/docs").status_code == client.get("/plain").status_code == 200
