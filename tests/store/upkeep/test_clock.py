"""The clock of a store: servers with wrong clocks date what they make as others do."""

from __future__ import annotations

from antiphon.store.base import Retention, Store
from antiphon.store.upkeep.clock import StoreClock
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.store_checks.responses import make_response

YEAR_S = 365 * 86_400


class _Clocked(MemoryStore):
    """A store with a clock of its own."""

    time = 1_000_000.0

    async def clock(self, now: float) -> float:
        return self.time


class _Server:
    """The clocks of a server."""

    wall, monotonic = 5_000.0, 10.0


def clock_of(store: Store, server: _Server) -> StoreClock:
    return StoreClock(store, wall=lambda: server.wall, monotonic=lambda: server.monotonic)


async def test_wrong_clock_of_a_server_has_no_effect() -> None:
    store, server = _Clocked(), _Server()
    clock = clock_of(store, server)
    assert await clock.synchronize() == 1_000_000
    server.wall -= YEAR_S
    server.monotonic += 7
    assert clock() == 1_000_007
    store.time = 1_000_020
    assert await clock.synchronize() == clock() == 1_000_020


async def test_store_without_a_clock_has_the_time_of_its_server() -> None:
    server = _Server()
    clock = clock_of(MemoryStore(), server)
    assert clock() == await clock.synchronize() == 5_000
    server.wall += 3
    assert clock() == 5_003


async def test_what_a_server_with_a_slow_clock_makes_does_not_expire(store: Store) -> None:
    now = await store.clock(2_000_000_000)
    server = _Server()
    server.wall = now if await store.clock(0) == 0 else now - YEAR_S
    clock = clock_of(store, server)
    await clock.synchronize()
    await store.save("t", make_response("a", created_at=int(clock())))
    assert await store.sweep(Retention(max_age_s=86_400), int(now)) == 0
