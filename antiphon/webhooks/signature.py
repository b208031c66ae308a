"""Signatures of webhooks, as the specification Standard Webhooks defines them. With a signature, a
receiver verifies who sent a webhook, and when."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets as random_secrets
from collections.abc import Mapping, Sequence

from antiphon.errors import SetupError

_PREFIX = "whsec_"


class Secret:
    """A secret key that signs webhooks. The receivers know the key too, to verify the signatures.
    Its text form is ``whsec_`` followed by the key in base64. The ``repr`` of this object does not
    show the key."""

    __slots__ = ("_key",)

    def __init__(self, text: str) -> None:
        try:
            self._key = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            self._key = b""
        if not text.startswith(_PREFIX) or not 24 <= len(self._key) <= 64:
            raise SetupError(
                "A webhook secret must be 'whsec_' followed by 24 to 64 bytes in base64."
            )

    def signature(self, content: bytes) -> str:
        """Return the signature of ``content``. Its prefix ``v1,`` names the signature scheme."""
        digest = hmac.new(self._key, content, hashlib.sha256).digest()
        return "v1," + base64.b64encode(digest).decode()


def new_secret() -> str:
    """Return the text of a new random secret."""
    return _PREFIX + base64.b64encode(random_secrets.token_bytes(32)).decode()


def signed_headers(secrets: Sequence[Secret], id: str, at: int, body: bytes) -> Mapping[str, str]:
    """Return the HTTP headers for a webhook that is sent at ``at`` (Unix seconds).

    The headers contain one signature for each secret. A receiver accepts the webhook if it knows
    one of these secrets, so an operator can replace a secret while receivers still use the old one.
    Source: Standard Webhooks 1.0.
    """
    content = f"{id}.{at}.".encode() + body
    return {
        "webhook-id": id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(secret.signature(content) for secret in secrets),
        "content-type": "application/json",
    }
