"""No prefix is computed twice while its state fits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from antiphon.backends.local.backend import LocalBackend
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.engines.base import LoadOptions, Sampling
from antiphon.engines.llama.engine import LlamaEngine, load
from antiphon.engines.llama.kept_states import (
    NO_GROUP,
    KeptState,
    KeptStates,
    StateGroup,
    StateOwner,
)
from antiphon.engines.llama.slots import MIN_SHARED, Slot, Slots
from antiphon.engines.llama.state_files import StateFile, StateFiles
from antiphon.inference.tokens import Prompt, common_prefix_length
from antiphon.models.catalog import load as load_catalog
from antiphon.testing.engine_check import TIMEOUT_S, collect
from tests.tiny_models.tiny_tools import GGUF

from .workloads import Workload, run_workload

MIB = 1 << 20


class Llama:
    """Slots whose states are the ids that they have computed. ``limit``: tokens that are kept."""

    def __init__(self, files: StateFiles, count: int = 4, limit: int = 10**9) -> None:
        self.files = files
        self.states = KeptStates(limit * 4)
        self.slots = Slots(count, self.states, self)
        self.computed: list[tuple[int, ...]] = [()] * count
        self.saved: dict[str, tuple[int, ...]] = {}
        self.restored = 0

    async def save(self, slot: int) -> StateFile | None:
        await asyncio.sleep(0)
        file = self.files.create()
        file.path.write_bytes(bytes(4 * len(self.computed[slot])))
        self.saved[file.name] = self.computed[slot]
        return file

    async def restore(
        self, slot: int, file: StateFile, adapter: str | None, changes_adapter: bool
    ) -> bool:
        await asyncio.sleep(0)
        self.computed[slot] = self.saved[file.name]
        self.restored += 1
        return True

    async def generate(
        self, scope: str | None, prompt: tuple[int, ...], length: int
    ) -> tuple[int, tuple[int, ...]]:
        slot = await self.slots.acquire(prompt, StateGroup(scope))
        cached = self.begin(slot, prompt)
        reply = tuple(range(2000 + len(prompt), 2000 + len(prompt) + length))
        self.end(slot, prompt, reply)
        return cached, reply

    def begin(self, slot: Slot, prompt: Sequence[int]) -> int:
        held = self.computed[slot.number] if slot.is_reusable else ()
        return min(common_prefix_length(held, tuple(prompt)), len(prompt) - 1)

    def end(self, slot: Slot, prompt: Sequence[int], reply: Sequence[int]) -> None:
        self.computed[slot.number] = (*prompt, *reply[:-1])
        self.slots.release(slot, (*prompt, *reply))


@pytest.fixture
def files() -> Iterator[StateFiles]:
    files = StateFiles()
    yield files
    files.close()


@pytest.fixture
def llama(files: StateFiles) -> Iterator[Llama]:
    llama = Llama(files)
    yield llama
    llama.states.close()


@pytest.mark.parametrize(
    "workload",
    [
        Workload(conversations=4, turns=6),
        Workload(conversations=4, turns=6, thinking=1, head=300),
        Workload(conversations=8, turns=10),
        Workload(conversations=32, turns=4),
        Workload(conversations=8, turns=6, tenants=2),
        Workload(conversations=6, turns=3, retries=0, edits=0, branches=0, thinking=0),
    ],
    ids=["mixed", "thinking", "many turns", "many conversations", "tenants", "six"],
)
async def test_workloads_find_what_was_computed(llama: Llama, workload: Workload) -> None:
    outcome = await run_workload(workload, llama.generate)
    assert outcome.share >= 0.99
    assert outcome.lag <= MIN_SHARED


async def test_states_beyond_the_budget_are_evicted(files: StateFiles) -> None:
    llama = Llama(files, limit=20_000)
    outcome = await run_workload(Workload(conversations=16, turns=6), llama.generate)
    counts = llama.states.counts
    assert counts.evictions and counts.bytes <= counts.limit_bytes
    assert outcome.share > 0.75


async def test_without_a_budget_slots_alone_are_used(files: StateFiles) -> None:
    llama = Llama(files, limit=0)
    outcome = await run_workload(Workload(conversations=4, turns=6), llama.generate)
    assert not llama.saved and outcome.share > 0.8


async def test_fork_leaves_the_state_that_it_continues(llama: Llama) -> None:
    head = tuple(range(500))
    await llama.generate(None, (*head, *range(1000, 1100)), 100)
    cached, _ = await llama.generate(None, (*head, 7, 8), 5)
    assert cached == len(head)
    assert llama.restored == 1 and len(set(map(len, llama.computed))) == 3
    again, _ = await llama.generate(None, (*head, *range(1000, 1100), 2600, 1), 5)
    assert again >= len(head) + 100


async def test_a_copy_ends_before_a_cancelled_prompt_gives_up_its_slot(llama: Llama) -> None:
    head = tuple(range(500))
    await llama.generate(None, (*head, *range(1000, 1100)), 100)
    going = asyncio.Event()

    async def restore(*given: object) -> bool:
        going.set()
        await release.wait()
        return True

    release = asyncio.Event()
    llama.restore = restore  # type: ignore[method-assign, assignment]
    waiting = asyncio.create_task(llama.slots.acquire((*head, 5)))
    await going.wait()
    waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    slots = [await llama.slots.acquire((n,)) for n in range(4)]  # none is lost
    assert len({slot.number for slot in slots}) == 4


async def test_an_adapter_has_its_own_states(llama: Llama) -> None:
    ids, poet = tuple(range(300)), StateGroup(None, "poet")
    slot = await llama.slots.acquire(ids)
    llama.end(slot, ids, (1, 2))
    other = await llama.slots.acquire((*ids, 9), poet)
    assert llama.begin(other, (*ids, 9)) == 0
    llama.end(other, (*ids, 9), (1, 2))
    again = await llama.slots.acquire((*ids, 9, 1, 5), poet)
    assert again.number == other.number


# --- the budget ----------------------------------------------------------------------------------


def kept(files: StateFiles, ids: Sequence[int], size: int, session: str | None = None) -> KeptState:
    file = files.create()
    file.path.write_bytes(bytes(size))
    return KeptState(NO_GROUP, tuple(ids), file, size, StateOwner(session))


def test_extended_state_is_replaced(files: StateFiles) -> None:
    states = KeptStates(100 * MIB)
    short = kept(files, range(100), MIB)
    assert states.add(short) and states.add(kept(files, range(200), 2 * MIB))
    assert states.counts.states == 1 and states.counts.bytes == 2 * MIB
    assert not short.file.path.exists()


def test_ended_conversations_are_evicted_first_and_waiting_ones_last(files: StateFiles) -> None:
    states = KeptStates(3 * MIB)
    for number, name in enumerate(("waiting", "old", "ended")):
        states.add(kept(files, range(1000 * number, 1000 * number + 100), MIB, name))
    states.wait("waiting", True)
    states.end("ended")
    gone = []
    for number in range(3, 5):
        before = {state.owner.session for state in states}
        states.add(kept(files, range(1000 * number, 1000 * number + 100), MIB, str(number)))
        gone += before - {state.owner.session for state in states}
    assert gone == ["ended", "old"]
    states.delete("waiting")
    assert states.find(range(100), NO_GROUP) == (None, 0)


def test_state_larger_than_the_budget_is_refused(files: StateFiles) -> None:
    states = KeptStates(MIB)
    large = kept(files, range(1000), 2 * MIB)
    assert not states.add(large) and not large.file.path.exists()
    assert not states.fits(range(1000)) and states.fits(range(100))


# --- with llama.cpp ------------------------------------------------------------------------------


async def ask(engine: LlamaEngine, ids: Sequence[int], n: int = 4, **more: str) -> tuple[int, int]:
    """Return the cached tokens and their possible number."""
    sampling = Sampling(max_tokens=n, temperature=0, ignore_eos=True, **more)  # type: ignore[arg-type]
    outcome = await collect(engine, Prompt(tuple(ids)), sampling)
    assert outcome.cached_tokens is not None
    return outcome.cached_tokens, len(ids)


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_engine_counts_what_llama_cpp_counts() -> None:
    """``cached_tokens`` is llama.cpp's own count."""
    engine = await load(
        GGUF, LoadOptions(threads=1, context_size=2048, parallel=4, prompt_cache_mb=64)
    )

    async def generate(
        scope: str | None, prompt: tuple[int, ...], length: int
    ) -> tuple[int, tuple[int, ...]]:
        sampling = Sampling(max_tokens=length, temperature=0, ignore_eos=True, cache_scope=scope)
        outcome = await collect(engine, Prompt(prompt), sampling)
        return outcome.cached_tokens or 0, tuple(outcome.ids)

    try:
        async with asyncio.timeout(TIMEOUT_S):
            for workload in (
                Workload(conversations=6, turns=3, head=300, reply=(5, 40)),
                Workload(conversations=6, turns=3, head=300, reply=(5, 40), tenants=2, seed=2),
            ):
                outcome = await run_workload(workload, generate)
                assert outcome.share >= 0.99 and outcome.lag <= MIN_SHARED
    finally:
        await engine.close()


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_restored_state_continues_with_the_same_tokens(smollm2_path: Path) -> None:
    """The greedy text after a copy of a state is the text of the state itself."""
    engine = await load(
        smollm2_path, LoadOptions(threads=1, context_size=512, parallel=1, prompt_cache_mb=64)
    )
    try:
        head = tuple(engine.tokenizer.encode("The rivers of Europe are " * 20, special=False))
        other = tuple(engine.tokenizer.encode("Numbers go up, and down " * 20, special=False))
        sampling = Sampling(max_tokens=12, temperature=0, ignore_eos=True)
        first = await collect(engine, Prompt(head), sampling)
        straight = await collect(engine, Prompt((*head, *first.ids)), sampling)
        await ask(engine, other)
        restored = await collect(engine, Prompt((*head, *first.ids)), sampling)
        assert restored.ids == straight.ids
        assert restored.cached_tokens is not None
        assert restored.cached_tokens >= len(head) + len(first.ids) - 2
    finally:
        await engine.close()


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_operators_see_the_cache_of_a_model(tmp_path: Path) -> None:
    model = Model(source=str(GGUF), context_size=512, threads=1, prompt_cache_mb=8)
    served = await load_catalog(Settings(models={"tiny": model}, cache_dir=tmp_path))
    try:
        async with served.configured_models[0].on_demand.use() as backend:  # type: ignore[union-attr]
            assert isinstance(backend, LocalBackend) and isinstance(backend.engine, LlamaEngine)
            for _ in range(3):
                await ask(backend.engine, range(300, 400))
        assert served.manager is not None
        (shown,) = (await served.manager.list()).data
        assert shown.prompt_cache is not None
        assert (shown.prompt_cache.hits, shown.prompt_cache.misses) == (2, 1)
        assert shown.prompt_cache.limit_bytes == 8 * MIB
        assert served.all()[0].status.prefix_cache is not None
    finally:
        await served.close()
