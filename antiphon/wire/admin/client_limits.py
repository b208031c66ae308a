"""The limits of API keys, of users who sign in, and of tenants."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from antiphon.wire.tools import HostedTool

_Limit = Annotated[int, Meta(ge=1, le=2**53)]
_Names = Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=1000)]


class ClientLimits(Struct, frozen=True, kw_only=True):
    """Limits of one API key or user, or of all keys of a tenant together. None means no limit. The
    settings, the API and the store have the same fields, and all of them take the names, bounds and
    descriptions from this class."""

    requests_per_minute: Annotated[
        _Limit | None,
        Meta(
            description="Maximum number of requests per minute. Unset: the global setting"
            " `requests_per_minute`."
        ),
    ] = None
    tokens_per_minute: Annotated[
        _Limit | None,
        Meta(
            description="Maximum number of input and output tokens in 60 seconds. Unset: no limit."
        ),
    ] = None
    tokens_per_day: Annotated[
        _Limit | None,
        Meta(
            description="Maximum number of input and output tokens per day (UTC). Unset: no limit."
        ),
    ] = None
    concurrent_requests: Annotated[
        _Limit | None,
        Meta(
            description="Maximum number of requests to models that run or wait at the same time."
            " Unset: no limit."
        ),
    ] = None
    background_runs: Annotated[
        _Limit | None,
        Meta(
            description="Maximum number of background responses that are queued or in progress."
            " Unset: no limit."
        ),
    ] = None
    models: Annotated[
        _Names | None,
        Meta(description="Names or aliases of the models that may be used. Unset: all."),
    ] = None
    tools: Annotated[
        tuple[HostedTool, ...] | None,
        Meta(
            description="Types of hosted tools, such as `web_search`, that may be used. Functions"
            " and custom tools are always allowed. Unset: all."
        ),
    ] = None

    @property
    def limits_tokens(self) -> bool:
        """Whether tokens are limited."""
        return self.tokens_per_minute is not None or self.tokens_per_day is not None
