"""Authentication middleware: API keys, users of an issuer (OpenID Connect), tenants, protection
against forged requests (CSRF, DNS rebinding).

The middleware stores no API key. It stores the SHA-256 digests of the keys and compares digests in
constant time.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import lru_cache, partial
from types import TracebackType
from typing import Literal

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.errors import Forbidden, InvalidRequest, RunError, Unauthorized
from antiphon.http.openapi.operation import Permission
from antiphon.limits.charges import ClientCharges
from antiphon.limits.clients import Role
from antiphon.limits.key_ring import AuthKey, KeyEntry, KeyRing
from antiphon.oidc import SignIn
from antiphon.oidc.claims import Identity
from antiphon.oidc.tokens import looks_like_token
from antiphon.runs.execution.supervisor import AccessWatch
from antiphon.security.ssrf import is_ip_address, is_loopback
from antiphon.support.fair_threads import current_tenant
from antiphon.wire.admin.client_limits import ClientLimits

from .request_context import RequestContext, header, request_context, route_path
from .session_cookie import reject_other_origins, session_cookie

#: The usual spellings, compared first: parsing an address is the slowest step here.
_LOOPBACK = ("127.0.0.1", "::1")

#: Pages that say the same on every server of this version.
_PUBLIC_PAGES = ("/openapi.json", "/docs")

#: Where users of the web page sign in and out, for which they need no key.
_SIGN_IN_PAGES = ("/antiphon/session", "/antiphon/sign-out")
_SIGN_IN_PATH = "/antiphon/sign-in/"

#: Headers of API keys. Browsers send them to other origins only after a preflight.
_KEY_HEADERS = (b"authorization", b"x-api-key")
_PORT = re.compile(r":\d*\Z")


class AuthConfig(Struct, frozen=True, kw_only=True):
    """Access rules. Without ``keys``, every client is admitted as the tenant ``default``.

    - ``metrics``: which clients may read ``/metrics`` without a key.
    - ``hosts``: host names that the Host header may contain, besides ``localhost`` and IP
      addresses; "*" allows all host names. The header is checked only for requests that come from
      this machine and need no key.
    - ``page``: whether the web page is served. Its files need no key, because they contain no data.
    - ``roles``: role → names of the keys that have it.
    - ``stored_keys``: whether the store contains API keys too. If true, every request needs a key.
    - ``tenants``: tenant → limits that all API keys of the tenant share.
    - ``issuers``: names of the issuers whose users may use the server. With issuers, every request
      needs a key or a user.
    """

    keys: tuple[AuthKey, ...] = ()
    metrics: Literal["loopback", "everybody", "nobody"] = "loopback"
    hosts: tuple[str, ...] = ()
    page: bool = False
    roles: Mapping[Role, Collection[str]] = {}
    stored_keys: bool = False
    tenants: Mapping[str, ClientLimits] = {}
    issuers: tuple[str, ...] = ()

    @property
    def requires_key(self) -> bool:
        """Whether requests need an API key or a user."""
        return bool(self.keys) or self.stored_keys or bool(self.issuers)


#: Headers that proxies add, each of which shows that a request comes from another machine.
_PROXY_HEADER = re.compile(
    rb"forwarded\Z|via\Z|x-(forwarded|original|envoy|amzn|azure|appengine)-|cf-|fastly-|fly-"
    rb"|x-scheme\Z|.*(client-?ip|real-ip|remote-(ip|addr)|connecting-ip)\Z"
)


class AuthMiddleware:
    """Authenticates requests, and stores tenant and client in the request context.

    - ``charges`` counts requests against the limits of their clients.
    - ``keys``: the API keys that are valid now.
    - ``sign_in``: identifies the users of issuers; None if there are no issuers.
    - ``watch``: ends the requests of clients that lose their access.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: AuthConfig,
        *,
        charges: ClientCharges,
        keys: KeyRing,
        sign_in: SignIn | None = None,
        watch: AccessWatch | None = None,
    ) -> None:
        self._watch = watch or AccessWatch()
        self._app = app
        self._keys = keys
        self._charges = charges
        self._access = access
        self._sign_in = sign_in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        if not self._is_open(scope, path):
            await self._authenticate(scope, path)
            if scope["type"] == "http" and self._has_key(request_context(scope)):
                with OpenRequest(self._watch, request_context(scope)):
                    return await self._app(scope, receive, send)
        await self._app(scope, receive, send)

    def _has_key(self, context: RequestContext) -> bool:
        """Return whether the client has an API key. The access of an issuer's user ends with the
        user's token, which may be shorter than a request."""
        key = context.client.key
        return key is not None and key.partition("/")[0] not in self._access.issuers

    def _is_open(self, scope: Scope, path: str) -> bool:
        if path == "/metrics":
            return self._may_read_metrics(scope)
        if path in _PUBLIC_PAGES:
            return self._unknown_host(scope) is None
        if self._access.page and _is_page_path(path):
            return True
        if path in _SIGN_IN_PAGES or path.startswith(_SIGN_IN_PATH):
            return True
        return path in ("/health", "/ready")

    def _may_read_metrics(self, scope: Scope) -> bool:
        """Return whether the request may read the metrics without a key.

        The setting ``metrics`` must admit the client. In addition, the Host header must be allowed;
        see ``_unknown_host``. The Host header is not checked if ``metrics`` is ``everybody`` and
        the server has keys.
        """
        allowed = self._access.metrics
        if allowed == "everybody" and self._access.requires_key:
            return True
        is_open = allowed == "everybody" or (allowed == "loopback" and is_local(scope))
        return is_open and self._unknown_host(scope) is None

    async def _authenticate(self, scope: Scope, path: str) -> None:
        _reject_cross_site(scope)
        if not self._access.requires_key:
            self._reject_unknown_hosts(scope)
            if path == "/metrics":
                raise Unauthorized("The metrics of this server are not public.")
        context = request_context(scope)
        uses_tokens = scope["type"] == "websocket" or scope["method"] == "POST"
        context.charge = partial(self._charge, context, uses_tokens=uses_tokens)
        context.check_access = partial(self._check_access, context, self._finder(scope))
        await context.check_access()
        await context.charge()

    def _finder(self, scope: Scope) -> Callable[[], Awaitable[KeyEntry | None]]:
        """Return a function that finds the client of a request, with the limits that it has now.
        The function returns None if the API key is unknown. Raises ``Unauthorized`` if the request
        has neither an API key nor a user."""
        if not self._access.requires_key:
            return self._anonymous
        key = _sent_key(scope)
        if self._sign_in is not None:
            if looks_like_token(key):
                return partial(self._token_user, self._sign_in, key)
            if not key and (cookie := session_cookie(scope)) is not None:
                reject_other_origins(scope)
                return partial(self._page_user, self._sign_in, cookie)
        if not key:
            raise Unauthorized(
                "You didn't provide an API key. Send it in an Authorization header, as in "
                "'Authorization: Bearer YOUR_KEY'.",
                code="invalid_api_key",
            )
        return partial(self._keys.find, hashlib.sha256(key).digest())

    async def _anonymous(self) -> KeyEntry:
        return self._keys.anonymous

    async def _token_user(self, sign_in: SignIn, token: bytes) -> KeyEntry:
        """Return the user of an access token. Raises as ``AccessTokens.identify`` does."""
        return self._user(await sign_in.tokens.identify(token))

    async def _page_user(self, sign_in: SignIn, cookie: str) -> KeyEntry:
        """Return the user of the web page. Raises ``Unauthorized`` if the session has ended, and
        ``Forbidden`` if no grant matches the user."""
        identity = sign_in.logins.identity(cookie)
        if identity is None:
            raise Unauthorized("Your session has ended. Sign in again.", code="session_expired")
        return self._user(identity)

    def _user(self, identity: Identity) -> KeyEntry:
        return self._keys.signed_in(identity.name, identity.tenant, identity.limits, identity.roles)

    async def _check_access(
        self, context: RequestContext, find: Callable[[], Awaitable[KeyEntry | None]]
    ) -> None:
        """Set the tenant and the client of a request, with the limits that they have now.

        Raises ``Unauthorized`` if the API key or the user is not valid, or no longer, or if the
        tenant was deleted since the first check of this request.
        """
        entry = await find()
        if entry is None:
            raise Unauthorized("Incorrect API key provided.", code="invalid_api_key")
        deletion = await self._keys.last_deletion(entry.tenant)
        if context.tenant == entry.tenant and deletion > context.tenant_deletion:
            raise Unauthorized("The tenant was deleted.", code="invalid_api_key")
        context.tenant, context.client = entry.tenant, entry.client
        context.tenant_deletion = deletion
        current_tenant.set(entry.tenant)

    async def _charge(self, context: RequestContext, *, uses_tokens: bool) -> None:
        if not context.client.scopes:
            return
        charge = await self._charges.count(context.client.scopes, uses_tokens=uses_tokens)
        context.limit_headers = charge.headers
        if charge.refusal is not None:
            raise charge.refusal

    def _reject_unknown_hosts(self, scope: Scope) -> None:
        """Raise ``InvalidRequest`` if a local request has a Host header that is not allowed. Such a
        header is a sign of DNS rebinding; see ``_unknown_host``."""
        name = self._unknown_host(scope)
        if name is not None:
            raise InvalidRequest(
                f"The host name {name!r} is not allowed. Add it to allowed_hosts, or configure API"
                " keys.",
                code="host_not_allowed",
            )

    def _unknown_host(self, scope: Scope) -> str | None:
        """Return the host name of a local request if this host name is not allowed, else None.

        This check prevents DNS rebinding: an attacker points the domain of a web page at 127.0.0.1.
        For the browser, Antiphon then has the same origin as the page, so the page may call
        Antiphon. Only the Host header, which contains the attacker's domain, reveals this.
        """
        hosts = self._access.hosts
        if "*" in hosts or not _is_loopback(scope):
            return None
        name = _host_name(header(scope, b"host") or b"")
        return None if name in hosts or _is_local_name(name) else name


