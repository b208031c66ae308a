"""No prefix is computed twice while its state fits."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec.structs import replace

from antiphon.backends.local.backend import LocalBackend
from antiphon.bootstrap.app import open_app
from antiphon.config.model import Model
from antiphon.config.settings import Settings
from antiphon.config.tables import FileSearchSettings, SandboxSettings
from antiphon.engines.base import DiskCache, LoadOptions, Sampling
from antiphon.engines.common.continued_engine import ContinuedEngine
from antiphon.engines.llama.client import LlamaClient
from antiphon.engines.llama.disk_states import DiskStates, delete_states, state_owners
from antiphon.engines.llama.engine import LlamaEngine, load
from antiphon.engines.llama.kept_states import NO_GROUP, KeptState, KeptStates, StateGroup
from antiphon.engines.llama.slots import MIN_SHARED, MIN_WAIT, Slot, Slots
from antiphon.engines.llama.state_files import StateFile, StateFiles
from antiphon.engines.llama.state_owners import NO_OWNER, SLACK, StateClaim, StateOwner
from antiphon.inference.sampling import SessionSignal
from antiphon.inference.tokens import Prompt, common_prefix_length
from antiphon.models.catalog import load as load_catalog
from antiphon.testing.engine_check import TIMEOUT_S, Outcome, collect
from tests.child_processes import LINUX, child_processes
from tests.harness import asgi_client
from tests.tiny_models.tiny_tools import GGUF
from tests.tiny_models.unpacked import tiny_gpt_oss

from .workloads import Workload, optimum, run_workload

MIB = 1 << 20
HEAD = tuple(range(500))


def create(files: StateFiles) -> StateFile:
    file = files.create()
    assert file is not None
    return file


class Llama:
    """Slots whose states are the ids that they have computed. ``limit``: tokens that are kept."""

    def __init__(self, files: StateFiles, count: int = 4, limit: int = 10**9) -> None:
        self.files = files
        self.states = KeptStates(limit * 4)
        self.slots = Slots(count, self.states, self)
        self.computed: list[tuple[int, ...]] = [()] * count
        self.saved: dict[str, tuple[int, ...]] = {}
        self.restored = 0

    async def save(
        self, slot: int, ids: Sequence[int] = (), adapter: str | None = None
    ) -> StateFile | None:
        await asyncio.sleep(0)
        file = create(self.files)
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

    async def cut(self, slot: int, ids: Sequence[int], adapter: str | None) -> bool:
        await asyncio.sleep(0)
        assert self.computed[slot][: len(ids)] == ids
        self.computed[slot] = tuple(ids)
        return True

    async def generate(
        self,
        scope: str | None,
        prompt: tuple[int, ...],
        length: int,
        owner: StateOwner = NO_OWNER,
        *,
        is_score: bool = False,
    ) -> tuple[int, tuple[int, ...]]:
        slot = await self.slots.acquire(prompt, StateGroup(scope), owner)
        cached = self.begin(slot, prompt)
        reply = tuple(range(2000 + len(prompt), 2000 + len(prompt) + length))
        self.end(slot, prompt, reply, is_score=is_score)
        return cached, reply

    def begin(self, slot: Slot, prompt: Sequence[int]) -> int:
        held = self.computed[slot.number] if slot.is_reusable else ()
        return min(common_prefix_length(held, tuple(prompt)), len(prompt) - 1)

    def end(
        self, slot: Slot, prompt: Sequence[int], reply: Sequence[int], *, is_score: bool = False
    ) -> None:
        self.computed[slot.number] = (*prompt, *reply[:-1])
        self.slots.release(slot, (*prompt, *reply), is_score=is_score)


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


class Gate:
    """Holds the copies of states until it is open."""

    def __init__(self, llama: Llama) -> None:
        self.begun = 0
        self._open = asyncio.Event()
        self._llama, self._save = llama, llama.save
        llama.save = self.save  # type: ignore[method-assign]

    async def save(self, slot: int, *rest: Any) -> StateFile | None:
        self.begun += 1
        await self._open.wait()
        return await self._save(slot)

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while self.begun < count:
                await asyncio.sleep(0)

    def open(self) -> None:
        self._open.set()


async def test_states_of_several_slots_are_copied_at_the_same_time(llama: Llama) -> None:
    prompts = [tuple(range(1000 * n, 1000 * n + 500)) for n in range(1, 9)]
    for prompt in prompts[:4]:
        await llama.generate(None, prompt, 100)
    gate = Gate(llama)
    waiting = [asyncio.create_task(llama.slots.acquire(prompt)) for prompt in prompts[4:]]
    await gate.wait(4)
    gate.open()
    slots = await asyncio.gather(*waiting)
    assert len({slot.number for slot in slots}) == 4
    for slot, prompt in zip(slots, prompts[4:], strict=True):
        llama.end(slot, prompt, range(2))
    for prompt in prompts[:4]:
        cached, _ = await llama.generate(None, (*prompt, 1), 1)
        assert cached == len(prompt)


async def test_prompt_waits_while_the_state_that_it_continues_is_copied(llama: Llama) -> None:
    """Another conversation takes its slot meanwhile."""
    prompts = [tuple(range(1000 * n, 1000 * n + 500)) for n in range(1, 6)]
    for prompt in prompts[:4]:
        await llama.generate(None, prompt, 100)
    gate = Gate(llama)
    other = asyncio.create_task(llama.slots.acquire(prompts[4]))
    await gate.wait(1)
    following = asyncio.create_task(llama.generate(None, (*prompts[0], 1), 1))
    await asyncio.sleep(0)
    gate.open()
    assert (await other).number == 0
    assert (await following)[0] == len(prompts[0])


async def test_prompt_waits_for_the_only_slot_while_it_is_copied(files: StateFiles) -> None:
    llama = Llama(files, count=1)
    slot = await llama.slots.acquire(HEAD)
    llama.end(slot, HEAD, range(100))
    gate = Gate(llama)
    keeping = asyncio.create_task(llama.slots.keep(slot))
    await gate.wait(1)
    waiting = asyncio.create_task(llama.slots.acquire(tuple(range(5000, 5500))))
    await asyncio.sleep(0)
    assert not waiting.done()
    gate.open()
    assert await keeping is not None
    assert (await waiting).number == slot.number


async def test_state_is_not_evicted_while_a_slot_gets_it(files: StateFiles) -> None:
    llama = Llama(files, limit=1200)
    prompts = [tuple(range(1000 * n, 1000 * n + 500)) for n in range(1, 7)]
    for prompt in prompts[:5]:
        await llama.generate(None, prompt, 2)  # the first one is kept, and not in a slot
    gate = Gate(llama)
    restoring = asyncio.create_task(llama.slots.acquire((*prompts[0], 1)))
    waiting = asyncio.create_task(llama.slots.acquire(prompts[5]))
    await gate.wait(2)
    gate.open()
    slot, _ = await asyncio.gather(restoring, waiting)
    assert llama.begin(slot, (*prompts[0], 1)) == len(prompts[0])
    assert llama.states.counts.evictions


@pytest.mark.parametrize("seed", range(6))
async def test_agents_at_the_same_time_find_what_was_computed(files: StateFiles, seed: int) -> None:
    """Copies take time, prompts are cancelled, and no slot is lost."""
    chance = random.Random(seed)
    llama = Llama(files, count=chance.choice([1, 2, 4]))
    save, restore = llama.save, llama.restore
    known: list[tuple[int, ...]] = []
    lag = 0

    async def pause() -> None:
        for _ in range(chance.randint(0, 6)):
            await asyncio.sleep(0)

    async def slow_save(slot: int, *rest: Any) -> StateFile | None:
        await pause()
        return await save(slot)

    async def slow_restore(slot: int, file: StateFile, *rest: Any) -> bool:
        await pause()
        assert file.path.exists()
        return await restore(slot, file, *rest)

    def tokens(count: int) -> list[int]:
        return chance.choices(range(10**6), k=count)

    async def agent() -> None:
        nonlocal lag
        past = HEAD
        for _ in range(4):
            prompt = (*past, *tokens(100))
            best = optimum(prompt, known)
            if chance.random() < 0.2:
                task = asyncio.create_task(llama.slots.acquire(prompt))
                await pause()
                if task.cancel():
                    await asyncio.wait([task])
                    continue
                llama.slots.release(await task, (), is_started=False)
            slot = await llama.slots.acquire(prompt)
            lag = max(lag, best - llama.begin(slot, prompt))
            await pause()
            while (wanted := llama.slots.wanted(slot)) is not None:
                llama.computed[slot.number] = prompt[:wanted]
                await llama.slots.share(slot, wanted)
            reply = tokens(chance.randint(2, 120))
            llama.end(slot, prompt, reply)
            known.append((*prompt, *reply[:-1]))
            if chance.random() < 0.5:
                await llama.slots.keep(slot)
            past = chance.choice([HEAD, (*prompt, *reply)])

    llama.save, llama.restore = slow_save, slow_restore  # type: ignore[method-assign, assignment]
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(agent() for _ in range(12)))
        slots = [await llama.slots.acquire((n,)) for n in range(len(llama.computed))]
    assert len({slot.number for slot in slots}) == len(llama.computed)
    assert lag <= MIN_SHARED


async def test_prompts_with_one_head_wait_for_the_first_of_them(llama: Llama) -> None:
    llama = Llama(llama.files, count=5)
    first = await llama.slots.acquire((*HEAD, 1))
    others = [asyncio.create_task(llama.slots.acquire((*HEAD, n))) for n in (2, 3)]
    await asyncio.sleep(0)
    short = await llama.slots.acquire((*HEAD[: MIN_SHARED - 1], 4))
    stranger = await llama.slots.acquire(HEAD, StateGroup("other"))
    llama.end(stranger, HEAD, (1,))
    assert llama.slots.wanted(first) == len(HEAD) and llama.slots.wanted(short) is None
    others[0].cancel()
    llama.computed[first.number] = HEAD
    await llama.slots.share(first, len(HEAD))
    second = await others[1]
    assert llama.slots.wanted(first) is None
    assert llama.begin(second, (*HEAD, 3)) == len(HEAD)
    later = await llama.slots.acquire((*HEAD, 5))  # the head is kept, so it need not wait
    assert llama.begin(later, (*HEAD, 5)) == len(HEAD)


@pytest.mark.parametrize("event", ["computed", "cancelled", "not kept"])
async def test_prompts_stop_waiting_when_nothing_will_be_shared(llama: Llama, event: str) -> None:
    first = await llama.slots.acquire((*HEAD, 1))
    others = [asyncio.create_task(llama.slots.acquire((*HEAD, n))) for n in (2, 3)]
    while llama.slots.wanted(first) is None:
        await asyncio.sleep(0)
    if event == "computed":
        llama.slots.end_prefill(first)
    elif event == "cancelled":
        llama.slots.release(first, (), is_started=False)
    else:

        async def save(slot: int, *rest: Any) -> None:
            return None

        llama.save = save  # type: ignore[method-assign]
        await llama.slots.share(first, len(HEAD))
    done, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
    second = done.pop().result()
    llama.end(second, (*HEAD, 2), (1,))  # the other one may have waited for it
    await asyncio.wait(others)


@pytest.mark.parametrize("broken", [1, 2, 9])
async def test_prompt_takes_the_next_best_state_if_one_cannot_be_restored(
    files: StateFiles, broken: int
) -> None:
    llama = Llama(files, count=1)
    for length in (300, 400, 500):
        await llama.generate(None, HEAD[:length], 100)
        await llama.generate(None, tuple(range(-500, 0)), 1)
    restore = llama.restore

    async def fail(*given: Any) -> bool:
        nonlocal broken
        broken -= 1
        return broken < 0 and await restore(*given)

    llama.restore = fail  # type: ignore[method-assign]
    expected = {1: 400, 2: 300}.get(broken, 0)
    cached, _ = await llama.generate(None, (*HEAD, 1), 1)
    assert cached == expected


async def test_a_state_is_tried_once_if_no_file_can_be_created(
    files: StateFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskStates(tmp_path / "m" / "v1", MIB)
    await stored(disk, files, durable(files, HEAD, b"x" * 1000))
    states = await stored(disk, files)
    slots, tries = Slots(1, states, Llama(files)), list[None]()
    monkeypatch.setattr(StateFiles, "create", lambda self: tries.append(None))
    slots.release(await slots.acquire((*HEAD, 1), StateGroup("scope")), (), is_started=False)
    assert len(tries) == 1
    assert [tuple(state.ids) for state in states] == [HEAD]  # it stays on the disk


async def test_a_state_is_kept_if_llama_ends_while_a_slot_gets_it(llama: Llama) -> None:
    for number in range(1, 6):  # the first one is kept, and not in a slot
        await llama.generate(None, tuple(range(1000 * number, 1000 * number + 500)), 2)
    prompt, restore = tuple(range(1000, 1600)), llama.restore

    async def end(*given: Any) -> None:
        return None

    llama.restore = end  # type: ignore[method-assign, assignment]
    slot = await llama.slots.acquire(prompt)
    llama.slots.release(slot, (), is_started=False)
    llama.slots.forget()
    llama.restore = restore  # type: ignore[method-assign]
    cached, _ = await llama.generate(None, prompt, 1)
    assert cached == 500


async def test_a_slot_is_cut_only_if_it_got_the_state(
    llama: Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (llama.states.owners.get("s", "t", id, False) for id in ("resp_1", "resp_2"))
    _, reply = await llama.generate(None, HEAD, 2, first)
    await llama.generate(None, (*HEAD, *reply, *range(900, 950)), 2, second)
    for number in range(1, 5):
        await llama.generate(None, tuple(range(1000 * number, 1000 * number + 300)), 2)
    cuts: list[int] = []

    async def refuse(state: KeptState) -> None:
        return None

    async def cut(slot: int, ids: Sequence[int], adapter: str | None) -> bool:
        cuts.append(slot)
        return True

    monkeypatch.setattr(llama.states, "open", refuse)
    monkeypatch.setattr(llama, "cut", cut)
    llama.states.owners.delete("resp_2", "s", "t")
    assert await llama.slots.delete_unneeded() == [] == cuts


async def test_questions_about_one_input_keep_one_state(llama: Llama) -> None:
    """No conversation continues a score, so its last ids are not kept for each question."""
    for number in range(20):
        cached, _ = await llama.generate(None, (*HEAD, *range(900 - number, 940)), 1, is_score=True)
        assert cached == (len(HEAD) if number else 0)
    await llama.generate("other", tuple(range(1000)), 1)
    assert len(list(llama.states)) == 1
    cached, _ = await llama.generate(None, (*HEAD, 1), 1)
    assert cached == len(HEAD)


async def test_scores_of_different_texts_are_all_kept(llama: Llama) -> None:
    texts = [(*HEAD[:200], *range(1000 * n, 1000 * n + 300)) for n in range(1, 8)]
    for text in texts:
        await llama.generate(None, text, 1, is_score=True)
    for text in texts:
        cached, _ = await llama.generate(None, (*text, 1), 1, is_score=True)
        assert cached >= len(text) - MIN_WAIT


async def test_an_adapter_has_its_own_states(llama: Llama) -> None:
    ids, poet = tuple(range(300)), StateGroup(None, "poet")
    slot = await llama.slots.acquire(ids)
    llama.end(slot, ids, (1, 2))
    other = await llama.slots.acquire((*ids, 9), poet)
    assert llama.begin(other, (*ids, 9)) == 0
    llama.end(other, (*ids, 9), (1, 2))
    again = await llama.slots.acquire((*ids, 9, 1, 5), poet)
    assert again.number == other.number


# --- deletion ------------------------------------------------------------------------------------


class Responses:
    """Stored responses over a ``Llama``. Each has tokens of its own, after those of its parent."""

    def __init__(self, llama: Llama, seed: int = 1) -> None:
        self.llama, self.chance = llama, random.Random(seed)
        #: The ids that are computed for each response that is not deleted.
        self.living: dict[str, tuple[int, ...]] = {}
        self._numbers = itertools.count(1)

    async def create(self, parent: str = "", length: int = 100) -> str:
        """Answer a prompt that continues a response. Returns the id of the new response."""
        number = next(self._numbers)
        id = f"resp_{number}"
        owner = self.llama.states.owners.get("session", "t", id, True)
        first = 1000 * number
        prompt = (*self.living.get(parent, HEAD), *range(first, first + length))
        slot = await self.llama.slots.acquire(prompt, NO_GROUP, owner)
        self.llama.begin(slot, prompt)
        self.llama.end(slot, prompt, reply := range(first + 500, first + 500 + length))
        self.living[id] = (*prompt, *reply)
        return id

    async def delete(self, id: str) -> None:
        del self.living[id]
        self.llama.states.owners.delete(id, "session", "t")
        await self.llama.slots.delete_unneeded()

    def cached(self, id: str) -> int:
        """How many ids of a response are cached."""
        states = (*self.llama.computed, *(state.ids for state in self.llama.states))
        return max(common_prefix_length(tuple(ids), self.living[id]) for ids in states)

    def foreign(self) -> set[int]:
        """The ids in slots and files that belong to no living response."""
        states = self.llama.states
        kept = [self.llama.saved[each.file.name] for each in states if each.file is not None]
        found = {id for ids in (*self.llama.computed, *kept) for id in ids}
        return found.difference(HEAD, *self.living.values())


async def test_deleted_response_leaves_the_state_of_the_one_that_it_continued(llama: Llama) -> None:
    """The later state has replaced the earlier one, in the slot and among the kept states."""
    responses = Responses(llama)
    first = await responses.create()
    second = await responses.create(first)
    third = await responses.create(second)
    await responses.delete(second)
    assert responses.cached(third) >= len(responses.living[third]) - 1
    await responses.delete(third)
    assert responses.cached(first) >= len(responses.living[first]) - SLACK
    assert not responses.foreign()
    await responses.delete(first)
    assert not any(llama.computed) and not list(llama.states)


async def test_state_outside_a_slot_is_cut(files: StateFiles) -> None:
    llama = Llama(files, count=1)
    responses = Responses(llama)
    first = await responses.create()
    second = await responses.create(first)
    await llama.generate(None, tuple(range(50_000, 50_500)), 10)  # it takes the only slot
    assert responses.cached(second)
    await responses.delete(second)
    assert responses.cached(first) >= len(responses.living[first]) - SLACK
    assert not responses.foreign() - set(range(50_000, 50_500)) - set(range(2500, 2600))


async def test_response_with_the_same_text_as_another_keeps_their_state(llama: Llama) -> None:
    owners = [llama.states.owners.get(None, "t", f"resp_{n}", True) for n in range(3)]
    for owner in owners:
        await llama.generate(None, HEAD, 100, owner)
        await llama.slots.keep(Slot(0, True, NO_GROUP, owner))
    for number, owner in enumerate(owners):
        llama.states.owners.delete(owner.id, None, "t")
        await llama.slots.delete_unneeded()
        found = max(map(len, (*llama.computed, *(state.ids for state in llama.states))), default=0)
        assert (found >= len(HEAD) + 90) == (number < 2)


@pytest.mark.parametrize("seed", range(8))
async def test_deletions_leave_all_of_the_living_and_nothing_else(
    files: StateFiles, seed: int
) -> None:
    llama = Llama(files, count=random.Random(seed).choice([1, 2, 4]))
    responses = Responses(llama, seed)
    for _ in range(60):
        living = sorted(responses.living)
        if living and responses.chance.random() < 0.4:
            await responses.delete(responses.chance.choice(living))
        else:
            parent = responses.chance.choice(["", *living, *living[-1:]])
            await responses.create(parent, responses.chance.randint(20, 200))
        assert not responses.foreign()
        for id, ids in responses.living.items():
            assert responses.cached(id) >= len(ids) - SLACK
    llama.states.close()


@pytest.mark.parametrize("seed", range(6))
async def test_deletion_while_states_are_copied_leaves_nothing(
    files: StateFiles, seed: int
) -> None:
    llama = Llama(files, count=3)
    responses = Responses(llama, seed)
    save, restore = llama.save, llama.restore

    async def pause() -> None:
        for _ in range(responses.chance.randint(0, 6)):
            await asyncio.sleep(0)

    async def slow_save(slot: int, *rest: Any) -> StateFile | None:
        await pause()
        return await save(slot)

    async def slow_restore(slot: int, *rest: Any) -> bool:
        await pause()
        return await restore(slot, *rest)

    async def client() -> None:
        for _ in range(12):
            living = sorted(responses.living)
            if living and responses.chance.random() < 0.4:
                await responses.delete(responses.chance.choice(living))
            else:
                await responses.create(responses.chance.choice(["", *living]))
            await pause()

    llama.save, llama.restore = slow_save, slow_restore  # type: ignore[method-assign, assignment]
    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(client() for _ in range(5)))
        for id in tuple(responses.living):
            await responses.delete(id)
        slots = [await llama.slots.acquire((n,)) for n in range(3)]
    assert len({slot.number for slot in slots}) == 3 and not list(llama.states)
    assert not any(slot.is_reusable and llama.computed[slot.number] for slot in slots)


# --- the budget ----------------------------------------------------------------------------------


def kept(files: StateFiles, ids: Sequence[int], size: int, session: str | None = None) -> KeptState:
    file = create(files)
    file.path.write_bytes(bytes(size))
    claims = (StateClaim(StateOwner(session), len(ids)),)
    return KeptState(NO_GROUP, tuple(ids), file, size, claims)


def test_extended_state_is_replaced(files: StateFiles) -> None:
    states = KeptStates(100 * MIB)
    short = kept(files, range(100), MIB)
    assert short.file is not None
    path = short.file.path
    assert states.add(short) and states.add(kept(files, range(200), 2 * MIB))
    assert states.counts.states == 1 and states.counts.bytes == 2 * MIB
    assert not path.exists()


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


def test_of_states_with_the_same_prefix_the_shortest_is_found(files: StateFiles) -> None:
    states = KeptStates(100 * MIB)
    head, tails = tuple(range(100)), (range(1000, 1300), range(2000, 2100), range(3000, 3200))
    for tail in tails:
        states.add(kept(files, (*head, *tail), MIB))
    state, shared = states.find((*head, 5), NO_GROUP)
    assert state is not None and (len(state.ids), shared) == (200, 100)


def test_state_larger_than_the_budget_is_refused(files: StateFiles) -> None:
    states = KeptStates(MIB)
    large = kept(files, range(1000), 2 * MIB)
    assert large.file is not None
    assert not states.add(large) and not large.file.path.exists()
    assert not states.fits(1000) and states.fits(100)


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
@pytest.mark.parametrize("arrival", ["at once", "while the first is computed"])
async def test_head_of_requests_at_the_same_time_is_computed_once(
    arrival: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = LoadOptions(threads=1, context_size=2048, parallel=4, prompt_cache_mb=64)
    engine = await load(GGUF, options, batch=32)
    ids = random.Random(3).choices(range(300, 700), k=1000)
    prompts = [(*ids[:851], *ids[900 + 10 * n : 920 + 10 * n]) for n in range(6)]
    sampling = Sampling(max_tokens=4, temperature=0, ignore_eos=True)
    others: list[asyncio.Task[Outcome]] = []

    async def run(prompt: tuple[int, ...], scope: str | None = None) -> Outcome:
        return await collect(engine, Prompt(prompt), replace(sampling, cache_scope=scope))

    async def generate(client: LlamaClient, body: bytes, on_event: Callable[[bytes], bool]) -> None:
        """The others arrive after the first event of the first generation."""
        monkeypatch.undo()
        events: list[bytes] = []

        def read(event: bytes) -> bool:
            events.append(event)
            return True

        await client.generate(body, read)
        assert not on_event(events[0])
        others.extend(asyncio.create_task(run(prompt)) for prompt in prompts[1:])
        for _ in range(20):
            await asyncio.sleep(0)
        assert on_event(events[0]), "the generation is interrupted"

    try:
        if arrival == "at once":
            outcomes = await asyncio.gather(*map(run, prompts))
        else:
            monkeypatch.setattr(LlamaClient, "generate", generate)
            outcomes = [await run(prompts[0]), *await asyncio.gather(*others)]
        assert [outcome.cached_tokens for outcome in outcomes] == [0, *[851] * 5]
        for number, (prompt, outcome) in enumerate(zip(prompts, outcomes, strict=True)):
            alone = await run(prompt, f"scope {number}")
            assert (alone.cached_tokens, alone.ids) == (0, outcome.ids)
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
        assert served.all()[0].backend.status.prefix_cache is not None
        assert shown.threads == 1
    finally:
        await served.close()


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_decisions_keep_one_state_of_their_input(tmp_path: Path) -> None:
    """They push no states of others out."""
    model = Model(source=str(GGUF), context_size=2048, threads=1, parallel=1, prompt_cache_mb=64)
    settings = Settings(
        store="memory:",
        cache_dir=tmp_path,
        models={"tiny": model},
        sandbox=SandboxSettings(kind="off"),
        file_search=FileSearchSettings(embeddings="off"),
    )
    questions = [
        {"type": "predicate", "instructions": f"{each} is in the text."}
        for each in ("A dog", "Spam", "The weather", "Music", "Some question", "Tomorrow")
    ]
    body = {"model": "tiny", "input": "All is well. " * 20, "questions": questions}
    async with open_app(settings, log=structlog.get_logger()) as app, asgi_client(app) as client:
        answer = await client.post("/v1/decisions", json=body)
        assert len(answer.json()["answers"]) == len(questions)
        (shown,) = (await client.get("/antiphon/models")).json()["data"]
        assert shown["prompt_cache"]["states"] == 1


# --- on disk -------------------------------------------------------------------------------------


async def stored(disk: DiskStates, files: StateFiles, *parts: KeptState) -> KeptStates:
    states = KeptStates(100 * MIB, files, disk)
    await states.load()
    for part in parts:
        states.add(part)
        await states.persist(part)
    return states


def durable(
    files: StateFiles, ids: Sequence[int], content: bytes, owner: StateOwner | None = None
) -> KeptState:
    file = create(files)
    file.path.write_bytes(content)
    owner = owner or StateOwner("s", "t", "resp", is_durable=True)
    claims = (StateClaim(owner, len(ids)),)
    return KeptState(StateGroup("scope", None), tuple(ids), file, len(content), claims)


@pytest.mark.parametrize("secret", [None, b"secret"], ids=["plain", "encrypted"])
async def test_state_outlives_the_process(
    files: StateFiles, tmp_path: Path, secret: bytes | None
) -> None:
    content = b"text of a user" * 500_000
    disk = DiskStates(tmp_path / "m" / "v1", 100 * MIB, secret)
    await stored(disk, files, durable(files, range(100), content))
    (path,) = (tmp_path / "m" / "v1").iterdir()
    assert (b"text of a user" in path.read_bytes()) == (secret is None)
    assert path.stat().st_mode & 0o077 == 0
    again = await stored(disk, files)
    state, shared = again.find((*range(100), 7), StateGroup("scope", None))
    assert state is not None and shared == 100
    assert again.find(range(100), StateGroup("other", None)) == (None, 0)
    opened = await again.open(state)
    assert opened is not None and opened.path.read_bytes() == content
    again.close()


async def test_another_version_of_the_model_finds_nothing(
    files: StateFiles, tmp_path: Path
) -> None:
    first, second = (DiskStates(tmp_path / "m" / name, MIB) for name in ("v1", "v2"))
    await stored(first, files, durable(files, range(100), b"x" * 1000))
    assert not tuple(await stored(second, files))
    assert not (tmp_path / "m" / "v1").exists()


async def test_extended_state_is_replaced_on_disk(files: StateFiles, tmp_path: Path) -> None:
    disk = DiskStates(tmp_path / "m" / "v1", MIB)
    states = await stored(disk, files, durable(files, range(100), b"x" * 1000))
    longer = durable(files, range(200), b"y" * 2000)
    states.add(longer)
    assert len(list((tmp_path / "m" / "v1").iterdir())) == 1, "until the longer state is written"
    await states.persist(longer)
    assert len(list((tmp_path / "m" / "v1").iterdir())) == 1
    assert states.counts.disk_bytes == 2000
    states.close()


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "to be written"])
async def test_state_that_is_not_stored_leaves_the_files_of_those_that_it_extends(
    files: StateFiles, tmp_path: Path, is_written: bool
) -> None:
    disk = DiskStates(tmp_path / "m" / "v1", MIB)
    turn = durable(files, range(100), b"x" * 1000)
    states = await stored(disk, files, *[turn] * is_written)
    if not is_written:
        states.add(turn)
    following = durable(files, range(200), b"y" * 2000)
    following.claims = (StateClaim(StateOwner("s", "t"), 200),)
    states.add(following)
    in_memory = states.find(range(100), following.group)[0]
    assert in_memory is not None and in_memory.file is not None
    assert states.covering(range(200), following.group) is following
    assert states.covering(range(200), following.group, is_durable=True) is None
    await states.persist(following)
    await states.persist(turn)
    states.close()
    (found,) = await stored(disk, files)
    assert found.ids == tuple(range(100))


async def test_files_go_with_their_conversation_and_tenant(
    files: StateFiles, tmp_path: Path
) -> None:
    folder = tmp_path / "m" / "v1"
    states = await stored(DiskStates(folder, MIB), files)
    for n in range(4):
        owner = states.owners.get(f"s{n}", f"t{n % 2}", f"conv{n}", True)
        states.add(state := durable(files, range(100 * n, 100 * n + 100), b"x" * 1000, owner))
        await states.persist(state)
    states.owners.delete("conv0", "s0", "t0")
    assert not states.delete_unneeded()
    assert len(list(folder.iterdir())) == 3
    states.owners.delete(None, None, "t1")
    assert not states.delete_unneeded()
    assert len(list(folder.iterdir())) == 1
    assert states.counts.disk_bytes == 1000
    states.close()


@pytest.mark.parametrize("secret", [None, b"secret"], ids=["plain", "encrypted"])
async def test_files_of_models_that_are_not_loaded_are_deleted(
    files: StateFiles, tmp_path: Path, secret: bytes | None
) -> None:
    for model in ("one", "two"):
        states = await stored(DiskStates(tmp_path / model / "v1", MIB, secret), files)
        for n in range(3):
            owner = states.owners.get("a cache key", f"t{n % 2}", f"resp{n}", True)
            states.add(state := durable(files, range(100 * n, 100 * n + 100), b"x" * 10, owner))
            await states.persist(state)
        states.close()
    assert state_owners(tmp_path, secret) == {("t0", "resp0"), ("t1", "resp1"), ("t0", "resp2")}
    for meant, left in (("resp0", 4), ("resp9", 4), ("resp1", 2)):
        delete_states(tmp_path, secret, lambda state, meant=meant: state.owner == meant)  # type: ignore[misc]
        assert len(list(tmp_path.rglob("*.state"))) == left
    delete_states(tmp_path, b"another secret", lambda state: False)
    assert not list(tmp_path.rglob("*.state"))


async def test_disk_has_a_budget(files: StateFiles, tmp_path: Path) -> None:
    folder = tmp_path / "m" / "v1"
    parts = [durable(files, range(100 * n, 100 * n + 100), b"x" * 1000) for n in range(8)]
    large = durable(files, range(5000, 6000), b"x" * 2000)
    states = await stored(DiskStates(folder, 5000), files, *parts, large)
    assert len(list(folder.iterdir())) == 5, "and the large one is not written"
    assert states.counts.disk_bytes == 5000
    states.close()


async def test_state_that_is_not_used_expires(files: StateFiles, tmp_path: Path) -> None:
    folder = tmp_path / "m" / "v1"
    states = await stored(
        DiskStates(folder, MIB, max_age_s=100), files, durable(files, range(100), b"x" * 1000)
    )
    (path,) = folder.iterdir()
    os.utime(path, (0, path.stat().st_mtime - 200))
    new = durable(files, range(500, 600), b"y" * 1000)
    states.add(new)
    await states.persist(new)
    assert not path.exists() and list(states) == [new]
    assert new.path is not None
    os.utime(new.path, (0, new.path.stat().st_mtime - 200))
    assert not tuple(await stored(DiskStates(folder, MIB, max_age_s=100), files))
    states.close()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-500] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip])
async def test_damaged_file_is_forgotten(
    files: StateFiles, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "m" / "v1"
    await stored(DiskStates(folder, MIB), files, durable(files, range(100), b"x" * 1000))
    (path,) = folder.iterdir()
    content = path.read_bytes()
    damage(path)
    (folder / "half.state.part").write_bytes(content[:-10])
    states = await stored(DiskStates(folder, MIB), files)
    (state,) = states
    assert await states.open(state) is None and not tuple(states)
    assert not list(folder.iterdir())


async def test_states_are_written_after_their_folder_was_deleted(
    files: StateFiles, tmp_path: Path
) -> None:
    folder = tmp_path / "m" / "v1"
    first, second = (durable(files, range(n, n + 100), b"x" * 1000) for n in (0, 200))
    states = await stored(DiskStates(folder, MIB), files, first)
    shutil.rmtree(tmp_path / "m")
    states.add(second)
    await states.persist(second)
    assert len(list(folder.iterdir())) == 1
    states.close()


async def test_unusable_folder_turns_the_disk_off(files: StateFiles, tmp_path: Path) -> None:
    (tmp_path / "v1").write_text("a file")
    states = await stored(DiskStates(tmp_path / "v1", MIB), files)
    states.add(state := durable(files, range(100), b"x" * 1000))
    await states.persist(state)
    assert state.path is None and states.find(range(100), state.group)[1] == 100
    states.close()


def test_files_are_created_after_their_folder_was_deleted(files: StateFiles) -> None:
    """Systems delete folders in /tmp that are old."""
    Path(files.prefix).rmdir()
    file = create(files)
    file.path.write_bytes(b"x" * 10)
    assert file.size == 10
    file.close()


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("trouble", ["descriptors", "memory", "disk", "file"])
async def test_no_request_fails_when_states_cannot_be_kept(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(folder=tmp_path / "prefixes", max_mb=50)
    options = LoadOptions(threads=1, context_size=2048, parallel=1, disk_cache=cache)
    ids = tuple(random.Random(6).choices(range(300, 700), k=900))
    prompts = (ids[:400], ids[400:], (*ids[:400], 300))

    def refuse(*given: object) -> int:
        raise OSError("there is no space")

    async def run() -> tuple[list[Outcome], list[Outcome]]:
        sampling = Sampling(max_tokens=8, temperature=0, ignore_eos=True, owner="resp_1")
        engine = await load(GGUF, options)
        try:
            first = [await collect(engine, Prompt(prompt), sampling) for prompt in prompts]
            cold = [
                await collect(engine, Prompt(each), replace(sampling, cache_scope=str(n)))
                for n, each in enumerate(prompts)
            ]
        finally:
            await engine.close()
        return first, cold

    await run()  # there are files now
    if trouble == "descriptors":
        monkeypatch.setattr(os, "memfd_create", refuse, raising=False)
    elif trouble == "memory":  # llama.cpp cannot write the state
        monkeypatch.setattr(os, "memfd_create", lambda name: os.open("/dev/full", os.O_RDWR))
    elif trouble == "disk":
        monkeypatch.setattr(DiskStates, "write", refuse)
    else:  # llama.cpp refuses such a state
        for path in tmp_path.rglob("*.state"):
            disk = DiskStates(path.parent, 0)
            state = disk.describe(path)
            assert state is not None
            (tmp_path / "other").write_bytes(b"x" * state.size)
            disk.write(state, tmp_path / "other").replace(path)
    first, cold = await run()
    assert [outcome.ids for outcome in first] == [outcome.ids for outcome in cold]


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_conversation_continues_after_a_restart(tmp_path: Path) -> None:
    """After the restart, at least 99 % of 2,000 tokens are cached, and greedy decoding gives the
    same text."""
    options = LoadOptions(
        threads=1,
        context_size=2048,
        parallel=1,
        disk_cache=DiskCache(folder=tmp_path / "cache", max_mb=500, secret=b"secret"),
    )
    sampling = Sampling(
        max_tokens=8, temperature=0, ignore_eos=True, session_key="chain", owner="resp"
    )
    engine = await load(GGUF, options)
    ids = tuple(random.Random(7).choices(range(300, 700), k=2000))
    others = asyncio.all_tasks()
    first = await collect(engine, Prompt(ids), sampling)
    following = (*ids, *first.ids, *ids[:20])
    while busy := asyncio.all_tasks() - others:  # the state is still being written
        await asyncio.wait(busy)
    copied = shutil.copytree(tmp_path / "cache", tmp_path / "as it was")
    expected = await collect(engine, Prompt(following), sampling)
    await engine.close()
    shutil.rmtree(tmp_path / "cache")
    copied.rename(tmp_path / "cache")

    again = await load(GGUF, options)
    try:
        outcome = await collect(again, Prompt(following), sampling)
        assert outcome.cached_tokens is not None
        assert outcome.cached_tokens >= 0.99 * len((*ids, *first.ids))
        assert outcome.ids == expected.ids
    finally:
        await again.close()
    other = await load(GGUF, replace(options, name="other"))
    try:
        assert (await collect(other, Prompt(following[:100]), sampling)).cached_tokens == 0
    finally:
        await other.close()


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
@LINUX
async def test_state_is_used_after_llama_was_killed_while_a_slot_got_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = child_processes()
    options = LoadOptions(threads=1, context_size=2048, parallel=1, prompt_cache_mb=64)
    inner = await load(GGUF, options)
    engine, post, killed = ContinuedEngine(inner), LlamaClient.post, list[int]()
    ids = tuple(random.Random(8).choices(range(300, 700), k=900))
    sampling = Sampling(max_tokens=20, temperature=0, ignore_eos=True)

    async def kill_first(self: LlamaClient, target: str, body: Any) -> Any:
        if "action=restore" in target and not killed:
            killed.extend(child_processes() - others)
            os.kill(killed[0], signal.SIGKILL)
        return await post(self, target, body)

    monkeypatch.setattr(LlamaClient, "post", kill_first)
    try:
        first = await collect(inner, Prompt(ids[:600]), sampling)
        following = Prompt((*ids[:600], *first.ids, *ids[600:620]))
        straight = await collect(inner, following, sampling)
        await collect(inner, Prompt(ids[700:]), sampling)  # it takes the only slot
        outcome = await collect(engine, following, sampling)
        assert len(killed) == 1 and outcome.ids == straight.ids
        assert (outcome.cached_tokens or 0) >= len(following.ids) - SLACK
    finally:
        await inner.close()


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("place", ["slot", "file"])
async def test_deleted_turn_leaves_the_turn_before(tmp_path: Path, place: str) -> None:
    """It is cached and on disk, and greedy decoding gives the same text."""
    cache = DiskCache(folder=tmp_path, max_mb=50)
    options = LoadOptions(threads=1, context_size=2048, parallel=1, disk_cache=cache)
    engine = await load(GGUF, options)
    sampling = Sampling(max_tokens=40, temperature=0, ignore_eos=True, session_key="s", tenant="t")
    ids = tuple(random.Random(5).choices(range(300, 700), k=900))
    others = asyncio.all_tasks()

    async def run(prompt: tuple[int, ...], owner: str | None, scope: str | None = None) -> Outcome:
        of_turn = replace(sampling, owner=owner, cache_scope=scope)
        outcome = await collect(engine, Prompt(prompt), of_turn)
        while busy := asyncio.all_tasks() - others:  # the state is still being written
            await asyncio.wait(busy)
        return outcome

    async def delete(owner: str) -> None:
        await engine.on_session(SessionSignal(event="deleted", key="s", tenant="t", owner=owner))
        while busy := asyncio.all_tasks() - others:
            await asyncio.wait(busy)

    def files() -> list[int]:
        found = (DiskStates(path.parent, 0).describe(path) for path in tmp_path.rglob("*.state"))
        return [len(state.unpack()) for state in found if state is not None]

    try:
        first = await run(ids[:500], "resp_1")
        prompt = (*ids[:500], *first.ids)
        await run((*prompt, *ids[500:700]), "resp_2")
        assert files() == [500 + 40 + 200 + 40]
        if place == "file":
            await run(ids[700:], None, "other")
        await delete("resp_2")
        assert files() == [len(prompt)]
        again = await run((*prompt, *ids[700:]), None)
        assert (again.cached_tokens or 0) >= len(prompt) - SLACK
        assert again.ids == (await run((*prompt, *ids[700:]), None, "cold")).ids
        await delete("resp_1")
        assert not files()
        assert (await run((*prompt, *ids[700:]), None)).cached_tokens == 0
    finally:
        await engine.close()


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_model_with_sliding_windows_continues_where_its_thinking_is_dropped() -> None:
    """gpt-oss: such a state cannot be cut at any place. llama.cpp keeps a checkpoint at the end of
    each prompt, i.e. after the last user message, also in the files of states."""
    engine = await load(
        tiny_gpt_oss(), LoadOptions(threads=1, context_size=2048, parallel=1, prompt_cache_mb=64)
    )
    sampling = Sampling(max_tokens=60, temperature=0, ignore_eos=True)
    ids = tuple(random.Random(1).choices(range(300, 1000), k=900))
    try:
        prompt, before = ids[:600], 0
        for turn in range(3):
            outcome = await collect(engine, Prompt(prompt), sampling)
            if turn:
                assert outcome.cached_tokens is not None
                assert outcome.cached_tokens >= before - MIN_SHARED
            before = len(prompt)
            answer = outcome.ids[40:]
            prompt = (*prompt, *answer, *ids[600 + 30 * turn : 630 + 30 * turn])
            await ask(engine, ids[:50:-1])  # it takes the only slot
    finally:
        await engine.close()


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_model_with_sliding_windows_continues_a_tool_call_after_another_prompt() -> None:
    """The next prompt contains the whole last output, which a copied state has, too."""
    engine = await load(
        tiny_gpt_oss(), LoadOptions(threads=1, context_size=2048, parallel=1, prompt_cache_mb=64)
    )
    sampling = Sampling(max_tokens=100, temperature=0, ignore_eos=True)
    ids = tuple(random.Random(4).choices(range(300, 1000), k=900))
    try:
        first = await collect(engine, Prompt(ids[:500]), sampling)
        following = (*ids[:500], *first.ids, *ids[500:600])
        await ask(engine, ids[:600:-1])  # it takes the only slot
        second = await collect(engine, Prompt(following), sampling)
        assert (second.cached_tokens or 0) >= 500 + 100 - SLACK
        cold = await collect(engine, Prompt(following), replace(sampling, cache_scope="cold"))
        assert second.ids == cold.ids
    finally:
        await engine.close()


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_model_with_sliding_windows_keeps_the_head_of_a_conversation() -> None:
    """The next conversation and an edit of the first message find it, although the first message
    and its answer are longer than the window."""
    engine = await load(
        tiny_gpt_oss(),
        LoadOptions(threads=1, context_size=2048, parallel=2, prompt_cache_mb=64),
        batch=64,
    )
    sampling = Sampling(max_tokens=40, temperature=0, ignore_eos=True)
    ids = tuple(random.Random(2).choices(range(300, 1000), k=1800))
    head, computed = ids[:300], []
    assert engine.capabilities.uses_heads
    try:
        for start in (300, 800, 1300):
            prompt = Prompt((*head, *ids[start : start + 500]), head=len(head))
            outcome = await collect(engine, prompt, sampling)
            cold = await collect(engine, prompt, replace(sampling, cache_scope=str(start)))
            assert outcome.ids == cold.ids
            computed.append(len(prompt.ids) - (outcome.cached_tokens or 0))
        assert computed[0] == 800 and max(computed[1:]) <= 500 + MIN_SHARED
    finally:
        await engine.close()


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("thinking", [0, 60], ids=["whole output", "thinking dropped"])
async def test_model_with_sliding_windows_keeps_the_answer_before_an_edit(thinking: int) -> None:
    """The answer is longer than the window, and the earlier turn has displaced its state."""
    options = LoadOptions(threads=1, context_size=2048, parallel=1, prompt_cache_mb=64)
    engine = await load(tiny_gpt_oss(), options, batch=64)
    sampling = Sampling(max_tokens=300, temperature=0, ignore_eos=True)
    ids = tuple(random.Random(7).choices(range(300, 1000), k=900))

    async def run(prompt: tuple[int, ...], past: int, scope: str | None = None) -> Outcome:
        of_scope = replace(sampling, cache_scope=scope, max_tokens=300 if scope is None else 8)
        return await collect(engine, Prompt(prompt, head=100, past=past), of_scope)

    try:
        first = await run(ids[:200], 100)
        past = (*ids[:200], *first.ids[thinking:])
        await run((*past, *ids[200:300]), len(past))
        for start in (300, 400):
            prompt = (*past, *ids[start : start + 100])
            edited = await run(prompt, len(past))
            assert (edited.cached_tokens or 0) >= len(past) - MIN_WAIT
            cold = await run(prompt, len(past), str(start))
            assert edited.ids[:8] == cold.ids
            assert cold.cached_tokens == 0
    finally:
        await engine.close()


@pytest.mark.e2e
@pytest.mark.asyncio(loop_scope="session")
async def test_model_with_sliding_windows_keeps_a_head_that_shares_most_of_another_one() -> None:
    """Two heads differ at their end, and the first one has no checkpoint near it."""
    options = LoadOptions(threads=1, context_size=2048, parallel=1, prompt_cache_mb=64)
    engine = await load(tiny_gpt_oss(), options, batch=64)
    sampling = Sampling(max_tokens=150, temperature=0, ignore_eos=True)
    ids = tuple(random.Random(4).choices(range(300, 1000), k=1200))
    try:
        await collect(engine, Prompt(ids[:500], head=500), sampling)
        head = (*ids[:460], *ids[600:630])
        await collect(engine, Prompt((*head, *ids[700:900]), head=len(head)), sampling)
        edited = Prompt((*head, *ids[900:1100]), head=len(head))
        assert ((await collect(engine, edited, sampling)).cached_tokens or 0) >= len(head) - SLACK
    finally:
        await engine.close()
