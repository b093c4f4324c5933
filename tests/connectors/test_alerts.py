"""Alerts: one notice when an episode begins and one when it is over, whatever happens between."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult
from prometheus_client.core import GaugeMetricFamily, Metric

import headwater as hw
from headwater.catalog.connectors import ALERT, AlertDefinition
from headwater.connectors.alerts.alert_conditions import WHOLE, MatchingRows, Observer, matching_rows
from headwater.connectors.alerts.alert_episodes import TOPIC, Episode, Episodes
from headwater.connectors.alerts.alerts import Alerts
from headwater.connectors.alerts.notify import Notices
from headwater.core.clock import ManualClock, from_us
from headwater.core.errors import HeadwaterError, SinkError, TargetDownError, UsageError
from headwater.log.memory import MemoryLog
from headwater.sinks.base.circuit_breaker import CircuitOptions
from headwater.sinks.base.http_post import KEY_HEADER, SIGNATURE_HEADER, signature
from headwater.sql.alert_statements import DEFAULTS
from headwater.sql.parser import parse
from headwater.sql.statements import Alerting
from headwater.testing import inspect_workspace
from tests.raising import raises
from tests.repo.tree import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAG = "headwater_sink_lag_seconds"
CERTIFICATE = Path(__file__).parents[1] / "web" / "localhost.crt"


@dataclass
class Bench:
    """Alerts over a log in memory, figures that a test sets, and somebody who is told."""

    log: MemoryLog
    clock: ManualClock
    figures: dict[str, float] = field(default_factory=dict)
    told: list[tuple[str, str, str]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    down: bool = False
    alerts: Alerts = field(init=False)

    def __post_init__(self) -> None:
        self.alerts = self.another()

    def another(self) -> Alerts:
        """As another process has them, or this one after a restart."""
        return Alerts(self.log, self.clock, _no_views, self.collect, deliver=self.deliver)

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(LAG, "x", labels=("sink",))
        for sink, value in self.figures.items():
            family.add_metric((sink,), value)
        yield family

    def deliver(self, alert: AlertDefinition, notice: Mapping[str, Any], key: str) -> None:
        if self.down:
            raise TargetDownError("nobody is there")
        self.told.append((alert.name, notice["event"], orjson.loads(notice["key"])["sink"]))
        self.keys.append(key)

    def sql(self, text: str, alerts: Alerts | None = None) -> Any:
        (statement,) = parse(text)
        assert isinstance(statement, Alerting)
        return (alerts or self.alerts).execute(statement)

    def turn(self, after: str = "1 second", alerts: Alerts | None = None) -> None:
        self.clock.advance(after)
        (alerts or self.alerts).evaluate()
        (alerts or self.alerts).notify()

    def known(self, alert: str) -> dict[str, Episode]:
        return {key: e for (name, key), e in Episodes(self.log).refresh().items() if name == alert}

    def notices(self, topic: str) -> list[tuple[str, str]]:
        end = self.log.partitions(topic)[0].end
        rows = [row for batch in self.log.read(topic, 0, 0, end) for row in batch.to_pylist()]
        return [(row["event"], row["key"]) for row in rows]


def _no_views() -> Any:
    raise AssertionError("no view is asked for")


@pytest.fixture
def bench() -> Bench:
    clock = ManualClock()
    return Bench(MemoryLog(clock), clock)


HOOK = "NOTIFY WEBHOOK WITH (url = 'http://127.0.0.1:1/')"


def test_an_episode_is_told_once_when_it_begins_and_once_when_it_is_over(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 {HOOK}")
    bench.figures = {"cache": 5, "search": 50}
    for _ in range(3):
        bench.turn()
    assert bench.told == [("behind", "fired", "search")]
    bench.figures = {"cache": 11, "search": 10}
    for _ in range(3):
        bench.turn()
    assert sorted(bench.told[1:]) == [("behind", "fired", "cache"), ("behind", "over", "search")]
    bench.figures = {"cache": 11, "search": 11}
    bench.turn()
    assert bench.told[3:] == [("behind", "fired", "search")], "another episode"
    assert len(set(bench.keys)) == 4, "each notice has a key of its own"


def test_a_condition_must_hold_without_a_break(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 FOR '5 minutes' {HOOK}")
    bench.figures = {"cache": 50}
    bench.turn()
    bench.turn("299 seconds")
    bench.figures = {"cache": 1}
    bench.turn()
    bench.figures = {"cache": 50}
    bench.turn()
    bench.turn("299 seconds")
    assert bench.told == []
    bench.turn("1 second")
    assert bench.told == [("behind", "fired", "cache")]


def test_how_long_a_condition_has_held_outlives_a_restart(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 FOR '5 minutes' {HOOK}")
    bench.figures = {"cache": 50, "search": 50}
    bench.turn()
    began = bench.clock.now_us()
    (row,) = bench.alerts.show().to_pylist()
    assert (row["state"], row["episodes"], row["since"]) == ("pending", 0, from_us(began))
    bench.turn("2 minutes")
    bench.figures = {}  # nothing runs yet after the restart
    again = bench.another()
    bench.turn("1 minute", again)
    bench.figures = {"cache": 50, "search": 1}
    bench.turn("10 seconds", again)
    bench.turn("109 seconds", bench.another())
    assert bench.told == [], "for a second less"
    bench.figures = {"cache": 50, "search": 50}
    last = bench.another()
    bench.turn("1 second", last)
    assert bench.told == [("behind", "fired", "cache")], "the other has begun anew"
    assert bench.known("behind")['{"sink":"cache"}'].episode == began
    bench.turn("1 second", bench.another())
    bench.figures = {"cache": 1, "search": 1}
    bench.turn("1 second", bench.another())
    bench.turn("10 minutes", bench.another())
    assert bench.told[1:] == [("behind", "over", "cache")], "nothing is said of what has not fired"
    assert bench.known("behind") == {}


def test_a_clock_that_is_set_back_makes_nothing_fire_early_or_never(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 FOR '5 minutes' {HOOK}")
    bench.figures = {"cache": 50}
    bench.turn()
    ahead = bench.log.topics()  # the log is as it was; the next process is on a clock that is an hour behind
    assert TOPIC in ahead
    behind = ManualClock(bench.clock.now_us() - 3_600_000_000)
    other = Alerts(bench.log, behind, _no_views, bench.collect, deliver=bench.deliver)
    for after in ("1 second", "299 seconds"):
        behind.advance(after)
        other.evaluate()
        other.notify()
    assert bench.told == []
    behind.advance("1 second")
    other.evaluate()
    other.notify()
    assert bench.told == [("behind", "fired", "cache")], "five minutes after it was first seen there"


def test_flapping_is_told_of_no_more_often_than_it_held(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 FOR '10 seconds' {HOOK}")
    for value in (50, 1) * 20:
        bench.figures = {"cache": value}
        bench.turn("9 seconds")
    assert bench.told == []


@pytest.mark.parametrize("told_before", [True, False])
def test_nothing_is_repeated_or_lost_by_a_restart(bench: Bench, told_before: bool) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 {HOOK}")
    bench.figures = {"cache": 50}
    bench.alerts.evaluate()
    if told_before:
        bench.alerts.notify()
    again = bench.another()
    bench.turn(alerts=again)
    bench.turn(alerts=again)
    assert bench.told == [("behind", "fired", "cache")]
    bench.figures = {"cache": 0}
    again.evaluate()
    bench.turn(alerts=bench.another())
    assert bench.told[1:] == [("behind", "over", "cache")]
    bench.turn(alerts=bench.another())
    assert len(bench.told) == 2


def test_a_notice_that_was_sent_and_not_noted_comes_again_with_its_key(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 {HOOK}")
    bench.figures = {"cache": 50}
    dying = bench.another()
    dying.evaluate()
    dying._record_sent = lambda told: None  # type: ignore[method-assign]  # killed before it could
    dying.notify()
    bench.turn()
    assert bench.told == [("behind", "fired", "cache")] * 2
    assert len(set(bench.keys)) == 1


def test_of_two_that_watch_at_once_one_begins_the_episode(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 NOTIFY TOPIC WITH (topic = 'alarms')")
    other = bench.another()
    bench.figures = {"cache": 50}
    bench.alerts._episodes.refresh()
    stale = dict(bench.alerts._episodes.refresh())
    other.evaluate()
    bench.alerts._episodes.refresh = lambda: stale  # type: ignore[method-assign]  # looked before the other wrote
    bench.alerts.evaluate()
    del bench.alerts._episodes.refresh
    bench.turn()
    bench.turn(alerts=other)
    assert bench.notices("alarms") == [("fired", '{"sink":"cache"}')]


def test_a_notice_on_a_topic_is_in_the_append_that_begins_the_episode(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 NOTIFY TOPIC WITH (topic = 'alarms')")
    bench.figures = {"cache": 50, "search": 60}
    before = bench.log.sequence()
    bench.alerts.evaluate()
    ours = [row["_sequence"] for b in bench.log.read(TOPIC, 0, 0, 2, ["_sequence"]) for row in b.to_pylist()]
    theirs = [
        row["_sequence"] for b in bench.log.read("alarms", 0, 0, 2, ["_sequence"]) for row in b.to_pylist()
    ]
    assert len(set(ours + theirs)) == 1
    assert ours[0] > before
    bench.figures = {"cache": 50}
    bench.clock.advance("2 minutes")
    bench.alerts.evaluate()
    bench.turn("2 minutes")
    assert bench.notices("alarms")[2:] == [("over", '{"sink":"search"}')], "its figure is gone"


def test_a_figure_that_is_missing_for_a_moment_ends_nothing(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 {HOOK}")
    bench.figures = {"cache": 50}
    bench.turn()
    bench.figures = {}
    bench.turn("30 seconds")
    bench.turn("50 seconds")
    bench.figures = {"cache": 50}
    bench.turn()
    bench.figures = {}
    bench.turn()
    bench.turn("59 seconds")
    assert len(bench.told) == 1
    bench.turn("2 seconds")
    assert bench.told[1:] == [("behind", "over", "cache")]


def test_who_does_not_answer_is_tried_again_after_longer_and_longer_pauses(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 {HOOK}")
    bench.figures = {"cache": 50}
    bench.down = True
    bench.turn()
    (row,) = bench.alerts.show().to_pylist()
    assert (row["state"], row["untold"], row["reason"]) == ("firing", 1, "nobody is there")
    bench.figures = {"cache": 0}
    bench.turn("1 second")
    bench.down = False
    bench.turn("1 second")
    assert bench.told == [], "the second pause is of two seconds"
    bench.turn("1 second")
    assert bench.told == [("behind", "fired", "cache"), ("behind", "over", "cache")]
    (row,) = bench.alerts.show().to_pylist()
    assert (row["state"], row["untold"], row["reason"]) == ("quiet", 0, None)


def test_what_cannot_be_looked_at_stays_as_it_is(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 {HOOK}")
    bench.sql(f"CREATE ALERT slow ON METRIC {LAG} WHEN value > 10 FOR '1 minute' {HOOK}")
    bench.figures = {"cache": 50}
    bench.turn()
    see = bench.alerts._observer.matching

    def blind(alert: AlertDefinition) -> MatchingRows:
        raise HeadwaterError("it is too dark")

    bench.alerts._observer.matching = blind  # type: ignore[method-assign]
    bench.turn("59 seconds")
    assert {row["reason"] for row in bench.alerts.show().to_pylist()} == {"it is too dark"}
    bench.alerts._observer.matching = see  # type: ignore[method-assign]
    bench.turn()
    assert bench.told == [("behind", "fired", "cache")], "nobody saw that the other held"


def test_a_dropped_alert_says_nothing_more_and_one_of_its_name_begins_anew(bench: Bench) -> None:
    create = f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 {HOOK}"
    bench.sql(create)
    bench.figures = {"cache": 50}
    bench.turn()
    bench.sql("DROP ALERT behind")
    bench.clock.advance("1 second")
    bench.sql(create)
    bench.turn()
    bench.turn()
    assert bench.told == [("behind", "fired", "cache")] * 2
    bench.sql("DROP ALERT behind")
    bench.turn()
    assert len(bench.told) == 2
    assert bench.alerts._episodes.refresh() == {}
    bench.sql("DROP ALERT IF EXISTS behind")
    with raises(hw.AlertNotFoundError, alert="behind"):
        bench.sql("DROP ALERT behind")


def test_another_condition_ends_the_episodes_that_do_not_meet_it(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 {HOOK}")
    bench.figures = {"cache": 50, "search": 500}
    bench.turn()
    bench.sql(f"CREATE OR REPLACE ALERT behind ON METRIC {LAG} WHEN value > 100 {HOOK}")
    bench.turn()
    assert bench.told[2:] == [("behind", "over", "cache")]


def test_alerts_are_made_altered_and_refused_like_everything_else(bench: Bench) -> None:
    create = f"CREATE ALERT behind ON METRIC {LAG}{{sink = 'cache'}} WHEN value > 10"
    bench.sql(f"{create} {HOOK}")
    bench.sql(f"CREATE ALERT IF NOT EXISTS behind ON METRIC {LAG} WHEN value > 99 {HOOK}")
    assert bench.alerts.definitions()["behind"].condition == "value > 10"
    with raises(hw.AlertExistsError, alert="behind") as refused:
        bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 99 {HOOK}")
    assert "+ when = value > 99" in refused.value.difference
    bench.sql("ALTER ALERT behind SET (url = 'http://127.0.0.1:2/', token = env('TOKEN'))")
    made = bench.alerts.definitions()["behind"]
    assert made.shown() == {"url": "'http://127.0.0.1:2/'", "token": "env('TOKEN')"}
    assert parse(made.to_sql())[0].definition == made  # type: ignore[union-attr]
    with raises(UsageError, option="topic", reason="unknown-option"):
        bench.sql("ALTER ALERT behind SET (topic = 'x')")
    with raises(hw.SchemaError, option="secret", reason="plain-secret"):
        bench.sql("ALTER ALERT behind SET (secret = 'plain')")
    with raises(hw.StatementError, metric="headwater_sink_lag_second") as typo:
        bench.sql(f"CREATE ALERT x ON METRIC headwater_sink_lag_second WHEN value > 10 {HOOK}")
    assert typo.value.hint == f"did you mean {LAG}?"
    with raises(hw.StatementError, alert="x", condition="valu > 10"):
        bench.sql(f"CREATE ALERT x ON METRIC {LAG} WHEN valu > 10 {HOOK}")
    with raises(hw.StatementError, alert="x", option="url", reason="missing-option"):
        bench.sql(f"CREATE ALERT x ON METRIC {LAG} WHEN value > 10 NOTIFY WEBHOOK")
    with raises(SinkError, option="url"):
        bench.sql(f"CREATE ALERT x ON METRIC {LAG} WHEN value > 10 NOTIFY WEBHOOK WITH (url = 'nowhere')")
    assert list(bench.log.entries(ALERT)) == ["behind"], "what was refused left nothing"


def test_labels_choose_the_figures_that_are_watched(bench: Bench) -> None:
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG}{{sink = 'cache'}} WHEN value BETWEEN 10 AND 60 {HOOK}")
    bench.figures = {"cache": 50, "search": 50}
    bench.turn()
    assert bench.told == [("behind", "fired", "cache")]


def test_rows_are_told_of_by_key_until_they_are_too_many(bench: Bench) -> None:
    import pyarrow as pa

    alert = AlertDefinition("a", "topic", {"topic": "t"}, "v", False, {}, "n > 0", key=("id",))
    few = pa.table({"id": [1, 2], "n": [3, 4]})
    assert matching_rows(few, alert) == MatchingRows(
        {'{"id":1}': '{"id":1,"n":3}', '{"id":2}': '{"id":2,"n":4}'}
    )
    many = pa.table({"id": range(1_001), "n": range(1_001)})
    assert matching_rows(many, alert) == MatchingRows({WHOLE: '{"rows":1001}'}, crowded=True)
    keyless = AlertDefinition("a", "topic", {"topic": "t"}, "v", False, {}, "n > 0", key=(WHOLE,))
    assert matching_rows(few, keyless) == MatchingRows({WHOLE: '{"rows":2}'})
    assert matching_rows(few.slice(0, 0), keyless) == MatchingRows({})


# --- receivers -----------------------------------------------------------------------------------------------------


def notice(bench: Bench, key: str = '{"sink":"cache"}') -> dict[str, Any]:
    from headwater.core.clock import from_us

    at = from_us(bench.clock.now_us())
    return {
        "alert": "behind", "event": "fired", "key": key, "episode": at, "at": at,
        "on": f"METRIC {LAG}", "condition": "value > 10", "row": '{"value":50}',
    }  # fmt: skip


def test_a_hook_gets_a_signed_request_that_is_known_by_its_key(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[tuple[dict[str, str], bytes]] = []
    answers = [204, 503, 403]

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answers[len(got) - 1])
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    monkeypatch.setenv("HOOK_SECRET", "s3cret")
    with _serving(HTTPServer(("127.0.0.1", 0), Receiver)) as port:
        create = f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 NOTIFY WEBHOOK"
        bench.sql(f"{create} WITH (url = 'http://127.0.0.1:{port}/in', secret = env('HOOK_SECRET'))")
        alert = bench.alerts.definitions()["behind"]
        Notices(bench.clock).send(alert, notice(bench), "k1")
        with pytest.raises(TargetDownError):
            Notices(bench.clock).send(alert, notice(bench), "k1")
        with raises(SinkError, status=403):
            Notices(bench.clock).send(alert, notice(bench), "k1")
    headers, body = got[0]
    assert headers[KEY_HEADER] == "k1"
    assert headers[SIGNATURE_HEADER] == signature("s3cret", "k1", body)
    told = orjson.loads(body)
    assert (told["alert"], told["event"], told["key"], told["row"]) == (
        "behind", "fired", {"sink": "cache"}, {"value": 50},
    )  # fmt: skip


def test_a_mail_says_what_happened_and_is_known_by_its_id(bench: Bench) -> None:
    mails: list[str] = []

    class Server(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            def say(text: str) -> None:
                self.wfile.write(f"{text}\r\n".encode())

            say("220 here")
            for raw in self.rfile:
                line = raw.decode().strip()
                if line.upper() == "DATA":
                    say("354 go on")
                    taken = iter(self.rfile.readline, b".\r\n")
                    mails.append(b"".join(taken).decode())
                say("221 bye" if line.upper() == "QUIT" else "250 ok")
                if line.upper() == "QUIT":
                    return

    with _serving(socketserver.TCPServer(("127.0.0.1", 0), Server)) as port:
        options = (
            f"to = 'ops@example.org, me@example.org', host = '127.0.0.1', port = {port}, timeout = '5 s'"
        )
        create = f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 NOTIFY EMAIL WITH ({options})"
        bench.sql(create)
        alert = bench.alerts.definitions()["behind"]
        Notices(bench.clock).send(alert, notice(bench, '{"sink":"a\\nBcc: x"}'), "k1")
    (mail,) = mails
    head, _, text = mail.partition("\r\n\r\n")
    assert "Message-ID: <k1@headwater>" in head
    assert "Subject: alert behind has fired" in head
    assert "\nBcc:" not in head, "a value of a row writes no header"
    assert "when: value > 10" in text
    with raises(TargetDownError, host="127.0.0.1"):
        Notices(bench.clock).send(alert, notice(bench), "k1")


class Mailbox:
    """A mail server that takes mails over TLS from who knows the password."""

    def __init__(self, *, offers_tls: bool = True) -> None:
        self.mails: list[str] = []
        self.logins: list[tuple[bytes, bytes]] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE, CERTIFICATE.with_suffix(".key"))
        tls = {"tls_context": context, "require_starttls": True, "auth_required": True} if offers_tls else {}
        self.controller = Controller(
            self, hostname="localhost", port=free_port(), authenticator=self._admit, **tls
        )

    def _admit(self, server: Any, session: Any, envelope: Any, mechanism: str, data: Any) -> AuthResult:
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"s3cret", handled=False)

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        assert (session.ssl is not None) == (server.tls_context is not None)
        self.mails.append(envelope.content.decode())
        return "250 taken"

    @contextmanager
    def open(self) -> Iterator[int]:
        self.controller.start()
        try:
            yield int(self.controller.port)
        finally:
            self.controller.stop()


def mailed(bench: Bench, port: int) -> AlertDefinition:
    options = (
        f"to = 'ops@example.org', host = 'localhost', port = {port}, starttls = true, user = 'me', "
        "password = env('MAIL_PASSWORD'), timeout = '5 s'"
    )
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 NOTIFY EMAIL WITH ({options})")
    return bench.alerts.definitions()["behind"]


def test_a_mail_goes_over_tls_to_a_server_that_is_logged_in_to(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))  # whom this machine trusts
    monkeypatch.setenv("MAIL_PASSWORD", "s3cret")
    box = Mailbox()
    with box.open() as port:
        alert = mailed(bench, port)
        Notices(bench.clock).send(alert, notice(bench), "k1")
        assert box.logins == [(b"me", b"s3cret")]
        assert "Message-ID: <k1@headwater>" in box.mails[0]
        monkeypatch.setenv("MAIL_PASSWORD", "wr0ng")
        with raises(TargetDownError, host="localhost", port=port) as raised:
            Notices(bench.clock).send(alert, notice(bench), "k1")
    assert "Authentication" in str(raised.value)
    assert "wr0ng" not in str(raised.value)
    assert len(box.mails) == 1


@pytest.mark.parametrize("offers_tls", [True, False], ids=["untrusted", "plain"])
def test_no_mail_and_no_password_goes_to_a_server_that_is_not_known_to_be_the_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, offers_tls: bool
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "s3cret")
    box = Mailbox(offers_tls=offers_tls)
    with box.open() as port:
        alert = mailed(bench, port)
        with raises(TargetDownError, host="localhost", port=port) as raised:
            Notices(bench.clock).send(alert, notice(bench), "k1")
    assert ("certificate" if offers_tls else "STARTTLS") in str(raised.value)
    assert box.mails == []
    assert box.logins == []


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield int(server.server_address[1])  # type: ignore[index]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# --- on views, beside an engine ------------------------------------------------------------------------------------


def test_an_alert_on_a_view_fires_by_key_and_outlives_a_restart(tmp_path: Path, spark: SparkSession) -> None:
    def told() -> list[tuple[str, str]]:
        rows = [row for batch in ws.topic("alarms").read("earliest") for row in batch.to_pylist()]
        return [(row["event"], row["key"]) for row in rows]

    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(
            "CREATE TOPIC stock (product STRING, n BIGINT, PRIMARY KEY (product));"
            "CREATE MATERIALIZED VIEW left_over AS SELECT product, sum(n) AS n FROM stock GROUP BY product;"
            "CREATE ALERT low ON left_over WHEN n < 3 NOTIFY TOPIC WITH (topic = 'alarms')"
        )
        stock = ws.topic("stock")
        stock.append([{"product": p, "n": n} for p, n in (("tea", 9), ("ink", 2), ("jam", 1))])
        ws.run()
        ws.run()
        assert sorted(told()) == [("fired", '{"product":"ink"}'), ("fired", '{"product":"jam"}')]
        with raises(UsageError, view="left_over", alerts=["low"]):
            ws.sql("DROP VIEW left_over")
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        with ws.start():
            ws.topic("stock").append([{"product": "ink", "n": 7}])
            ws.topic("stock").delete([{"product": "jam"}])
            rows = ws.topic("alarms").read("earliest", follow=True, timeout=30)
            seen: list[str] = []
            for batch in rows:
                seen += batch.column("event").to_pylist()
                if seen.count("over") == 2:
                    break
        assert sorted(told()[2:]) == [("over", '{"product":"ink"}'), ("over", '{"product":"jam"}')]
        (row,) = ws.sql("SHOW ALERTS").to_pylist()  # type: ignore[union-attr]
        assert (row["alert"], row["on"], row["state"], row["episodes"]) == ("low", "left_over", "quiet", 0)
        ws.sql("DROP VIEW left_over CASCADE")
        assert ws.sql("SHOW ALERTS").num_rows == 0  # type: ignore[union-attr]


def test_the_ready_made_alerts_are_on_metrics_that_there_are(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", durability="os") as ws:
        ws.sql("CREATE DEFAULT ALERTS NOTIFY TOPIC WITH (topic = 'alarms')")
        ws.sql("CREATE DEFAULT ALERTS NOTIFY TOPIC WITH (topic = 'alarms')")
        rows = ws.sql("SHOW ALERTS").to_pylist()  # type: ignore[union-attr]
        assert {row["alert"] for row in rows} == {name for name, *_ in DEFAULTS}
        page = (ROOT / "docs" / "alerts.md").read_text()
        assert all(f"| `{name}` | `{metric}" in page for name, metric, *_ in DEFAULTS)
        inspect_workspace(ws).alerts.evaluate()
        assert not any(row["reason"] for row in ws.sql("SHOW ALERTS").to_pylist())  # type: ignore[union-attr]


def test_a_condition_that_spark_would_have_to_answer_is_refused() -> None:
    clock = ManualClock()
    observer = Observer(MemoryLog(clock), _no_views, lambda: [GaugeMetricFamily(LAG, "x")])
    alert = AlertDefinition("a", "topic", {"topic": "t"}, LAG, True, {}, "value > (SELECT 1 FROM other)")
    with raises(hw.StatementError, alert="a", condition=alert.condition):
        observer.check(alert)


def test_a_hook_that_does_not_answer_again_and_again_is_left_alone_for_a_while(bench: Bench) -> None:
    with _serving(HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)) as port:
        gone = f"http://127.0.0.1:{port}/in"
    bench.sql(f"CREATE ALERT behind ON METRIC {LAG} WHEN value > 10 NOTIFY WEBHOOK WITH (url = '{gone}')")
    alert, notices = bench.alerts.definitions()["behind"], Notices(bench.clock)
    for _ in range(CircuitOptions.opens_after):
        with raises(TargetDownError, url=f"http://127.0.0.1:{port}/..."):
            notices.send(alert, notice(bench), "k1")
    with raises(TargetDownError, failures=CircuitOptions.opens_after):
        notices.send(alert, notice(bench), "k1")
    bench.clock.advance("30 seconds")
    with raises(TargetDownError, url=f"http://127.0.0.1:{port}/..."):
        notices.send(alert, notice(bench), "k1")
