"""Who may come in, by which name and from which page; and what is said when something fails."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import headwater as hw
from headwater.core.errors import DiskFullError, StorageError, UsageError
from headwater.web import tokens
from headwater.web.access_control import HOOKS, OPEN_PATHS
from headwater.web.app import ROUTES
from headwater.web.routes import pages
from headwater.web.routes.openapi import DOCUMENT
from headwater.web.server_settings import ServerSettings
from tests.raising import raises
from tests.web.serving import PROBLEM, AppClient, client_of


@pytest.fixture
def client(ws: hw.Workspace) -> Iterator[AppClient]:
    ws.sql("CREATE TOPIC clicks (user BIGINT)")
    settings = ServerSettings(allow_hosts=("Shop.example",), allow_origins=("https://page.example",))
    with client_of(ws, settings) as made:
        yield made


def get(client: AppClient, path: str = "/topics/clicks", **headers: str) -> Any:
    return client.get(path, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    "name", ["localhost", "LOCALHOST:8321", "127.0.0.1:80", "[::1]:1", "shop.example:443"]
)
def test_the_server_answers_to_its_own_names(client: AppClient, name: str) -> None:
    assert get(client, host=name).status_code == 200


@pytest.mark.parametrize(
    "name", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "[", "10.0.0.1"]
)
def test_a_foreign_name_is_refused(client: AppClient, name: str) -> None:
    for path in ("/topics/clicks", "/health"):
        answer = get(client, path, host=name)
        assert answer.status_code in (400, 421)
        assert answer.headers["content-type"] == PROBLEM


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:9999", "https://page.example.evil"]
)
def test_a_page_of_another_origin_is_refused(ws: hw.Workspace, client: AppClient, origin: str) -> None:
    assert get(client, origin=origin).status_code == 403
    posted = client.post("/topics/clicks", json={"user": 1}, headers={"origin": origin})
    asked = client.request(
        "OPTIONS", "/topics/clicks", headers={"origin": origin, "access-control-request-method": "POST"}
    )
    assert [posted.status_code, asked.status_code] == [403, 403]
    assert "access-control-allow-origin" not in posted.headers
    assert ws.topic("clicks").partitions()[0].rows == 0


def test_the_servers_own_pages_may_call_it(client: AppClient) -> None:
    answer = get(client, origin="http://localhost")
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_an_allowed_origin_may_call_and_read_the_answer(client: AppClient) -> None:
    page = "https://page.example"
    asked = client.request(
        "OPTIONS", "/topics/clicks", headers={"origin": page, "access-control-request-method": "POST"}
    )
    assert asked.status_code == 204
    assert "POST" in asked.headers["access-control-allow-methods"]
    assert "idempotency-key" in asked.headers["access-control-allow-headers"]
    for answer in (asked, get(client, origin=page), get(client, "/topics/nope", origin=page)):
        assert answer.headers["access-control-allow-origin"] == page
        assert answer.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in asked.headers


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_tokens_are_kept_as_digests_and_shown_once(ws: hw.Workspace) -> None:
    secret = tokens.create(ws.log, "loader", ["write"])
    (kept,) = tokens.tokens(ws.log)
    assert (kept.name, kept.scopes) == ("loader", ("write",))
    assert len(secret) == 46
    assert secret not in str(ws.log.entries(tokens.TOKEN))
    guests = tokens.Guests(ws.log)
    guests.refresh()
    assert guests.admit(secret) == kept
    assert guests.admit(secret + "x") is None
    with raises(UsageError, token="loader"):
        tokens.create(ws.log, "loader", ["read"])
    with raises(UsageError, token="other"):
        tokens.revoke(ws.log, "other")
    with raises(UsageError, reason="no-scope"):
        tokens.create(ws.log, "nothing", [])


def test_when_there_is_a_token_every_route_but_health_and_what_is_signed_needs_one(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC clicks (user BIGINT)")
    reader, writer = tokens.create(ws.log, "r", ["read"]), tokens.create(ws.log, "w", ["write"])
    with client_of(ws) as client:
        for method, path, _ in ROUTES:
            place = path.format(topic="clicks", view="v", sink="s", hook="h")
            is_open = path in OPEN_PATHS or path.startswith(HOOKS)
            for header in ({}, {"authorization": "Bearer hw_wrong"}, {"authorization": f"Basic {reader}"}):
                answer = client.request(method, place, headers=header)
                assert (answer.status_code == 401) != is_open, (method, path, answer.text)
                if not is_open:
                    assert answer.headers["www-authenticate"].startswith("Bearer")
            needed = writer if method == "POST" and path.startswith("/topics/") else reader
            other = reader if needed is writer else writer
            if not is_open:
                refused = client.request(method, place, headers={"authorization": f"Bearer {other}"})
                assert (refused.status_code, refused.json()["title"]) == (403, "wrong scope")
            let = client.request(method, place, headers={"authorization": f"Bearer {needed}"})
            assert let.status_code not in (401, 403)


def test_a_token_that_is_revoked_is_refused_soon(ws: hw.Workspace) -> None:
    kept, ended = tokens.create(ws.log, "kept", ["read"]), tokens.create(ws.log, "ended", ["read"])
    with client_of(ws) as client:
        assert get(client, "/docs", authorization=f"Bearer {ended}").status_code == 200
        tokens.revoke(ws.log, "ended")
        client.app._here.guests.refresh()
        assert get(client, "/docs", authorization=f"Bearer {ended}").status_code == 401
        assert get(client, "/docs", authorization=f"Bearer {kept}").status_code == 200


# --- errors ----------------------------------------------------------------------------------------------------------


def test_an_internal_error_says_no_more_than_an_id_that_the_log_has(
    client: AppClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a secret path")

    monkeypatch.setattr(client.app._here.log, "topic", fail)
    with caplog.at_level(logging.ERROR, "headwater.web"):
        for answer in (get(client), client.post("/topics/clicks", json={"user": 1})):
            problem = answer.json()
            assert (answer.status_code, answer.headers["content-type"]) == (500, PROBLEM)
            assert "secret" not in answer.text
            assert "Traceback" not in answer.text
            assert problem["id"] in caplog.text
    assert "a secret path" in caplog.text


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (StorageError("cannot read /somewhere", file="/somewhere"), 500, False),
        (DiskFullError("no space left on the disk"), 507, True),
    ],
)
def test_what_the_disk_says_is_told_where_a_client_can_do_something(
    client: AppClient, monkeypatch: pytest.MonkeyPatch, error: hw.HeadwaterError, status: int, told: bool
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(client.app._here.log, "append", fail)
    answer = client.post("/topics/clicks", json={"user": 1})
    assert answer.status_code == status
    assert (error.message in answer.text) == told


def test_a_route_that_is_not_there_and_a_wrong_method_are_problems(client: AppClient) -> None:
    for method, path, status in (
        ("GET", "/nope", 404),
        ("DELETE", "/topics/clicks", 405),
        ("POST", "/views/v", 405),
    ):
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM)


def test_every_answer_is_safe_to_look_at(client: AppClient) -> None:
    for path in ("/", "/plain", "/docs", "/topics/clicks", "/nope"):
        headers = get(client, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
    assert "script-src" not in get(client, "/").headers["content-security-policy"]


# --- pages -----------------------------------------------------------------------------------------------------------


def test_the_plain_page_lists_what_there_is(client: AppClient) -> None:
    page = get(client, "/plain").text
    assert '<a href="/topics/clicks?from=-20">' in page
    assert "<p>none</p>" in page


def test_a_page_escapes_what_others_wrote() -> None:
    name = "<script>alert(1)</script>\"'&"
    shown = pages._listed([(name, [(name, f"/topics/{name}")])])
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;") == 3


def test_the_description_of_the_api_has_every_route(client: AppClient) -> None:
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    own = {"/plain", "/docs", "/openapi.json", "/health/ready"}
    assert described == {(method, path) for method, path, _ in ROUTES if path not in own}
    assert get(client, "/openapi.json").json() == DOCUMENT
    page = get(client, "/docs").text
    assert all(path in page for _, path in described)
    assert "http://" not in page.replace("http://localhost", "")


def test_metrics_are_what_the_workspace_says(client: AppClient) -> None:
    answer = get(client, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'headwater_topic_rows{topic="clicks"} 0.0' in answer.text
