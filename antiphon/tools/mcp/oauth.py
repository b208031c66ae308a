"""Access tokens for MCP servers that the operator has configured as an OAuth client: the grant
``client_credentials``, for which no user signs in."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator
from typing import Annotated
from urllib.parse import quote

import httpx2
import msgspec
from msgspec import Meta, Struct

from .endpoint import OAuthClient, current_trace

#: A token is replaced this many seconds before it expires.
_MARGIN_S = 10
#: How long a token is used if the authorization server does not say when it expires.
_UNKNOWN_LIFE_S = 3600
#: Limits of the answer with a token: seconds until all of it has arrived (fewer than a session may
#: take to open, so that its error names the reason), and bytes.
_TIMEOUT_S = 10
_MAX_BYTES = 2**16
_UNREACHABLE = (httpx2.HTTPError, httpx2.InvalidURL)
_FAILURES = (*_UNREACHABLE, TimeoutError, ValueError, RecursionError)


class _TokenAnswer(Struct, frozen=True, kw_only=True):
    access_token: Annotated[str, Meta(pattern=r"^[!-~]+\Z")]
    expires_in: float | None = None


class ClientCredentials(httpx2.Auth):
    """Adds an access token to the requests to one MCP server. All sessions with this server share
    the token. If the server refuses a token, a new one is fetched once."""

    def __init__(self, client: OAuthClient, tls: ssl.SSLContext) -> None:
        self._client = client
        self._tls = tls
        self._token, self._ends_at = "", 0.0
        self._fetching = asyncio.Lock()

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        token = await self._current()
        request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401:
            if (trace := current_trace.get()) is not None:
                trace.statuses.remove(401)  # the second answer decides
            request.headers["Authorization"] = f"Bearer {await self._current(refused=token)}"
            yield request

    async def _current(self, refused: str = "") -> str:
        """Return a token that is valid. ``refused``: the token that the server has refused."""
        async with self._fetching:
            if self._token == refused or time.monotonic() >= self._ends_at:
                start = time.monotonic()
                try:
                    async with asyncio.timeout(_TIMEOUT_S):
                        content = await self._fetch()
                    # Some servers write the number of seconds as a string.
                    answer = msgspec.json.decode(content, type=_TokenAnswer, strict=False)
                except _FAILURES as error:
                    raise _failure(
                        f"no access token could be obtained ({_reason(error)})"
                    ) from None
                life = _UNKNOWN_LIFE_S if answer.expires_in is None else answer.expires_in
                self._token, self._ends_at = answer.access_token, start + life - _MARGIN_S
            return self._token

    async def _fetch(self) -> bytes:
        """Return the token endpoint's answer. Raises ``httpx2.HTTPError``, or ``ValueError`` if the
        answer is too large."""
        client = self._client
        form = {"grant_type": "client_credentials"}
        if client.scope:
            form["scope"] = client.scope
        # The id and the secret are encoded before (RFC 6749, section 2.3.1).
        auth = quote(client.client_id, safe=""), quote(client.client_secret, safe="")
        async with (
            httpx2.AsyncClient(verify=self._tls, trust_env=False, timeout=_TIMEOUT_S) as http,
            http.stream("POST", client.token_url, data=form, auth=auth) as answer,
        ):
            content = b""
            async for piece in answer.raise_for_status().aiter_bytes():
                content += piece
                if len(content) > _MAX_BYTES:
                    raise ValueError("the answer is too large")
        return content


def _reason(error: Exception) -> str:
    if isinstance(error, httpx2.HTTPStatusError):
        return f"the token endpoint answered HTTP {error.response.status_code}"
    if isinstance(error, _UNREACHABLE):
        return "the token endpoint could not be reached"
    if isinstance(error, TimeoutError):
        return f"the token endpoint has not answered in {_TIMEOUT_S} seconds"
    return "the token endpoint's answer is not valid"


def _failure(reason: str) -> httpx2.TransportError:
    """Return an exception, whose reason the failed request to the MCP server will state."""
    if (trace := current_trace.get()) is not None:
        trace.transport_errors.append(reason)
    return httpx2.TransportError(reason)
