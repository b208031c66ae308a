"""Checks of the contract of a store, for authors of stores.

Each check needs a new store. ``all_checks`` returns the checks by name, so a test can run each
check separately. They are the public coroutine functions in the modules of ``store_checks`` that
take a store and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from importlib import import_module
from pkgutil import iter_modules

from antiphon.store.base import Store

from . import store_checks
from .checks import checks_of

__all__ = ["Check", "StoreOpener", "all_checks", "check_store"]

#: Function that returns a context manager, which opens a new store and closes it at the end.
StoreOpener = Callable[[], AbstractAsyncContextManager[Store]]
Check = Callable[[Store], Awaitable[None]]


def all_checks() -> Mapping[str, Check]:
    """Return the checks of a store and of all its parts, by name."""
    checks: dict[str, Check] = {}
    for found in iter_modules(store_checks.__path__):
        module = import_module(f"{store_checks.__name__}.{found.name}")
        for name, check in checks_of(vars(module), "store").items():
            assert name not in checks, f"two checks are called {name}"
            checks[name] = check
    return checks


async def check_store(opened: StoreOpener, checks: Mapping[str, Check] | None = None) -> None:
    """Run each check on a new store, one after the other.

    ``opened``: function that is called before each check, and returns a context manager. The
    context manager opens a new, empty store, and closes it at the end. ``checks``: the checks to
    run. None means all checks.
    """
    for check in (all_checks() if checks is None else checks).values():
        async with opened() as store:
            await check(store)
