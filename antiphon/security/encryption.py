"""Authenticated encryption of values that clients keep for the server, such as
``encrypted_content``.

The algorithm is AES-256-GCM. An encrypted value begins with a version number and the id of the key,
which are not encrypted. Purpose and tenant are authenticated too, so a value can only be decrypted
for the same purpose and tenant.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import zlib
from collections.abc import Sequence

from msgspec import Struct

from antiphon.errors import SetupError

_VERSION = 1
_NONCE_BYTES = 12  # recommended for GCM by NIST SP 800-38D
_SECRET_BYTES = 32
_DIGEST_BYTES = 16
_ID = re.compile(r"[A-Za-z0-9._-]{1,32}\Z")

#: Maximum number of bytes of decompressed content. It protects against decompression bombs.
_MAX_BYTES = 64 * 2**20

#: First byte of the content before encryption: the content is uncompressed, or compressed.
_PLAIN, _DEFLATED = b"\0", b"\1"
#: Minimum number of bytes of content that is compressed. Compression does not help for shorter
#: content.
_WORTH_DEFLATING = 128


class DecryptionError(Exception):
    """Error for a value that cannot be decrypted: it was not encrypted with a key of the
    ``Encryptor``, it was encrypted for another tenant or purpose, or it is damaged."""


class EncryptionKey(Struct, frozen=True, kw_only=True):
    """An encryption key with its id. An encrypted value contains the id of its key. The constructor
    raises ``SetupError`` for an invalid id or key."""

    id: str
    secret: bytes

    def __post_init__(self) -> None:
        if not _ID.match(self.id):
            raise SetupError(
                "the id of an encryption key must be 1 to 32 letters, digits, '.', '_', '-'"
            )
        if len(self.secret) != _SECRET_BYTES:
            raise SetupError(
                f"encryption key {self.id!r} must have {_SECRET_BYTES} bytes, in base64"
            )

    def __repr__(self) -> str:
        return f"Key(id={self.id!r})"

    @classmethod
    def parse(cls, text: str) -> EncryptionKey:
        """Parse a key of the form ``ID:SECRET``. Raises ``SetupError`` with a message that does not
        contain the secret."""
        id, colon, encoded = text.partition(":")
        try:
            secret = base64.b64decode(encoded, validate=True)
        except ValueError:
            secret = b""
        if not colon:
            raise SetupError(
                "an encryption key must be ID:SECRET with a secret of 32 bytes in base64"
            )
        return cls(id=id, secret=secret)

    @classmethod
    def from_secret(cls, secret: bytes) -> EncryptionKey:
        """Create a key from 32 secret bytes. The key's id is the first 8 hex digits of the secret's
        SHA-256 digest."""
        return cls(id=hashlib.sha256(secret).hexdigest()[:8], secret=secret)

    @classmethod
    def generate(cls) -> EncryptionKey:
        """Generate a random key."""
        return cls.from_secret(secrets.token_bytes(_SECRET_BYTES))


class Encryptor:
    """Encrypts with the first key and decrypts with any of the keys.

    To rotate keys, put the new key first. Keep the old key as long as values that were encrypted
    with it must be readable.
    """

    def __init__(self, keys: Sequence[EncryptionKey]) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        #: The ids of the keys. The first one encrypts.
        self.key_ids = tuple(key.id for key in keys)
        self._ciphers = {_header(key.id): AESGCM(key.secret) for key in keys}
        if not keys or len(self._ciphers) != len(keys):
            raise SetupError("configure at least one encryption key, each with a different id")
        self._first = next(iter(self._ciphers))
        digest_key = hmac.digest(keys[0].secret, b"antiphon digest", "sha256")
        self._mac = hmac.new(digest_key, digestmod="sha256")

    def encrypt(self, content: bytes, *, purpose: str, tenant: str) -> str:
        """Encrypt ``content`` into text that is safe in JSON and in URLs. Each call returns a
        different result."""
        packed = _PLAIN + content
        if len(content) >= _WORTH_DEFLATING:
            packed = min(packed, _DEFLATED + zlib.compress(content), key=len)
        return _encode(self.encrypt_bytes(packed, purpose=purpose, tenant=tenant))

    def decrypt(self, text: str, *, purpose: str, tenant: str) -> bytes:
        """Decrypt a text that ``encrypt`` returned for the same purpose and tenant. Raises only
        ``DecryptionError``."""
        packed = self.decrypt_bytes(_decode(text), purpose=purpose, tenant=tenant)
        return _decompress(packed[1:]) if packed[:1] == _DEFLATED else packed[1:]

    def encrypt_bytes(self, content: bytes, *, purpose: str, tenant: str) -> bytes:
        """Encrypt ``content`` without compressing it. Each call returns a different result."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        bound = _associated_data(self._first, purpose, tenant)
        return self._first + nonce + self._ciphers[self._first].encrypt(nonce, content, bound)

    def decrypt_bytes(self, raw: bytes, *, purpose: str, tenant: str) -> bytes:
        """Decrypt a value that ``encrypt_bytes`` returned for the same purpose and tenant. Raises
        only ``DecryptionError``."""
        from cryptography.exceptions import InvalidTag

        start = 2 + raw[1] if len(raw) > 1 else 0
        clear, sealed = raw[:start], memoryview(raw)[start:]
        nonce = bytes(sealed[:_NONCE_BYTES])
        cipher = self._ciphers.get(clear)
        if cipher is None or len(nonce) < _NONCE_BYTES:
            raise DecryptionError
        try:
            bound = _associated_data(clear, purpose, tenant)
            return cipher.decrypt(nonce, sealed[_NONCE_BYTES:], bound)
        except InvalidTag:
            raise DecryptionError from None

    def digest(self, content: bytes, *, purpose: str, tenant: str) -> str:
        """Return a keyed digest (HMAC-SHA256, 128 bits in hex) of purpose, tenant and content.

        The digest does not reveal these values. Without the secret key, nobody can test guesses of
        the content, because computing a digest needs this key.
        """
        # ``hmac.digest`` releases the GIL. The event loop would then wait for threads of the store.
        mac = self._mac.copy()
        mac.update(_associated_data(content, purpose, tenant))
        return mac.digest()[:_DIGEST_BYTES].hex()


def _header(id: str) -> bytes:
    """Return the header of a value that is encrypted with the key ``id``. The value begins with
    this header. The header itself is not encrypted."""
    return bytes((_VERSION, len(id))) + id.encode()


def _associated_data(clear: bytes, purpose: str, tenant: str) -> bytes:
    """Return the data that AES-GCM authenticates in addition to the content. ``clear``: the
    unencrypted header. Different combinations of the three arguments never give the same bytes."""
    parts = (clear, purpose.encode(), tenant.encode("utf-8", "surrogatepass"))
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise DecryptionError from None
    if _encode(raw) != text:  # base64 leaves spare bits in the last character
        raise DecryptionError
    return raw


def _decompress(deflated: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(deflated, _MAX_BYTES)
    except zlib.error:
        raise DecryptionError from None
    if not inflater.eof or inflater.unused_data:
        raise DecryptionError
    return content
