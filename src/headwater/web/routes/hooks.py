"""Route `/hooks/{name}`: deliveries of webhooks. They are signed instead of having a token, and answered when they are
durable."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from headwater.connectors.manage.webhooks import Hooks, Outcome
from headwater.core.errors import AlreadyWrittenError, HeadwaterError, SignatureError
from headwater.core.positions import Receipt
from headwater.sources.webhook_source import Delivery, WebhookSource
from headwater.web.idempotency_keys import key_of
from headwater.web.ingest import DeliveryOrigin, PostResult
from headwater.web.problems import Problem, problem_of, retry_after
from headwater.web.request_bodies import Media, media_of
from headwater.web.routes.topics import receipt_response, received
from headwater.web.server_context import ServedWorkspace, served

INLINE_BYTES = 64 << 10
"""Size above which bodies are checked and parsed in a thread, so that they do not block the event loop."""
_LARGER = "ALTER SOURCE ... SET (max_body = '...') allows larger ones"
_OUTCOMES: dict[int, Outcome] = {
    400: "malformed",
    401: "unsigned",
    413: "too-large",
    415: "malformed",
    422: "malformed",
}


async def take(request: Request) -> Response:
    """POST: check a delivery, write it once, and return its receipt."""
    here = served(request)
    hooks = here.supervisor.sources.hooks
    source = await _find_webhook(here, hooks, request.path_params["hook"])
    try:
        answer = await _take(request, here, source)
    except ClientDisconnect:
        raise
    except Exception as error:  # noqa: BLE001 - any error is counted, and answered as a problem
        refusal = problem_of(error)
        stale = isinstance(error, SignatureError) and error.facts.get("reason") == "stale"
        outcome: Outcome = "stale" if stale else _OUTCOMES.get(refusal.status, "failed")
        hooks.count(source.name, outcome, refusal.detail)
        if refusal.status == 401:
            refusal.headers["WWW-Authenticate"] = f'Webhook-Signature scheme="{source.options.scheme}"'
        raise refusal from None
    hooks.count(source.name, "repeated" if "Idempotency-Replayed" in answer.headers else "taken")
    return answer


async def _find_webhook(here: ServedWorkspace, hooks: Hooks, name: str) -> WebhookSource:
    """Return the hook of a name. Errors do not reveal other hooks, because the client is not authenticated."""
    try:
        found = await here.run(hooks.find, name)
    except HeadwaterError:  # a secret's environment variable is missing here; `headwater status` names it
        raise Problem(
            503, "hook-not-ready", f"webhook {name!r} is not ready on this server", headers=retry_after(60)
        ) from None
    if found is None:
        raise Problem(
            404,
            "no-such-hook",
            f"there is no webhook {name!r}",
            hint="CREATE SOURCE ... FROM WEBHOOK creates one",
        )
    return found


async def _take(request: Request, here: ServedWorkspace, source: WebhookSource) -> Response:
    most = min(source.options.body_bytes_max, here.settings.body_bytes_max)
    media = media_of(request.headers.get("content-type"), request.headers.get("content-encoding"))
    if media is not Media.JSON:
        raise Problem(
            415, "unsupported-media-type", "a delivery must be JSON", hint=f"Content-Type: {Media.JSON.value}"
        )
    reserved = 0
    try:
        body, reserved = await received(request, here.strangers, most, _LARGER)
        headers = {name.lower(): value for name, value in request.headers.items()}
        if len(body) <= INLINE_BYTES:
            delivery: Delivery = source.delivered(headers, body)
        else:
            delivery = await here.run(source.delivered, headers, body)
        # the key is the delivery's id alone: a repeated delivery may have another body
        key = key_of(delivery.id, f"hook:{source.name}", source.topic.name, "", b"")
        origin = DeliveryOrigin(source.name, delivery.row, delivery.sent_us)
        done = await here.ingest.append(source.topic.name, body, media, key, origin)
    except AlreadyWrittenError:  # its row was removed since; any other response would make the sender retry
        done = PostResult(Receipt({}), replayed=True)
    finally:
        here.strangers.release(reserved)
    return receipt_response(done)
