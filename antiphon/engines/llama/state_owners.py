"""Whose states (KV caches) are kept. A state serves the conversation that has computed it, and also
the earlier responses whose states it has replaced, because their tokens are its first ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from weakref import WeakValueDictionary

from msgspec import Struct

#: A state that covers all but this number of another state's ids makes that state superfluous. The
#: last sampled token of a slot is not computed, for example.
SLACK = 8
#: The most owners that a state remembers, those of its longest beginnings.
_MAX_CLAIMS = 64


class StateOwner(Struct, eq=False, weakref=True):
    """Whose state it is. ``session``: the conversation, as in ``Sampling.session_key``. ``id``: as
    in ``Sampling.owner``. ``is_durable``: whether the state is to be written to the disk.
    ``is_deleted``: whether the stored data of the owner was deleted."""

    session: str | None = None
    tenant: str = ""
    id: str | None = None
    is_durable: bool = False
    is_deleted: bool = False


#: The owner of states that belong to nobody. Nobody can delete it.
NO_OWNER = StateOwner()


class StateClaim(NamedTuple):
    """The first ``length`` ids of a state are needed by ``owner``."""

    owner: StateOwner
    length: int


#: The claims on a state, longest first.
StateClaims = tuple[StateClaim, ...]


class StateOwners:
    """The owners of all states, so that each exists once."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[str | None, str, str | None, bool], StateOwner] = (
            WeakValueDictionary()
        )

    def get(self, session: str | None, tenant: str, id: str | None, is_durable: bool) -> StateOwner:
        """Return an owner."""
        key = (session, tenant, id, is_durable)
        if (owner := self._known.get(key)) is None:
            owner = self._known[key] = StateOwner(*key)
        return owner

    def delete(self, id: str | None, session: str | None, tenant: str) -> None:
        """Mark owners as deleted: the one with this id, and what its session has computed without
        storing it. All of the tenant if ``id`` is None."""
        for key, owner in tuple(self._known.items()):
            if id is None:
                is_meant = owner.tenant == tenant
            else:
                is_meant = owner.id == id or (owner.id is None and owner.session == session)
            if is_meant:
                owner.is_deleted = True
                del self._known[key]


def needed(claims: StateClaims) -> int:
    """Return how many first ids of a state its owners need that are not deleted."""
    return next((claim.length for claim in claims if not claim.owner.is_deleted), 0)


def merge_claims(claims: StateClaims, earlier: Iterable[StateClaim], shared: int) -> StateClaims:
    """Return the claims on a state that serves the owners of an earlier state, too. ``earlier``:
    the claims on that state. ``shared``: how many first ids both states have in common. If an owner
    needs more, this state does not serve it."""
    owners = {claim.owner for claim in claims}
    added = [
        StateClaim(owner, min(length, shared))
        for owner, length in earlier
        if length <= shared + SLACK and owner not in owners and not owner.is_deleted
    ]
    merged = sorted((*claims, *added), key=lambda claim: -claim.length)
    return tuple(merged[:_MAX_CLAIMS])
