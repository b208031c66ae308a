"""A backend that plays deltas one by one, and can be stopped among them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from antiphon.backends.base import Backend, Reply
from antiphon.conversation import Conversation, Options
from antiphon.stream.deltas import Delta

__all__ = ["Breaking"]


class Breaking(Backend, Reply):
    """``Backend`` and its own only ``Reply``: deltas are said, exceptions raised, events waited
    for. ``left`` is set when the reply is over, however it ended; ``said`` counts deltas."""

    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}
    input_tokens = 3

    def __init__(self, steps: Sequence[Delta | Exception | asyncio.Event]) -> None:
        self._steps = steps
        self.left = asyncio.Event()
        self.said = 0

    async def prepare(self, conversation: Conversation, options: Options) -> Breaking:
        return self

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        known: list[Delta] = []
        try:
            for step in (*self._steps, None):
                if step is not None and not isinstance(step, asyncio.Event | Exception):
                    self.said += 1
                    known.append(step)
                    continue
                if known:
                    yield tuple(known)
                    known = []
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif step is not None:
                    raise step
        finally:
            self.left.set()

    async def close(self) -> None: ...
