"""Checks that a store fulfils its contract for values."""

from __future__ import annotations

import asyncio

from antiphon.store.base import Store
from antiphon.store.records import SweepRecord
from antiphon.store.values import SERVER, Document


async def replaces_values(store: Store) -> None:
    values = store.values
    assert await values.read("t", "a") is None
    assert not await values.replace("t", "a", b"x", b"y")
    assert await values.replace("t", "a", None, b"\0x")
    assert not await values.replace("t", "a", None, b"y")
    assert await values.read("t", "a") == b"\0x"
    assert await values.read("u", "a") is await values.read("t", "b") is None
    assert await values.replace("t", "a", b"\0x", b"")
    assert await values.read("t", "a") == b""
    assert not await values.replace("t", "a", b"\0x", None)
    assert await values.replace("t", "a", b"", None)
    assert await values.read("t", "a") is None


async def replaces_a_value_once(store: Store) -> None:
    replacing = (store.values.replace("t", "a", None, str(n).encode()) for n in range(9))
    replaced = await asyncio.gather(*replacing)
    assert replaced.count(True) == 1
    assert await store.values.read("t", "a") == str(replaced.index(True)).encode()
    defaults = (store.values.set_default("t", "b", str(n).encode()) for n in range(9))
    assert len(set(await asyncio.gather(*defaults))) == 1


async def loses_no_change_of_a_document(store: Store) -> None:
    document = Document(store.values, SERVER, "numbers", list[int])

    async def add(number: int) -> None:
        await document.update(lambda numbers: numbers.append(number))

    await asyncio.gather(*map(add, range(20)))
    assert sorted(await document.load()) == list(range(20))


async def deletes_the_values_of_a_tenant(store: Store) -> None:
    for tenant in ("t", "u", SERVER):
        assert await store.values.replace(tenant, "a", None, b"x")
    await store.delete_tenant("t")
    assert await store.values.read("t", "a") is None
    assert await store.values.read("u", "a") == await store.values.read(SERVER, "a") == b"x"


async def keeps_the_record_of_the_last_sweep(store: Store) -> None:
    assert await store.load_sweep_record() is None
    for record in (SweepRecord(5), SweepRecord(5, 6, 7), SweepRecord(8)):
        await store.save_sweep_record(record)
        assert await store.load_sweep_record() == record


async def can_be_written(store: Store) -> None:
    for _ in range(3):
        await store.check_writable()
