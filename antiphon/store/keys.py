"""The API keys of a server, without their secrets."""

from __future__ import annotations

from antiphon.wire.admin.client_limits import ClientLimits

from .values import SERVER, Document, ValueStore

__all__ = ["KeyRecord", "KeyStore"]


class KeyRecord(ClientLimits, frozen=True, kw_only=True):
    """An API key, with the limits of ``ClientLimits``. ``sha256``: the digest of its secret in hex.
    ``tenant``: the tenant to which requests with this key belong. ``created_at``, ``rotated_at``:
    Unix seconds. ``hint``: the last characters of the secret."""

    name: str
    sha256: str
    tenant: str
    created_at: int
    rotated_at: int | None = None
    hint: str = ""


class KeyStore:
    """The API keys of a server, in one value of the store. The names of the keys are unique and do
    not contain U+0000. Methods that change keys return after the change is durable."""

    def __init__(self, values: ValueStore) -> None:
        self._keys = Document(values, SERVER, "api_keys", dict[str, KeyRecord])

    async def create(self, key: KeyRecord) -> bool:
        """Add a key. Returns False if a key with this name exists."""
        return await self._keys.update(lambda keys: keys.setdefault(key.name, key) is key)

    async def list(self) -> tuple[KeyRecord, ...]:
        """Return all keys, in the order of their names."""
        keys = await self._keys.load()
        return tuple(keys[name] for name in sorted(keys))

    async def replace(self, key: KeyRecord) -> bool:
        """Replace the stored key that has the name of ``key``. Returns False if there is no such
        key."""

        def change(keys: dict[str, KeyRecord]) -> bool:
            is_known = key.name in keys
            if is_known:
                keys[key.name] = key
            return is_known

        return await self._keys.update(change)

    async def delete(self, name: str) -> bool:
        """Delete the key with this name. Returns False if there is no such key."""
        return await self._keys.update(lambda keys: keys.pop(name, None) is not None)
