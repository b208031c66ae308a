"""Sealed values: texts that clients carry and only a holder of the key can read or make.

AES-256-GCM. In the clear stand a version and the id of the key; bound to the value, besides the
key, are its purpose and its tenant. It knows nothing of what is sealed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
import zlib
from collections.abc import Sequence

from msgspec import Struct

from antiphon.errors import SetupError

__all__ = ["Key", "Seal", "SealBroken"]

_VERSION = 1
_NONCE_BYTES = 12  # what NIST SP 800-38D recommends for GCM
_SECRET_BYTES = 32
_ID = re.compile(r"[A-Za-z0-9._-]{1,32}\Z")

#: What is opened may be no longer: a short text can be a great deal, compressed.
_MOST_BYTES = 64 * 2**20

#: How the content is written behind the nonce: as it is, or compressed.
_PLAIN, _DEFLATED = b"\0", b"\1"
#: Shorter content does not get shorter.
_WORTH_DEFLATING = 128


class SealBroken(Exception):
    """Not sealed by us, not for this tenant or purpose, or damaged since."""


class Key(Struct, frozen=True, kw_only=True):
    """A key and the id by which sealed values name it. Raises ``SetupError`` for an id or a secret
    that cannot be one."""

    id: str
    secret: bytes

    def __post_init__(self) -> None:
        if not _ID.match(self.id):
            raise SetupError("the id of a seal key must be 1 to 32 letters, digits, '.', '_', '-'")
        if len(self.secret) != _SECRET_BYTES:
            raise SetupError(f"seal key {self.id!r} must have {_SECRET_BYTES} bytes, in base64")

    def __repr__(self) -> str:
        return f"Key(id={self.id!r})"

    @classmethod
    def parse(cls, text: str) -> Key:
        """A key as settings write it: ``ID:base64 of 32 bytes``. Raises ``SetupError``, which does
        not repeat the text."""
        id, colon, encoded = text.partition(":")
        try:
            secret = base64.b64decode(encoded, validate=True)
        except ValueError:
            secret = b""
        if not colon:
            raise SetupError("a seal key must be ID:SECRET, the secret being 32 bytes in base64")
        return cls(id=id, secret=secret)

    @classmethod
    def of(cls, secret: bytes) -> Key:
        """A key that is called by a digest of its secret."""
        return cls(id=hashlib.sha256(secret).hexdigest()[:8], secret=secret)

    @classmethod
    def fresh(cls) -> Key:
        """A new one."""
        return cls.of(secrets.token_bytes(_SECRET_BYTES))


class Seal:
    """Seals with the first key and opens with all of them: to change keys, put the new one first
    and leave the old one as long as what it sealed is to be read."""

    def __init__(self, keys: Sequence[Key]) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._ciphers = {_clear(key.id): AESGCM(key.secret) for key in keys}
        if not keys or len(self._ciphers) != len(keys):
            raise SetupError("seal keys must have different ids, and there must be one")
        self._first = next(iter(self._ciphers))

    def seal(self, content: bytes, *, purpose: str, tenant: str) -> str:
        """``content`` as a text safe for JSON and URLs, no two of them alike."""
        packed = _PLAIN + content
        if len(content) >= _WORTH_DEFLATING:
            packed = min(packed, _DEFLATED + zlib.compress(content), key=len)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        bound = _bound(self._first, purpose, tenant)
        sealed = self._ciphers[self._first].encrypt(nonce, packed, bound)
        return _encoded(self._first + nonce + sealed)

    def open(self, text: str, *, purpose: str, tenant: str) -> bytes:
        """What was sealed for the same purpose and tenant. Raises ``SealBroken``, and nothing else,
        for any other text."""
        from cryptography.exceptions import InvalidTag

        raw = _decoded(text)
        start = 2 + raw[1] if len(raw) > 1 else 0
        clear, nonce, sealed = raw[:start], raw[start : start + _NONCE_BYTES], raw[start:]
        cipher = self._ciphers.get(clear)
        if cipher is None or len(nonce) < _NONCE_BYTES:
            raise SealBroken
        try:
            packed = cipher.decrypt(nonce, sealed[_NONCE_BYTES:], _bound(clear, purpose, tenant))
        except InvalidTag:
            raise SealBroken from None
        return _inflated(packed[1:]) if packed[:1] == _DEFLATED else packed[1:]


def _clear(id: str) -> bytes:
    """What stands in front of every value."""
    return bytes((_VERSION, len(id))) + id.encode()


def _bound(clear: bytes, purpose: str, tenant: str) -> bytes:
    """What a value is bound to; no two different triples are the same bytes."""
    parts = (clear, purpose.encode(), tenant.encode("utf-8", "surrogatepass"))
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise SealBroken from None
    if _encoded(raw) != text:  # the last character has bits to spare
        raise SealBroken
    return raw


def _inflated(deflated: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(deflated, _MOST_BYTES)
    except zlib.error:
        raise SealBroken from None
    if not inflater.eof or inflater.unused_data:
        raise SealBroken
    return content
