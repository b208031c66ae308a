"""Checks that a store fulfils its contract for values, API keys and the rate limits of clients."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from antiphon.store.base import Store
from antiphon.store.keys import KeyRecord
from antiphon.store.rates import RateReport, RateState
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


#: Requests per minute. With this limit, a bucket does not fill noticeably during a check.
_SLOW = 1


async def sums_up_what_processes_take(store: Store) -> None:
    reports = [RateReport(scope=name, per_minute=_SLOW, admitted_count=3) for name in ("b", "a")]
    for level in (-2, -5):
        states = await store.rates.exchange(str(level), reports)
        assert [round(state.level) for state in states] == [level, level]
    (state,) = await store.rates.exchange("x", [RateReport(scope="a", per_minute=_SLOW)])
    assert round(state.level) == -5


async def a_bucket_starts_full_and_follows_its_limit(store: Store) -> None:
    (state,) = await store.rates.exchange(
        "x", [RateReport(scope="a", per_minute=100, admitted_count=10)]
    )
    assert state == RateState(90.0, 0)
    (state,) = await store.rates.exchange(
        "x", [RateReport(scope="a", per_minute=5, admitted_count=86)]
    )
    assert 4 <= state.level < 5
    assert await store.rates.exchange("x", []) == ()


async def tells_what_other_processes_run(store: Store) -> None:
    async def report(owner: str, running: int) -> int:
        reports = [RateReport(scope="a", running=running), RateReport(scope=f"b{owner}")]
        first, second = await store.rates.exchange(owner, reports)
        assert second == RateState()
        return first.remote_running_count

    assert [await report("x", 3), await report("y", 2), await report("z", 0)] == [0, 3, 5]
    assert [await report("x", 1), await report("y", 0), await report("z", 0)] == [2, 1, 1]
