"""What the author of a store has to write."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.store.audit import AuditLog
from antiphon.store.base import Store
from antiphon.store.containers import ContainerDirectory
from antiphon.store.files import FileStore
from antiphon.store.journal import Journal
from antiphon.store.keys import KeyStore
from antiphon.store.rates import RateStore
from antiphon.store.runs import RunStore
from antiphon.store.skills import SkillStore
from antiphon.store.usage import UsageLog
from antiphon.store.values import ValueStore
from antiphon.store.vectors import VectorIndex
from antiphon.testing.memory_store.store import MemoryStore

#: The store and its parts, by attribute.
CONTRACTS: dict[str, type[Any]] = {
    "": Store,
    "runs": RunStore,
    "files": FileStore,
    "vectors": VectorIndex,
    "values": ValueStore,
    "journal": Journal,
    "audit": AuditLog,
    "usage_log": UsageLog,
    "keys": KeyStore,
    "rates": RateStore,
    "containers": ContainerDirectory,
    "skills": SkillStore,
}
MAX_METHODS = 60


def test_a_store_implements_at_most_60_methods() -> None:
    counts = {
        contract.__name__: len(getattr(contract, "__abstractmethods__", ()))
        for contract in CONTRACTS.values()
    }
    assert sum(counts.values()) <= MAX_METHODS, counts


@pytest.mark.parametrize("part", CONTRACTS)
def test_the_memory_store_inherits_what_can_be_derived(part: str) -> None:
    """So the contract checks test the derived methods. The exceptions: tests count calls of
    ``load``, and files can have contents in blobs."""
    store = MemoryStore()
    contract, own = CONTRACTS[part], type(getattr(store, part) if part else store)
    if part in ("keys", "rates", "containers", "skills"):
        assert own is contract
        return
    derived = {
        name
        for name, member in vars(contract).items()
        if callable(member)
        and not name.startswith("_")
        and name not in contract.__abstractmethods__
    }
    if part == "runs":  # it supports steering, which a store may lack
        assert own.supports_steering
        derived -= {"steering", "steered_runs", "steer", "add_webhooks"}
    if part == "files":
        assert own.supports_blobs and derived <= vars(own).keys()
    else:
        assert derived & vars(own).keys() <= {"load"}
