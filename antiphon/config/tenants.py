"""Settings of one tenant."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from antiphon.wire.admin.client_limits import ClientLimits

from .options import declare

_Limit = Annotated[int, Meta(ge=0)] | None
_Rate = Annotated[int, Meta(ge=1)] | None


class Tenant(ClientLimits, frozen=True, kw_only=True):
    """Quotas and limits of a tenant: ``[tenants.NAME]``.

    An option that begins with ``max_`` is a quota. It replaces the setting of the same name for
    this tenant, and 0 means no limit. The other options limit all keys of the tenant together. In
    addition, each key has its own limits.
    """

    max_responses: Annotated[
        _Limit, declare("Maximum number of stored responses. Unset: the global `max_responses`.")
    ] = None
    max_responses_bytes: Annotated[
        _Limit,
        declare(
            "Maximum total size in bytes of stored responses. If it is reached, new "
            "responses are refused. Unset: the global `max_responses_bytes`."
        ),
    ] = None
    max_files: Annotated[
        _Limit, declare("Maximum number of files. Unset: the global `max_files`.")
    ] = None
    max_files_bytes: Annotated[
        _Limit,
        declare(
            "Maximum total size in bytes of files. The same limit applies separately to "
            "pending uploads and to skills. Unset: the global `max_files_bytes`."
        ),
    ] = None
    max_vector_stores: Annotated[
        _Limit, declare("Maximum number of vector stores. Unset: the global `max_vector_stores`.")
    ] = None
    max_containers: Annotated[
        _Limit, declare("Maximum number of active containers. Unset: the global `max_containers`.")
    ] = None
    requests_per_minute: Annotated[
        _Rate, declare("Maximum number of requests per minute. Unset: no limit.")
    ] = None
    background_runs: Annotated[
        _Rate,
        declare(
            "Maximum number of background responses that are queued or in progress. Unset: "
            "the global `max_tenant_background_runs`."
        ),
    ] = None
