"""Assign generations to llama.cpp's slots so that conversations reuse their cached states.

Waiting for a slot happens here, where it can be cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from antiphon.tokens import common_prefix_length

__all__ = ["Slots"]

#: Fraction of a slot's ids that a prompt must share to continue it. The next turn of a conversation
#: repeats the last one except for some tokens at its end that the chat template renders
#: differently.
CONTINUATION_RATIO = 0.9


class Slots:
    """Numbered slots. Each remembers the ids computed in it last.

    A prompt that continues a free slot's ids gets that slot; any other prompt gets the slot that
    has been idle longest. llama.cpp itself picks the slot with the longest common prefix, so
    conversations with the same beginning would overwrite each other in one slot.
    """

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        #: Free slot → ids computed in it; idle longest first.
        self._idle: dict[int, Sequence[int]] = dict.fromkeys(range(count), ())

    async def acquire(self, prompt: Sequence[int]) -> int:
        """Wait in FIFO order and return a slot for ``prompt``. Pass it to ``release``."""
        await self._free.acquire()
        slot = self._choose(prompt)
        del self._idle[slot]
        return slot

    def release(self, slot: int, ids: Sequence[int]) -> None:
        """Free the slot. ``ids``: the ids computed in it."""
        self._idle[slot] = ids
        self._free.release()

    def _choose(self, prompt: Sequence[int]) -> int:
        best, longest = next(iter(self._idle)), 0
        for slot, ids in self._idle.items():
            common = common_prefix_length(ids, prompt)
            if common > longest and common >= CONTINUATION_RATIO * len(ids):
                best, longest = slot, common
        return best
