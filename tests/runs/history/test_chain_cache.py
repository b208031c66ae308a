"""Cached chains equal those of the store, and cost it one row per turn."""

from __future__ import annotations

import asyncio
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from antiphon.backends.scripted_backend import ScriptedBackend
from antiphon.errors import InvalidRequest
from antiphon.inference.conversation import PromptTokens
from antiphon.runs.history.chain_cache import ChainCache, chain_bytes, chain_items, stored_tokens
from antiphon.store.records import StoredResponse, TurnTokens
from antiphon.testing.memory_store.store import MemoryStore
from antiphon.testing.store_checks.responses import make_response
from antiphon.wire.tools import Function, SharedTools, Tool
from tests.runs.scripted_service import create, make_service


class CountingStore(MemoryStore):
    """Counts the chains that are read from their beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.walks = 0
        self.loads = 0

    async def load(self, tenant: str, response_id: str) -> StoredResponse | None:
        self.loads += 1
        return await super().load(tenant, response_id)

    async def has_response(self, tenant: str, response_id: str) -> bool:
        return await super().load(tenant, response_id) is not None

    async def load_chain(self, tenant: str, response_id: str) -> tuple[StoredResponse, ...] | None:
        self.walks += 1
        return await super().load_chain(tenant, response_id)


async def _responses(chains: ChainCache, response_id: str) -> tuple[StoredResponse, ...] | None:
    chain = await chains.get("t", response_id)
    return None if chain is None else chain.responses


async def test_continued_conversation_is_not_read_again() -> None:
    store = CountingStore()
    chains = ChainCache(store)
    for n in range(50):
        await store.save("t", make_response(str(n), str(n - 1) if n else None))
        chain = await chains.get("t", f"resp_{n}")
        assert chain is not None and len(chain.responses) == n + 1
    assert store.walks == 0


async def test_deleted_response_cannot_be_continued_from_the_cache() -> None:
    store = CountingStore()
    chains = ChainCache(store)
    await store.save("t", make_response("a"))
    await store.save("t", make_response("b", "a"))
    assert await chains.get("t", "resp_a") is not None
    await store.delete("t", "resp_a")
    assert await chains.get("t", "resp_a") is None
    assert await chains.get("u", "resp_b") is None
    assert await _responses(chains, "resp_b") == await store.load_chain("t", "resp_b")


async def test_responses_of_this_process_are_not_read_again() -> None:
    """They are not read, but the store is asked for them: any process may delete them."""
    store = CountingStore()
    service = make_service(ScriptedBackend(["one", "two", "three", "four"]), store=store)
    previous: str | None = None
    for _ in range(4):
        previous = (await (await create(service, previous_response_id=previous)).drive()).id
    assert previous is not None
    assert (store.loads, store.walks) == (1, 0), "only the first is read, which continues nothing"
    with pytest.raises(InvalidRequest, match="not found"):
        await create(service, "u", previous_response_id=previous)
    await store.delete("t", previous)
    with pytest.raises(InvalidRequest, match="not found"):
        await create(service, previous_response_id=previous)


async def test_background_responses_are_read_again() -> None:
    """The end of a run changes them, and a run can get the id of a deleted one."""
    store = CountingStore()
    chains = ChainCache(store)
    old = make_response("a")
    old = replace(old, response=replace(old.response, background=True))
    new = replace(old, response=replace(old.response, created_at=old.response.created_at + 1))
    for stored in (old, new):
        await store.save("t", stored)
        assert await _responses(chains, "resp_a") == (stored,)
        await store.delete("t", "resp_a")


async def test_short_lists_of_token_ids_are_rebuilt() -> None:
    store = CountingStore()
    chains = ChainCache(store)
    tokens = TurnTokens(base=0, ids=array("I", range(10)).tobytes(), fingerprint="f")
    await store.save("t", replace(make_response("a"), tokens=tokens))
    for _ in range(2):
        chain = await chains.get("t", "resp_a")
        assert chain is not None and chain.tokens == stored_tokens(chain.responses) is not None


async def test_cache_size_is_limited() -> None:
    store = CountingStore()
    chains = ChainCache(store, max_bytes=20_000)
    for n in range(30):
        await store.save("t", make_response(f"{n}", text="x" * 1_000))
        await chains.get("t", f"resp_{n}")
        assert chains.size_bytes <= 20_000
    await store.save("t", make_response("next", "0"))
    assert await _responses(chains, "resp_next") == await store.load_chain("t", "resp_next")


_SHARED = SharedTools(Function(name=f"tool_{n}", description="x" * 1_000) for n in range(50))


@pytest.mark.parametrize(("tools", "times"), [(_SHARED, 1), (tuple(_SHARED), 10)])
async def test_tools_that_the_turns_share_are_counted_once(
    tools: tuple[Tool, ...], times: int
) -> None:
    store = MemoryStore()
    chains = ChainCache(store)
    for n in range(10):
        stored = make_response(str(n), str(n - 1) if n else None)
        await store.save("t", replace(stored, response=replace(stored.response, tools=tools)))
        chain = await chains.get("t", f"resp_{n}")
    assert chain is not None and times * 50_000 < chain.bytes < times * 60_000 + 20_000
    assert chain_bytes(chain.responses) == chain.bytes


async def test_chains_that_nobody_continues_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore()
    chains = ChainCache(store, max_age_s=100)
    loop = asyncio.get_running_loop()
    start = loop.time()
    sizes = []
    for name, seconds in (("a", 0), ("b", 60), ("c", 120)):
        monkeypatch.setattr(loop, "time", lambda at=start + seconds: at)
        await store.save("t", make_response(name, text=name * (seconds + 1)))
        chain = await chains.get("t", f"resp_{name}")
        assert chain is not None
        sizes.append(2 * chain.bytes)
    assert (len(chains), chains.size_bytes) == (2, sum(sizes[1:])), "b and c"


async def test_token_ids_of_a_continued_chain_are_extended() -> None:
    """The ids are objects of the turn before, so that comparing them costs next to nothing."""
    store = CountingStore()
    chains = ChainCache(store)
    before: PromptTokens | None = None
    for n, base in enumerate((0, 6_000, 7_000, 5_000)):  # the last turn replaces some
        ids = array("I", range(1_000 * n, 1_000 * n + 6_000))
        tokens = TurnTokens(base=base, ids=ids.tobytes(), fingerprint="f")
        await store.save(
            "t", replace(make_response(str(n), str(n - 1) if n else None), tokens=tokens)
        )
        chain = await chains.get("t", f"resp_{n}")
        assert chain is not None and chain.tokens == stored_tokens(chain.responses)
        assert chain.tokens is not None
        if before is not None:
            pairs = zip(before.ids[:base], chain.tokens.ids, strict=False)
            assert all(one is other for one, other in pairs)
        before = chain.tokens
    assert chain is not None and chain.tokens is not None and len(chains) == 1
    assert chains.size_bytes == 2 * chain.bytes + 16 * len(chain.tokens.ids)


async def test_token_ids_of_another_vocabulary_are_not_extended() -> None:
    store = CountingStore()
    chains = ChainCache(store)
    ids = array("I", range(5_000)).tobytes()
    for n, (base, fingerprint) in enumerate(((0, "f"), (0, "g"), (10, "f"), (0, "f"))):
        tokens = TurnTokens(base=base, ids=ids, fingerprint=fingerprint)
        await store.save(
            "t", replace(make_response(str(n), str(n - 1) if n else None), tokens=tokens)
        )
        chain = await chains.get("t", f"resp_{n}")
        assert chain is not None and chain.tokens == stored_tokens(chain.responses)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["save", "save here", "ask", "delete"]),
        st.integers(0, 12),
        st.integers(0, 12),
    ),
    max_size=60,
)


@given(steps=STEPS, room=st.sampled_from([0, 3_000, 10**9]))
def test_cached_chains_equal_those_of_the_store(
    steps: list[tuple[str, int, int]], room: int
) -> None:
    async def play() -> None:
        store = MemoryStore()
        chains = ChainCache(store, max_bytes=room)
        saved, used = set[int](), set[int]()
        for what, one, other in steps:
            name = f"resp_{one}"
            if what.startswith("save") and one not in used:
                stored = make_response(str(one), str(other) if other in saved else None)
                await store.save("t", stored)
                if what == "save here":
                    chains.add_stored("t", stored)
                saved.add(one)
                used.add(one)
            elif what == "delete":
                await store.delete("t", name)
                saved.discard(one)  # what is deleted is not continued
            else:
                assert await _responses(chains, name) == await store.load_chain("t", name)

    asyncio.run(play())


async def test_encoded_items_are_kept_from_turn_to_turn() -> None:
    store = MemoryStore()
    chains = ChainCache(store)
    calls = 0

    def encode() -> int:
        nonlocal calls
        calls += 1
        return calls

    for n in range(10):
        await store.save("t", make_response(str(n), str(n - 1) if n else None))
        chain = await chains.get("t", f"resp_{n}")
        assert chain is not None and chain.encoded is not None
        items = chain_items(chain.responses)
        found = [chain.encoded.get((item,), (), encode) for item in items]
        assert found == [*range(1, len(items) + 1)]
    assert calls == len(items)
