"""One tenant floods a part of the server, another waits for one turn at most.

The parts are held by gates, not by time: a test opens one and looks who is served."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from antiphon.attachments import documents as documents_module
from antiphon.attachments.documents import Documents
from antiphon.attachments.fetch import Fetcher, FetchResult
from antiphon.bootstrap.policy import request_limits
from antiphon.config.keys import ApiKey
from antiphon.config.settings import Settings
from antiphon.sandbox.javascript import JavaScript, ProgramState

FLOOD = 20
DIGEST = "0" * 64


class Gate:
    """Records who enters and holds everybody until it is opened once per entry."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self._opened = asyncio.Semaphore(0)

    async def enter(self, name: str) -> None:
        self.entered.append(name)
        await self._opened.acquire()

    def open(self, count: int = 1) -> None:
        for _ in range(count):
            self._opened.release()


async def settle(reached: Callable[[], bool]) -> None:
    """Let other tasks run until the condition holds. Bounded by the test's own limit."""
    while not reached():
        await asyncio.sleep(0)


async def assert_is_served_next(
    use: Callable[[str, int], Awaitable[Any]], gate: Gate, slots: int
) -> None:
    """``use(tenant, number)`` enters the gate under the tenant's name."""
    flood = [asyncio.create_task(use("flood", number)) for number in range(FLOOD)]
    await settle(lambda: len(gate.entered) == slots)
    for _ in range(1000):  # the others queue
        await asyncio.sleep(0)
    victim = asyncio.create_task(use("victim", FLOOD))
    for _ in range(1000):
        await asyncio.sleep(0)
    assert gate.entered == ["flood"] * slots
    gate.open()
    await settle(lambda: len(gate.entered) == slots + 1)
    assert gate.entered[-1] == "victim"
    gate.open(FLOOD)
    await asyncio.gather(victim, *flood)


async def test_documents_are_read_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()

    class GatedReader:
        async def read(self, content: bytes, kind: str, **limits: object) -> bytes:
            await gate.enter(content.split()[1].decode())
            return b'{"text": "x"}'

    monkeypatch.setattr(documents_module, "find_spec", lambda name: name)
    # Digests of small documents need no thread here, so that no test step depends on one.
    monkeypatch.setattr(documents_module.asyncio, "to_thread", _at_once)
    documents = Documents(GatedReader())  # type: ignore[arg-type]

    async def use(tenant: str, number: int) -> None:
        await documents.text(f"%PDF- {tenant} {number}".encode(), tenant=tenant)

    await assert_is_served_next(use, gate, slots=2)


async def _at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


async def test_urls_are_fetched_in_turn() -> None:
    gate = Gate()

    class GatedFetcher(Fetcher):
        async def _fetch(self, url: str) -> FetchResult:
            await gate.enter(url.split("/")[-1])
            return FetchResult(b"", "", "")

    fetcher = GatedFetcher(lambda: None, 1, lambda: 0.0)

    async def use(tenant: str, number: int) -> None:
        await fetcher.fetch(f"http://site.example/{number}/{tenant}", tenant=tenant)

    await assert_is_served_next(use, gate, slots=8)


async def test_programs_run_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wasmtime")
    entered, opened = list[str](), threading.Semaphore(0)

    class GatedJavaScript(JavaScript):
        def _run(self, engine: Any, arguments: str, abandoned: Any) -> ProgramState:
            entered.append("victim" if "victim" in arguments else "flood")
            opened.acquire()
            return ProgramState()

    javascript = GatedJavaScript(max_concurrent=2)
    try:
        flood = [
            asyncio.create_task(javascript.advance("flood", (), tenant="a")) for _ in range(FLOOD)
        ]
        await settle(lambda: len(entered) == 2)
        victim = asyncio.create_task(javascript.advance("victim", (), tenant="b"))
        await asyncio.sleep(0)
        opened.release()
        await settle(lambda: len(entered) == 3)
        assert entered == ["flood", "flood", "victim"]
    finally:
        for _ in range(FLOOD + 1):
            opened.release()
        await asyncio.gather(victim, *flood)
        javascript.close()


@pytest.mark.parametrize(
    ("tenants", "share", "limit"),
    [
        ((), 0.75, None),
        (("a", "a"), 0.75, None),
        (("a", "b"), 0.75, 75),
        (("a", "b"), 1.0, 100),
    ],
    ids=["no keys", "one tenant", "two tenants", "no share"],
)
def test_share_holds_where_there_are_several_tenants(
    tenants: tuple[str, ...], share: float, limit: int | None
) -> None:
    keys = tuple(ApiKey(tenant=tenant, sha256=DIGEST) for tenant in tenants)
    settings = Settings(keys=keys, max_concurrent_requests=100, max_tenant_share=share)
    assert request_limits(settings).max_requests_per_tenant == limit
