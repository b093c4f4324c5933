"""Ticks as OpenTelemetry spans: to a collector that answers, to one that does not, and to none."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import headwater as hw
from headwater.core.clock import SystemClock
from headwater.core.errors import HeadwaterError
from headwater.engine.metrics.phases import COMPUTE, READ, WRITE, Phases
from headwater.engine.tick import tracing as tracing_module
from headwater.engine.tick.tick_engine import TickReport
from headwater.engine.tick.tracing import Tracing, tracing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


class Collector:
    """A collector that speaks OTLP over HTTP, and keeps what it is sent."""

    def __init__(self) -> None:
        self.services: set[str] = set()
        self.spans: list[Any] = []
        self.answer = 200
        self.asked = threading.Event()
        self.silent = threading.Event()
        """While it is set nothing is answered."""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.asked.set()
                while collector.silent.is_set():
                    collector.silent.wait(0.05)
                    if collector.closed.wait(0.01):
                        return
                if collector.answer == 200:
                    collector.take(self.path, body)
                self.send_response(collector.answer)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Not on the terminal."""

        self.closed = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = _plain(of_resource.resource.attributes)
            self.services.add(about["service.name"])
            for scope in of_resource.scope_spans:
                self.spans.extend(scope.spans)

    def ticks(self) -> list[Any]:
        return [span for span in self.spans if span.name == "tick"]

    def below(self, parent: Any) -> dict[str, Any]:
        return {span.name: span for span in self.spans if span.parent_span_id == parent.span_id}

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (TRACES, ENDPOINT, "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    tracing_module._warn_once.cache_clear()


def traced(url: str, monkeypatch: pytest.MonkeyPatch, **more: str) -> Tracing:
    """As an engine has it in an environment with these variables."""
    import os

    monkeypatch.setenv(ENDPOINT, url)
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    return tracing("shop", os.environ)


def one_tick(to: Tracing, tick: int = 1) -> None:
    watch = Phases()
    with watch(READ):
        pass
    to.ticked(SystemClock().now_us(), TickReport(tick, 10, 0.5), watch)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_every_tick_is_a_span_with_its_phases_below_it(
    tmp_path: Path, spark: SparkSession, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDPOINT, collector.url)
    clock = SystemClock()
    began = clock.now_us() * 1_000
    with hw.open(tmp_path / "shop", spark=spark) as ws:
        ws.sql(
            "CREATE TOPIC orders (id BIGINT); CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM orders"
        )
        for i in range(2):
            ws.topic("orders").append([{"id": i}, {"id": i}])
            report = ws.run()
        ws.run()  # makes no tick
    ended = clock.now_us() * 1_000
    assert collector.services == {"headwater"}
    first, last = sorted(collector.ticks(), key=lambda span: span.start_time_unix_nano)
    told = _plain(last.attributes)
    assert told["headwater.workspace"] == str(tmp_path / "shop")
    assert (told["headwater.tick"], told["headwater.rows"]) == (report.tick, 2)
    assert last.end_time_unix_nano - last.start_time_unix_nano == int(told["headwater.seconds"] * 1e9)
    assert last.trace_id != first.trace_id
    assert not last.parent_span_id
    phases = collector.below(last)
    assert phases.keys() == report.phases.keys() >= {"plan", "read", "compute", "commit"}
    assert all(began <= s.start_time_unix_nano <= s.end_time_unix_nano <= ended for s in collector.spans)
    order = [phases[name].start_time_unix_nano for name in ("plan", "read", "commit", "tidy")]
    assert order == sorted(order)
    for name, seconds in report.phases.items():
        assert _plain(phases[name].attributes)["headwater.seconds"] == pytest.approx(seconds, abs=1e-5)


def test_a_tick_that_fails_is_a_span_with_the_error(
    tmp_path: Path, spark: SparkSession, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACES, f"{collector.url}/v1/traces")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "shop-views")
    with hw.open(tmp_path / "shop", spark=spark) as ws:
        ws.sql(
            "CREATE TOPIC orders (id BIGINT); CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM orders"
        )
        ws.sql("CREATE MATERIALIZED VIEW w AS SELECT 1 / id AS x FROM orders")
        runner = ws.start()
        ws.query("SELECT * FROM v", after=ws.topic("orders").append([{"id": 0}]))  # stops w, not the tick
        ws.query("SELECT * FROM v", after=ws.topic("orders").append([{"id": 1}]))  # the first is over
        shutil.rmtree(tmp_path / "shop" / "state")
        ws.topic("orders").append([{"id": 2}])
        while runner.running:
            threading.Event().wait(0.01)
        with pytest.raises(HeadwaterError) as raised:
            runner.stop()
        assert collector.services == {"shop-views"}, "they are sent when it stops"
    *_, failed = sorted(collector.ticks(), key=lambda span: span.start_time_unix_nano)
    assert failed.status.code == 2
    assert raised.value.message in failed.status.message
    (event,) = failed.events
    assert _plain(event.attributes)["exception.type"].endswith(type(raised.value).__name__)
    assert "Traceback" in _plain(event.attributes)["exception.stacktrace"]
    assert collector.below(failed).keys() >= {"plan"}
    stopped = [_plain(e.attributes) for s in collector.ticks() for e in s.events if e.name == "view stopped"]
    assert [told["headwater.view"] for told in stopped] == ["w"]


