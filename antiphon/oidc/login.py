"""Sign-in of the web page: authorization code flow with PKCE, and the session in a cookie.

Specifications: OpenID Connect Core 1.0 section 3.1 (code flow), RFC 7636 (PKCE), RFC 9700 (security
of OAuth). The browser is sent to the issuer and comes back with a code. The server exchanges the
code for an ID token, and gives the browser an encrypted cookie with the claims that the grants
read. The server itself keeps no session, so every process and replica accepts the cookie. The
grants are applied to the claims at every request, so changed grants count at once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from antiphon.errors import InvalidRequest, NotFound, Unauthorized, Unavailable
from antiphon.security.encryption import DecryptionError, Encryptor

from .claims import Identity, identify, relevant_claims
from .provider import Fetch
from .tokens import Issuer, verify

_CookieT = TypeVar("_CookieT", "_Login", "_Session")

#: Seconds in which the user must have signed in.
_LOGIN_S = 600
_SESSION, _LOGIN = "page session", "page sign-in"
_FORM = "application/x-www-form-urlencoded"


class LoginClient(Struct, frozen=True, kw_only=True):
    """The web page as a client of an issuer.

    - ``id`` and ``secret``: the client's registration at the issuer. A public client has no secret.
    - ``redirect_url``: address to which the issuer sends the browser back.
    - ``session_s``: number of seconds after which the user must sign in again.
    """

    issuer: Issuer
    id: str
    redirect_url: str
    secret: str | None = None
    scopes: tuple[str, ...] = ("openid", "profile")
    session_s: int = 8 * 3600

    @property
    def name(self) -> str:
        """The issuer's name in the settings."""
        return self.issuer.rules.name


class StartedLogin(Struct, frozen=True):
    """A sign-in that has begun. ``url``: the issuer's page, to which the browser is sent.
    ``cookie``: proves later that the same browser comes back."""

    url: str
    cookie: str


class _Login(Struct, frozen=True):
    """The content of the cookie of a sign-in. ``until``: Unix time at which it expires."""

    issuer: str
    state: str
    nonce: str
    verifier: str
    until: float


class _Session(Struct, frozen=True):
    """The content of the cookie of a session. ``until``: Unix time at which it expires."""

    issuer: str
    claims: dict[str, Any]
    until: float


class _Tokens(Struct):
    id_token: str


