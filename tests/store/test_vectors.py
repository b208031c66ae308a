"""The stores that keep vector stores keep their contract."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from antiphon.store import open_store
from antiphon.testing.vector_check import CHECKS


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("name", CHECKS)
async def test_the_contract(kind: str, name: str, tmp_path: Path) -> None:
    store = await open_store("memory:" if kind == "memory" else f"sqlite:{tmp_path}/a.db")
    try:
        async with asyncio.timeout(30):
            await CHECKS[name](store)
    finally:
        await store.close()
