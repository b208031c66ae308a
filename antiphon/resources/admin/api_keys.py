"""API keys in the store. They can be created, listed, rotated and revoked while servers run."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection

from msgspec.structs import asdict, replace

from antiphon.errors import Conflict, NotFound
from antiphon.store.keys import KeyRecord, KeyStore
from antiphon.wire.admin.api_keys import ApiKeyList, CreateApiKey, ManagedApiKey, NewApiKey

from .recent_value import RecentValue

#: Seconds for which a process keeps using the keys it has read while the store does not answer.
_OUTAGE_S = 60.0
_HINT_CHARS = 4


class ApiKeys:
    """Creates, lists, rotates and revokes the API keys in the store.

    ``clock`` returns Unix seconds. ``timer`` returns monotonic seconds. ``reserved``: names of the
    keys in the settings. A key in the store may not have one of these names.
    """

    def __init__(
        self,
        store: KeyStore,
        *,
        clock: Callable[[], float],
        timer: Callable[[], float],
        reserved: Collection[str] = (),
    ) -> None:
        self._store = store
        self._clock = clock
        self._reserved = frozenset(reserved)
        self._recent: RecentValue[tuple[KeyRecord, ...]] = RecentValue(
            self._read, (), timer=timer, outage_s=_OUTAGE_S
        )

    async def current(self) -> tuple[KeyRecord, ...]:
        """Return all keys in the store. The method reads the store at most every two seconds.
        Between two reads, it returns the last result.

        If the store does not answer, the last result is returned for up to one minute. After this
        minute, raises ``StoreError``.
        """
        return await self._recent.current()

    async def _read(self) -> tuple[KeyRecord, ...]:
        return await self._store.list()

    async def list(self) -> ApiKeyList:
        """Return all keys without their secrets."""
        return ApiKeyList(data=tuple(_public_key(key) for key in await self._store.list()))

    async def create(self, wanted: CreateApiKey) -> NewApiKey:
        """Create a key. Raises ``Conflict`` if a key with this name exists."""
        secret, digest = _new_secret()
        key = KeyRecord(
            **asdict(wanted),
            sha256=digest,
            hint=secret[-_HINT_CHARS:],
            created_at=int(self._clock()),
        )
        if key.name in self._reserved or not await self._store.create(key):
            raise Conflict(f"There is an API key named '{key.name}' already.", param="name")
        self._recent.expire()
        return _with_secret(key, secret)

    async def rotate(self, name: str) -> NewApiKey:
        """Give a key a new secret. The old secret stops working. Raises ``NotFound`` for an unknown
        name."""
        secret, digest = _new_secret()
        key = replace(
            await self._find(name),
            sha256=digest,
            hint=secret[-_HINT_CHARS:],
            rotated_at=int(self._clock()),
        )
        if not await self._store.replace(key):
            raise _unknown(name)
        self._recent.expire()
        return _with_secret(key, secret)

    async def revoke(self, name: str) -> None:
        """Delete a key. Raises ``NotFound`` for an unknown name."""
        if not await self._store.delete(name):
            raise _unknown(name)
        self._recent.expire()

    async def _find(self, name: str) -> KeyRecord:
        for key in await self._store.list():
            if key.name == name:
                return key
        raise _unknown(name)


def _new_secret() -> tuple[str, str]:
    """Return a new random secret and its SHA-256 digest in hex."""
    secret = f"sk-{secrets.token_urlsafe(32)}"
    return secret, hashlib.sha256(secret.encode()).hexdigest()


def _public_key(key: KeyRecord) -> ManagedApiKey:
    fields = {name: getattr(key, name) for name in _SHOWN_FIELDS}
    return ManagedApiKey(redacted_value=f"sk-…{key.hint}", **fields)


_SHOWN_FIELDS = tuple(
    name for name in ManagedApiKey.__struct_fields__ if name in KeyRecord.__struct_fields__
)


def _with_secret(key: KeyRecord, secret: str) -> NewApiKey:
    return NewApiKey(**asdict(_public_key(key)), value=secret)


def _unknown(name: str) -> NotFound:
    return NotFound(f"API key named '{name}' not found.", param="name")
