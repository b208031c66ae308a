"""Sign-in with OpenID Connect: builds it from the settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing

from antiphon.config.oidc import OidcGrant, OidcIssuer
from antiphon.config.settings import Settings
from antiphon.limits.clients import limits_of
from antiphon.oidc import SignIn
from antiphon.oidc.claims import Grant, IssuerRules
from antiphon.oidc.login import LoginClient, Logins
from antiphon.oidc.provider import IssuerAddress, Provider
from antiphon.oidc.tokens import AccessTokens, Issuer
from antiphon.security.encryption import Encryptor
from antiphon.store.upkeep.clock import Clock
from antiphon.upstream.http import HttpClient

_CONNECT_S, _SILENCE_S = 5.0, 10.0
#: Maximum number of bytes of an answer of an issuer.
_MAX_BYTES = 2**20
_HEADERS = {"accept": "application/json", "user-agent": "antiphon"}


async def open_sign_in(
    stack: AsyncExitStack, settings: Settings, encryptor: Encryptor, clock: Clock
) -> SignIn | None:
    """Return the sign-in of the issuers in the settings; None if there are none. No issuer is
    called before its first user comes. Raises ``SetupError`` if the packages are missing."""
    if not settings.oidc:
        return None
    client = HttpClient(_HEADERS, connect_s=_CONNECT_S, silence_s=_SILENCE_S)
    stack.push_async_callback(client.close)
    fetch = _Fetcher(client)
    issuers = {name: _issuer(name, each, fetch) for name, each in settings.oidc.items()}
    clients = [
        LoginClient(
            issuer=issuers[name],
            id=each.client_id,
            secret=each.client_secret or None,
            redirect_url=each.redirect_url,
            scopes=each.scopes,
            session_s=each.session_s,
        )
        for name, each in settings.oidc.items()
        if each.client_id
    ]
    return SignIn(
        AccessTokens(tuple(issuers.values()), clock=clock),
        Logins(clients, fetch=fetch, encryptor=encryptor, clock=clock),
    )


def _issuer(name: str, settings: OidcIssuer, fetch: _Fetcher) -> Issuer:
    address = IssuerAddress(issuer=settings.issuer, keys_url=settings.keys_url)
    return Issuer(
        provider=Provider(address, fetch, timer=time.monotonic),
        rules=IssuerRules(
            name=name,
            grants=tuple(_grant(each) for each in settings.grants),
            user_claim=settings.user_claim,
        ),
        audience=settings.audience,
        algorithms=settings.algorithms,
        leeway_s=settings.leeway_s,
    )


def _grant(settings: OidcGrant) -> Grant:
    return Grant(
        claim=settings.claim,
        values=settings.values,
        tenant=settings.tenant,
        tenant_claim=settings.tenant_claim,
        role=None if settings.role == "user" else settings.role,
        limits=limits_of(settings),
    )


class _Fetcher:
    """Sends requests to issuers. Redirects are not followed."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def __call__(
        self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        response = await self._client.request(method, url, body, headers)
        with closing(response):
            content = b""
            while data := await response.read():
                content += data
                if len(content) > _MAX_BYTES:
                    raise OSError("the answer is too long")
        if response.status != 200:
            raise OSError(f"the answer has the status {response.status}")
        return content
