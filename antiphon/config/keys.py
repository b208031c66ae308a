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
    name: Annotated[str | None, declare("Name of the key in logs. Unset: the tenant.")] = None
    requests_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None, declare("Rate limit of the key. Unset: the global one.")
    ] = None
    tokens_per_minute: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        declare("Input and output tokens that keys of this name may use in a minute."),
    ] = None
    tokens_per_day: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        declare("Input and output tokens that keys of this name may use in a day (UTC)."),
    ] = None
    concurrent_requests: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        declare("Requests with keys of this name that may be in progress at a time."),
    ] = None
    background_runs: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        declare("Background responses of keys of this name that may be in progress at a time."),
    ] = None
    models: Annotated[
        tuple[str, ...] | None,
        declare("Names or aliases of the models that the key may use. Unset: all."),
    ] = None
    tools: Annotated[
        tuple[str, ...] | None,
        declare("Types of tools that the key may use besides functions. Unset: all."),
    ] = None
