"""Who may come in: API keys, tenants, request rates, and what a browser may be tricked into.

Keys are compared as SHA-256 digests in constant time; the keys themselves are never kept. It knows
nothing of what is asked.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Literal

from msgspec import Struct
from starlette.types import ASGIApp, Receive, Scope, Send

from antiphon.errors import InvalidRequest, Overloaded, SetupError, Unauthorized
from antiphon.wire.parsing.json_body import Limits as BodyLimits

from .request_context import exchange_of, header

__all__ = ["AuthConfig", "AuthMiddleware", "Bucket", "Key", "Limits", "is_local"]

#: As they are written most often: to read an address takes longer than all else here.
_LOOPBACK = ("127.0.0.1", "::1")

_PORT = re.compile(r":\d*\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


class Key(Struct, frozen=True, kw_only=True):
    """An API key. ``sha256``: of the key, in hex. Several keys may serve one tenant."""

    name: str
    tenant: str
    sha256: str
    requests_per_minute: int | None = None

    def __post_init__(self) -> None:
        if not _DIGEST.match(self.sha256):
            raise SetupError(f"key {self.name!r}: sha256 must be 64 lower-case hex digits")


class AuthConfig(Struct, frozen=True, kw_only=True):
    """Who may come in. No ``keys``: everybody, as the tenant ``default``.

    ``metrics``: who may read ``/metrics`` besides holders of a key. ``hosts``: names this server
    is reached by without keys from its own machine, besides ``localhost`` and bare addresses; "*"
    allows any. ``prompt_writers``: names of the keys that may see and change stored prompts.
    """

    keys: tuple[Key, ...] = ()
    metrics: Literal["loopback", "everybody", "nobody"] = "loopback"
    hosts: tuple[str, ...] = ()
    prompt_writers: tuple[str, ...] = ()


class Limits(Struct, frozen=True, kw_only=True):
    """How much the rim takes in. ``requests_per_minute`` is per key, where a key has none of its
    own (per server without keys); None = no limit. A queue that is full answers 429. ``body``: how
    much of what the JSON in a body may hold. ``max_file_bytes``: of an uploaded file."""

    max_body_bytes: int = 64 * 2**20
    max_file_bytes: int = 64 * 2**20
    body: BodyLimits = BodyLimits()
    max_running: int = 256
    max_waiting: int = 1024
    retry_after_s: int = 2
    requests_per_minute: int | None = None


class Bucket:
    """A token bucket: ``per_minute`` in the long run, as many at once after a quiet minute."""

    __slots__ = ("_at", "_level", "per_minute")

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def take(self, now: float) -> float:
        """Takes one and returns 0, or returns the seconds until there is one to take."""
        rate = self.per_minute / 60
        self._level = min(self.per_minute, self._level + (now - self._at) * rate)
        self._at = now
        if self._level < 1:
            return (1 - self._level) / rate
        self._level -= 1
        return 0.0


class _Entry:
    """A key as the guard uses it: a digest to compare and a bucket to draw from."""

    __slots__ = ("bucket", "digest", "name", "tenant")

    def __init__(
        self, name: str | None, tenant: str, sha256: str, per_minute: int | None, now: float
    ) -> None:
        self.name = name
        self.tenant = tenant
        self.digest = bytes.fromhex(sha256)
        self.bucket = None if per_minute is None else Bucket(per_minute, now)


class AuthMiddleware:
    """The layer between the world and the routes. Says in the exchange who asks."""

    def __init__(
        self, app: ASGIApp, access: AuthConfig, limits: Limits, clock: Callable[[], float]
    ) -> None:
        self._app = app
        self._access = access
        self._clock = clock
        per_minute = limits.requests_per_minute
        self._entries = [
            _Entry(
                key.name,
                key.tenant,
                key.sha256,
                key.requests_per_minute or per_minute,
                clock(),
            )
            for key in access.keys
        ]
        self._everybody = _Entry(None, "default", "", per_minute, clock())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._is_open(scope):
            self._admit(scope)
        await self._app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"]
        if path == "/metrics":
            allowed = self._access.metrics
            return allowed == "everybody" or (allowed == "loopback" and is_local(scope))
        return path in ("/health", "/ready")

    def _admit(self, scope: Scope) -> None:
        _refuse_forged_browsers(scope)
        if self._entries:
            entry = self._known(scope)
        else:
            self._refuse_rebound_names(scope)
            if scope["path"] == "/metrics":
                raise Unauthorized("The metrics of this server are not public.")
            entry = self._everybody
        exchange = exchange_of(scope)
        exchange.tenant = entry.tenant
        exchange.key = entry.name
        exchange.charge = partial(self._charge, entry)
        exchange.charge()

    def _charge(self, entry: _Entry) -> None:
        if entry.bucket is not None and (wait := entry.bucket.take(self._clock())) > 0:
            seconds = math.ceil(wait)
            raise Overloaded(
                f"Rate limit reached: {entry.bucket.per_minute} requests per minute. "
                f"Please try again in {seconds}s.",
                retry_after_s=seconds,
            )

    def _known(self, scope: Scope) -> _Entry:
        scheme, _, key = (header(scope, b"authorization") or b"").partition(b" ")
        key = key.strip()
        if scheme.lower() != b"bearer" or not key:
            raise Unauthorized(
                "You didn't provide an API key. Send it in an Authorization header, as in "
                "'Authorization: Bearer YOUR_KEY'.",
                code="invalid_api_key",
            )
        digest = hashlib.sha256(key).digest()
        # All of them, always: the time taken tells nothing of how many or which.
        found = [entry for entry in self._entries if hmac.compare_digest(entry.digest, digest)]
        if not found:
            raise Unauthorized("Incorrect API key provided.", code="invalid_api_key")
        return found[0]

    def _refuse_rebound_names(self, scope: Scope) -> None:
        """A web page may point a name of its own at 127.0.0.1 and then speak to us as to itself
        (DNS rebinding). Nothing but the Host header gives it away, and only keys or this check
        stop it."""
        hosts = self._access.hosts
        if "*" in hosts or not _is_loopback(scope):
            return
        host = (header(scope, b"host") or b"").decode("latin-1").lower()
        name = _PORT.sub("", host).strip("[]")
        if (
            name in ("", "localhost", *_LOOPBACK, *hosts)
            or name.endswith(".localhost")
            or _is_address(name)
        ):
            return
        raise InvalidRequest(
            f"This server is not known as {name!r}. Add the name to its allowed hosts, or "
            "protect it with API keys.",
            code="host_not_allowed",
        )


def _refuse_forged_browsers(scope: Scope) -> None:
    """Without a JSON content type a page of any origin may post here unasked (no preflight, CSRF).
    Programs send no Origin and may send any content type or none; a page of this server's own may
    upload files."""
    origin = header(scope, b"origin")
    if origin is None or header(scope, b"authorization") is not None:
        return
    if origin.partition(b"://")[2] == header(scope, b"host"):
        return
    if scope["type"] == "websocket":
        # To these no preflight applies, and pages cannot give them a key.
        raise InvalidRequest(
            "Pages of other origins may not open a WebSocket here.", code="invalid_origin"
        )
    if scope["method"] != "POST":
        return
    content_type = (header(scope, b"content-type") or b"").partition(b";")[0].strip().lower()
    if content_type != b"application/json":
        raise InvalidRequest(
            "A browser must send content-type: application/json.", code="invalid_content_type"
        )


def _is_loopback(scope: Scope) -> bool:
    client = scope.get("client")
    if client is None:
        return False
    if client[0] in _LOOPBACK:  # nearly all that are
        return True
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def is_local(scope: Scope) -> bool:
    """From this machine, and not passed on by a proxy on it."""
    return (
        _is_loopback(scope)
        and header(scope, b"x-forwarded-for") is None
        and header(scope, b"forwarded") is None
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
