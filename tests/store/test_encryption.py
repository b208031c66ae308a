"""Encrypted rows: what is on disk, other keys, and ``migrate --rewrite``."""

from __future__ import annotations

import base64
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from antiphon.cli.main import main
from antiphon.errors import SetupError, StoreError
from antiphon.security.encryption import EncryptionKey, Encryptor
from antiphon.store import open_store
from antiphon.store.base import Store
from antiphon.store.common.row_cipher import RowCipher, rewrite_store
from antiphon.store.records import ResponseQuery
from antiphon.testing.store_checks.responses import make_response
from tests.real.postgres import Postgres
from tests.stores import POSTGRES

OLD, NEW = (f"{name}:{base64.b64encode(os.urandom(32)).decode()}" for name in ("old", "new"))
SECRET = "the plan of the merger"


def cipher(*keys: str, encrypts: bool = True) -> RowCipher:
    return RowCipher(Encryptor([EncryptionKey.parse(key) for key in keys]), encrypts=encrypts)


@pytest.fixture(params=["sqlite", POSTGRES])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/a.db"
    database: Postgres = request.getfixturevalue("database")
    return await database.create_migrated_database()


async def save(store: Store, name: str) -> None:
    await store.save("t", make_response(name, text=SECRET))


async def found(store: Store) -> list[str]:
    """The responses that contain the secret, as a search finds them and as they are loaded."""
    page = await store.list_responses("t", ResponseQuery(text="MERGER", newest_first=False)) or ()
    for summary in page:
        stored = await store.load("t", summary.id)
        assert stored is not None and SECRET in str(stored.response.output)
        assert await store.load_item("t", stored.response.output[0].id or "") is not None
    return [summary.id.removeprefix("resp_") for summary in page]


async def test_an_encrypted_database_does_not_contain_the_text(tmp_path: Path) -> None:
    for name, key in (("plain", None), ("sealed", cipher(OLD))):
        store = await open_store(f"{tmp_path}/{name}.db", cipher=key)
        await save(store, "a")
        files = b"".join(path.read_bytes() for path in tmp_path.glob(f"{name}.db*"))
        assert (SECRET.encode() in files) == (key is None)
        assert await found(store) == ["a"]
        await store.close()


async def test_rows_need_their_key(url: str) -> None:
    store = await open_store(url, cipher=cipher(OLD))
    await save(store, "a")
    await store.close()
    with pytest.raises(SetupError, match="Set store_encrypted and encryption_keys"):
        await open_store(url)
    with pytest.raises(SetupError, match="a key that is not in encryption_keys"):
        await open_store(url, cipher=cipher(NEW))
    store = await open_store(url, cipher=cipher(NEW, OLD))
    await save(store, "b")
    assert await found(store) == ["a", "b"]
    await store.close()
    for key in (OLD, NEW):
        with pytest.raises(SetupError, match="not in encryption_keys"):
            await open_store(url, cipher=cipher(key))
    store = await open_store(url, cipher=cipher(OLD, NEW))
    await store.close()
    with pytest.raises(SetupError, match="not in encryption_keys: old"):
        await open_store(url, cipher=cipher(NEW))


async def test_rows_are_rewritten_with_a_new_key_and_without_one(url: str) -> None:
    store = await open_store(url)
    await save(store, "a")
    await store.close()
    for key, next_key in ((cipher(OLD), cipher(OLD)), (cipher(NEW, OLD), cipher(NEW))):
        store = await open_store(url, cipher=key)
        assert await rewrite_store(store, key) > 0
        await store.close()
        store = await open_store(url, cipher=next_key)
        assert await found(store) == ["a"]
        await store.close()
    store = await open_store(url, cipher=cipher(NEW))
    await save(store, "b")
    await store.close()
    no_more = cipher(NEW, encrypts=False)
    store = await open_store(url, cipher=no_more)
    await rewrite_store(store, no_more)
    await store.close()
    store = await open_store(url)
    assert await found(store) == ["a", "b"]
    await store.close()


async def test_an_interrupted_rewrite_still_asks_for_the_key(url: str) -> None:
    """A row that cannot be read ends the rewrite in the middle."""
    store = await open_store(url, cipher=cipher(OLD))
    await save(store, "a")
    await store.close()
    same_id = "old:" + NEW.removeprefix("new:")
    await _replace_row(url, RowCipher(Encryptor([EncryptionKey.parse(same_id)])))
    store = await open_store(url, cipher=cipher(OLD, encrypts=False))
    for _ in range(3):
        with pytest.raises(StoreError, match="a key that is not in encryption_keys"):
            await store.load("t", "resp_a")
    with pytest.raises(StoreError, match="a key that is not in encryption_keys"):
        await rewrite_store(store, cipher(OLD, encrypts=False))
    await store.close()
    with pytest.raises(SetupError, match="Set store_encrypted and encryption_keys"):
        await open_store(url)


async def _replace_row(url: str, key: RowCipher) -> None:
    """Replace the contents of a response by some that are encrypted with another key."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:"))) as database, database:
            database.execute("UPDATE responses SET body = ?", (key.seal(b"{}"),))
        return
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE antiphon.responses SET body = $1", key.seal(b"{}"))
    await connection.close()


async def test_a_rewritten_file_contains_no_text(tmp_path: Path) -> None:
    store = await open_store(f"{tmp_path}/a.db")
    await save(store, "a")
    await store.close()
    store = await open_store(f"{tmp_path}/a.db", cipher=cipher(OLD))
    await rewrite_store(store, cipher(OLD))
    await store.close()
    assert SECRET.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("a.db*"))


def test_command_rewrites_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "antiphon.toml"
    settings.write_text(
        f'store = "{tmp_path}/a.db"\nstore_encrypted = true\nencryption_keys = ["{OLD}"]\n'
    )
    assert main(["migrate", "--rewrite", "--config", str(settings)]) == 0
    assert "rows written again" in capsys.readouterr().out
    settings.write_text(f'store = "{tmp_path}/a.db"\nstore_encrypted = true\n')
    assert main(["migrate", "--config", str(settings)]) != 0
    assert "store_encrypted: needs encryption_keys" in capsys.readouterr().err
