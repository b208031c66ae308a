"""Signatures of Standard Webhooks, and secrets that are not shown."""

from __future__ import annotations

import base64

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import SetupError
from antiphon.webhooks.signature import Secret, signed_headers

from .receiver import SECRETS


def test_example_of_the_specification() -> None:
    headers = signed_headers(
        [Secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_every_secret_signs() -> None:
    both = signed_headers([Secret(each) for each in SECRETS], "evt_1", 1, b"{}")[
        "webhook-signature"
    ]
    assert both.split(" ") == [
        signed_headers([Secret(each)], "evt_1", 1, b"{}")["webhook-signature"] for each in SECRETS
    ]


def test_official_client_verifies_the_signature() -> None:
    with openai.OpenAI(api_key="none") as client:
        verify = client.webhooks.verify_signature

        @given(st.text(), st.binary(min_size=24, max_size=64))
        def is_verified(text: str, key: bytes) -> None:
            secret, at = "whsec_" + base64.b64encode(key).decode(), 1_795_000_000
            headers = dict(signed_headers([Secret(secret)], "evt_1", at, text.encode()))
            verify(text, headers, secret=secret, tolerance=2**40)
            with pytest.raises(openai.InvalidWebhookSignatureError):
                verify(text + " ", headers, secret=secret, tolerance=2**40)

        is_verified()


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_!!", "whsec_YQ==", SECRETS[0][6:]])
def test_invalid_secret_is_refused_and_not_shown(secret: str) -> None:
    with pytest.raises(SetupError) as refused:
        Secret(secret)
    assert not secret.removeprefix("whsec_") or secret not in str(refused.value)


def test_repr_does_not_show_the_secret() -> None:
    assert SECRETS[0][6:20] not in repr(Secret(SECRETS[0]))
