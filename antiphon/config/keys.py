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

    sha256: Annotated[str, declare("SHA-256 of the key, in lower-case hex.")]
    tenant: Annotated[str, declare("Tenant of the key. Tenants cannot see each other's data.")] = (
        "default"
    )
    name: Annotated[
        str | None,
        declare(
            "Name of the key in logs, in usage statistics, and in the settings `operators` "
            "and `prompt_editors`. Keys with the same name share their limits. Unset: the "
            "name of the tenant."
        ),
    ] = None
    requests_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        declare(
            "Maximum number of requests per minute for all keys with this name together. "
            "Unset: the global `requests_per_minute`."
        ),
    ] = None
    tokens_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        declare(
            "Maximum number of input and output tokens in 60 seconds for all keys with this "
            "name together. Unset: no limit."
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
            "Maximum number of requests to models that run or wait at the same time, for all "
            "keys with this name together. Unset: no limit."
        ),
    ] = None
    background_runs: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        declare(
            "Maximum number of background responses that are queued or in progress, for all "
            "keys with this name together. Unset: no limit."
        ),
    ] = None
    models: Annotated[
        tuple[str, ...] | None,
        declare("Names or aliases of the models that the key may use. Unset: all."),
    ] = None
    tools: Annotated[
        tuple[str, ...] | None,
        declare(
            "Types of hosted tools, such as `web_search`, that the key may use. Functions "
            "and custom tools are always allowed. Unset: all."
        ),
    ] = None
