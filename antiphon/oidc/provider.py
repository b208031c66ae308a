"""The addresses and signing keys of an issuer, read from the issuer and cached.

Specification: OpenID Connect Discovery 1.0 (the document at ``/.well-known/openid-configuration``)
and RFC 7517 (the key set). An issuer announces a new signing key by publishing it in its key set,
and some sign with it at once. So an unknown key id makes the server read the key set again, at most
every ten seconds. While the issuer does not answer, the last key set remains valid.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import structlog
from msgspec import Struct

from antiphon.errors import Unavailable
from antiphon.support.installation import needs_packages

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

_log = structlog.get_logger(__name__)

#: Seconds between two attempts to read the issuer's keys.
_RETRY_S = 10.0
#: Seconds after which the keys are read again although all key ids are known, so that a key which
#: the issuer has withdrawn stops working.
_MAX_AGE_S = 3600.0
_DISCOVERY = "/.well-known/openid-configuration"


class Fetch(Protocol):
    """Sends an HTTP request and returns the body of a successful response. Raises ``OSError`` if
    the request fails or its status is not 200."""

    async def __call__(
        self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes: ...


class IssuerAddress(Struct, frozen=True, kw_only=True):
    """Where an issuer is. ``issuer``: its identifier, which tokens contain in ``iss``.
    ``keys_url``: address of its key set; empty if its discovery document names it."""

    issuer: str
    keys_url: str = ""


class ProviderDocument(Struct, frozen=True):
    """The part of an issuer's discovery document that the server needs."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    end_session_endpoint: str = ""


class _RawKeys(Struct, frozen=True):
    keys: list[dict[str, Any]]


class Provider:
    """The cached document and keys of one issuer. ``timer`` returns monotonic seconds. Raises
    ``SetupError`` if the packages for sign-in are not installed."""

    def __init__(self, address: IssuerAddress, fetch: Fetch, *, timer: Callable[[], float]) -> None:
        _check_installed()
        self._address = address
        self._fetch = fetch
        self._timer = timer
        self._lock = asyncio.Lock()
        self._document: ProviderDocument | None = None
        self._keys: KeySet | None = None
        self._read_at = self._tried_at = -math.inf

    @property
    def issuer(self) -> str:
        """The issuer's identifier."""
        return self._address.issuer

    async def document(self) -> ProviderDocument:
        """Return the discovery document. Raises ``Unavailable``."""
        if self._document is None:
            async with self._lock:
                if self._document is None:
                    self._document = await self._read_document()
        return self._document

    async def keys(self, key_id: str | None) -> KeySet:
        """Return the issuer's signing keys. If none of them has the id ``key_id``, read them again,
        at most every ten seconds. Raises ``Unavailable`` if no keys could be read."""
        if not self._is_current(key_id):
            async with self._lock:
                if not self._is_current(key_id):
                    await self._read_keys()
        if self._keys is None:
            raise _unreachable(self.issuer)
        return self._keys

    def _is_current(self, key_id: str | None) -> bool:
        now = self._timer()
        if now - self._tried_at < _RETRY_S:
            return True
        if self._keys is None or now - self._read_at > _MAX_AGE_S:
            return False
        return key_id is None or any(key.kid == key_id for key in self._keys)

    async def _read_keys(self) -> None:
        self._tried_at = self._timer()
        try:
            url = self._address.keys_url or (await self._read_document()).jwks_uri
            self._keys = _key_set(await self._fetch("GET", url))
            self._read_at = self._timer()
        except (OSError, ValueError, Unavailable) as error:
            _log.warning("the keys of an issuer cannot be read", issuer=self.issuer, error=error)

    async def _read_document(self) -> ProviderDocument:
        url = self.issuer.removesuffix("/") + _DISCOVERY
        try:
            document = msgspec.json.decode(await self._fetch("GET", url), type=ProviderDocument)
        except (OSError, ValueError) as error:
            _log.warning("an issuer cannot be reached", issuer=self.issuer, error=error)
            raise _unreachable(self.issuer) from None
        if document.issuer != self.issuer:  # Discovery 1.0, section 4.3: else, it may be forged
            _log.warning("another issuer answers", issuer=self.issuer, answer=document.issuer)
            raise _unreachable(self.issuer)
        return document


def _check_installed() -> None:
    """Raise ``SetupError`` if the packages for sign-in are not installed."""
    with needs_packages("sign-in needs joserfc", "oidc"):
        import joserfc  # noqa: F401


def _key_set(content: bytes) -> KeySet:
    """Parse a key set. Keys for encryption, symmetric keys, and keys that cannot be read are left
    out. Raises ``ValueError`` if no key remains."""
    from joserfc.errors import JoseError
    from joserfc.jwk import Key, KeySet, import_key

    keys: list[Key] = []
    for raw in msgspec.json.decode(content, type=_RawKeys).keys:
        if raw.get("kty") == "oct" or raw.get("use", "sig") != "sig":
            continue
        try:
            keys.append(import_key(raw))
        except (JoseError, ValueError, TypeError, KeyError):
            continue
    if not keys:
        raise ValueError("the key set has no signing key")
    return KeySet(keys)


def _unreachable(issuer: str) -> Unavailable:
    return Unavailable(f"The identity provider {issuer} does not answer.")
