"""Prompts that are being computed, and the other prompts that wait for their first ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from .kept_states import StateGroup


class Prefill:
    """A prompt that is being computed in a slot. Other prompts can wait for the state of its first
    ids, so that these are computed only once. ``group``: the group of the state."""

    def __init__(self, ids: Sequence[int], group: StateGroup) -> None:
        self.ids, self.group = ids, group
        #: Number of first ids → set when their state is kept, or when it will not be kept.
        self._wanted: dict[int, asyncio.Event] = {}
        #: Numbers of first ids after which llama.cpp shall make a checkpoint. So these ids are
        #: computed as a prompt of their own.
        self.checkpoints: set[int] = set()

    def want(self, count: int) -> asyncio.Event:
        """Ask for the state of the first ``count`` ids. Returns an event that is set when the state
        has been kept, or when it is certain that it will not be kept."""
        return self._wanted.setdefault(count, asyncio.Event())

    @property
    def wanted(self) -> int | None:
        """The smallest ``count`` that must be computed first. None if there is none."""
        return min((*self._wanted, *self.checkpoints), default=None)

    def is_awaited(self, count: int) -> bool:
        """Return whether the state of at most ``count`` ids was asked for by ``want``."""
        return any(each <= count for each in self._wanted)

    def settle(self, count: int | None = None) -> None:
        """Wake the prompts that wait for at most ``count`` ids; all prompts if it is None."""
        self.checkpoints = {each for each in self.checkpoints if count and each > count}
        for wanted in [each for each in self._wanted if count is None or each <= count]:
            self._wanted.pop(wanted).set()
