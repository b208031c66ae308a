"""The usage log, the audit log and the journal in memory. They are the reference implementations of
``UsageLog``, ``AuditLog`` and ``Journal``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice

from msgspec.structs import astuple, replace

from antiphon.store.audit import AuditLog, AuditQuery, AuditRecord
from antiphon.store.journal import Journal, JournalEntry
from antiphon.store.usage import (
    Rollup,
    UsageLog,
    UsageQuery,
    UsageRecord,
    UsageTotals,
    usage_cutoffs,
)

from .part import Part
from .values import drop_tenant

#: Start, kind, tenant, API key and model of a sum.
_Key = tuple[int, str, str, str, str]
_Sums = tuple[int, ...]


class MemoryUsage(Part, UsageLog):
    """Implements ``UsageLog`` with dictionaries."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__(check)
        self._records: dict[str, UsageRecord] = {}
        #: Sums by their width in seconds.
        self._sums: dict[int, dict[_Key, _Sums]] = {}

    async def add(self, records: Sequence[UsageRecord]) -> None:
        self.add_now(*records)

    def add_now(self, *records: UsageRecord) -> None:
        """Add records without an ``await``, so no other task of the event loop runs meanwhile."""
        for record in records:
            self._records.setdefault(record.id, record)

    async def totals(self, query: UsageQuery) -> tuple[UsageTotals, ...]:
        found: dict[tuple[int, str | None, str | None, str | None], _Sums] = {}
        for (start, kind, tenant, api_key, model), sums in self._rows():
            names = (tenant, api_key, model)
            allowed = (query.tenants, query.api_keys, query.models)
            if kind != query.kind or not query.start <= start < query.end:
                continue
            if any(
                wanted is not None and name not in wanted
                for name, wanted in zip(names, allowed, strict=True)
            ):
                continue
            by = query.group_by
            bucket = (
                start - start % query.width,
                tenant if "tenant" in by else None,
                api_key if "api_key" in by else None,
                model if "model" in by else None,
            )
            found[bucket] = _add(found.get(bucket), sums)
        ordered = sorted(found.items(), key=lambda pair: tuple(name or "" for name in pair[0][1:]))
        ordered.sort(key=lambda pair: pair[0][0])
        return tuple(_totals(*bucket, sums) for bucket, sums in ordered)

    def delete_tenant(self, tenant: str) -> int:
        """Delete the usage of a tenant. Return the number of deleted records and
        sums."""
        records = [id for id, record in self._records.items() if record.tenant == tenant]
        for id in records:
            del self._records[id]
        total = len(records)
        for sums in self._sums.values():
            keys = [key for key in sums if key[2] == tenant]
            for key in keys:
                del sums[key]
            total += len(keys)
        return total

    def sweep(self, now: int, keep_s: float | None) -> None:
        """Add up old rows into sums of longer intervals, and delete sums that are older than
        ``keep_s`` seconds. If ``keep_s`` is None, delete nothing. ``now``: the time of the sweep,
        in Unix seconds."""
        for rollup, before in usage_cutoffs(now):
            self._roll_up(rollup, before)
        if keep_s is not None:
            for sums in self._sums.values():
                for key in [key for key in sums if key[0] < now - keep_s]:
                    del sums[key]

    def _roll_up(self, rollup: Rollup, before: int) -> None:
        if rollup.width == 0:
            old = [record for record in self._records.values() if record.start < before]
            rows = [_row(self._records.pop(record.id)) for record in old]
        else:
            finer = self._sums.setdefault(rollup.width, {})
            rows = [(key, finer.pop(key)) for key in list(finer) if key[0] < before]
        coarser = self._sums.setdefault(rollup.to, {})
        for (start, *names), sums in rows:
            kind, tenant, api_key, model = names
            key = (start - start % rollup.to, kind, tenant, api_key, model)
            coarser[key] = _add(coarser.get(key), sums)

    def _rows(self) -> Iterable[tuple[_Key, _Sums]]:
        yield from map(_row, self._records.values())
        for sums in self._sums.values():
            yield from sums.items()


def _row(record: UsageRecord) -> tuple[_Key, _Sums]:
    key = (record.start, record.kind, record.tenant, record.api_key, record.model)
    return key, astuple(record)[len(key) + 1 :]


def _add(one: _Sums | None, other: _Sums) -> _Sums:
    return other if one is None else tuple(a + b for a, b in zip(one, other, strict=True))


def _totals(
    start: int, tenant: str | None, api_key: str | None, model: str | None, sums: _Sums
) -> UsageTotals:
    names = UsageTotals.__struct_fields__[4:]
    return UsageTotals(
        start=start,
        tenant=tenant,
        api_key=api_key,
        model=model,
        **dict(zip(names, sums, strict=True)),
    )


class MemoryAudit(Part, AuditLog):
    """Implements ``AuditLog`` with a list."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__(check)
        self._records: list[AuditRecord] = []

    async def add(self, record: AuditRecord) -> None:
        self._records.append(record)

    async def list(self, query: AuditQuery) -> tuple[AuditRecord, ...] | None:
        records = self._records[::-1] if query.newest_first else self._records
        if query.after is not None:
            ids = [record.id for record in records]
            if query.after not in ids:
                return None
            records = records[ids.index(query.after) + 1 :]
        found = (record for record in records if _matches(record, query))
        return tuple(islice(found, query.limit))

    def expire(self, before: float) -> None:
        """Delete the records that are older than ``before``, in unix seconds."""
        self._records = [record for record in self._records if record.at >= before]


def _matches(record: AuditRecord, query: AuditQuery) -> bool:
    wanted_and_found = (
        (query.type, record.type),
        (query.actor, record.actor),
        (query.target, record.target),
    )
    return (
        all(wanted in (None, found) for wanted, found in wanted_and_found)
        and (query.start is None or record.at >= query.start)
        and (query.end is None or record.at < query.end)
    )


_EntryKey = tuple[str, str]


class MemoryJournal(Part, Journal):
    """Implements ``Journal`` with a dictionary. ``is_active``: whether a key is the tenant and the
    id of a background run that has not ended."""

    def __init__(self, check: Callable[[], None], is_active: Callable[[_EntryKey], bool]) -> None:
        super().__init__(check)
        self._is_active = is_active
        #: By tenant and key: the entry, and the time when it was begun.
        self._entries: dict[_EntryKey, tuple[JournalEntry, int]] = {}

    async def begin(
        self, tenant: str, entries: Sequence[JournalEntry], now: int
    ) -> tuple[JournalEntry | None, ...]:
        for each in entries:
            if each.is_approval or self._is_active((tenant, each.response_id)):
                self._entries.setdefault((tenant, each.key), (each, now))
        return tuple(self._find(tenant, each.key) for each in entries)

    async def settle(self, tenant: str, key: str, old: bytes | None, new: bytes | None) -> bool:
        entry, begun_at = self._entries.get((tenant, key), (None, 0))
        if entry is None or entry.result not in (old, new):
            return False
        self._entries[tenant, key] = (replace(entry, result=new), begun_at)
        return True

    async def find(self, tenant: str, keys: Collection[str]) -> tuple[JournalEntry, ...]:
        found = (self._find(tenant, key) for key in keys)
        return tuple(entry for entry in found if entry is not None)

    def expire(self, before: float | None, has_run: Callable[[_EntryKey], bool]) -> None:
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
        return drop_tenant(self._entries, tenant)

    def _find(self, tenant: str, key: str) -> JournalEntry | None:
        entry, _ = self._entries.get((tenant, key), (None, 0))
        return entry
