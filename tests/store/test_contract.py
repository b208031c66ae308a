"""Every built-in store passes the contract checks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antiphon.errors import SetupError
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.common.row_cipher import RowCipher
from antiphon.testing import store_check
from antiphon.testing.memory_store.store import MemoryStore
from tests.real import postgres
from tests.stores import POSTGRES


async def open_new(kind: str, request: pytest.FixtureRequest) -> Store:
    """Open a new store. A kind that begins with "encrypted" encrypts its rows."""
    cipher = RowCipher(Encryptor([EncryptionKey.generate()])) if "encrypted" in kind else None
    kind = kind.removeprefix("encrypted ")
    if kind == "memory":
        return MemoryStore()
    if kind == "sqlite":
        return await open_store(f"sqlite:{request.getfixturevalue('tmp_path')}/a.db", cipher=cipher)
    database: postgres.Postgres = request.getfixturevalue("database")
    url = await database.create_migrated_database()
    return await open_store(
        url, listen_url=url, cipher=cipher
    )  # as behind a pooler: no session is ours


ALL_CHECKS = store_check.all_checks()
FOLDER = Path(store_check.__file__).parent / "store_checks"


ENCRYPTED = [
    pytest.param(f"encrypted {kind}", marks=pytest.mark.e2e) for kind in ("sqlite", "postgres")
]


@pytest.mark.parametrize("kind", ["memory", "sqlite", POSTGRES, *ENCRYPTED])
@pytest.mark.parametrize("name", ALL_CHECKS)
async def test_store_passes_the_check(kind: str, name: str, request: pytest.FixtureRequest) -> None:
    store = await open_new(kind, request)
    try:
        async with asyncio.timeout(60):
            await ALL_CHECKS[name](store)
    finally:
        await store.close()


def test_every_module_has_checks() -> None:
    modules = {path.stem for path in FOLDER.glob("[a-z]*.py")}
    assert {check.__module__.rpartition(".")[2] for check in ALL_CHECKS.values()} == modules
    assert "keeps_api_keys" in ALL_CHECKS and "begin_run" not in ALL_CHECKS


class StoreWithoutBlobs(MemoryStore):
    """A store whose files are all in the store itself."""

    def __init__(self) -> None:
        super().__init__()
        self.files.supports_blobs = False


@pytest.mark.parametrize("kind", [MemoryStore, StoreWithoutBlobs])
async def test_check_store_runs_every_check_by_default(kind: type[MemoryStore]) -> None:
    opened: list[Store] = []

    @asynccontextmanager
    async def open_new() -> AsyncIterator[Store]:
        opened.append(kind())
        yield opened[-1]

    await store_check.check_store(open_new)
    assert len(opened) == len(ALL_CHECKS)


async def test_check_store_runs_each_given_check_on_a_new_store() -> None:
    stores: list[Store] = []
    checked: list[Store] = []

    @asynccontextmanager
    async def open_new() -> AsyncIterator[Store]:
        stores.append(MemoryStore())
        yield stores[-1]

    async def check(store: Store) -> None:
        checked.append(store)

    await store_check.check_store(open_new, {"one": check, "two": check})
    assert len(stores) == 2 and checked == stores and stores[0] is not stores[1]


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "redis://h", "sqlite:", ""])
async def test_unknown_store_error_hides_secrets(url: str) -> None:
    with pytest.raises(SetupError, match=r"^store: ") as refused:
        await open_store(url)
    assert "secret" not in str(refused.value)
