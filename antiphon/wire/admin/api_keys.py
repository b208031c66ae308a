"""API keys that operators manage: an extension of the API."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from antiphon.wire.tools import HostedTool

__all__ = ["ApiKeyList", "CreateApiKey", "ManagedApiKey", "NewApiKey"]

_Limit = Annotated[int, Meta(ge=1, le=2**53)] | None
_Names = Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=1000)] | None
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.@:/-]{1,128}$")]


class CreateApiKey(Struct, frozen=True, kw_only=True):
    """A request to create an API key.

    ``name``: identifies the key in the log, in usage reports and in the settings ``operators`` and
    ``prompt_editors``. The token limits count input and output tokens. ``models``: names or aliases
    of the models that the key may use. ``tools``: types of tools that the key may use, besides
    functions.
    """

    name: _Name
    tenant: _Name = "default"
    requests_per_minute: _Limit = None
    tokens_per_minute: _Limit = None
    tokens_per_day: _Limit = None
    concurrent_requests: _Limit = None
    background_runs: _Limit = None
    models: _Names = None
    tools: tuple[HostedTool, ...] | None = None


class ManagedApiKey(Struct, frozen=True, kw_only=True):
    """An API key in the store, without its secret. ``redacted_value`` shows the end of the
    secret."""

    object: Literal["antiphon.api_key"] = "antiphon.api_key"
    name: str
    tenant: str
    redacted_value: str
    created_at: int
    rotated_at: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent_requests: int | None = None
    background_runs: int | None = None
    models: tuple[str, ...] | None = None
    tools: tuple[str, ...] | None = None


class NewApiKey(ManagedApiKey, frozen=True, kw_only=True):
    """An API key that was created or rotated. ``value`` is the secret of the key. Only this answer
    contains the secret."""

    value: str


class ApiKeyList(Struct, frozen=True, kw_only=True):
    """All API keys in the store, ordered by name."""

    object: Literal["list"] = "list"
    data: tuple[ManagedApiKey, ...]
