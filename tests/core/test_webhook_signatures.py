"""Signatures of webhooks: the vectors that others have published, and that nothing else is taken for one."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import SignatureError, UsageError
from headwater.core.webhook_signatures import CANDIDATES_MAX, SCHEMES, check, secret_bytes, sign
from tests.raising import raises

SECOND = 1_000_000
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
STANDARD_BODY = b'{"test": 2432232314}'
STANDARD = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}


def test_the_published_example_of_standard_webhooks() -> None:
    secrets = [secret_bytes(STANDARD_SECRET)]
    now_us = 1614265330 * SECOND
    assert check("standard", STANDARD, STANDARD_BODY, secrets, now_us, 0).id == STANDARD["webhook-id"]
    said = sign(secrets, STANDARD["webhook-id"], 1614265330, STANDARD_BODY)
    assert said == STANDARD["webhook-signature"]


def test_the_published_example_of_github() -> None:
    headers = {
        "x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
        "x-github-delivery": "1",
    }
    secrets = [secret_bytes("It's a Secret to Everybody")]
    signed = check("github", headers, b"Hello, World!", secrets, 0, 0)
    assert (signed.id, signed.at_us) == ("1", None)
    with raises(SignatureError, reason="wrong"):
        check("github", headers, b"Hello, World?", secrets, 0, 0)


def test_the_time_is_looked_at_after_the_signature() -> None:
    late_us = (1614265330 + 11) * SECOND
    with raises(SignatureError, reason="wrong"):
        check("standard", STANDARD, STANDARD_BODY, [b"another"], late_us, 10 * SECOND)
    with raises(SignatureError, reason="stale"):
        check("standard", STANDARD, STANDARD_BODY, [secret_bytes(STANDARD_SECRET)], late_us, 10 * SECOND)


def test_only_so_many_signatures_of_a_request_are_looked_at() -> None:
    many = " ".join(["v1,AAAA"] * CANDIDATES_MAX + [STANDARD["webhook-signature"]])
    headers = {**STANDARD, "webhook-signature": many}
    with pytest.raises(SignatureError):
        check("standard", headers, STANDARD_BODY, [secret_bytes(STANDARD_SECRET)], 1614265330 * SECOND, 0)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_not base64"])
def test_what_is_no_secret_is_refused(secret: str) -> None:
    with raises(UsageError, reason="not-base64" if secret else "empty"):
        secret_bytes(secret)


_text = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=40)


@given(
    st.sampled_from(SCHEMES),
    st.dictionaries(
        st.sampled_from([*STANDARD, "x-hub-signature-256", "x-github-delivery", "stripe-signature"]),
        st.one_of(
            _text, st.sampled_from(["v1,", "sha256=", "t=1614265330,v1=", "t=,v1", "1614265330", ",,=,"])
        ),
    ),
    st.binary(max_size=40),
)
def test_whatever_else_is_sent_is_refused_as_such(scheme: str, headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(SignatureError):
        check(scheme, headers, body, [b"a secret"], 1614265330 * SECOND, SECOND)  # type: ignore[arg-type]


@given(
    st.text(min_size=1, max_size=30),
    st.integers(0, 10**11),
    st.binary(max_size=60),
    st.binary(min_size=1, max_size=40),
)
def test_what_is_signed_is_taken_with_any_of_the_secrets(
    name: str, at_s: int, body: bytes, secret: bytes
) -> None:
    """Of Stripe's scheme too, signed here by its own text."""
    if name.encode("utf-8", "ignore").decode() != name:
        return
    headers = {
        "webhook-id": name,
        "webhook-timestamp": str(at_s),
        "webhook-signature": sign([b"x", secret], name, at_s, body),
    }
    assert check("standard", headers, body, [secret, b"y"], at_s * SECOND, 0).at_us == at_s * SECOND
    proof = hmac.new(secret, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
    stripe = {"stripe-signature": f"t={at_s}, v1={'0' * 64}, v1={proof}"}
    assert check("stripe", stripe, body, [b"y", secret], at_s * SECOND, 0).at_us == at_s * SECOND
    with pytest.raises(SignatureError):
        check("standard", headers, body + b" ", [secret], at_s * SECOND, 0)
    assert base64.b64decode(headers["webhook-signature"].split()[1].removeprefix("v1,"))
