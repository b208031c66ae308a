"""The quota of stored responses: room is reserved before a response is generated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from antiphon import quotas
from antiphon.errors import StoreError
from antiphon.store.base import Store

__all__ = ["ResponseQuota"]


class ResponseQuota:
    """Reserves room for responses. ``owner``: the name of this server in the store, which sends
    heartbeats; ``lease_s``: without one for this long, its reservations end."""

    def __init__(
        self, store: Store, tenants: quotas.TenantQuotas, *, owner: str, lease_s: float
    ) -> None:
        self._store = store
        self._tenants = tenants
        self._owner = owner
        self._lease_s = lease_s
        #: Releases that the store has not confirmed.
        self._releases: set[asyncio.Task[None]] = set()

    async def reserve(self, tenant: str, response_id: str) -> Callable[[], Awaitable[None]]:
        """Reserve room and return the function that ends the reservation: once the response is
        stored, or will not be.

        The function may be called repeatedly and does not raise ``StoreError``. Raises
        ``QuotaExceeded`` and ``StoreError``.
        """
        limits = self._tenants.of(tenant)
        if not limits.limits_responses:
            return _release_nothing
        try:
            is_reserved = await self._store.reserve_response(
                tenant,
                response_id,
                self._owner,
                max_responses=limits.max_responses,
                max_bytes=limits.max_responses_bytes,
                lease_s=self._lease_s,
            )
        except BaseException:  # the store may have reserved it, or may do so later
            self._release_later(tenant, response_id)
            raise
        if not is_reserved:
            raise quotas.exceeded(
                "stored responses",
                param="store",
                max_responses=limits.max_responses,
                max_responses_bytes=limits.max_responses_bytes,
            )
        is_released = False

        async def release() -> None:
            nonlocal is_released
            if is_released:
                return
            is_released = True
            try:
                await self._store.release_reservation(tenant, response_id)
            except BaseException as error:
                self._release_later(tenant, response_id)
                if not isinstance(error, StoreError):
                    raise

        return release

    def _release_later(self, tenant: str, response_id: str) -> None:
        """Release a reservation as soon as the store answers. Otherwise the heartbeats of this
        server would keep it."""
        task = asyncio.create_task(self._release_until_done(tenant, response_id))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release_until_done(self, tenant: str, response_id: str) -> None:
        """Release, and again later: a request to reserve that was given up may still arrive."""
        confirmed = 0
        while confirmed < 2:
            try:
                await self._store.release_reservation(tenant, response_id)
                confirmed += 1
            except StoreError:
                pass  # repeated below
            if confirmed < 2:
                await asyncio.sleep(self._lease_s)


async def _release_nothing() -> None:
    """Release nothing: the tenant has no quota."""
