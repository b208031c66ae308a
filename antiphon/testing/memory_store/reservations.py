"""Reservations of the memory store. A response that is being generated has a reservation, so
it counts against its tenant's quota before it is saved."""

from __future__ import annotations

from collections.abc import Callable

from .locks import OwnerHeartbeats


class Reservations:
    """Counts responses that are being generated, so that quotas include them. A reservation
    contains the id of such a response, and the id of the server that generates it (the owner)."""

    def __init__(self, owners: OwnerHeartbeats) -> None:
        self._owners = owners
        self.reserved: dict[str, dict[str, str]] = {}

    def add(self, tenant: str, response_id: str, owner: str) -> Callable[[], None]:
        """Add a reservation for a response. If the response already has a reservation, the
        reservation passes to the new owner. The call also counts as a heartbeat of the owner.

        Returns a function that undoes the call: it gives the reservation back to the former owner,
        or removes it if there was none. The function does nothing if the reservation no longer
        belongs to ``owner``.
        """
        self._owners.record(owner)
        reserved = self.reserved.setdefault(tenant, {})
        former_owner = reserved.get(response_id)
        reserved[response_id] = owner

        def undo() -> None:
            if former_owner is None:
                self.remove(tenant, response_id, owner)
            elif reserved.get(response_id) == owner:
                reserved[response_id] = former_owner

        return undo

    def remove(self, tenant: str, response_id: str, owner: str) -> None:
        """Remove the reservation of a response, if the reservation belongs to ``owner``."""
        reserved = self.reserved.get(tenant, {})
        if reserved.get(response_id) == owner:
            del reserved[response_id]
        if not reserved:
            self.reserved.pop(tenant, None)

    def remove_tenant(self, tenant: str) -> None:
        """Remove the reservations of all responses of a tenant."""
        self.reserved.pop(tenant, None)

    def ids(self, tenant: str, lease_s: float) -> tuple[str, ...]:
        """Return the ids of the tenant's responses that have a reservation. Reservations of dead
        owners are removed first."""
        alive = self._owners.living_owners(lease_s)
        for response_id, owner in list(self.reserved.get(tenant, {}).items()):
            if owner not in alive:
                self.remove(tenant, response_id, owner)
        return tuple(self.reserved.get(tenant, {}))
