"""The in-memory usage log, which records what each request used. It is the reference implementation
of ``UsageLog``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import astuple

from antiphon.store.usage import (
    Rollup,
    UsageLog,
    UsageQuery,
    UsageRecord,
    UsageTotals,
    usage_cutoffs,
)

#: Start, kind, tenant, API key and model of a sum.
_Key = tuple[int, str, str, str, str]
_Sums = tuple[int, ...]


class MemoryUsage(UsageLog):
    """Implements ``UsageLog`` with dictionaries. ``check``: a function that the methods call first.
    It raises ``StoreError`` if the store is closed."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check
        self._records: dict[str, UsageRecord] = {}
        #: Sums by their width in seconds.
        self._sums: dict[int, dict[_Key, _Sums]] = {}

    async def add(self, records: Sequence[UsageRecord]) -> None:
        self._check()
        self.add_now(*records)

    def add_now(self, *records: UsageRecord) -> None:
        """Add records without an ``await``, so no other task of the event loop runs meanwhile."""
        for record in records:
            self._records.setdefault(record.id, record)

    async def totals(self, query: UsageQuery) -> tuple[UsageTotals, ...]:
        self._check()
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
