"""Settings of one API key."""

from __future__ import annotations

from typing import Annotated

from antiphon.wire.admin.client_limits import ClientLimits

from .options import declare


class ApiKey(ClientLimits, frozen=True, kw_only=True):
    """An API key and its limits: ``[[keys]]``.

    The settings contain only the SHA-256 digest of a key. `antiphon key new` creates a key. Keys
    with the same name share their limits.
    """

    sha256: Annotated[str, declare("SHA-256 of the key, in lower-case hex.")]
    tenant: Annotated[str, declare("Tenant of the key. Tenants cannot see each other's data.")] = (
        "default"
    )
    name: Annotated[
        str | None,
        declare(
            "Name of the key in logs, in usage statistics, and in the settings `operators` "
            "and `prompt_editors`. Unset: the name of the tenant."
        ),
    ] = None
