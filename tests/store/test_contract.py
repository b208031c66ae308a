"""Every store we ship keeps the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.errors import SetupError
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.testing.file_check import CHECKS as FILE_CHECKS
from antiphon.testing.postgres import Postgres
from antiphon.testing.run_check import CHECKS as RUN_CHECKS
from antiphon.testing.run_lease_check import CHECKS as CLAIM_CHECKS
from antiphon.testing.skill_check import CHECKS as SKILL_CHECKS
from antiphon.testing.store_check import CHECKS, check_store
from antiphon.testing.vector_check import CHECKS as VECTOR_CHECKS


async def opened(kind: str, request: pytest.FixtureRequest) -> Store:
    """A fresh store of a kind."""
    if kind == "memory":
        return await open_store("memory:")
    if kind == "sqlite":
        return await open_store(f"sqlite:{request.getfixturevalue('tmp_path')}/a.db")
    database: Postgres = request.getfixturevalue("database")
    return await open_store(await database.fresh())


EVERY = {**CHECKS, **RUN_CHECKS, **CLAIM_CHECKS, **FILE_CHECKS, **SKILL_CHECKS, **VECTOR_CHECKS}


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
@pytest.mark.parametrize("name", EVERY)
async def test_the_contract(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    store = await opened(kind, request)
    try:
        async with asyncio.timeout(30):
            await EVERY[name](store)
    finally:
        await store.close()


async def test_the_battery_runs_every_check() -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Store]:
        yield await open_store("memory:")

    batteries = (CHECKS, RUN_CHECKS, CLAIM_CHECKS, FILE_CHECKS, SKILL_CHECKS, VECTOR_CHECKS)
    assert len(EVERY) == sum(map(len, batteries)), "two of one name"
    assert [name async for name in check_store(opened, EVERY)] == list(EVERY)
    assert [name async for name in check_store(opened)] == list(CHECKS)


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "redis://h", "sqlite:", ""])
async def test_a_store_of_no_known_kind_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(SetupError, match="No store is called") as refused:
        await open_store(url)
    assert "secret" not in str(refused.value)
