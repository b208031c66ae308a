"""Access tokens for MCP servers that the operator has configured as an OAuth client: the grant
``client_credentials``, for which no user signs in."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator

import httpx2
import msgspec
from msgspec import Struct

from .endpoint import OAuthClient, current_trace

#: A token is replaced this many seconds before it expires.
_MARGIN_S = 10
#: How long a token is used if the authorization server does not say when it expires.
_UNKNOWN_LIFE_S = 3600
_TIMEOUT_S = 30


class _TokenAnswer(Struct, frozen=True, kw_only=True):
    access_token: str
    expires_in: float = _UNKNOWN_LIFE_S


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
            request.headers["Authorization"] = f"Bearer {await self._current(refused=token)}"
            yield request

    async def _current(self, refused: str = "") -> str:
        """Return a token that is valid. ``refused``: the token that the server has refused."""
        async with self._fetching:
            if self._token == refused or time.monotonic() >= self._ends_at:
                try:
                    answer = await self._fetch()
                except (httpx2.HTTPError, msgspec.MsgspecError) as error:
                    raise _failure(
                        f"no access token could be obtained ({_reason(error)})"
                    ) from None
                self._token = answer.access_token
                self._ends_at = time.monotonic() + answer.expires_in - _MARGIN_S
            return self._token

    async def _fetch(self) -> _TokenAnswer:
        client = self._client
        form = {"grant_type": "client_credentials"}
        if client.scope:
            form["scope"] = client.scope
        async with httpx2.AsyncClient(
            verify=self._tls, trust_env=False, timeout=_TIMEOUT_S
        ) as http:
            answer = await http.post(
                client.token_url, data=form, auth=(client.client_id, client.client_secret)
            )
        return msgspec.json.decode(answer.raise_for_status().content, type=_TokenAnswer)


def _reason(error: Exception) -> str:
    if isinstance(error, httpx2.HTTPStatusError):
        return f"the token endpoint answered HTTP {error.response.status_code}"
    if isinstance(error, msgspec.MsgspecError):
        return "the token endpoint's answer is not valid"
    return "the token endpoint could not be reached"


def _failure(reason: str) -> httpx2.TransportError:
    """Return an exception, whose reason the failed request to the MCP server will state."""
    if (trace := current_trace.get()) is not None:
        trace.transport_errors.append(reason)
    return httpx2.TransportError(reason)
