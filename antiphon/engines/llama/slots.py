"""Assign generations to llama.cpp's slots. A slot runs one generation at a time and keeps the state
(KV cache) of the last generation.

A prompt continues the state with which it shares the longest prefix: the state in a slot, or a kept
state. If another conversation may still need the state in the slot, the state is kept first.
Generations wait for a free slot here and not in llama.cpp, because here waiting can be cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from antiphon.inference.tokens import common_prefix_length
from antiphon.support.fair_limiter import FairLimiter
from antiphon.support.tasks import running

from .kept_states import NO_GROUP, KeptState, KeptStates, StateGroup
from .prefills import Prefill
from .state_files import StateFile
from .state_owners import NO_OWNER, StateClaim, StateClaims, StateOwner, merge_claims, needed

#: Copying a state costs as much as computing this number of ids, or less, and in addition this
#: fraction of its own ids. Measured on a CPU with a model of 135 million parameters: a copy takes
#: 4.9 ms and 0.025 ms for each id, and computing takes 4.9 ms for each id. So a state is copied, or
#: kept, if this costs less than what would be computed again.
MIN_SHARED, COPY_COST = 16, 128
#: A prompt that shares at least this fraction of a state's ids continues it, too.
CONTINUATION_RATIO = 0.9
#: A prompt waits for another one only if this spares it at least this number of ids.
MIN_WAIT = 64
#: Before a generation gives way to another tenant, it computes as many ids as this number of copies
#: of its state costs at most. It is copied twice: when it is paused, and when it continues.
TURN_COPIES = 4

#: The most times that a prompt waits for another one that is being computed.
MAX_WAITS = 8
#: The most kept states that are tried for a prompt if they cannot be restored.
MAX_RESTORES = 3

_T = TypeVar("_T")


class StateCopier(Protocol):
    """Copies states between llama.cpp's slots and files."""

    async def save(self, slot: int, ids: Sequence[int], adapter: str | None) -> StateFile | None:
        """Copy the state of an idle slot to a new file. ``ids``: its ids. ``adapter``: its LoRA
        adapter. Returns None if this fails."""

    async def restore(
        self, slot: int, file: StateFile, adapter: str | None, changes_adapter: bool
    ) -> bool | None:
        """Copy a file to an idle slot. ``adapter``: the LoRA adapter of the state.
        ``changes_adapter``: whether the slot may last have used another adapter. Returns False if
        the file is unusable, and None if llama.cpp has ended."""

    async def cut(self, slot: int, ids: Sequence[int], adapter: str | None) -> bool:
        """Remove all but these first ids from the state of an idle slot; all if there are none.
        Returns False if this fails."""


class Slot(Struct, frozen=True):
    """A slot that one generation holds.

    ``number``: the slot's number in llama.cpp. ``is_reusable``: whether the generation may reuse
    the state in the slot. This is allowed only if the state is of the same group. ``owner``: whose
    generation it is.
    """

    number: int
    is_reusable: bool
    group: StateGroup
    owner: StateOwner


