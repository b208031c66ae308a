"""API keys that operators manage: an extension of the API."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from .client_limits import ClientLimits

_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.@:/-]{1,128}$")]


class CreateApiKey(ClientLimits, frozen=True, kw_only=True):
    """A request to create an API key.

    ``name``: identifies the key in the log, in usage reports and in the settings ``operators`` and
    ``prompt_editors``.
    """

    name: _Name
    tenant: _Name = "default"


class ManagedApiKey(ClientLimits, frozen=True, kw_only=True):
    """An API key in the store, without its secret. ``redacted_value`` shows the end of the
    secret."""

    object: Literal["antiphon.api_key"] = "antiphon.api_key"
    name: str
    tenant: str
    redacted_value: str
    created_at: int
    rotated_at: int | None = None


class NewApiKey(ManagedApiKey, frozen=True, kw_only=True):
    """An API key that was created or rotated. ``value`` is the secret of the key. Only this answer
    contains the secret."""

    value: str


class ApiKeyList(Struct, frozen=True, kw_only=True):
    """All API keys in the store, ordered by name."""

    object: Literal["list"] = "list"
    data: tuple[ManagedApiKey, ...]
