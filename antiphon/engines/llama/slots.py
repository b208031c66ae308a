"""Assign generations to llama.cpp's slots. A slot runs one generation at a time and keeps the state
(KV cache) of the last generation.

The next turn of a conversation gets the slot that has the conversation's state. Generations wait
for a free slot here and not in llama.cpp, because here waiting can be cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from msgspec import Struct

from antiphon.inference.tokens import common_prefix_length
from antiphon.support.fair_limiter import FairLimiter

__all__ = ["Slot", "Slots"]

#: A prompt continues a slot if it shares at least this fraction of the slot's ids, or at least this
#: number of ids. Fewer shared ids are not worth the state that the slot would lose: they are cheap
#: to compute again.
CONTINUATION_RATIO, MIN_SHARED = 0.9, 64


#: Marks a slot whose state belongs to an unknown scope. It equals no scope.
_FOREIGN = object()


class Slot(Struct, frozen=True):
    """A slot that one generation holds.

    ``number``: the slot's number in llama.cpp. ``is_reusable``: whether the generation may reuse
    the state in the slot. This is allowed only if the state is from the same scope (see ``Slots``).
    ``tenant``: the tenant of the generation.
    """

    number: int
    is_reusable: bool
    tenant: str = ""


class _Ending(NamedTuple):
    """A slot that will be free soon. ``ids``: the ids computed in it."""

    ids: Sequence[int]
    released: asyncio.Event


class Slots:
    """The slots of one llama.cpp server. Each slot remembers the ids of its last generation.

    A prompt gets the free slot with which it shares the longest prefix. If the prefix is shorter
    than ``MIN_SHARED`` ids, and shorter than the share ``CONTINUATION_RATIO`` of the slot's ids,
    the prompt gets the slot that has been idle longest. So a common BOS token does not overwrite a
    conversation.

    A prompt can arrive while the generation that it continues is still ending. If the engine has
    announced this with ``expect_release``, the prompt waits for that slot.

    A scope is a group of requests that may share cached states, such as the requests of one tenant.
    A prompt never continues the ids of a slot whose last generation had another scope.
    """

    def __init__(self, count: int) -> None:
        self._free = FairLimiter(count)
        #: Free slot → ids computed in it; idle longest first.
        self._idle: dict[int, Sequence[int]] = dict.fromkeys(range(count), ())
        self._ending: dict[int, _Ending] = {}
        #: Slot → scope of its last generation.
        self._scopes: dict[int, object] = {}

    async def acquire(
        self, prompt: Sequence[int], scope: str | None = None, *, tenant: str = ""
    ) -> Slot:
        """Wait for a slot for ``prompt`` and return the slot. The caller must pass it to
        ``release``.

        ``scope``: the scope of the request (see ``Slots``). Waiting tenants take turns. The prompts
        of one tenant are served in order.
        """
        await self._free.acquire(tenant)
        try:
            while (ending := self._ending.get(number := self._choose(prompt, scope))) is not None:
                await ending.released.wait()
        except asyncio.CancelledError:
            self._free.release(tenant)
            raise
        del self._idle[number]
        is_reusable = self._scopes.get(number, scope) == scope
        self._scopes[number] = scope
        return Slot(number, is_reusable, tenant)

    def expect_release(self, slot: Slot, ids: Sequence[int]) -> None:
        """Announce that the slot's generation is ending and that ``release`` follows soon. ``ids``:
        the ids computed in the slot."""
        self._ending[slot.number] = _Ending(ids, asyncio.Event())

    def release(self, slot: Slot, ids: Sequence[int], *, is_started: bool = True) -> None:
        """Free the slot.

        ``ids``: the ids computed in the slot. ``is_started``: whether the generation has replaced
        the slot's earlier state.

        If the generation has not started, the slot still contains the earlier state. If this state
        is from another scope (see ``Slots``), later generations must not reuse it, so the slot
        forgets its ids.
        """
        if not (is_started or slot.is_reusable):
            self._scopes[slot.number] = _FOREIGN
            ids = ()
        self._idle[slot.number] = ids
        if (ending := self._ending.pop(slot.number, None)) is not None:
            ending.released.set()
        self._free.release(slot.tenant)

    def forget(self) -> None:
        """Forget the states in all slots, because llama.cpp has been started again."""
        self._idle = dict.fromkeys(self._idle, ())

    def _choose(self, prompt: Sequence[int], scope: str | None) -> int:
        """Return the best slot for the prompt. It is idle, or its generation is ending."""
        best, longest = next(iter(self._idle)), 0
        ending = ((slot, each.ids) for slot, each in self._ending.items())
        for slot, ids in chain(self._idle.items(), ending):
            if self._scopes.get(slot, scope) != scope:
                continue
            common = common_prefix_length(ids, prompt)
            if common > longest and common >= min(MIN_SHARED, CONTINUATION_RATIO * len(ids)):
                best, longest = slot, common
        return best
