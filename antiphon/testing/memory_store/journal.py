"""The journal of the memory store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec.structs import replace

from antiphon.store.journal import Journal, JournalEntry

_Key = tuple[str, str]


class MemoryJournal(Journal):
    """Implements ``Journal`` with a dictionary. ``check``: a function that the methods call first.
    It raises an error if the store is closed. ``is_active``: whether a key is the tenant and the id
    of a background run that has not ended."""

    def __init__(self, check: Callable[[], None], is_active: Callable[[_Key], bool]) -> None:
        self._check = check
        self._is_active = is_active
        #: By tenant and key: the entry, and the time when it was begun.
        self._entries: dict[_Key, tuple[JournalEntry, int]] = {}

    async def begin(
        self, tenant: str, entries: Sequence[JournalEntry], now: int
    ) -> tuple[JournalEntry | None, ...]:
        self._check()
        for each in entries:
            if each.is_approval or self._is_active((tenant, each.response_id)):
                self._entries.setdefault((tenant, each.key), (each, now))
        return tuple(self._find(tenant, each.key) for each in entries)

    async def settle(self, tenant: str, key: str, old: bytes | None, new: bytes | None) -> bool:
        self._check()
        entry, begun_at = self._entries.get((tenant, key), (None, 0))
        if entry is None or entry.result not in (old, new):
            return False
        self._entries[tenant, key] = (replace(entry, result=new), begun_at)
        return True

    async def find(self, tenant: str, keys: Collection[str]) -> tuple[JournalEntry, ...]:
        self._check()
        found = (self._find(tenant, key) for key in keys)
        return tuple(entry for entry in found if entry is not None)

    def expire(self, before: float | None, has_run: Callable[[_Key], bool]) -> None:
        """Delete the entries of calls whose runs are gone, and entries about approvals that were
        begun before ``before``."""
        self._entries = {
            key: (entry, begun_at)
            for key, (entry, begun_at) in self._entries.items()
            if (
                before is None or begun_at >= before
                if entry.is_approval
                else has_run((key[0], entry.response_id))
            )
        }

    def delete_tenant(self, tenant: str) -> int:
        """Delete the entries of a tenant. Return their number."""
        keys = [key for key in self._entries if key[0] == tenant]
        for key in keys:
            del self._entries[key]
        return len(keys)

    def _find(self, tenant: str, key: str) -> JournalEntry | None:
        entry, _ = self._entries.get((tenant, key), (None, 0))
        return entry
