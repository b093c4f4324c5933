"""Ticks as OpenTelemetry spans, if the standard variables name an endpoint. No other module imports OpenTelemetry.

Without an endpoint, nothing is imported. A thread sends spans in batches from a bounded queue: an unreachable endpoint loses
spans, but never delays a tick. Spans use a separate tracer provider, so the provider of the program is not changed.
"""

from __future__ import annotations

import atexit
import logging
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, cast

from headwater.catalog.connectors import without_password
from headwater.core.clock import Microseconds
from headwater.core.errors import ExtraMissingError
from headwater.core.extras import require
from headwater.engine.metrics.phases import Phases
from headwater.engine.tick.tick_engine import TickReport

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SPOKEN = "http/protobuf"
FLUSH_S = 3.0
"""Maximum number of seconds that the end of an engine waits for spans to be sent."""
_log = logging.getLogger("headwater")


class Tracing:
    """Interface of tracing, and implementation without an endpoint: does nothing."""

    def ticked(self, began: Microseconds, report: TickReport, watch: Phases) -> None:
        """Record a committed tick."""

    def failed(self, began: Microseconds, error: Exception, watch: Phases) -> None:
        """Record a tick that ended with an error and was not committed."""

    def flush(self) -> None:
        """Send queued spans, if that is possible within `FLUSH_S`."""

    def close(self) -> None:
        """Send queued spans, if that is possible within `FLUSH_S`, and stop."""


def tracing(workspace: str, environment: Mapping[str, str]) -> Tracing:
    """Return the tracing that the environment variables configure; problems are logged as warnings, never raised."""
    address = _endpoint(environment)
    if address is None:
        return Tracing()
    try:
        return _Spans(workspace, environment, address)
    except ExtraMissingError as error:
        _warn_once(f"{error.message} ({error.detail}); {error.hint}")
    except Exception as error:  # noqa: BLE001 - whatever a variable says, views go on
        _warn_once(without_password(str(error)))
    return Tracing()


@cache
def _warn_once(reason: str) -> None:
    """Log a reason once per process, even if the program opens many workspaces."""
    _log.warning("ticks are not traced: %s", reason)


def _endpoint(environment: Mapping[str, str]) -> str | None:
    """Return the endpoint for spans, without passwords; None if tracing is off."""

    def first(names: Sequence[str]) -> str:
        return next((value for name in names if (value := environment.get(name, "").strip())), "")

    address = first(ENDPOINTS)
    is_off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporters = environment.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if not address or is_off or "otlp" not in (name.strip() for name in exporters.split(",")):
        return None
    protocol = first(PROTOCOLS) or SPOKEN
    if protocol != SPOKEN:
        _warn_once(f"spans are sent as {SPOKEN}, not as {protocol}")
        return None
    return without_password(address)


class _Spans(Tracing):
    """A span for each tick, with a child span for each of its phases.

    If a program calls `ws.run()` within a span of its own, the spans of ticks are children of that span.
    """

    def __init__(self, workspace: str, environment: Mapping[str, str], address: str) -> None:
        require("otel", "sending spans")
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # `_Exporter` logs it once
        is_named = environment.get("OTEL_SERVICE_NAME", "").strip() or (
            "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
        )
        about = {} if is_named else {"service.name": "headwater"}
        self._api = trace
        self._workspace = workspace
        self._exporter = _Exporter(OTLPSpanExporter(), address)
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(cast(Any, self._exporter)))
        self._tracer = self._provider.get_tracer("headwater")
        atexit.register(self.close)

    def ticked(self, began: Microseconds, report: TickReport, watch: Phases) -> None:
        """Record a span, with an event for each view that stopped."""
        facts = {"tick": report.tick, "rows": report.rows, "seconds": report.seconds}
        span = self._tick(began, facts, watch)
        for view, reason in report.stopped.items():
            attributes = {"headwater.view": view, "headwater.reason": without_password(reason)}
            span.add_event("view stopped", attributes, timestamp=_ns(began, report.seconds))
        span.end(_ns(began, report.seconds))

    def failed(self, began: Microseconds, error: Exception, watch: Phases) -> None:
        """Record a span with the error."""
        seconds = max((last for _, last in watch.spans.values()), default=0.0)
        span = self._tick(began, {"seconds": seconds}, watch)
        message = without_password(str(error))
        attributes = {
            "exception.type": f"{type(error).__module__}.{type(error).__qualname__}",
            "exception.message": message,
            "exception.stacktrace": without_password("".join(traceback.format_exception(error))),
        }
        span.add_event("exception", attributes, timestamp=_ns(began, seconds))
        span.set_status(self._api.Status(self._api.StatusCode.ERROR, message))
        span.end(_ns(began, seconds))

    def _tick(self, began: Microseconds, facts: Mapping[str, float], watch: Phases) -> Any:
        attributes = {f"headwater.{name}": value for name, value in facts.items()}
        span = self._tracer.start_span(
            "tick",
            attributes={"headwater.workspace": self._workspace, **attributes},
            start_time=_ns(began),
        )
        within = self._api.set_span_in_context(span)
        spent = watch.seconds
        for phase, (first, last) in watch.spans.items():
            child = self._tracer.start_span(
                phase, within, attributes={"headwater.seconds": spent[phase]}, start_time=_ns(began, first)
            )
            child.end(_ns(began, last))
        return span

    def flush(self) -> None:
        """Send queued spans. `FLUSH_S` is enforced here, because the library exceeds its own timeout."""
        self._within_bound(self._provider.force_flush)

    def close(self) -> None:
        """Send queued spans, and drop those that cannot be sent within `FLUSH_S`."""
        atexit.unregister(self.close)
        self._within_bound(self._provider.shutdown)
        self._exporter.give_up()

    def _within_bound(self, work: Any) -> None:
        thread = threading.Thread(target=work, name="headwater-spans", daemon=True)
        thread.start()
        thread.join(FLUSH_S)


class _Exporter:
    """Forwards batches to an exporter; logs once when they fail to arrive, and once when they arrive again."""

    def __init__(self, inner: Any, address: str) -> None:
        self._inner = inner
        self._address = address
        self._is_well = True
        self._given_up = False

    def export(self, spans: Sequence[Any]) -> Any:
        """Export a batch; called by one thread at a time."""
        result = self._inner.export(spans)
        arrived = result.name == "SUCCESS"
        if arrived != self._is_well and not self._given_up:
            self._is_well = arrived
            how = (
                "are delivered again" if arrived else "cannot be delivered, and some may be lost; ticks go on"
            )
            _log.log(logging.INFO if arrived else logging.WARNING, "spans for %s %s", self._address, how)
        return result

    def give_up(self) -> None:
        """Stop retrying."""
        self._given_up = True
        with suppress(Exception):
            self._inner.shutdown()

    def shutdown(self) -> None:
        """Do nothing: `give_up` shuts down the exporter."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing: this exporter has no queue."""
        del timeout_millis
        return True


def _ns(began: Microseconds, after_s: float = 0.0) -> int:
    return began * 1_000 + int(after_s * 1e9)
