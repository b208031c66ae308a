"""Limits on the background runs that a key or a tenant has at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from antiphon.clients import Client, LimitScope
from antiphon.errors import Overloaded
from antiphon.store.runs import RunStore

__all__ = ["ActiveRunLimits"]

#: ``retry-after`` of a client with too many runs.
_RETRY_S = 5


class ActiveRunLimits:
    """Counts the runs in the store, and those that this process is about to create. Only what
    several processes create at the same moment may exceed a limit."""

    def __init__(self, runs: RunStore) -> None:
        self._runs = runs
        #: Runs that this process is about to create, by scope.
        self._pending: Counter[str] = Counter()

    @asynccontextmanager
    async def reserve(self, tenant: str, client: Client) -> AsyncIterator[None]:
        """Hold room for a run that is created in the block. Raises ``Overloaded`` if there is none,
        and ``StoreError``."""
        limited = [each for each in client.scopes if each.limits.background_runs is not None]
        for scope in limited:
            self._pending[scope.id] += 1
        try:
            for scope in limited:
                await self._check(tenant, scope)
            yield
        finally:
            for scope in limited:
                self._pending[scope.id] -= 1
                if not self._pending[scope.id]:
                    del self._pending[scope.id]

    async def _check(self, tenant: str, scope: LimitScope) -> None:
        key = scope.name if scope.kind == "key" else None
        pending = self._pending[scope.id]
        if await self._runs.count_unended(tenant, key) + pending > (
            limit := scope.limits.background_runs or 0
        ):
            raise Overloaded(
                f"Rate limit reached: {scope.owner} has {limit} background responses in progress, "
                f"as many as it may have (background_runs). Please try again in {_RETRY_S}s.",
                retry_after_s=_RETRY_S,
            )