class _Contents(NamedTuple):
    """The state in a slot. ``group``: None if it is unknown, so that nobody may use the state.
    ``claims``: of its owners. ``is_score``: see ``Slots.release``."""

    group: StateGroup | None
    ids: Sequence[int] = ()
    claims: StateClaims = ()
    is_score: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether the owner of the whole state is not deleted."""
        return needed(self.claims) == len(self.ids)


class _Ending(NamedTuple):
    """A slot that will be free soon, because its generation is ending or its state is being copied.
    ``contents``: what it will contain, or what will be kept of it."""

    contents: _Contents
    released: asyncio.Event


class Slots:
    """The slots of one llama.cpp server. ``states``, ``copier``: the kept states, and what copies
    them; None to keep none.

    A prompt gets the slot, or the kept state, with which it shares the longest prefix. A kept state
    is copied to the slot that has been idle longest. If a prompt continues only a part of a slot's
    state, the state is kept first, or the prompt continues in a copy in an empty slot.

    A prompt can arrive while the generation that it continues is still ending. If the engine has
    announced this with ``expect_release``, the prompt waits for that slot.

    Prompts with the same head can arrive together. Then the first one computes the head, and the
    others wait for its state. For this, the engine asks for ``wanted`` until the prompt is computed
    (``end_prefill``), interrupts the generation if it is not None, and calls ``share``.
    """

    def __init__(
        self, count: int, states: KeptStates | None = None, copier: StateCopier | None = None
    ) -> None:
        self._free = FairLimiter(count)
        self.states = states or KeptStates(0)
        self._copier = copier
        #: The free slots; idle longest first.
        self._idle: dict[int, None] = dict.fromkeys(range(count))
        self._contents = [_Contents(NO_GROUP) for _ in range(count)]
        #: Slot → the adapter that it last used; None if it is unknown.
        self._adapters: list[str | None] = [""] * count
        #: Slot → why it will be free soon.
        self._ending: dict[int, _Ending] = {}
        #: Slot → the prompt that is being computed in it.
        self._prefills: dict[int, Prefill] = {}

    async def acquire(
        self,
        prompt: Sequence[int],
        group: StateGroup = NO_GROUP,
        owner: StateOwner = NO_OWNER,
        head: int = 0,
        past: int = 0,
        *,
        is_paused: bool = False,
    ) -> Slot:
        """Wait for a slot for ``prompt``, prepare it and return it. The caller must pass it to
        ``release``.

        ``group``: only states of this group are used. ``owner``: whose prompt it is. ``head``:
        number of first ids whose state later prompts will want; ``wanted`` asks for them if they
        are not computed. ``past``: number of first ids after which an edit will differ; ``wanted``
        asks for them, too, so that llama.cpp can continue there. Waiting tenants take turns. The
        prompts of one tenant are served in order, but first those that continue a paused generation
        (``is_paused``).
        """
        await self._free.acquire(owner.tenant, priority=-is_paused)
        waited: list[Prefill] = []
        try:
            while (waiting := self._reason_to_wait(prompt, group, waited)) is not None:
                await waiting.wait()
            number = await self._prepare(prompt, group)
        except BaseException:
            self._free.release(owner.tenant)
            raise
        contents = self._contents[number]
        prefill = self._prefills[number] = Prefill(prompt, group)
        shared = _shared(contents, prompt, group)
        if shared < head - MIN_WAIT:
            prefill.want(head)
        # The shared part may have no checkpoint near its end, so the last one may be far before it.
        prefill.checkpoints.update(n for n in (head, past) if n >= max(shared, MIN_WAIT))
        return Slot(number, contents.group == group, group, owner)

    def gives_way(self, slot: Slot, size: int, computed: int) -> bool:
        """Return whether the slot's generation shall be paused, because a tenant waits that runs
        fewer generations. ``size``: number of ids in the slot. ``computed``: how many of them were
        computed since the slot was acquired.

        So a tenant waits for one turn of each tenant before it, not for whole generations. If the
        state cannot be kept, it will be computed again, so a turn is at least half as long.
        """
        if not self._free.gives_way(slot.owner.tenant) or self._ending:
            return False
        is_kept = self._copier is not None and self.states.fits(size)
        return computed >= max(TURN_COPIES * _copy_cost(size), 0 if is_kept else size / 2)

    def wanted(self, slot: Slot) -> int | None:
        """Return how many first ids of the slot's prompt must be computed first, because another
        prompt waits for their state or later prompts will want it; None if there are none."""
        prefill = self._prefills.get(slot.number)
        return None if prefill is None else prefill.wanted

    async def share(self, slot: Slot, computed: int) -> None:
        """Keep the state of a slot whose generation is interrupted, for the prompts that wait for
        it, if any. ``computed``: how many ids of its prompt are computed."""
        prefill = self._prefills[slot.number]
        if not prefill.is_awaited(computed):
            prefill.settle(computed)
            return
        ids = prefill.ids[:computed]
        contents = _Contents(slot.group, ids, (StateClaim(slot.owner, len(ids)),))
        await self._keep_contents(slot.number, contents)
        if self.states.covering(contents.ids, slot.group):
            prefill.settle(computed)
        else:
            self.end_prefill(slot)

    def end_prefill(self, slot: Slot) -> None:
        """Let no prompt wait for the slot's prompt, because it is computed or cannot be shared."""
        if (prefill := self._prefills.pop(slot.number, None)) is not None:
            prefill.settle()

    def expect_release(self, slot: Slot, ids: Sequence[int]) -> None:
        """Announce that the slot's generation is ending and that ``release`` follows soon. ``ids``:
        the ids computed in the slot."""
        ending = _Ending(_Contents(slot.group, ids), asyncio.Event())
        self._ending.setdefault(slot.number, ending)

    def release(
        self,
        slot: Slot,
        ids: Sequence[int],
        *,
        is_started: bool = True,
        is_score: bool = False,
    ) -> None:
        """Free the slot.

        ``ids``: the ids computed in the slot. ``is_started``: whether the generation has replaced
        the slot's earlier state. If not, the slot still contains the earlier state, as far as is
        known. If this state is of another group, nobody uses it any more. ``is_score``: whether no
        prompt will continue the last ids, so that most of a state is as good as the whole.
        """
        if is_started:
            claims: StateClaims = (StateClaim(slot.owner, len(ids)),)
            before = self._contents[slot.number]
            if before.group == slot.group:
                shared = common_prefix_length(before.ids, ids)
                claims = merge_claims(claims, before.claims, shared)
            self._contents[slot.number] = _Contents(slot.group, ids, claims, is_score)
        elif not slot.is_reusable:
            self._contents[slot.number] = _Contents(None)
        self.end_prefill(slot)
        self._adapters[slot.number] = _adapter_name(slot.group) if is_started else None
        self._offer(slot.number)
        if (ending := self._ending.pop(slot.number, None)) is not None:
            ending.released.set()
        self._free.release(slot.owner.tenant)

    async def keep(self, slot: Slot) -> KeptState | None:
        """Keep the state of a released slot, if the slot is still free. Returns the kept state, or
        None if it is not kept."""
        if (ending := self._ending.get(slot.number)) is not None:  # it is being copied
            await ending.released.wait()
        contents = self._contents[slot.number]
        if slot.number not in self._idle or contents.group != slot.group:
            return None
        with self._copying(slot.number):
            await self._keep(slot.number)
        is_durable = slot.owner.is_durable
        return self.states.covering(contents.ids, slot.group, is_durable=is_durable)

    def forget(self) -> None:
        """Forget the states in all slots, because llama.cpp has been started again."""
        self._contents = [_Contents(NO_GROUP) for _ in self._contents]
        self._adapters = [""] * len(self._contents)

    async def delete_unneeded(self) -> list[Slot]:
        """Delete the states whose owners were deleted. If a living owner needs the beginning of a
        state, the state is cut, in a slot. Returns these slots."""
        found: list[Slot | None] = []
        states = self.states.delete_unneeded()
        try:
            with ExitStack() as stack:
                taken = [each for each in self._idle if not self._contents[each].is_needed]
                for number in taken:
                    stack.enter_context(self._copying(number))
                found += [await self._cut(number) for number in taken]
            for state in states:
                _, known = self._best_idle(state.ids, state.group)
                if known < len(state.ids) and self._idle:
                    number = self._least_useful(state.group)
                    if await self._restore(state, number):
                        with self._copying(number):
                            found.append(await self._cut(number))
        finally:
            for state in states:
                self.states.remove(state)
        return [slot for slot in found if slot is not None]

    # --- choosing --------------------------------------------------------------------------------

    def _reason_to_wait(
        self, prompt: Sequence[int], group: StateGroup, waited: list[Prefill]
    ) -> asyncio.Event | None:
        """Return an event that the prompt must wait for before a slot is chosen for it; None if it
        need not wait. ``waited``: the prompts for which it has waited."""
        if (ending := self._find_ending(prompt, group)) is not None:
            return ending.released
        if not self._idle:  # a slot that no generation holds is being copied
            return next(iter(self._ending.values())).released
        if (prefill := self._find_prefill(prompt, group, waited)) is not None:
            waited.append(prefill)
            return prefill.want(common_prefix_length(prefill.ids, prompt))
        return None

    def _find_ending(self, prompt: Sequence[int], group: StateGroup) -> _Ending | None:
        """Return the slot that will be free soon and that the prompt continues better than any free
        slot."""
        best = None
        longest = self._best_idle(prompt, group)[1]
        for ending in self._ending.values():
            shared = _shared(ending.contents, prompt, group)
            if shared > longest:
                best, longest = ending, shared
        return best

    def _find_prefill(
        self, prompt: Sequence[int], group: StateGroup, waited: Sequence[Prefill]
    ) -> Prefill | None:
        """Return the prompt that is being computed and whose state is worth waiting for: it shares
        a longer prefix than any state. ``waited``: those for which this prompt has waited."""
        prefills = [
            each for each in self._prefills.values() if each.group == group and each not in waited
        ]
        if not prefills or len(waited) == MAX_WAITS:
            return None
        known = (self._best_idle(prompt, group)[1], self.states.find(prompt, group)[1])
        best, longest = None, max(known) + MIN_WAIT - 1
        for prefill in prefills:
            shared = common_prefix_length(prefill.ids, prompt)
            if shared > longest and self.states.fits(shared):
                best, longest = prefill, shared
        return best

    def _best_idle(self, prompt: Sequence[int], group: StateGroup) -> tuple[int | None, int]:
        """Return the idle slot that shares the longest prefix with the prompt, and the length of
        the prefix; None and 0 if no slot shares enough."""
        best, longest = None, 0
        for number in self._idle:
            shared = _shared(self._contents[number], prompt, group)
            if shared > longest:
                best, longest = number, shared
        return best, longest

    async def _prepare(self, prompt: Sequence[int], group: StateGroup) -> int:
        """Choose an idle slot for the prompt, take it and copy states as needed."""
        chosen = await self._find_restored(prompt, group)
        if chosen is None:
            number, in_slot = self._best_idle(prompt, group)
            if number is not None:
                chosen = await self._fork(number, in_slot)
        self.states.count(is_hit=chosen is not None)
        if chosen is None:
            chosen = self._least_useful(group)
            with self._copying(chosen):
                await self._keep(chosen)
        del self._idle[chosen]
        return chosen

    async def _find_restored(self, prompt: Sequence[int], group: StateGroup) -> int | None:
        """If a kept state shares more with the prompt than any slot does, copy it to an idle slot
        and return the slot. If it cannot be copied, try the next best one."""
        for _ in range(MAX_RESTORES):
            state, shared = self.states.find(prompt, group)
            _, in_slot = self._best_idle(prompt, group)
            if state is None or not in_slot < shared >= _copy_cost(len(state.ids)):
                return None
            number = self._least_useful(group)
            if await self._restore(state, number):
                return number
            if state in self.states:  # another one would fail, too
                return None
        return None

    @contextmanager
    def _copying(self, number: int) -> Iterator[None]:
        """Take an idle slot while its state is copied. Prompts that continue the state wait."""
        del self._idle[number]
        ending = self._ending[number] = _Ending(self._contents[number], asyncio.Event())
        try:
            yield
        finally:
            del self._ending[number]
            self._offer(number)
            ending.released.set()

    def _offer(self, number: int) -> None:
        """Let prompts use a slot. If the owner of its state was deleted meanwhile, nobody uses the
        state."""
        if not self._contents[number].is_needed:
            self._contents[number] = _Contents(None)
        self._idle[number] = None

    def _least_useful(self, group: StateGroup) -> int:
        """Return the idle slot to overwrite: an empty one, or else the one that has been idle
        longest. Among empty slots, one that last used the same adapter is preferred."""
        empty = [number for number in self._idle if not self._contents[number].ids]
        same = [each for each in empty if self._adapters[each] == _adapter_name(group)]
        return next(iter((*same, *empty, *self._idle)))

    async def _fork(self, number: int, shared: int) -> int:
        """Return an idle slot whose state has the first ``shared`` ids of a slot. It is this slot
        itself if the rest of its state is not worth a copy or is kept. Otherwise the slot is
        copied."""
        contents = self._contents[number]
        if (len(contents.ids) - shared) * COPY_COST <= len(contents.ids):
            return number
        with self._copying(number):
            state = await self._keep(number)
        target = self._least_useful(contents.group or NO_GROUP)
        if state is None or self._contents[target].ids:
            return number
        is_restored = await self._restore(state, target)
        return number if not is_restored and number in self._idle else target

    async def _restore(self, state: KeptState, number: int) -> bool:
        """Copy a kept state to an idle slot, whose own state is kept first. Return whether this has
        succeeded. If the file is unusable, the state is deleted. If no file can be created, the
        slot is as before, and otherwise empty."""
        group, changes = state.group, self._adapters[number] != _adapter_name(state.group)
        contents = _Contents(group, state.ids, state.claims)
        assert self._copier is not None
        with self._copying(number), self.states.using(state):
            file = await _uncancelled(self.states.open(state))
            if file is None:
                return False
            await self._keep(number)
            self._contents[number] = _Contents(None)
            restoring = self._copier.restore(number, file, group.adapter, changes)
            if not (is_restored := await _uncancelled(restoring)):
                if is_restored is not None:
                    self.states.remove(state)
                return False
            self._contents[number] = contents
            self._adapters[number] = _adapter_name(group)
        return True

    async def _cut(self, number: int) -> Slot | None:
        """Cut the state of a slot that is being copied to the ids that a living owner needs.
        Returns the slot if it still contains any."""
        group, ids, claims, _ = self._contents[number]
        length = needed(claims)
        length = length if length >= MIN_SHARED else 0
        if group is None or self._copier is None:
            return None
        self._contents[number] = _Contents(None)
        if not await _uncancelled(self._copier.cut(number, ids[:length], group.adapter)):
            return None
        claims = merge_claims((), claims, length)
        self._contents[number] = _Contents(group, ids[:length], claims)
        return Slot(number, True, group, claims[0].owner) if length and claims else None

    async def _keep(self, number: int) -> KeptState | None:
        """Keep the state of a slot that no generation holds, unless the state is short, is kept
        already, or does not fit. Returns the state if it is kept now."""
        return await self._keep_contents(number, self._contents[number])

    async def _keep_contents(self, number: int, contents: _Contents) -> KeptState | None:
        group, ids, claims, is_score = contents
        states, copier = self.states, self._copier
        if group is None or copier is None or len(ids) < MIN_SHARED or not states.fits(len(ids)):
            return None
        if other := states.covering(ids, group, is_durable=claims[0].owner.is_durable):
            shared = common_prefix_length(other.ids, ids)
            other.claims = merge_claims(other.claims, claims, shared)
            return None
        enough = min(len(ids) - MIN_WAIT, CONTINUATION_RATIO * len(ids))
        if is_score and states.find(ids, group)[1] >= max(enough, MIN_SHARED):
            return None
        file = await _uncancelled(copier.save(number, ids, group.adapter))
        if file is None:
            return None
        state = KeptState(group, ids, file, file.size, claims)
        return state if states.add(state) else None


def _adapter_name(group: StateGroup) -> str:
    return group.adapter or ""


async def _uncancelled(copying: Coroutine[Any, Any, _T]) -> _T:
    """Await a copy. If this task is cancelled, the copy ends first, because nobody may use the slot
    meanwhile."""
    async with running(copying) as task:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task])
            raise


def _shared(contents: _Contents, prompt: Sequence[int], group: StateGroup) -> int:
    """Return how many ids a prompt shares with a state of a slot; 0 if they are too few."""
    if contents.group != group:
        return 0
    common = common_prefix_length(contents.ids, prompt)
    enough = min(_copy_cost(len(contents.ids)), CONTINUATION_RATIO * len(contents.ids))
    return common if common >= enough else 0


def _copy_cost(size: int) -> float:
    """Return how many ids a prompt must share with a state so that a copy of it is worthwhile.
    ``size``: number of ids of the state."""
    return MIN_SHARED + size / COPY_COST
