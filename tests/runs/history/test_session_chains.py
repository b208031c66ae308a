"""The responses that connections keep share memory: a tenant loses its own oldest ones first."""

from __future__ import annotations

import pytest

from antiphon.runs.history.session_chains import SessionChains
from antiphon.store.records import StoredResponse
from antiphon.support.fair_limiter import FairLimiter
from antiphon.wire.items import InputText, Message
from antiphon.wire.response import Response

SIZE = 2**20


def stored(name: str, size: int = SIZE) -> StoredResponse:
    text = Message(role="user", content=(InputText(text="x" * size),))
    return StoredResponse(response=Response(id=name, created_at=0, model="m"), input=(text,))


@pytest.fixture
def memory() -> FairLimiter:
    return FairLimiter(4 * SIZE + 4000, max_per_tenant=3 * SIZE + 4000)


def test_flood_of_a_tenant_leaves_the_responses_of_others(memory: FairLimiter) -> None:
    flood, victim = SessionChains(memory, "flood"), SessionChains(memory, "victim")
    for number in range(8):
        flood.add((stored(str(number)),))
    victim.add((stored("kept"),))
    kept = [number for number in range(8) if flood.get(str(number))]
    assert kept == [5, 6, 7] and victim.get("kept")
    flood.clear()
    victim.clear()
    assert memory.running == 0


def test_many_connections_of_a_tenant_share_its_memory(memory: FairLimiter) -> None:
    connections = [SessionChains(memory, "flood") for _ in range(8)]
    for each in connections:
        each.add((stored("kept"),))
    assert sum(each.get("kept") is not None for each in connections) == 3
    connections[0].remove("kept")
    connections[7].add((stored("kept"),))
    assert connections[7].get("kept")


def test_growing_chain_counts_all_its_responses_once(memory: FairLimiter) -> None:
    chains, chain = SessionChains(memory, "flood"), (stored("0"),)
    chains.add(chain)
    for number in range(1, 3):
        chain = (*chain, stored(str(number)))
        chains.add(chain, replaced=str(number - 1))
        assert chains.get(str(number)) and not chains.get(str(number - 1))
    assert 3 * SIZE < memory.running < 3 * SIZE + 4000
    chains.add((*chain, stored("3")), replaced="2")
    assert not chains.get("3") and memory.running == 0


def test_small_chains_are_kept_without_memory(memory: FairLimiter) -> None:
    assert memory.try_acquire("other", 4 * SIZE + 4000)
    chains = SessionChains(memory, "victim")
    chains.add((stored("kept", 2**17),))
    chains.add((stored("lost", 2**17),))
    assert chains.get("lost") and not chains.get("kept") and not memory.running_of("victim")