def test_phases_have_the_times_that_they_were_at_work() -> None:
    watch = Phases()
    with watch(COMPUTE):
        with watch(WRITE):
            pass
        with watch(READ):
            pass
    spans = watch.spans
    assert spans[COMPUTE][0] <= spans[WRITE][0] <= spans[WRITE][1] <= spans[READ][0] <= spans[COMPUTE][1]
    first, last = spans[COMPUTE]
    assert sum(watch.seconds.values()) == pytest.approx(last - first)


@pytest.mark.parametrize("how", ["refuses", "fails", "silent"])
def test_an_endpoint_that_is_away_costs_spans_and_no_tick(
    how: str, collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"http://127.0.0.1:{free_port()}" if how == "refuses" else collector.url
    collector.answer = 503
    if how == "silent":
        collector.silent.set()
    monkeypatch.setattr(tracing_module, "FLUSH_S", 0.2)
    to = traced(url, monkeypatch, OTEL_BSP_MAX_QUEUE_SIZE="16", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="8")
    for tick in range(200):  # more than are kept: none of them waits
        one_tick(to, tick)
    to.flush()  # neither do these, for longer than their bound
    to.close()
    to.close()
    one_tick(to)
    assert collector.spans == []
    assert [r.message for r in caplog.records if r.name == "headwater" and r.levelno > logging.WARNING] == []


def test_that_spans_do_not_arrive_is_said_once_and_that_they_do_again_too(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwater")
    secret = collector.url.replace("http://", "http://me:secret@")
    to = traced(secret, monkeypatch)
    collector.answer = 400  # for which the library does not try again
    for tick in (1, 2):
        one_tick(to, tick)
        to.flush()
    collector.answer = 200
    one_tick(to, 3)
    to.flush()
    assert [_plain(span.attributes)["headwater.tick"] for span in collector.ticks()] == [3]
    to.close()
    told = [record.message for record in caplog.records if record.name == "headwater"]
    levels = [record.levelno for record in caplog.records if record.name == "headwater"]
    assert levels == [logging.WARNING, logging.INFO]
    assert "secret" not in "".join(told)


@pytest.mark.parametrize(
    ("variables", "warned"),
    [
        ({}, None),
        ({ENDPOINT: " "}, None),
        ({ENDPOINT: "http://x", "OTEL_SDK_DISABLED": "true"}, None),
        ({ENDPOINT: "http://x", "OTEL_TRACES_EXPORTER": "none"}, None),
        ({ENDPOINT: "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf, not as grpc"),
    ],
)
def test_the_standard_variables_decide(
    variables: dict[str, str], warned: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    assert type(tracing("shop", variables)) is Tracing
    assert len(caplog.records) == (warned is not None)
    assert (warned or "") in caplog.text


def test_without_the_library_there_is_one_warning_that_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for workspace in ("shop", "bank"):
        assert type(tracing(workspace, {ENDPOINT: "http://127.0.0.1:9"})) is Tracing
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert 'pip install "headwater[otel]"' in record.message


def test_nothing_is_imported_where_no_endpoint_is_named() -> None:
    program = (
        "import sys, headwater.views.runner; from headwater.engine.tick.tracing import tracing; tracing('shop', {});"
        "assert not [m for m in sys.modules if m.startswith(('opentelemetry', 'google', 'requests'))]"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
