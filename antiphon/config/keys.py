"""Settings of one API key."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from .options import declare

__all__ = ["ApiKey"]


class ApiKey(Struct, frozen=True, kw_only=True):
    """An API key: ``[[keys]]``.

    The settings contain only the SHA-256 digest of a key. `antiphon key new` creates a key.
    """

    sha256: Annotated[str, declare("SHA-256 of the key, in hex.")]
    tenant: Annotated[str, declare("Tenant of the key. Tenants cannot see each other's data.")] = (
        "default"
    )
    name: Annotated[
        str | None, declare("Name of the key in logs. Unset: the name of the tenant.")
    ] = None
    requests_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        declare(
            "Maximum number of requests per minute with this key. Unset: the global "
            "`requests_per_minute`."
        ),
    ] = None
    tokens_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        declare(
            "Maximum number of input and output tokens per minute for all keys with "
            "this name together. Unset: no limit."
        ),
    ] = None
    tokens_per_day: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        declare(
            "Maximum number of input and output tokens per day (UTC) for all keys with "
            "this name together. Unset: no limit."
        ),
    ] = None
    concurrent_requests: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        declare(
            "Maximum number of requests in progress at the same time, for all keys with "
            "this name together. Unset: no limit."
        ),
    ] = None
    background_runs: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        declare(
            "Maximum number of background responses in progress at the same time, for "
            "all keys with this name together. Unset: no limit."
        ),
    ] = None
    models: Annotated[
        tuple[str, ...] | None,
        declare("Names or aliases of the models that the key may use. Unset: all."),
    ] = None
    tools: Annotated[
        tuple[str, ...] | None,
        declare("Types of tools that the key may use, in addition to functions. Unset: all."),
    ] = None
