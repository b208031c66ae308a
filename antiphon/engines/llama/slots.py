"""Which of an engine's places a generation gets, so that conversations keep what was computed.

Waiting for a place happens here, where it can be cancelled. It knows ids and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from antiphon.tokens import common_prefix_length

__all__ = ["Slots"]

#: A conversation's next turn repeats its last one, but for some tokens at the end that a chat
#: template writes differently.
CONTINUATION_RATIO = 0.9


class Slots:
    """Numbered places. Each remembers the ids computed in it last.

    A prompt that continues what is in a free place gets that place; any other gets the one that
    has lain idle longest. llama.cpp by itself takes the place that has most of the prompt, and so
    lets conversations that begin alike overwrite each other in one place.
    """

    def __init__(self, count: int) -> None:
        self._free = asyncio.Semaphore(count)
        #: Free places and what is in them, idle longest first.
        self._idle: dict[int, Sequence[int]] = dict.fromkeys(range(count), ())

    async def acquire(self, prompt: Sequence[int]) -> int:
        """A place for ``prompt``, in the order of asking. To be given back."""
        await self._free.acquire()
        slot = self._choose(prompt)
        del self._idle[slot]
        return slot

    def release(self, slot: int, ids: Sequence[int]) -> None:
        """``ids`` are what was computed in it."""
        self._idle[slot] = ids
        self._free.release()

    def _choose(self, prompt: Sequence[int]) -> int:
        best, longest = next(iter(self._idle)), 0
        for slot, ids in self._idle.items():
            common = common_prefix_length(ids, prompt)
            if common > longest and common >= CONTINUATION_RATIO * len(ids):
                best, longest = slot, common
        return best