class Logins:
    """Signs users of the web page in. ``encryptor`` encrypts the cookies. ``clock`` returns Unix
    seconds."""

    def __init__(
        self,
        clients: Sequence[LoginClient],
        *,
        fetch: Fetch,
        encryptor: Encryptor,
        clock: Callable[[], float],
    ) -> None:
        self._clients = {client.name: client for client in clients}
        self._fetch = fetch
        self._encryptor = encryptor
        self._clock = clock

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the issuers at which users can sign in."""
        return tuple(self._clients)

    def is_secure(self, name: str) -> bool:
        """Return whether the page is served over HTTPS, so that cookies need not be sent without
        encryption. Raises ``NotFound`` for an unknown issuer."""
        return self._client(name).redirect_url.startswith("https:")

    async def begin(self, name: str) -> StartedLogin:
        """Begin a sign-in at an issuer. Raises ``NotFound`` and ``Unavailable``."""
        client = self._client(name)
        document = await client.issuer.provider.document()
        login = _Login(
            issuer=name,
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            until=self._clock() + _LOGIN_S,
        )
        query = {
            "response_type": "code",
            "client_id": client.id,
            "redirect_uri": client.redirect_url,
            "scope": " ".join(client.scopes),
            "state": login.state,
            "nonce": login.nonce,
            "code_challenge": _challenge(login.verifier),
            "code_challenge_method": "S256",
        }
        url = document.authorization_endpoint
        return StartedLogin(
            f"{url}{'&' if '?' in url else '?'}{urlencode(query)}", self._seal(login, _LOGIN)
        )

    async def finish(
        self, query: Mapping[str, str | None], cookie: str | None
    ) -> tuple[str, str, int]:
        """Finish a sign-in. ``query``: the parameters with which the browser came back. ``cookie``:
        the cookie of ``begin``.

        Returns the issuer's name, the cookie of the session and its age in seconds. Raises
        ``InvalidRequest`` if the browser did not begin this sign-in, ``Unauthorized`` if the issuer
        refused it, ``Forbidden`` if no grant matches the user, and ``Unavailable``.
        """
        login = self._open(cookie, _Login, _LOGIN)
        if login is None or not hmac.compare_digest(
            (query.get("state") or "").encode(), login.state.encode()
        ):
            raise InvalidRequest(
                "This sign-in has expired or was begun in another browser. Sign in again.",
                code="sign_in_expired",
            )
        code = query.get("code")
        if code is None:
            reason = query.get("error_description") or query.get("error") or "no code"
            raise Unauthorized(f"The identity provider refused: {reason[:200]}.")
        client = self._client(login.issuer)
        token = await self._exchange(client, code, login.verifier)
        now = self._clock()
        claims = await verify(
            token.encode(), client.issuer, audience=client.id, now=now, may_be_id_token=True
        )
        if claims.get("nonce") != login.nonce:
            raise Unauthorized("The identity provider answered another sign-in. Sign in again.")
        rules = client.issuer.rules
        identify(claims, rules)
        session = _Session(login.issuer, relevant_claims(claims, rules), now + client.session_s)
        return login.issuer, self._seal(session, _SESSION), client.session_s

    def identity(self, cookie: str | None) -> Identity | None:
        """Return the identity of a session, or None if there is no valid session. Raises
        ``Forbidden`` if no grant matches the user any more."""
        session = self._open(cookie, _Session, _SESSION)
        if session is None or session.issuer not in self._clients:
            return None
        return identify(session.claims, self._clients[session.issuer].issuer.rules)

    async def sign_out_url(self, cookie: str | None) -> str | None:
        """Return the issuer's page on which the user signs out there, too. Returns None if there is
        no session or no such page."""
        session = self._open(cookie, _Session, _SESSION)
        if session is None or session.issuer not in self._clients:
            return None
        try:
            document = await self._clients[session.issuer].issuer.provider.document()
        except Unavailable:
            return None
        return document.end_session_endpoint or None

    async def _exchange(self, client: LoginClient, code: str, verifier: str) -> str:
        """Exchange a code for an ID token. Raises ``Unauthorized`` and ``Unavailable``."""
        document = await client.issuer.provider.document()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": client.redirect_url,
            "client_id": client.id,
            "code_verifier": verifier,
        }
        if client.secret is not None:
            form["client_secret"] = client.secret
        body, headers = urlencode(form).encode(), {"content-type": _FORM}
        try:
            answer = await self._fetch("POST", document.token_endpoint, body, headers)
            return msgspec.json.decode(answer, type=_Tokens).id_token
        except OSError:
            raise Unauthorized("The identity provider did not accept the sign-in.") from None
        except ValueError:
            raise Unavailable("The identity provider gave no valid answer.") from None

    def _client(self, name: str) -> LoginClient:
        if name not in self._clients:
            raise NotFound(f"There is no issuer named '{name}' to sign in at.")
        return self._clients[name]

    def _seal(self, content: _Login | _Session, purpose: str) -> str:
        return self._encryptor.encrypt(msgspec.json.encode(content), purpose=purpose, tenant="")

    def _open(self, cookie: str | None, type: type[_CookieT], purpose: str) -> _CookieT | None:
        """Return the content of a cookie, or None if it is missing, expired or not ours."""
        if not cookie:
            return None
        try:
            sealed = self._encryptor.decrypt(cookie, purpose=purpose, tenant="")
            content = msgspec.json.decode(sealed, type=type)
        except (DecryptionError, ValueError):
            return None
        return content if self._clock() < content.until else None


def _challenge(verifier: str) -> str:
    """Return the PKCE challenge for a verifier (RFC 7636, section 4.2)."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
