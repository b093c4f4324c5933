"""One health model: every component has a state with a reason, and status, readiness, metrics and alerts show the same."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import headwater as hw
from headwater.cli.overview import Overview
from headwater.cli.program import cli
from headwater.connectors.health.health import STATES, ComponentHealth, Health
from headwater.core.clock import ManualClock
from headwater.core.errors import CorruptionError
from headwater.sql.alert_statements import DEFAULTS
from headwater.state.ownership import claim
from headwater.testing import inspect_workspace
from tests.postgres import PostgresServer
from tests.web.serving import client_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE_S = 60.0
_SINK = {"copy": {"status": {"state": "following", "applied_rows": 1}, "lag": {"rows": 0}}}
SHOP = """
    CREATE TOPIC orders (id BIGINT, n BIGINT, PRIMARY KEY (id));
    CREATE MATERIALIZED VIEW shares AS SELECT id, 10 / n AS share FROM orders;
    CREATE MATERIALIZED VIEW total AS SELECT sum(share) AS total FROM shares;
    CREATE MATERIALIZED VIEW apart AS SELECT count(*) AS n FROM orders;
    CREATE SINK copy FROM shares INTO TOPIC WITH (topic = 'copied', key = 'id');
    CREATE SINK other FROM apart INTO TOPIC WITH (topic = 'counted', mode = 'changelog');
