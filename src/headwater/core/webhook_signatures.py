"""Signatures of webhooks: HMACs over requests, made and verified. Three schemes are supported, all with SHA-256:

| scheme | headers | what is signed | identified by |
| --- | --- | --- | --- |
| `standard` (Standard Webhooks) | `webhook-id`, `webhook-timestamp`, `webhook-signature: v1,<base64> ...` | id, time and body | its id |
| `github` | `X-Hub-Signature-256: sha256=<hex>`, `X-GitHub-Delivery` | the body alone: no time, so nothing is ever stale | its header |
| `stripe` | `Stripe-Signature: t=<time>,v1=<hex>,...` | time and body | the field `id` of the body |

Several secrets may be valid at once: two while one is rotated. A comparison takes the same time for every wrong signature.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from headwater.core.clock import Microseconds
from headwater.core.errors import SignatureError, UsageError

Scheme = Literal["standard", "github", "stripe"]
SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
ID_HEADER, TIME_HEADER, SIGNATURE_HEADER = "webhook-id", "webhook-timestamp", "webhook-signature"
SECRET_PREFIX = "whsec_"
"""Prefix of a Standard Webhooks secret, followed by base64."""
CANDIDATES_MAX = 20
"""Maximum number of signatures checked per request: more would only cause work."""

_SECONDS = re.compile(r"\d{1,12}")


@dataclass(frozen=True)
class Signed:
    """Identity and time of a signed request, from its headers."""

    id: str | None
    """Identity of the request, the same when it is sent again; None if it is in the body."""
    at_us: Microseconds | None
    """Time of sending; None if the signed content has none."""


def secret_bytes(secret: str) -> bytes:
    """Return the signing key of a secret: the text itself, or the base64 content after `whsec_`."""
    if not secret:
        raise UsageError("the secret is empty", hint="generate one: openssl rand -base64 32", reason="empty")
    if not secret.startswith(SECRET_PREFIX):
        return secret.encode()
    try:
        found = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not found:
        raise UsageError(
            f"a secret that begins with {SECRET_PREFIX} must continue in base64",
            hint="copy the whole secret from the sender",
            reason="not-base64",
        )
    return found


def sign(secrets: Sequence[bytes], name: str, at_s: int, body: bytes) -> str:
    """Return the value of `webhook-signature`: one signature for each secret, separated by spaces."""
    return " ".join(
        f"v1,{base64.b64encode(_standard(secret, name, at_s, body)).decode()}" for secret in secrets
    )


def check(
    scheme: Scheme,
    headers: Mapping[str, str],
    body: bytes,
    secrets: Sequence[bytes],
    now_us: Microseconds,
    tolerance_us: Microseconds,
) -> Signed:
    """Verify the signature of a request and return its identity. SignatureError if it is missing, wrong, or signed at another
    time.

    `headers` are looked up by lower-case names. The signature is checked before the time, so that only a sender with the secret
    gets an error about the clock.
    """
    match scheme:
        case "github":
            said = _needed(headers, "x-hub-signature-256")
            given = [said.removeprefix("sha256=").lower()] if said.startswith("sha256=") else []
            _prove(given, [_hex(secret, body) for secret in secrets])
            return Signed(headers.get("x-github-delivery"), None)
        case "stripe":
            parts = [part.strip().partition("=") for part in _needed(headers, "stripe-signature").split(",")]
            time = next((value for name, _, value in parts if name == "t"), "")
            at_s = _moment(time)
            given = [value.lower() for name, _, value in parts if name == "v1"]
            _prove(given, [_hex(secret, f"{time}.".encode() + body) for secret in secrets])
            return Signed(None, _recent(at_s, now_us, tolerance_us))
        case "standard":
            name, time = _needed(headers, ID_HEADER), _needed(headers, TIME_HEADER)
            at_s = _moment(time)
            said = _needed(headers, SIGNATURE_HEADER)
            given = [part.removeprefix("v1,") for part in said.split() if part.startswith("v1,")]
            made = [base64.b64encode(_standard(secret, name, time, body)).decode() for secret in secrets]
            _prove(given, made)
            return Signed(name, _recent(at_s, now_us, tolerance_us))


def _standard(secret: bytes, name: str, at_s: int | str, body: bytes) -> bytes:
    return hmac.new(secret, f"{name}.{at_s}.".encode() + body, hashlib.sha256).digest()


def _hex(secret: bytes, signed: bytes) -> str:
    return hmac.new(secret, signed, hashlib.sha256).hexdigest()


def _needed(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise SignatureError(
            f"the request has no header {name}",
            hint="check that the signature scheme of this webhook is the one that the sender uses",
            header=name,
            reason="missing",
        )
    return value


def _moment(text: str) -> int:
    if not _SECONDS.fullmatch(text):
        raise SignatureError(
            "the timestamp of the request is not in seconds since 1970",
            hint="check that the signature scheme of this webhook is the one that the sender uses",
            reason="missing",
        )
    return int(text)


def _prove(given: Sequence[str], made: Sequence[str]) -> None:
    """Raise SignatureError unless a given signature is one of ours; every pair is compared, in constant time."""
    found = False
    for one in given[:CANDIDATES_MAX]:
        for ours in made:
            found |= hmac.compare_digest(one.encode(), ours.encode())
    if not found:
        raise SignatureError(
            "the signature of the request does not match",
            hint="check that the sender and this webhook have the same secret",
            reason="wrong",
        )


def _recent(at_s: int, now_us: Microseconds, tolerance_us: Microseconds) -> Microseconds:
    at_us = at_s * 1_000_000
    if abs(now_us - at_us) > tolerance_us:
        raise SignatureError(
            "the timestamp of the request is too far from the current time",
            detail=f"the request was signed at {at_s}; the time here is {now_us // 1_000_000}",
            hint="sign and send it again; check the clocks of both machines",
            reason="stale",
        )
    return at_us
