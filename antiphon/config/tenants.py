"""Settings of one tenant."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from .options import declare

__all__ = ["Tenant"]

_Limit = Annotated[int, Meta(ge=0)] | None
_Rate = Annotated[int, Meta(ge=1)] | None


class Tenant(Struct, frozen=True, kw_only=True):
    """Quotas and limits of a tenant: ``[tenants.NAME]``.

    For this tenant, the options that begin with ``max_`` replace the settings of the same name. 0
    means no limit. The other limits apply to all keys of the tenant together, in addition to the
    limits of each key.
    """

    max_responses: Annotated[
        _Limit, declare("Maximum number of stored responses. Unset: the global one.")
    ] = None
    max_responses_bytes: Annotated[
        _Limit, declare("Size of stored responses in bytes. Unset: the global one.")
    ] = None
    max_files: Annotated[_Limit, declare("Maximum number of files. Unset: the global one.")] = None
    max_files_bytes: Annotated[
        _Limit, declare("Maximum total size of files in bytes. Unset: the global one.")
    ] = None
    max_vector_stores: Annotated[
        _Limit, declare("Maximum number of vector stores. Unset: the global one.")
    ] = None
    max_containers: Annotated[
        _Limit, declare("Maximum number of active containers. Unset: the global one.")
    ] = None
    requests_per_minute: Annotated[
        _Rate, declare("Requests of the tenant in a minute. Unset: no limit.")
    ] = None
    tokens_per_minute: Annotated[
        _Rate, declare("Input and output tokens of the tenant in a minute. Unset: no limit.")
    ] = None
    tokens_per_day: Annotated[
        _Rate, declare("Input and output tokens of the tenant in a day (UTC). Unset: no limit.")
    ] = None
    concurrent_requests: Annotated[
        _Rate, declare("Requests of the tenant in progress at a time. Unset: no limit.")
    ] = None
    background_runs: Annotated[
        _Rate, declare("Background responses of the tenant in progress at a time. Unset: no limit.")
    ] = None
    models: Annotated[
        tuple[str, ...] | None,
        declare("Names or aliases of the models that the tenant may use. Unset: all."),
    ] = None
    tools: Annotated[
        tuple[str, ...] | None,
        declare("Types of tools that the tenant may use besides functions. Unset: all."),
    ] = None