"""


@pytest.fixture
def ws(tmp_path: Path, clock: ManualClock) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os", clock=clock) as made:
        yield made


def health_of(ws: hw.Workspace) -> Health:
    return inspect_workspace(ws).health()


def component(ws: hw.Workspace, kind: str, name: str) -> ComponentHealth:
    (found,) = [one for one in health_of(ws).components if (one.kind, one.name) == (kind, name)]
    return found


def until(found: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE_S * 50)):
        if found():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never came to that")


def reaches(ws: hw.Workspace, kind: str, name: str, state: str) -> None:
    """Wait until a component is in a state."""
    for _ in range(int(PATIENCE_S * 50)):
        if (found := component(ws, kind, name)).state == state:
            return
        threading.Event().wait(0.02)
    raise AssertionError(f"it was {found.state} to the end, not {state}: {found.reason}")


def status(folder: Path, *options: str, code: int) -> Result:
    result = CliRunner().invoke(cli, ["-w", str(folder), "status", *options])
    assert result.exit_code == code, result.output
    return result


# --- the model ---------------------------------------------------------------------------------------------------------


def test_every_state_that_is_not_fine_has_a_default_alert() -> None:
    watched = [labels for _, metric, labels, *_ in DEFAULTS if metric == "headwater_component_status"]
    engines = {"kind": "engine", "status": "not running"}
    assert engines in watched
    for kind, states in STATES.items():
        for state, severity in states.items():
            follows_from_the_engine = state == "not running" and kind != "engine"
            if severity != "ok" and not follows_from_the_engine:
                sample = {"kind": kind, "status": state}
                assert any(labels.items() <= sample.items() for labels in watched), sample


def test_without_an_engine_that_is_shown_everywhere_and_no_failure(ws: hw.Workspace) -> None:
    assert health_of(ws).engine.state == "not running"
    assert health_of(ws).healthy
    with client_of(ws) as client:
        ready = client.get("/health/ready")
        assert (ready.status_code, ready.json()["engine_state"]) == (200, "not running")
        assert ready.json()["warnings"] == ["the engine is not running"]
    series = 'headwater_component_status{kind="engine",name="engine",status="not running"} 1.0'
    assert series in ws.metrics()
    assert "headwater_healthy 1.0" in ws.metrics()
    ws.close()
    found = status(Path(ws.path or ""), code=0)
    assert "engine     not running" in found.stdout
    assert "health     ok" in found.stdout


def test_an_engine_that_gives_no_sign_of_life_is_unhealthy(ws: hw.Workspace, clock: ManualClock) -> None:
    with claim(inspect_workspace(ws).store.storage, clock):
        assert health_of(ws).engine.state == "running"
        clock.advance("11 seconds")
        found = health_of(ws).engine
        assert (found.state, found.severity) == ("frozen", "unhealthy")
        assert "has sent no heartbeat for 11 s" in found.sentence()


# --- a stopped view ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path_factory.mktemp("health") / "shop", durability="os", spark=spark) as made:
        made.sql(SHOP)
        made.topic("orders").append([{"id": 1, "n": 5}])
        made.run()
        made.sql("CREATE MATERIALIZED VIEW again AS SELECT id FROM copied")
        made.topic("copied").cursor("mailer")
        made.queue("letters", topic="copied")
        made.run()
        assert inspect_workspace(made).health().healthy
        made.topic("orders").append([{"id": 2, "n": 0}])
        made.run()
        yield made


def test_a_stopped_view_makes_everything_downstream_of_it_unhealthy(stopped: hw.Workspace) -> None:
    shares = component(stopped, "view", "shares")
    assert shares.state == "stopped"
    assert "zero" in (shares.reason or "").lower()
    assert component(stopped, "view", "total").state == "stopped"
    for kind, name in (
        ("sink", "copy"),
        ("view", "again"),
        ("cursor", "copied/mailer"),
        ("queue", "letters"),
    ):
        found = component(stopped, kind, name)
        assert (found.state, found.severity) == ("upstream stopped", "unhealthy"), found
        assert found.reason == "view shares is stopped"
    assert component(stopped, "view", "apart").severity == "ok"
    assert component(stopped, "sink", "other").severity == "warning", (
        "no engine runs, and nothing else is wrong"
    )


def test_status_readiness_and_metrics_say_the_same_of_a_stopped_view(stopped: hw.Workspace) -> None:
    assert stopped.path is not None
    about = json.loads(status(stopped.path, "--json", code=1).stdout)
    unhealthy = {(one["kind"], one["name"]) for one in about["health"]["unhealthy"]}
    assert {("view", "shares"), ("sink", "copy"), ("view", "again")} <= unhealthy
    assert [sink["state"] for sink in about["sinks"] if sink["sink"] == "copy"] == ["upstream stopped"]
    assert "unhealthy" in status(stopped.path, code=1).stdout
    with client_of(stopped) as client:
        assert client.get("/health").status_code == 200
        answer = client.get("/health/ready")
        assert answer.status_code == 503
        assert any(reason.startswith("view shares is stopped: ") for reason in answer.json()["reasons"])
        assert "sink copy receives no new rows: view shares is stopped" in answer.json()["reasons"]
    shown = {row["sink"]: (row["state"], row["reason"]) for row in stopped.sql("SHOW SINKS").to_pylist()}
    assert shown["copy"] == ("stopped", "upstream stopped: view shares is stopped")
    explained = {row["property"]: row["value"] for row in stopped.sql("EXPLAIN SINK copy").to_pylist()}
    assert explained["state"] == "stopped: upstream stopped: view shares is stopped"
    overview = Overview(stopped.log)
    lines = overview.sample(inspect_workspace(stopped).manifest(), {}, _SINK, 0.0, health_of(stopped))
    assert [line.state for line in lines if line.name == "copy"] == ["upstream stopped"]
    text = stopped.metrics()
    assert "headwater_healthy 0.0" in text
    assert 'headwater_component_status{kind="view",name="shares",status="stopped"} 1.0' in text
    assert 'headwater_component_status{kind="sink",name="copy",status="upstream stopped"} 1.0' in text
    assert 'headwater_sink_up{kind="topic",sink="copy",view="shares"} 0.0' in text


def test_without_a_token_readiness_names_no_component_and_quotes_no_row(stopped: hw.Workspace) -> None:
    from headwater.web import tokens

    secret = tokens.create(stopped.log, "reader", ("read",))
    with client_of(stopped) as client:
        answer = client.get("/health/ready")
        assert answer.status_code == 503
        assert "view: 2 stopped" in answer.json()["reasons"]
        assert not any("shares" in reason for reason in answer.json()["reasons"])
        told = client.get("/health/ready", headers={"authorization": f"Bearer {secret}"})
        assert any("shares" in reason for reason in told.json()["reasons"])


# --- sinks and sources -----------------------------------------------------------------------------------------------------


def test_a_sink_that_is_behind_or_tries_again_or_has_stopped_says_so(
    tmp_path: Path, spark: SparkSession, clock: ManualClock
) -> None:
    go_on, taking = threading.Event(), threading.Event()
    failure: list[Exception] = []

    def take(change: pa.Table, key: str) -> None:
        taking.set()
        go_on.wait(PATIENCE_S)
        if failure:
            raise failure[0]

    with hw.open(tmp_path / "ws", durability="os", spark=spark, clock=clock) as ws:
        ws.sink_function("take", take)
        ws.sql(
            "CREATE TOPIC t (n BIGINT); CREATE MATERIALIZED VIEW v AS SELECT n FROM t;"
            "CREATE SINK cache FROM v INTO PYTHON WITH (function = 'take', mode = 'changelog')"
        )
        ws.topic("t").append([{"n": 1}])
        inspect_workspace(ws).views.run()
        inspect_workspace(ws).sinks.start()
        assert taking.wait(PATIENCE_S)
        clock.advance("2 minutes")
        reaches(ws, "sink", "cache", "behind")
        assert component(ws, "sink", "cache").severity == "warning"
        failure.append(RuntimeError("the cache is down"))
        go_on.set()
        until(lambda: "the cache is down" in (component(ws, "sink", "cache").reason or ""))
        assert component(ws, "sink", "cache").state == "behind"
        failure.clear()
        ws.sink("cache").resume()
        reaches(ws, "sink", "cache", "following")
        failure.append(RuntimeError("the cache is down"))
        ws.topic("t").append([{"n": 2}])
        inspect_workspace(ws).views.run()
        reaches(ws, "sink", "cache", "retrying")


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
def test_a_source_whose_server_does_not_answer_waits_until_it_does(
    ws: hw.Workspace, clock: ManualClock, postgres_server: PostgresServer, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    ws.sql(f"CREATE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'orders')")
    with ws.start():
        reaches(ws, "source", "shop", "capturing")
        postgres_server.stop()
        reaches(ws, "source", "shop", "waiting")
        found = component(ws, "source", "shop")
        assert found.severity == "warning"
        assert "connect" in (found.reason or "")
        with hw.open(ws.path or "", clock=clock) as other:  # as a process that does not run the engine
            reaches(other, "source", "shop", "waiting")
        assert 'headwater_component_status{kind="source",name="shop",status="waiting"} 1.0' in ws.metrics()
        with client_of(ws) as client:
            ready = client.get("/health/ready")
            assert ready.status_code == 200
            assert any("source shop is waiting" in said for said in ready.json()["warnings"])
        postgres_server.start()
        reaches(ws, "source", "shop", "capturing")


# --- readers -----------------------------------------------------------------------------------------------------------


def test_a_cursor_or_group_that_lags_falls_off_or_has_lost_rows_says_so(
    ws: hw.Workspace, clock: ManualClock
) -> None:
    ws.sql("CREATE TOPIC clicks (n BIGINT) WITH (retention = '8 hours')")
    clicks = ws.topic("clicks")
    clicks.cursor("mailer")
    clicks.group("team")
    ws.log.beat("clicks", "team", "one", 10_000)
    clicks.append([{"n": 1}])
    assert component(ws, "cursor", "clicks/mailer").state == "ok"
    clock.advance("10 minutes")
    assert component(ws, "cursor", "clicks/mailer").state == "lagging"
    assert component(ws, "group", "clicks/team").state == "lagging"
    clock.advance("6 hours")
    found = component(ws, "cursor", "clicks/mailer")
    assert (found.state, found.severity) == ("falling off", "warning")
    assert "retention removes its next row in" in (found.reason or "")
    clock.advance("3 hours")
    ws.log.maintain(force=True)
    clicks.append([{"n": 2}])
    assert component(ws, "cursor", "clicks/mailer").state == "rows lost"
    assert component(ws, "group", "clicks/team").state == "rows lost"
    assert health_of(ws).healthy, "readers are their owners' matter: the workspace itself is fine"


def test_a_queue_whose_messages_wait_too_long_is_behind(ws: hw.Workspace, clock: ManualClock) -> None:
    ws.sql("CREATE TOPIC outbox (n BIGINT)")
    ws.queue("emails", topic="outbox")
    ws.topic("outbox").append([{"n": 1}])
    assert component(ws, "queue", "emails").state == "ok"
    clock.advance("6 minutes")
    found = component(ws, "queue", "emails")
    assert (found.state, found.reason) == ("behind", "1 message waits, the oldest for 360 s")
    names = {one.name for one in health_of(ws).components if one.kind == "cursor"}
    assert names == set(), "cursors that Headwater keeps for itself are no components"


# --- background work -----------------------------------------------------------------------------------------------------


def test_background_work_that_fails_is_unhealthy_until_it_works(ws: hw.Workspace) -> None:
    ws.log.faults.report(
        "background", "maintenance", CorruptionError("segment 7 is damaged", hint="headwater verify")
    )
    found = component(ws, "background", "maintenance")
    assert (found.state, found.severity, found.hint) == ("failing", "unhealthy", "headwater verify")
    assert found.sentence() == "maintenance fails: segment 7 is damaged"
    assert ws.path is not None
    assert "segment 7 is damaged" in status(ws.path, code=1).stdout
    with client_of(ws) as client:
        assert client.get("/health/ready").json()["reasons"] == ["maintenance fails: segment 7 is damaged"]
    ws.log.faults.clear("background", "maintenance")
    assert health_of(ws).healthy
    status(ws.path, code=0)


# --- alerts ------------------------------------------------------------------------------------------------------------


def test_active_alerts_are_shown_by_status(ws: hw.Workspace) -> None:
    ws.sql("CREATE DEFAULT ALERTS NOTIFY TOPIC WITH (topic = 'alarms')")
    ws.log.faults.report("background", "merges", "a run is damaged")
    inspect_workspace(ws).evaluate_alerts()
    (active,) = [one for one in inspect_workspace(ws).alerts.active() if one.alert != "disk_nearly_full"]
    assert active.alert == "background_failing"
    assert ws.path is not None
    about = json.loads(status(ws.path, "--json", code=1).stdout)
    assert "background_failing" in [one["alert"] for one in about["alerts"]]
    assert "background_failing" in status(ws.path, code=1).stdout


def test_a_server_watches_alerts_while_no_engine_runs(ws: hw.Workspace, clock: ManualClock) -> None:
    ws.sql("CREATE DEFAULT ALERTS NOTIFY TOPIC WITH (topic = 'alarms')")
    with client_of(ws):

        def told() -> list[str]:
            clock.advance("1 minute")
            rows = [row for batch in ws.topic("alarms").read("earliest") for row in batch.to_pylist()]
            return [row["alert"] for row in rows]

        until(lambda: "engine_not_running" in told())


# --- damaged state -------------------------------------------------------------------------------------------------------


def test_a_damaged_manifest_is_shown_until_the_next_tick_replaces_it(
    ws: hw.Workspace, spark: SparkSession
) -> None:
    ws.sql("CREATE TOPIC orders (id BIGINT); CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM orders")
    ws.topic("orders").append([{"id": 1}])
    tick = ws.run().tick
    ws.close()
    folder = Path(ws.path or "")
    manifest = folder / "state" / "manifests" / f"{tick:012d}.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"epoch"', b'"hcope"'))
    with hw.open(folder) as again:
        (found,) = health_of(again).unhealthy
        assert found.sentence().startswith("reading the newest tick fails: ")
        assert manifest.name in found.sentence()
        with client_of(again) as client:
            assert client.get("/health/ready").status_code == 503
    assert manifest.name in status(folder, code=1).output
    with hw.open(folder, spark=spark) as again:
        again.run()
        assert health_of(again).healthy
