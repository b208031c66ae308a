"""Assign generations to llama.cpp's slots so that conversations reuse their cached states.

Waiting for a slot happens here, where it can be cancelled.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from antiphon.limits.fair_limiter import FairLimiter
from antiphon.tokens import common_prefix_length

__all__ = ["Slot", "Slots"]

#: Fraction of a slot's ids that a prompt must share to continue it. The next turn of a conversation
#: repeats the last one except for some tokens at its end that the chat template renders
#: differently.
CONTINUATION_RATIO = 0.9


#: Equals no scope.
_FOREIGN = object()


class Slot(Struct, frozen=True):
    """An acquired slot. ``is_reusable``: the state in the slot belongs to the same scope.
    ``tenant``: the tenant that holds the slot."""

    number: int
    is_reusable: bool
    tenant: str = ""


class Slots:
    """Numbered slots. Each slot remembers the ids that were computed in it last.

    If a prompt continues the ids of a free slot, it gets that slot. Any other prompt gets the slot
    that has been idle longest. llama.cpp itself picks the slot with the longest common prefix, so
    conversations with the same beginning would overwrite each other in one slot.

    A prompt of one scope never continues the ids of another scope.
    """

    def __init__(self, count: int) -> None:
        self._free = FairLimiter(count)
        #: Free slot → ids computed in it; idle longest first.
        self._idle: dict[int, Sequence[int]] = dict.fromkeys(range(count), ())
        #: Slot → scope of its last generation.
        self._scopes: dict[int, object] = {}

    async def acquire(
        self, prompt: Sequence[int], scope: str | None = None, *, tenant: str = ""
    ) -> Slot:
        """Wait for a slot for ``prompt`` and return it. The caller must pass it to ``release``.

        Waiting tenants take turns. The prompts of one tenant are served in order.
        """
        await self._free.acquire(tenant)
        number = self._choose(prompt, scope)
        del self._idle[number]
        is_reusable = self._scopes.get(number, scope) == scope
        self._scopes[number] = scope
        return Slot(number, is_reusable, tenant)

    def release(self, slot: Slot, ids: Sequence[int], *, is_started: bool = True) -> None:
        """Free the slot.

        ``ids``: the ids computed in the slot. ``is_started``: whether the generation replaced the
        slot's former state. If not, the slot may still contain the state of another scope.
        """
        if not (is_started or slot.is_reusable):
            self._scopes[slot.number] = _FOREIGN
            ids = ()
        self._idle[slot.number] = ids
        self._free.release(slot.tenant)

    def _choose(self, prompt: Sequence[int], scope: str | None) -> int:
        best, longest = next(iter(self._idle)), 0
        for slot, ids in self._idle.items():
            if self._scopes.get(slot, scope) != scope:
                continue
            common = common_prefix_length(ids, prompt)
            if common > longest and common >= CONTINUATION_RATIO * len(ids):
                best, longest = slot, common
        return best
