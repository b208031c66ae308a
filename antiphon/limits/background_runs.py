"""Limits on the number of background runs that a key or a tenant may have at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from antiphon.errors import Overloaded
from antiphon.store.records import RunLimit
from antiphon.store.runs import RunLimitReached, RunStore
from antiphon.wire.admin.client_limits import ClientLimits

from .clients import Client, LimitScope
from .refusals import limit_reached

#: ``retry-after`` of a client with too many runs.
_RETRY_S = 5


class ActiveRunLimits:
    """Refuses background runs that would exceed a limit.

    The store enforces the limits when it creates a run. This class also checks the limits before a
    request is prepared, so that no work is wasted on a request that will be refused.

    ``per_tenant``: the limit of a tenant that has no limit of its own; None for no limit.
    """

    def __init__(self, runs: RunStore, per_tenant: int | None = None) -> None:
        self._runs = runs
        self._per_tenant = per_tenant

    @asynccontextmanager
    async def check(self, tenant: str, client: Client) -> AsyncIterator[Sequence[RunLimit]]:
        """Context manager around the creation of a background run. It yields the limits that apply
        to the run.

        Raises ``Overloaded`` if a limit is already reached. The ``with`` block can raise
        ``RunLimitReached``, because other runs may be created at the same time; this error becomes
        ``Overloaded`` too. Raises ``StoreError``.
        """
        scopes = {
            RunLimit(
                scope.limits.background_runs, scope.name if scope.kind == "key" else None
            ): scope
            for scope in self._scopes(tenant, client)
            if scope.limits.background_runs is not None
        }
        for limit, scope in scopes.items():
            if await self._runs.count_unended(tenant, limit.api_key) >= limit.max_runs:
                raise _refusal(scope)
        try:
            yield tuple(scopes)
        except RunLimitReached as reached:
            raise _refusal(scopes[reached.limit]) from None

    def _scopes(self, tenant: str, client: Client) -> Sequence[LimitScope]:
        """Return the scopes of the client, with a limit for the tenant."""
        scopes = client.scopes
        if any(s.kind == "tenant" and s.limits.background_runs is not None for s in scopes):
            return scopes
        default = LimitScope("tenant", tenant, ClientLimits(background_runs=self._per_tenant))
        return (*scopes, default)


def _refusal(scope: LimitScope) -> Overloaded:
    return limit_reached(
        f"{scope.owner} has {scope.limits.background_runs} background responses in progress, as"
        " many as it may have (background_runs)",
        retry_after_s=_RETRY_S,
    )
