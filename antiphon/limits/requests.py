"""The limits that apply to each request."""

from __future__ import annotations

from msgspec import Struct

from antiphon.wire.parsing.json_body import BodyLimits


class RequestLimits(Struct, frozen=True, kw_only=True):
    """Limits on incoming requests.

    - ``max_body_bytes``: maximum size of a request body, except for uploaded files.
    - ``max_file_bytes``: maximum size of an uploaded file.
    - ``body``: limits of the JSON in a request body, such as its nesting depth.
    - ``body_memory_bytes``: maximum bytes of all large bodies in memory.
    - ``body_memory_per_tenant``: maximum bytes of the large bodies of one tenant in memory; None
      means no limit per tenant.
    - ``max_concurrent_requests``: maximum number of requests in progress.
    - ``max_requests_per_tenant``: maximum number of requests in progress of one tenant; None means
      no limit per tenant.
    - ``max_queued_requests``: maximum number of waiting requests. Further requests get the status
      429.
    - ``retry_after_s``: the seconds after which the client of a request refused with 429 may try
      again.
    - ``requests_per_minute``: the limit of each key that has no limit of its own. On a server
      without keys, it is the limit of the whole server. None means no limit.
    """

    max_body_bytes: int = 64 * 2**20
    max_file_bytes: int = 64 * 2**20
    body: BodyLimits = BodyLimits()
    body_memory_bytes: int = 2**30
    body_memory_per_tenant: int | None = None
    max_concurrent_requests: int = 256
    max_requests_per_tenant: int | None = None
    max_queued_requests: int = 1024
    retry_after_s: int = 2
    requests_per_minute: int | None = None
