"""Checks of the contract of a store, for authors of stores.

Each check needs a new store. ``all_checks`` returns the checks by name, so a test can run each
check separately.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from antiphon.store.base import Store

from .store_checks import (
    containers,
    files,
    journal,
    keys,
    quotas,
    rates,
    responses,
    run_leases,
    runs,
    skills,
    tenants,
    usage,
    values,
    vectors,
)

__all__ = ["Check", "StoreOpener", "all_checks", "check_store"]

#: Function that returns a context manager, which opens a new store and closes it at the end.
StoreOpener = Callable[[], AbstractAsyncContextManager[Store]]
Check = Callable[[Store], Awaitable[None]]

_MODULES = (
    responses,
    containers,
    files,
    journal,
    keys,
    quotas,
    rates,
    runs,
    run_leases,
    skills,
    tenants,
    usage,
    values,
    vectors,
)


def all_checks() -> Mapping[str, Check]:
    """Return the checks of a store and of all its parts, by name."""
    return {name: check for module in _MODULES for name, check in module.CHECKS.items()}


async def check_store(opened: StoreOpener, checks: Mapping[str, Check] | None = None) -> None:
    """Run each check on a new store, one after the other.

    ``opened``: function that is called before each check, and returns a context manager. The
    context manager opens a new, empty store, and closes it at the end. ``checks``: the checks to
    run. None means all checks.
    """
    for check in (all_checks() if checks is None else checks).values():
        async with opened() as store:
            await check(store)
