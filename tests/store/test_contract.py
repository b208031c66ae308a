"""Every built-in store passes the contract checks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.errors import SetupError
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.testing.container_check import CHECKS as CONTAINER_CHECKS
from antiphon.testing.file_check import CHECKS as FILE_CHECKS
from antiphon.testing.key_check import CHECKS as KEY_CHECKS
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.postgres import Postgres
from antiphon.testing.quota_check import CHECKS as QUOTA_CHECKS
from antiphon.testing.rate_check import CHECKS as RATE_CHECKS
from antiphon.testing.run_check import CHECKS as RUN_CHECKS
from antiphon.testing.run_lease_check import CHECKS as CLAIM_CHECKS
from antiphon.testing.skill_check import CHECKS as SKILL_CHECKS
from antiphon.testing.store_check import CHECKS, check_store
from antiphon.testing.tenant_check import CHECKS as TENANT_CHECKS
from antiphon.testing.usage_check import CHECKS as USAGE_CHECKS
from antiphon.testing.vector_check import CHECKS as VECTOR_CHECKS
from tests.stores import POSTGRES


async def open_new(kind: str, request: pytest.FixtureRequest) -> Store:
    """Open a new store."""
    if kind == "memory":
        return MemoryStore()
    if kind == "sqlite":
        return await open_store(f"sqlite:{request.getfixturevalue('tmp_path')}/a.db")
    database: Postgres = request.getfixturevalue("database")
    url = await database.create_migrated_database()
    return await open_store(url, listen_url=url)  # as behind a pooler: no session is ours


ALL_CHECKS = {
    **CHECKS,
    **RUN_CHECKS,
    **CLAIM_CHECKS,
    **FILE_CHECKS,
    **QUOTA_CHECKS,
    **RATE_CHECKS,
    **SKILL_CHECKS,
    **KEY_CHECKS,
    **CONTAINER_CHECKS,
    **TENANT_CHECKS,
    **USAGE_CHECKS,
    **VECTOR_CHECKS,
}


@pytest.mark.parametrize("kind", ["memory", "sqlite", POSTGRES])
@pytest.mark.parametrize("name", ALL_CHECKS)
async def test_store_passes_the_check(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    store = await open_new(kind, request)
    try:
        async with asyncio.timeout(60):
            await ALL_CHECKS[name](store)
    finally:
        await store.close()


async def test_check_store_accepts_every_check() -> None:
    @asynccontextmanager
    async def open_new() -> AsyncIterator[Store]:
        yield MemoryStore()

    batteries = (
        CHECKS,
        RUN_CHECKS,
        CLAIM_CHECKS,
        FILE_CHECKS,
        QUOTA_CHECKS,
        RATE_CHECKS,
        SKILL_CHECKS,
        KEY_CHECKS,
        CONTAINER_CHECKS,
        TENANT_CHECKS,
        USAGE_CHECKS,
        VECTOR_CHECKS,
    )
    assert len(ALL_CHECKS) == sum(map(len, batteries)), "two checks have one name"
    await check_store(open_new, ALL_CHECKS)
    await check_store(open_new)


async def test_check_store_runs_each_given_check_on_a_new_store() -> None:
    stores: list[Store] = []
    checked: list[Store] = []

    @asynccontextmanager
    async def open_new() -> AsyncIterator[Store]:
        stores.append(MemoryStore())
        yield stores[-1]

    async def check(store: Store) -> None:
        checked.append(store)

    await check_store(open_new, {"one": check, "two": check})
    assert len(stores) == 2 and checked == stores and stores[0] is not stores[1]


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "redis://h", "sqlite:", ""])
async def test_unknown_store_error_hides_secrets(url: str) -> None:
    with pytest.raises(SetupError, match=r"^store: ") as refused:
        await open_store(url)
    assert "secret" not in str(refused.value)
