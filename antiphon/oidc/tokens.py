"""Verification of the tokens that issuers sign (JWT), as access tokens and as ID tokens.

Specifications: RFC 7519 (claims), RFC 8725 (best practices), RFC 9068 (access tokens). The
algorithm of a token must be one that the settings list, and all of them are asymmetric. Only keys
that the issuer publishes are used; keys and addresses in a token's header are ignored.

A verified access token is remembered by its digest until it expires, so that later requests with
it cost one lookup.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from antiphon.errors import Unauthorized

from .claims import Identity, IssuerRules, identify
from .provider import Provider

_T = TypeVar("_T")

#: Maximum number of characters of a token.
_MAX_CHARS = 16 * 1024
_MAX_HEADER_BYTES = 4096
#: Maximum number of verified tokens that are remembered.
_MAX_KNOWN = 4096
#: Values of the header ``typ``, in lower case. A logout token or a DPoP proof is signed by the same
#: keys, but is not a permission.
_TYPES = ("jwt", "at+jwt", "application/at+jwt", "application/jwt", "id+jwt")


class Issuer(Struct, frozen=True, kw_only=True):
    """An issuer whose access tokens are accepted.

    - ``audience``: one of the token's audiences must be this value.
    - ``algorithms``: names of the accepted signature algorithms.
    - ``leeway_s``: number of seconds by which the issuer's clock may differ from ours.
    """

    provider: Provider
    rules: IssuerRules
    audience: str
    algorithms: tuple[str, ...]
    leeway_s: float = 60.0


class _Header(Struct):
    alg: str
    typ: str = "JWT"
    kid: str | None = None


class _Times(Struct):
    """The claims that say when a token is valid, in Unix seconds."""

    exp: float
    nbf: float = -math.inf
    iat: float = -math.inf


class _Known(Struct, frozen=True):
    """A verified token. ``until``: Unix time at which it is no longer accepted."""

    identity: Identity
    until: float


class AccessTokens:
    """Verifies the access tokens of API requests. ``clock`` returns Unix seconds."""

    def __init__(self, issuers: Sequence[Issuer], *, clock: Callable[[], float]) -> None:
        self._issuers = {issuer.provider.issuer: issuer for issuer in issuers}
        self._clock = clock
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    @property
    def issuers(self) -> tuple[str, ...]:
        """The names of the issuers in the settings."""
        return tuple(issuer.rules.name for issuer in self._issuers.values())

    async def identify(self, token: bytes) -> Identity:
        """Return the identity for an access token. Raises ``Unauthorized`` for a token that is not
        valid, ``Forbidden`` if no grant matches it, and ``Unavailable`` if the issuer's keys are
        not known."""
        digest = hashlib.sha256(token).digest()
        known = self._known.get(digest)
        if known is not None and self._clock() < known.until:
            return known.identity
        issuer = self._issuers.get(_issuer_of(token))
        if issuer is None:
            raise _refused("it comes from an unknown issuer")
        claims = await verify(
            token, issuer, audience=issuer.audience, now=self._clock(), may_be_id_token=False
        )
        identity = identify(claims, issuer.rules)
        self._known[digest] = _Known(identity, claims["exp"] + issuer.leeway_s)
        self._known.move_to_end(digest)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return identity


def looks_like_token(key: bytes) -> bool:
    """Return whether the secret of a request is a JWT, and not an API key. A JWT begins with an
    encoded JSON object."""
    return key.startswith(b"eyJ") and key.count(b".") == 2


async def verify(
    token: bytes, issuer: Issuer, *, audience: str, now: float, may_be_id_token: bool
) -> Mapping[str, Any]:
    """Return the claims of a token. ``now``: Unix seconds. ``may_be_id_token``: whether a token
    with a ``nonce``, which only ID tokens have, is accepted.

    Raises ``Unauthorized`` if the token is not valid, and ``Unavailable`` if the issuer's keys are
    not known.
    """
    header = _header(token)
    if header.alg not in issuer.algorithms:
        raise _refused(f"its algorithm is not one of {', '.join(issuer.algorithms)}")
    if header.typ.lower() not in _TYPES:
        raise _refused("it is not an access token")
    keys = await issuer.provider.keys(header.kid)
    candidates = [key for key in keys if header.kid is None or key.kid == header.kid]
    if not candidates:
        raise _refused("the issuer does not know its signing key")
    claims = _signed_claims(token, candidates, header.alg)
    _check_times(claims, now, issuer.leeway_s)
    if claims.get("iss") != issuer.provider.issuer:
        raise _refused("it comes from an unknown issuer")
    audiences = claims.get("aud")
    if audience not in (audiences if isinstance(audiences, list) else [audiences]):
        raise _refused("it was issued for another audience")
    if "nonce" in claims and not may_be_id_token:
        raise _refused("it is an ID token")
    return claims


def _signed_claims(token: bytes, keys: Sequence[Any], algorithm: str) -> dict[str, Any]:
    """Return the claims that one of the keys has signed. Raises ``Unauthorized``."""
    from joserfc import jws
    from joserfc.errors import BadSignatureError, JoseError

    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = _MAX_HEADER_BYTES
    for key in keys:
        try:
            payload = jws.deserialize_compact(token, key, registry=registry).payload
            claims = msgspec.json.decode(payload)
        except BadSignatureError:
            continue
        except (JoseError, ValueError, TypeError, RecursionError):
            break
        if isinstance(claims, dict):
            return claims
    raise _refused("its signature is not valid")


def _check_times(claims: Mapping[str, Any], now: float, leeway_s: float) -> None:
    try:
        times = msgspec.convert(claims, _Times)
    except msgspec.ValidationError:
        raise _refused("it does not say when it expires") from None
    if times.exp + leeway_s <= now:
        raise Unauthorized("The access token has expired.", code="token_expired")
    if max(times.nbf, times.iat) > now + leeway_s:
        raise _refused("it is not valid yet")


def _header(token: bytes) -> _Header:
    if len(token) > _MAX_CHARS:
        raise _refused("it is too long")
    return _decode(token.partition(b".")[0], _Header)


class _Origin(Struct):
    iss: str


def _issuer_of(token: bytes) -> str:
    """Return the issuer that a token names. This is not proved before the signature is checked."""
    _header(token)
    return _decode(token.split(b".")[1], _Origin).iss


def _decode(part: bytes, type: type[_T]) -> _T:
    """Decode a part of a token. Raises ``Unauthorized``."""
    try:
        content = base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(content, type=type)
    except (binascii.Error, ValueError, RecursionError):
        raise _refused("it is damaged") from None


def _refused(reason: str) -> Unauthorized:
    return Unauthorized(f"The access token is not valid: {reason}.", code="invalid_token")
