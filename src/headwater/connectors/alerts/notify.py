"""Notifications of alerts by POST request or mail. Notices on a topic are written together with the episode."""

from __future__ import annotations

import hashlib
import http.client
import smtplib
import ssl
from collections.abc import Mapping
from email.message import EmailMessage
from typing import Any

import orjson

from headwater.catalog.connectors import AlertDefinition
from headwater.core.arguments import whole_number
from headwater.core.clock import Clock, parse_span_us, timestamp
from headwater.core.errors import SinkError, TargetDownError, UsageError
from headwater.sinks.base.circuit_breaker import Circuit
from headwater.sinks.base.http_post import Hook, HttpPostOptions

TIMEOUT = "10 seconds"


def check_notice(alert: AlertDefinition) -> None:
    """Raise HeadwaterError if a notification with these options could not be sent. Environment variables that are not set
    here may be set where the engine runs, and are not checked."""
    options = alert.options
    if alert.kind == "webhook" and isinstance(options["url"], str):
        Hook(options["url"], HttpPostOptions(whose=f"alert {alert.name!r}"))
    if isinstance(options.get("timeout"), str):
        parse_span_us(options["timeout"])
    if alert.kind == "email":
        whole_number(options.get("port", 25), "port", least=1)
        if not isinstance(options.get("starttls", False), bool):
            raise UsageError("starttls is true or false", option="starttls")


class Notices:
    """Sends notifications, once per call: the caller retries. A receiver that keeps failing is skipped by a circuit breaker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._circuits: dict[tuple[str, int, str], Circuit] = {}

    def send(self, alert: AlertDefinition, notice: Mapping[str, Any], key: str) -> None:
        """Send a notice. TargetDownError if a retry may help, SinkError if not."""
        options = alert.resolved()
        timeout_s = parse_span_us(str(options.get("timeout", TIMEOUT))) / 1e6
        body = _plain(notice)
        if alert.kind == "email":
            _mail(options, body, key, timeout_s)
            return
        made = HttpPostOptions(
            options.get("secret"),
            options.get("token"),
            timeout_s,
            attempts=1,
            previous_secret=options.get("previous_secret"),
            whose=f"alert {alert.name!r}",
        )
        url = str(options["url"])
        circuit = self._circuits.setdefault((alert.name, alert.incarnation, url), Circuit(self._clock))
        hook = Hook(url, made, clock=self._clock, circuit=circuit)
        try:
            status, said = hook.post(orjson.dumps(body), key)
        finally:
            hook.close()
        if not 200 <= status < 300:
            raise SinkError(
                f"{hook.shown} answers {status} {http.client.responses.get(status, '')}".rstrip(),
                detail=said or None,
                hint="check the address, and the token or secret, of the alert",
                status=status,
            )


def key_of(workspace: str, notice: Mapping[str, Any]) -> str:
    """Return the idempotency key of a notice."""
    parts = (notice["alert"], notice["key"], timestamp(notice["episode"]), notice["event"])
    return hashlib.sha256("\n".join((workspace, *parts)).encode()).hexdigest()[:32]


def _plain(notice: Mapping[str, Any]) -> dict[str, Any]:
    """Return a notice as JSON values: the key and the row are objects, times are text."""
    body = dict(notice)
    for name in ("episode", "at"):
        body[name] = timestamp(body[name])
    for name in ("key", "row"):
        body[name] = body[name] if body[name] in (None, "*") else orjson.loads(body[name])
    return body


def _mail(options: Mapping[str, Any], body: Mapping[str, Any], key: str, timeout_s: float) -> None:
    message = EmailMessage()
    sender = str(options.get("from", "headwater@localhost"))
    of = "" if body["key"] in ("*", {}) else " " + orjson.dumps(body["key"]).decode()
    state = "is over" if body["event"] == "over" else "has fired"
    message["Subject"] = " ".join(f"alert {body['alert']} {state}{of}".split())[:200]
    message["From"] = sender
    message["To"] = str(options["to"])
    message["Message-ID"] = f"<{key}@headwater>"  # equal for repeated mails
    lines = {
        "alert": body["alert"],
        "event": body["event"],
        "on": body["on"],
        "when": body["condition"],
        "since": body["episode"],
        "at": body["at"],
        "key": orjson.dumps(body["key"]).decode(),
        "row": orjson.dumps(body["row"]).decode(),
    }
    message.set_content("".join(f"{name}: {value}\n" for name, value in lines.items()))
    encrypts = bool(options.get("starttls", False))
    port = int(options.get("port", 587 if encrypts else 25))
    try:
        with smtplib.SMTP(str(options["host"]), port, timeout=timeout_s) as server:
            if encrypts:
                server.starttls(context=ssl.create_default_context())
            if options.get("user") is not None:
                server.login(str(options["user"]), str(options.get("password", "")))
            server.send_message(message)
    except (OSError, smtplib.SMTPException) as error:
        reason = str(error) or type(error).__name__
        raise TargetDownError(
            f"{options['host']}:{port} did not accept the email",
            detail=reason,
            host=options["host"],
            port=port,
        ) from None
