"""The API keys that are valid now, from the settings and from the store.

Access ends when a key is revoked or rotated, or its tenant is deleted: also that of open WebSockets
and of runs in progress. They ask the ring again before each of their steps. Keys of the store and
deletions of tenants may be two seconds old (``ApiKeys.current``).
"""

from __future__ import annotations

import hmac
import math
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from antiphon.errors import AccessRevoked, SetupError
from antiphon.store.keys import KeyRecord
from antiphon.wire.admin.client_limits import ClientLimits

from .clients import Client, LimitScope, Role, limits_of

#: Raises ``AccessRevoked`` if something must no longer go on.
CheckAccess = Callable[[], Awaitable[None]]

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


class AuthKey(Struct, frozen=True, kw_only=True):
    """An API key: its SHA-256 digest in hex, and its tenant. Several keys may have the same
    tenant."""

    name: str
    tenant: str
    sha256: str
    limits: ClientLimits = ClientLimits()

    def __post_init__(self) -> None:
        if not _DIGEST.match(self.sha256):
            raise SetupError(f"key {self.name!r}: sha256 must be 64 lower-case hex digits")


class StoredKeys(Protocol):
    """Reads the API keys in the store. ``current`` returns all keys. It raises ``StoreError`` if
    the keys cannot be read."""

    async def current(self) -> tuple[KeyRecord, ...]: ...


class Deletions(Protocol):
    """Reads when tenants were deleted. ``current`` returns the time of the last deletion of each
    tenant, ``last`` what it returned before."""

    @property
    def last(self) -> Mapping[str, float]: ...

    def current(self) -> Awaitable[Mapping[str, float]]: ...


class KeyEntry(Struct, frozen=True):
    """An API key, with the client and the tenant of its requests. ``digest``: the SHA-256 digest of
    the secret. The key of a request is found by the digest of the secret in the request.
    ``record``: the stored key from which the entry was made; None if the key is in the settings."""

    client: Client
    tenant: str
    digest: bytes
    record: KeyRecord | None = None