@lru_cache(1024)
def _host_name(host: bytes) -> str:
    """Return the host name in a Host header, without the port."""
    return _PORT.sub("", host.decode("latin-1").lower()).strip("[]")


@lru_cache(1024)
def _is_local_name(name: str) -> bool:
    """Return whether this name is empty, ``localhost``, a name below ``localhost``, or an IP
    address. These names are safe, because nobody can register them as a domain for DNS rebinding.
    """
    is_localhost = name in ("", "localhost") or name.endswith(".localhost")
    return is_localhost or is_ip_address(name)


def _sent_key(scope: Scope) -> bytes:
    """Return the API key of a request, or an empty key if the request has none. OpenAI's clients
    send the key as a bearer token, and Anthropic's clients in the header ``x-api-key``."""
    authorization = header(scope, b"authorization")
    if authorization is None:
        return (header(scope, b"x-api-key") or b"").strip()
    scheme, _, key = authorization.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _is_page_path(path: str) -> bool:
    return path == "/" or path.startswith("/ui/")


def _reject_cross_site(scope: Scope) -> None:
    """Reject requests that a web page of another origin can send without a CORS preflight (CSRF).
    Raises ``InvalidRequest``.

    Such requests are WebSocket upgrades, and POST requests whose content type is not JSON. They
    have an Origin header. Clients other than browsers send no Origin header, so their requests are
    accepted. Requests with an API key are accepted too, because browsers send a preflight before
    them.
    """
    origin = header(scope, b"origin")
    if origin is None or any(header(scope, name) is not None for name in _KEY_HEADERS):
        return
    if origin.partition(b"://")[2] == header(scope, b"host"):
        return
    if scope["type"] == "websocket":
        # Browsers send no preflight for WebSockets, and pages cannot add an API key to them.
        raise InvalidRequest(
            "Pages of other origins may not open a WebSocket to this server.", code="invalid_origin"
        )
    if scope["method"] != "POST":
        return
    content_type = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if content_type != b"application/json":
        raise InvalidRequest(
            "Browsers must send content-type: application/json.", code="invalid_content_type"
        )


