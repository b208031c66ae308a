"""Signatures of RPC calls over HTTP. Only a holder of the shared secret can sign a call. A
signature is valid only for a short time, and can be used only once."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from hashlib import sha256

_TIME, _NONCE = "x-antiphon-time", "x-antiphon-nonce"
_DIGEST, _SIGNATURE = "x-antiphon-digest", "x-antiphon-signature"
#: Largest difference between the clocks of two servers, in seconds, including the time that a call
#: travels.
_TOLERANCE_S = 300
#: Largest number of stored nonces. If there are more calls within the tolerance, they are refused.
_MAX_NONCES = 1_000_000


class CallSigner:
    """Signs RPC calls and checks signatures. ``secret``: the secret that the servers share.
    ``clock``: returns Unix seconds. ``nonce``: returns a new unique text each time."""

    def __init__(
        self, secret: bytes, *, clock: Callable[[], float], nonce: Callable[[], str]
    ) -> None:
        self._secret = secret
        self._clock = clock
        self._nonce = nonce
        #: The used nonces, in the order of arrival, each with the time when it can be deleted.
        self._nonces: dict[str, float] = {}

    def sign(self, owner: str, digest: str) -> dict[str, str]:
        """Return the signature headers of a call to the process ``owner``. ``digest``: the
        ``content_digest`` of the call's body."""
        fields = {_TIME: str(int(self._clock())), _NONCE: self._nonce(), _DIGEST: digest}
        return {**fields, _SIGNATURE: self._signature(owner, *fields.values())}

    def check(self, owner: str, headers: Mapping[str, str]) -> str | None:
        """Check the signature headers of a call to the process ``owner``. Returns the digest that
        the headers contain. The caller must compare it with the digest of the body. Returns None if
        the signature is invalid, too old or already used, or if too many nonces are stored."""
        at, nonce, digest, signature = (
            headers.get(name, "") for name in (_TIME, _NONCE, _DIGEST, _SIGNATURE)
        )
        expected = self._signature(owner, at, nonce, digest)
        if not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
            return None
        now = self._clock()
        if abs(now - int(at)) > _TOLERANCE_S:
            return None
        for old in [old for old, until in self._first_nonces() if until < now]:
            del self._nonces[old]
        if nonce in self._nonces or len(self._nonces) >= _MAX_NONCES:
            return None
        self._nonces[nonce] = now + 2 * _TOLERANCE_S
        return digest

    def _first_nonces(self) -> list[tuple[str, float]]:
        """Return the oldest four nonces, each with the time after which it can be deleted.

        Each call of ``check`` stores one nonce, and deletes up to four that have expired. So
        expired nonces do not accumulate.
        """
        return [item for item, _ in zip(self._nonces.items(), range(4), strict=False)]

    def _signature(self, owner: str, at: str, nonce: str, digest: str) -> str:
        text = "\n".join((owner, at, nonce, digest))
        return hmac.new(self._secret, text.encode("utf-8", "replace"), sha256).hexdigest()


def content_digest(content: bytes) -> str:
    """Return the digest of a request body."""
    return sha256(content).hexdigest()
