"""Idempotency keys: a repeated request returns the response of the first request.

The response's id is computed from the key, so no table of keys is needed.
"""

from __future__ import annotations

import re
from hashlib import sha256

from starlette.types import Scope

from antiphon.errors import invalid_field
from antiphon.http.middleware.request_context import header

#: Response header of a repeated request.
REPLAYED_HEADER = (b"idempotent-replayed", b"true")
_KEY = re.compile(rb"[\x20-\x7e]{1,255}\Z")


def response_id(scope: Scope, tenant: str, body: bytes) -> str | None:
    """Return the response id for a request with an ``Idempotency-Key``. Returns None if the request
    has no such header.

    The id is computed from the tenant, the key and the body, so a repetition of the request gets
    the same id. Raises ``InvalidRequest`` for a malformed key.
    """
    key = header(scope, b"idempotency-key")
    if key is None:
        return None
    if not _KEY.match(key):
        raise invalid_field(
            "Idempotency-Key",
            "expected 1 to 255 printable ASCII characters.",
            code="invalid_idempotency_key",
        )
    parts = (tenant.encode(), key, body)
    digest_input = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return f"resp_{sha256(digest_input).hexdigest()[:48]}"
