"""A backend that plays deltas step by step and can be stopped between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from antiphon.backends.base import Backend, DeltaSink, Reply
from antiphon.inference.conversation import Conversation, Options
from antiphon.stream.deltas import Delta
from antiphon.testing.replies import push_all


class SteppedBackend(Backend, Reply):
    """A ``Backend`` that is also its only ``Reply``.

    A step is a delta to yield, an exception to raise or an event to wait for. ``closed`` is set
    when the reply ends, however it ends. ``delta_count`` counts the deltas.
    """

    context_size: int | None = None
    recommended_options: Mapping[str, Any] = {}
    input_tokens = 3

    def __init__(self, steps: Sequence[Delta | Exception | asyncio.Event]) -> None:
        self._steps = steps
        self.closed = asyncio.Event()
        self.delta_count = 0

    async def prepare(self, conversation: Conversation, options: Options) -> SteppedBackend:
        return self

    async def pump(self, sink: DeltaSink) -> None:
        await push_all(self.deltas(), sink)

    async def deltas(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        known: list[Delta] = []
        try:
            for step in (*self._steps, None):
                if step is not None and not isinstance(step, asyncio.Event | Exception):
                    self.delta_count += 1
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
            self.closed.set()

    async def close(self) -> None: ...
