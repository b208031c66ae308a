"""The quota of stored responses. Before a response is generated, the server reserves room for the
response in the quota of its tenant. If the tenant is far from a large quota, it does without."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from antiphon.errors import StoreError
from antiphon.limits import quotas
from antiphon.limits.refusals import quota_exceeded
from antiphon.store.base import Store
from antiphon.store.records import Reservation
from antiphon.support.tasks import BackgroundTasks, do_nothing, repeat_until_done

#: Number of confirmed releases after which a reservation is certainly gone.
_RELEASES = 2

#: A tenant has ample room if this many responses and bytes are free. All servers together store
#: less in the seconds for which this is remembered.
_AMPLE_RESPONSES, _AMPLE_BYTES, _AMPLE_S = 100_000, 10 << 30, 60.0
#: Tenants whose ample room is remembered.
_MAX_TENANTS = 10_000

#: A tenant and the id of a response.
_Key = tuple[str, str]


class ResponseQuota:
    """Reserves room for responses in the quotas of their tenants. A reservation counts against the
    tenant's quota until the response is stored or given up.

    ``owner``: the name of this server in the store. The server sends heartbeats under this name.
    ``lease_s``: if the server sends no heartbeat for this many seconds, its reservations end.
    ``timer`` returns monotonic seconds.
    """

    def __init__(
        self,
        store: Store,
        tenants: quotas.TenantQuotas,
        *,
        owner: str,
        lease_s: float,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._tenants = tenants
        self._owner = owner
        self._lease_s = lease_s
        #: Tasks that release reservations. They run until the store has confirmed the release.
        self._releases = BackgroundTasks("release of a reservation")
        #: Attempts to create each response that have not ended. The last attempt of a response
        #: releases its reservation.
        self._attempts: dict[_Key, set[object]] = {}
        self._timer = timer
        #: Tenants with ample room: their quotas, and until when this is remembered.
        self._ample: dict[str, tuple[quotas.Quotas, float]] = {}

    def applies_to(self, tenant: str) -> bool:
        """Whether the tenant has a quota of stored responses, and is not known to be far from it.
        If so, the caller must call ``reserve`` before it generates a response for the tenant."""
        limits = self._tenants.for_tenant(tenant)
        return limits.limits_responses and not self._is_far(tenant, limits)

    def _is_far(self, tenant: str, limits: quotas.Quotas) -> bool:
        known, until = self._ample.get(tenant, (None, 0.0))
        return known is limits and self._timer() < until

    async def _finds_ample_room(self, tenant: str, limits: quotas.Quotas) -> bool:
        """Return whether the tenant is far from its quota, and remember it. If the store does not
        answer, a large quota is no reason to refuse a request."""
        responses, size = limits.max_responses, limits.max_responses_bytes
        if not (_is_free(_AMPLE_RESPONSES, 0, responses) and _is_free(_AMPLE_BYTES, 0, size)):
            return False
        try:
            usage = await self._store.usage(tenant)
        except StoreError:
            return True
        if not (
            _is_free(_AMPLE_RESPONSES, usage.responses, responses)
            and _is_free(_AMPLE_BYTES, usage.responses_bytes, size)
        ):
            return False
        if len(self._ample) >= _MAX_TENANTS:
            self._ample.clear()
        self._ample[tenant] = limits, self._timer() + _AMPLE_S
        return True

    async def reserve(self, tenant: str, response_id: str) -> Callable[[], Awaitable[None]]:
        """Reserve room for a response in the tenant's quota of stored responses. Return a function
        that ends the reservation. Call the function when the response has been stored, or when it
        will not be stored. Call ``reserve`` only if ``applies_to`` is true for the tenant.

        The returned function may be called repeatedly and does not raise ``StoreError``.
        ``reserve`` raises ``QuotaExceeded`` and ``StoreError``.
        """
        limits = self._tenants.for_tenant(tenant)
        if await self._finds_ample_room(tenant, limits):
            return do_nothing
        key, attempt = (tenant, response_id), object()
        attempts = self._attempts.setdefault(key, set())
        is_only = not attempts
        attempts.add(attempt)
        try:
            is_reserved = await self._store.reserve_response(
                Reservation(
                    tenant=tenant,
                    response_id=response_id,
                    owner=self._owner,
                    max_responses=limits.max_responses,
                    max_bytes=limits.max_responses_bytes,
                    lease_s=self._lease_s,
                )
            )
        except BaseException:  # the store may have reserved the room, or may still reserve it
            self._release_later(key, attempt)
            raise

        async def release() -> None:
            if attempt not in self._attempts.get(key, ()):
                return
            if self._is_last(key, attempt):
                try:
                    await self._store.release_reservation(*key, self._owner)
                except StoreError:
                    return self._release_later(key, attempt)
                except BaseException:
                    self._release_later(key, attempt)
                    raise
            self._remove(key, attempt)

        if not is_reserved:
            if is_only:
                self._remove(key, attempt)
            else:  # another attempt that has ended meanwhile left its room to this attempt
                await release()
            raise quota_exceeded(
                "stored responses",
                param="store",
                max_responses=limits.max_responses,
                max_responses_bytes=limits.max_responses_bytes,
            )
        return release

    def _is_last(self, key: _Key, attempt: object) -> bool:
        return self._attempts.get(key) == {attempt}

    def _remove(self, key: _Key, attempt: object) -> None:
        attempts = self._attempts.get(key, set())
        attempts.discard(attempt)
        if not attempts:
            self._attempts.pop(key, None)

    def _release_later(self, key: _Key, attempt: object) -> None:
        """Release a reservation in the background, as soon as the store answers. Called if the
        store did not answer a request to reserve or to release. In this case, it is not known
        whether the reservation exists.

        Without a release, the heartbeats of this server would prolong the reservation. ``key``:
        tenant and response id. ``attempt``: identifies the call of ``reserve``.
        """
        self._releases.start(self._release_until_done(key, attempt))

    async def _release_until_done(self, key: _Key, attempt: object) -> None:
        """Release the reservation of a response twice, with a pause between. The second release is
        needed because a reserve request that timed out may reach the store after the first release.

        ``key``: tenant and response id. ``attempt``: identifies the call of ``reserve``. If another
        call of ``reserve`` for the same response has not ended, nothing is released here, because
        the other call releases the reservation.
        """
        confirmed = 0

        async def release() -> bool:
            nonlocal confirmed
            if self._is_last(key, attempt):
                await self._store.release_reservation(*key, self._owner)
                confirmed += 1
            return confirmed == _RELEASES or not self._is_last(key, attempt)

        await repeat_until_done(release, self._lease_s, failure="a reservation is not released")
        self._remove(key, attempt)


def _is_free(room: int, used: int, limit: int | None) -> bool:
    """Whether so much room is free below a limit."""
    return limit is None or used + room <= limit
