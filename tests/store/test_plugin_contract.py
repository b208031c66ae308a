"""What the author of a store has to write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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
from antiphon.testing.store_check import all_checks

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


def _only_required(contract: type[Any], inner: object) -> Any:
    """Return an implementation of the required methods of a contract, by those of ``inner``."""

    def method(name: str) -> Callable[..., Awaitable[Any]]:
        return lambda self, *arguments, **options: getattr(inner, name)(*arguments, **options)

    return type("Required", (contract,), {n: method(n) for n in contract.__abstractmethods__})()


@asynccontextmanager
async def _least_store() -> AsyncIterator[Store]:
    """Open a store that implements nothing but the required methods."""
    inner = MemoryStore()
    store: Store = _only_required(Store, inner)
    for part, contract in CONTRACTS.items():
        if part in ("keys", "rates", "containers", "skills"):
            setattr(store, part, contract(store.values))
        elif part:
            setattr(store, part, _only_required(contract, getattr(inner, part)))
    store.runs.notifications = inner.runs.notifications
    yield store
    await store.close()


@pytest.mark.parametrize("check", all_checks())
async def test_the_required_methods_are_enough(check: str) -> None:
    async with _least_store() as store:
        await all_checks()[check](store)
