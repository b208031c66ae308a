"""Requests that a client repeats because it does not know what became of them: by their key, the
first one's response is found again. Nothing is kept for it: the key is part of the response's id.
"""

from __future__ import annotations

import re
from hashlib import sha256

from starlette.types import Scope

from antiphon.errors import InvalidRequest
from antiphon.http.middleware.request_context import header

__all__ = ["HEADER", "response_id"]

#: Tells that this answer was given before.
HEADER = (b"idempotent-replayed", b"true")
_KEY = re.compile(rb"[\x20-\x7e]{1,255}\Z")


def response_id(scope: Scope, tenant: str, body: bytes) -> str | None:
    """The id of the response to this request, if it has an ``Idempotency-Key``. The same key with
    another body makes another one. Raises ``InvalidRequest`` for what is no key."""
    key = header(scope, b"idempotency-key")
    if key is None:
        return None
    if not _KEY.match(key):
        raise InvalidRequest(
            "Invalid 'Idempotency-Key': expected 1 to 255 printable ASCII characters.",
            param="Idempotency-Key",
            code="invalid_idempotency_key",
        )
    parts = (tenant.encode(), key, body)
    said = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return f"resp_{sha256(said).hexdigest()[:48]}"
