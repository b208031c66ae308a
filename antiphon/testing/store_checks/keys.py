"""Checks that a store fulfils its contract for API keys."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from antiphon.store.base import Store
from antiphon.store.keys import KeyRecord


def _key(name: str, digit: str = "0") -> KeyRecord:
    return KeyRecord(name=name, sha256=digit * 64, tenant="t", created_at=1, tokens_per_day=5)


async def keeps_api_keys(store: Store) -> None:
    assert await store.keys.list() == ()
    assert await store.keys.create(_key("b"))
    assert await store.keys.create(_key("a"))
    assert await store.keys.list() == (_key("a"), _key("b"))
    rotated = replace(_key("a", "1"), rotated_at=2)
    assert await store.keys.replace(rotated)
    assert not await store.keys.replace(_key("c"))
    assert await store.keys.delete("b")
    assert not await store.keys.delete("b")
    assert await store.keys.list() == (rotated,)


async def creates_one_key_of_a_name(store: Store) -> None:
    created = await asyncio.gather(*(store.keys.create(_key("a", str(n))) for n in range(5)))
    assert sorted(created) == [False] * 4 + [True]
    (key,) = await store.keys.list()
    assert key.sha256 == str(created.index(True)) * 64