def _is_loopback(scope: Scope) -> bool:
    client = scope.get("client")
    return client is not None and (client[0] in _LOOPBACK or is_loopback(client[0]))


def check_permission(scope: Scope, access: AuthConfig, permission: Permission) -> None:
    """Raise ``Forbidden`` unless the client of the request has this permission."""
    if access.requires_key:
        is_allowed = not request_context(scope).client.roles.isdisjoint(permission.roles)
    else:
        is_allowed = is_local(scope)
    if not is_allowed:
        raise Forbidden(f"You may not {permission.action} of this server.")


def is_local(scope: Scope) -> bool:
    """Whether the request comes from this machine and was not forwarded by a proxy."""
    return _is_loopback(scope) and not any(
        _PROXY_HEADER.match(name) for name, _ in scope["headers"]
    )


class OpenRequest:
    """Context manager around the handling of a request, which it cancels when the client has lost
    its access. The error is then raised. The runs of the request are stopped before, so that
    its client learns the reason."""

    __slots__ = ("_cancelling", "_context", "_failure", "_is_warned", "_task", "_watch")

    def __init__(self, watch: AccessWatch, context: RequestContext) -> None:
        self._watch = watch
        self._context = context
        self._is_warned = False
        self._failure: RunError | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._watch.enter(self)

    async def check_access(self) -> None:
        """Raise ``Unauthorized`` if the client has lost its access."""
        await self._context.check_access()

    def fail(self, error: RunError) -> None:
        """Stop the runs of the request, and at the second call cancel it."""
        if not self._is_warned:
            for run in self._context.runs:
                run.fail(error)
        elif self._failure is None:
            self._failure = error
            self._task.cancel()
        self._is_warned = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.open.discard(self)
        if (
            self._failure is not None
            and self._task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise self._failure from None
