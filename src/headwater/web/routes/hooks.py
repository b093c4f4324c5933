"""`/hooks/{name}`: deliveries of webhooks come in by POST. Who knows the secret needs no token; each is answered when it is durable."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headwater.connectors.manage.webhooks import Hooks, Outcome
from headwater.core.errors import AlreadyWrittenError, HeadwaterError, SignatureError
from headwater.core.positions import Receipt
from headwater.sources.webhook_source import Delivery, WebhookSource
from headwater.web.idempotency_keys import key_of
from headwater.web.ingest import DeliveryOrigin, PostResult
from headwater.web.problems import Problem, problem_of
from headwater.web.request_bodies import Media, media_of
from headwater.web.routes.topics import receipt_response, received
from headwater.web.server_context import ServedWorkspace, served

INLINE_BYTES = 64 << 10
"""Larger bodies are checked and read in a thread, so that they hold up no one."""
_LARGER = "ALTER SOURCE ... SET (max_body = '...') takes larger ones"
_OUTCOMES: dict[int, Outcome] = {
    400: "malformed",
    401: "unsigned",
    413: "too-large",
    415: "malformed",
    422: "malformed",
}


async def take(request: Request) -> Response:
    """POST: one delivery, checked, written once, and answered with its receipt."""
    here = served(request)
    hooks = here.outside.sources.hooks
    source = await _found(here, hooks, request.path_params["hook"])
    try:
        answer = await _take(request, here, source)
    except ClientDisconnect:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is counted, and answered as a problem
        told = problem_of(error)
        stale = isinstance(error, SignatureError) and error.facts.get("reason") == "stale"
        outcome: Outcome = "stale" if stale else _OUTCOMES.get(told.status, "failed")
        hooks.count(source.name, outcome, told.detail)
        if told.status == 401:
            told.headers["WWW-Authenticate"] = f'Webhook-Signature scheme="{source.options.scheme}"'
        raise told from None
    hooks.count(source.name, "repeated" if "Idempotency-Replayed" in answer.headers else "taken")
    return answer


async def _found(here: ServedWorkspace, hooks: Hooks, name: str) -> WebhookSource:
    """The hook of a name. Nothing is said of which others there are: whoever asks may be anybody."""
    try:
        found = await here.run(hooks.find, name)
    except HeadwaterError:  # a secret that stands in no environment here; `headwater status` says which
        raise Problem(
            503, "hook-not-ready", f"hook {name!r} cannot be checked by this server", retry_after_s=60
        ) from None
    if found is None:
        raise Problem(
            404,
            "no-such-hook",
            f"there is no hook {name!r}",
            hint="CREATE SOURCE ... FROM WEBHOOK makes one",
        )
    return found


async def _take(request: Request, here: ServedWorkspace, source: WebhookSource) -> Response:
    most = min(source.options.body_bytes_max, here.settings.body_bytes_max)
    media = media_of(request.headers.get("content-type"), request.headers.get("content-encoding"))
    if media is not Media.JSON:
        raise Problem(
            415, "unsupported-media-type", "a delivery is JSON", hint=f"Content-Type: {Media.JSON.value}"
        )
    reserved = 0
    try:
        body, reserved = await received(request, here.strangers, most, _LARGER)
        headers = {name.lower(): value for name, value in request.headers.items()}
        if len(body) <= INLINE_BYTES:
            delivery: Delivery = source.delivered(headers, body)
        else:
            delivery = await here.run(source.delivered, headers, body)
        # known by its id alone: a delivery that is made again may be written otherwise
        key = key_of(delivery.id, f"hook:{source.name}", source.topic.name, "", b"")
        origin = DeliveryOrigin(source.name, delivery.row, delivery.sent_us)
        done = await here.ingest.append(source.topic.name, body, media, key, origin)
    except AlreadyWrittenError:  # its row is gone by now: no other answer would have its sender rest
        done = PostResult(Receipt({}), replayed=True)
    finally:
        here.strangers.release(reserved)
    return receipt_response(done)
