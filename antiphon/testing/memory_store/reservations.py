"""Reservations of the memory store. A response that is being generated has a reservation, so
it counts against its tenant's quota before it is saved."""

from __future__ import annotations

from .locks import OwnerHeartbeats


class Reservations:
    """Counts responses that are being generated, so that quotas include them. A reservation
    contains the id of such a response, and the id of the server that generates it (the owner)."""

    def __init__(self, owners: OwnerHeartbeats) -> None:
        self._owners = owners
        self.reserved: dict[str, dict[str, str]] = {}

    def add(self, tenant: str, response_id: str, owner: str) -> None:
        """Add a reservation for a response. If the response already has a reservation, the
        reservation passes to the new owner."""
        self.reserved.setdefault(tenant, {})[response_id] = owner

    def remove(self, tenant: str, response_id: str, owner: str) -> None:
        """Remove the reservation of a response, if the reservation belongs to ``owner``."""
        reserved = self.reserved.get(tenant, {})
        if reserved.get(response_id) == owner:
            del reserved[response_id]

    def ids(self, tenant: str, lease_s: float) -> set[str]:
        """Return the ids of the tenant's responses that have a reservation. Reservations of dead
        owners are removed first."""
        alive, reserved = self._owners.living_owners(lease_s), self.reserved.get(tenant, {})
        self.reserved[tenant] = {id: owner for id, owner in reserved.items() if owner in alive}
        return set(self.reserved[tenant])