class KeyRing:
    """The valid API keys of one server process. It stays the same when the settings are reloaded;
    only its keys change."""

    def __init__(self) -> None:
        self._is_configured = False
        self._stored_keys: StoredKeys | None = None
        self._stored: tuple[KeyRecord, ...] = ()
        self._entries: tuple[KeyEntry, ...] = ()
        self._stored_entries: tuple[KeyEntry, ...] = ()
        self._tenants: Mapping[str, ClientLimits] = {}
        self._roles: Mapping[Role, Collection[str]] = {}
        self._issuers: Collection[str] = ()
        self._per_minute: int | None = None
        self._deletions: Deletions | None = None
        self.anonymous = self._entry(None, "default", "", ClientLimits())

    def configure(
        self,
        keys: Sequence[AuthKey],
        *,
        tenants: Mapping[str, ClientLimits],
        roles: Mapping[Role, Collection[str]],
        requests_per_minute: int | None,
        stored_keys: StoredKeys | None,
        issuers: Collection[str] = (),
        deletions: Deletions | None = None,
    ) -> None:
        """Take the keys and limits of new settings.

        - ``tenants``: tenant → limits that all API keys of the tenant share.
        - ``roles``: role → names of the keys that have it.
        - ``requests_per_minute``: the limit of each key that has no limit of its own.
        - ``stored_keys``: reads the API keys in the store; None if they are not used.
        - ``issuers``: the names of the issuers whose users may use the server.
        - ``deletions``: reads when tenants were deleted; None if no tenant is ever deleted.
        """
        self._is_configured = True
        self._deletions = deletions
        self._tenants, self._per_minute = tenants, requests_per_minute
        self._roles, self._issuers = roles, issuers
        self._entries = tuple(
            self._entry(key.name, key.tenant, key.sha256, key.limits) for key in keys
        )
        self.anonymous = self._entry(None, "default", "", ClientLimits())
        self._stored_keys = stored_keys
        self._stored, self._stored_entries = (), ()

    def _entry(
        self,
        name: str | None,
        tenant: str,
        sha256: str,
        limits: ClientLimits,
        record: KeyRecord | None = None,
        roles: frozenset[Role] = frozenset(),
    ) -> KeyEntry:
        if limits.requests_per_minute is None:
            limits = replace(limits, requests_per_minute=self._per_minute)
        scopes = [LimitScope("key", name or "", limits)]
        if tenant in self._tenants:
            scopes.append(LimitScope("tenant", tenant, self._tenants[tenant]))
        client = Client(
            key=name,
            roles=roles.union(role for role, names in self._roles.items() if name in names),
            scopes=tuple(each for each in scopes if each.limits != ClientLimits()),
        )
        return KeyEntry(client, tenant, bytes.fromhex(sha256), record)

    def signed_in(
        self, name: str, tenant: str, limits: ClientLimits, roles: frozenset[Role]
    ) -> KeyEntry:
        """Return an entry for a user whom an issuer has identified. ``name``: the issuer's name, a
        slash and the user's name."""
        return self._entry(name, tenant, "", limits, roles=roles)

    async def find(self, digest: bytes) -> KeyEntry | None:
        """Return the key whose secret has this digest. Raises ``StoreError``."""
        # Compare with all keys, so that the time taken reveals neither their number nor a match.
        entries = await self._current_entries()
        matches = [entry for entry in entries if hmac.compare_digest(entry.digest, digest)]
        for entry in matches:
            # The stored keys were read up to two seconds ago, perhaps before their tenant's end.
            created_at = math.inf if entry.record is None else entry.record.created_at
            if created_at >= int(await self.last_deletion(entry.tenant)):
                return entry
        return None

    async def last_deletion(self, tenant: str) -> float:
        """Return when a tenant was last deleted; 0 if it never was."""
        if self._deletions is None:
            return 0.0
        return (await self._deletions.current()).get(tenant, 0.0)

    def access(self, tenant: str, name: str | None) -> CheckAccess:
        """Return ``check`` for something that begins now: it raises ``AccessRevoked`` also if the
        tenant is deleted later. The caller has just authenticated a request of the tenant, so that
        earlier deletions are known."""
        known = self._deletions.last if self._deletions is not None else {}
        return partial(self.check, tenant, name, began_after=known.get(tenant, 0.0))

    async def check(self, tenant: str, name: str | None, *, began_after: float = math.inf) -> None:
        """Raise ``AccessRevoked`` unless the key of this name still belongs to this tenant.

        ``name``: None for work that began without a key, which may go on. So may the work of a user
        as long as the user's issuer is in the settings. A ring that was never configured ends
        nothing: it belongs to a service whose apps have rings of their own. ``began_after``: the
        last deletion of the tenant before the work began; later ones end the work.
        """
        if await self.last_deletion(tenant) > began_after:
            raise AccessRevoked("The tenant of this response was deleted.")
        if name is None or not self._is_configured or await self._entry_of(tenant, name):
            return
        if name.partition("/")[0] not in self._issuers:
            raise AccessRevoked("The API key that began this response is no longer valid.")

    async def limited_now(self, tenant: str, client: Client) -> Client:
        """Return a client of a tenant with the limits that its key has now. A user who has signed
        in, and a client whose key has ended, keep their limits. Raises ``StoreError``."""
        entry = None if client.key is None else await self._entry_of(tenant, client.key)
        return client if entry is None else entry.client

    async def _entry_of(self, tenant: str, name: str) -> KeyEntry | None:
        entries = await self._current_entries()
        matches = (each for each in entries if (each.client.key, each.tenant) == (name, tenant))
        return next(matches, None)

    async def _current_entries(self) -> tuple[KeyEntry, ...]:
        """Return all keys. If those in the store have changed, make their entries again."""
        keys = self._stored if self._stored_keys is None else await self._stored_keys.current()
        if keys is not self._stored:
            known = {entry.record: entry for entry in self._stored_entries}
            self._stored_entries = tuple(
                known.get(key) or self._entry(key.name, key.tenant, key.sha256, limits_of(key), key)
                for key in keys
            )
            self._stored = keys
        return (*self._entries, *self._stored_entries)
